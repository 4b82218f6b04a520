"""Spark: two cores write the folder of one process, whoever dies on the way."""

from __future__ import annotations

import os
import stat
import warnings

import psutil
import pytest
from clusters import PART, Covertype, Killer, Small, command_of, content, shuffled
from command_line import refuse, run

import fragility as fg
from fragility.auditing.spark import SparkWorkers, _find_complaint, _start, audit_dataframe, check_java
from fragility.base.errors import ClusterError, DataError

pytest.importorskip("pyspark")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def spark():
    from pyspark.sql import SparkSession

    session = _start(SparkSession, 2)
    session.conf.set("spark.sql.shuffle.partitions", "4")
    yield session
    session.stop()


def dataframe(spark, rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of a new pandas
        return spark.createDataFrame(rows)


def test_two_cores_write_the_folder_of_one_process(spark, small, tmp_path):
    counted = []
    audit = fg.audit_files(
        small.model, small.file, small.protocol, tmp_path / "out", workers=SparkWorkers(2),
        progress=lambda done, total: counted.append((done, total)), **small.options,
    )  # fmt: skip
    assert content(tmp_path / "out") == content(small.folder)
    assert counted[-1] == (len(audit), len(audit)) and len(counted) == -(-len(audit) // PART)


@pytest.mark.slow
def test_a_dataframe_in_any_order_gives_the_folder_of_sorted_rows(spark, small, tmp_path):
    df = dataframe(spark, shuffled(small.rows)).repartition(5)
    audit_dataframe(df, small.model, small.protocol, out=tmp_path / "out", **small.options)
    assert content(tmp_path / "out") == content(small.folder)
    certificates = audit_dataframe(df, small.model, small.protocol, **small.options).select("digest").collect()
    assert sorted(row["digest"] for row in certificates) == small.digests


def test_two_cores_write_the_modes_of_one_process(spark, small, tmp_path):
    options = {**small.options, "modes": True, "intervals": 9, "baselines": False}
    fg.audit_files(small.model, small.file, small.protocol, tmp_path / "one", **options)
    fg.audit_files(small.model, small.file, small.protocol, tmp_path / "two", workers=SparkWorkers(2), **options)
    assert content(tmp_path / "two") == content(tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [True, 9])
def test_a_dataframe_has_the_blocks_of_the_folder_of_sorted_rows(spark, small, tmp_path, wanted):
    df, both = dataframe(spark, shuffled(small.rows)).repartition(5), {"modes": wanted, "intervals": wanted}
    fg.audit_files(small.model, small.file, small.protocol, tmp_path / "one", **both, **small.options)
    audit_dataframe(df, small.model, small.protocol, out=tmp_path / "two", **both, **small.options)
    assert content(tmp_path / "two") == content(tmp_path / "one")
    if wanted is True:
        found = audit_dataframe(df, small.model, small.protocol, **both, **small.options).select("intervals_digest")
        stored = fg.open_audit(tmp_path / "one").batches(["intervals_digest"])
        digests = [text for table in stored for text in table["intervals_digest"].to_pylist()]
        assert sorted(row["intervals_digest"] for row in found.collect()) == sorted(digests)


def test_dataframes_without_distinct_ids_are_refused(spark, small, tmp_path):
    twice = dataframe(spark, small.rows.assign(loan=["l7", "l7", *small.rows["loan"][2:]]))
    with pytest.raises(DataError, match="ids must be distinct, 'l7' appears"):
        audit_dataframe(twice, small.model, small.protocol, out=tmp_path / "out", **small.options)
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match="the id column 'key' is not among the columns"):
        audit_dataframe(twice, small.model, small.protocol, id_column="key")


def test_the_command_writes_the_same_folder(spark, small, tmp_path):
    import joblib

    joblib.dump(small.model, tmp_path / "model.joblib")
    small.protocol.save(tmp_path / "protocol.json")
    words = ["audit", tmp_path / "model.joblib", small.file, "--trust", "--protocol", tmp_path / "protocol.json"]
    words += ["--id", "loan", "--target", "risk", "--part-rows", PART, "--on", "spark", "--workers", 2]
    done = run(*words, "--modes", "none", "--any-value", "none", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert content(tmp_path / "out") == content(small.folder)


def test_the_command_says_what_is_missing(small, tmp_path, monkeypatch):
    words = ["audit", "no-model.skops", small.file, "--out", tmp_path / "out", "--protocol", "no.json", "--on", "spark"]
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "Spark needs Java 17 or later" in refuse(*words)
    monkeypatch.setattr("fragility.base.libraries.find_spec", lambda name: None)
    assert "pip install 'fragility[spark]'" in refuse(*words)


def test_java_that_is_too_old_or_absent_is_named(tmp_path, monkeypatch):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ClusterError, match=r"needs Java 17 or later, and .* is 8; set JAVA_HOME"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(ClusterError, match="there is no java on the PATH"):
        check_java()


def test_a_log_is_told_in_the_line_that_names_the_error(tmp_path):
    log = tmp_path / "log"
    log.write_text("26/11/16 03:04 ERROR SparkContext: All masters are unresponsive\n26/11/16 03:05 WARN Bye\n")
    assert _find_complaint(log) == "SparkContext: All masters are unresponsive"
    log.write_text("Unrecognized option: -Xnonsense\n")
    assert _find_complaint(log) == "Unrecognized option: -Xnonsense"


def spark_workers() -> list[psutil.Process]:
    family = psutil.Process().children(recursive=True)
    daemons = [process for process in family if "pyspark.daemon" in command_of(process)]
    return [process for process in daemons if process.ppid() in {daemon.pid for daemon in daemons}]


@pytest.mark.slow
def test_workers_killed_in_the_middle_change_nothing_on_covertype(spark, tmp_path):
    case = Covertype(tmp_path)
    killer = Killer(spark_workers)
    audit = fg.audit_files(
        case.model, case.file, case.protocol, tmp_path / "out", workers=SparkWorkers(2), progress=killer, **case.options
    )
    assert len(killer.killed) == 2
    assert audit.manifest.root_digest == fg.open_audit(case.folder).manifest.root_digest
    assert content(tmp_path / "out") == content(case.folder)

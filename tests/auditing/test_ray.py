"""Ray: two workers write the folder of one process, whoever dies on the way."""

from __future__ import annotations

import builtins
import os

import psutil
import pytest
from clusters import PART, Covertype, Killer, Small, command_of, content, shuffled
from command_line import refuse, run

import fragility as fg
from fragility.auditing.ray import RayWorkers, audit_dataset
from fragility.base import libraries
from fragility.base.errors import ClusterError, DataError

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def ray():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    import ray

    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=128 * 2**20
    )
    yield ray
    ray.shutdown()


def test_two_workers_write_the_folder_of_one_process(ray, small, tmp_path):
    counted = []
    audit = fg.audit_files(
        small.model, small.file, small.protocol, tmp_path / "out", workers=RayWorkers(2),
        progress=lambda done, total: counted.append((done, total)), **small.options,
    )  # fmt: skip
    assert content(tmp_path / "out") == content(small.folder)
    assert counted[-1] == (len(audit), len(audit)) and len(counted) == -(-len(audit) // PART)


@pytest.mark.slow  # Spark shares the code, and is asked for every change
@pytest.mark.parametrize("modes", [True, 9])
def test_two_workers_write_the_modes_of_one_process(ray, small, tmp_path, modes):
    options = {**small.options, "modes": modes, "intervals": modes, "baselines": False}
    fg.audit_files(small.model, small.file, small.protocol, tmp_path / "one", **options)
    fg.audit_files(small.model, small.file, small.protocol, tmp_path / "two", workers=RayWorkers(2), **options)
    assert content(tmp_path / "two") == content(tmp_path / "one")
    assert any(name.startswith("modes-") for name in content(tmp_path / "one"))
    assert any(name.startswith("intervals-") for name in content(tmp_path / "one"))


@pytest.mark.slow
def test_a_dataset_in_any_order_gives_the_folder_of_sorted_rows(ray, small, tmp_path):
    ds = ray.data.from_pandas(shuffled(small.rows)).repartition(5)
    options = {**small.options, "workers": 2}
    audit_dataset(ds, small.model, small.protocol, out=tmp_path / "out", **options)
    assert content(tmp_path / "out") == content(small.folder)
    certificates = audit_dataset(ds, small.model, small.protocol, **options).to_pandas()
    assert sorted(certificates["digest"]) == small.digests


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [True, 9])
def test_a_dataset_has_the_blocks_of_the_folder_of_sorted_rows(ray, small, tmp_path, wanted):
    ds, both = ray.data.from_pandas(shuffled(small.rows)).repartition(5), {"modes": wanted, "intervals": wanted}
    fg.audit_files(small.model, small.file, small.protocol, tmp_path / "one", **both, **small.options)
    audit_dataset(ds, small.model, small.protocol, out=tmp_path / "two", workers=2, **both, **small.options)
    assert content(tmp_path / "two") == content(tmp_path / "one")
    if wanted is True:
        table = audit_dataset(ds, small.model, small.protocol, workers=2, **both, **small.options).to_pandas()
        stored = fg.open_audit(tmp_path / "one").batches(["intervals_digest"])
        digests = [text for batch in stored for text in batch["intervals_digest"].to_pylist()]
        assert sorted(table["intervals_digest"]) == sorted(digests)


@pytest.mark.slow
def test_datasets_without_distinct_ids_are_refused(ray, small, tmp_path):
    twice = ray.data.from_pandas(small.rows.assign(loan=["l7", "l7", *small.rows["loan"][2:]]))
    for out in (tmp_path / "out", tmp_path / "out"):  # a refused audit leaves nothing in the way of the next
        with pytest.raises(DataError, match="ids must be distinct, 'l7' appears"):
            audit_dataset(twice, small.model, small.protocol, out=out, **small.options)
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match="the id column 'key' is not among the columns"):
        audit_dataset(twice, small.model, small.protocol, id_column="key")


def test_the_command_says_what_is_missing(small, tmp_path, monkeypatch):
    words = ["audit", "no-model.skops", small.file, "--out", tmp_path / "out", "--protocol", "no.json"]
    assert "--on must be ray or spark, got 'dask'" in refuse(*words, "--on", "dask")
    assert "--workers has no effect without --on" in refuse(*words, "--workers", 2)
    monkeypatch.setattr("fragility.base.libraries.find_spec", lambda name: None)
    assert "pip install 'fragility[ray]'" in refuse(*words, "--on", "ray")
    assert not (tmp_path / "out").exists()


def test_missing_ray_is_said_in_python_too(small, tmp_path, monkeypatch):
    real = builtins.__import__

    def without_ray(name, *args, **kwargs):
        if name == "ray":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    find = libraries.find_spec
    monkeypatch.setattr(libraries, "find_spec", lambda name: None if name == "ray" else find(name))
    with pytest.raises(ClusterError, match=r"pip install 'fragility\[ray\]'"):
        fg.audit_files(
            small.model, small.file, small.protocol, tmp_path / "out", workers=RayWorkers(2), **small.options
        )


def test_the_command_writes_the_same_folder(ray, small, tmp_path):
    import joblib

    joblib.dump(small.model, tmp_path / "model.joblib")
    small.protocol.save(tmp_path / "protocol.json")
    words = ["audit", tmp_path / "model.joblib", small.file, "--trust", "--protocol", tmp_path / "protocol.json"]
    words += ["--id", "loan", "--target", "risk", "--part-rows", PART, "--on", "ray", "--workers", 2]
    done = run(*words, "--modes", "none", "--any-value", "none", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert content(tmp_path / "out") == content(small.folder)


def ray_workers() -> list[psutil.Process]:
    family = psutil.Process().children(recursive=True)
    return [process for process in family if any("_Worker" in word for word in command_of(process)[:1])]


@pytest.mark.slow
def test_workers_killed_in_the_middle_change_nothing_on_covertype(ray, tmp_path):
    case = Covertype(tmp_path)
    killer = Killer(ray_workers)
    audit = fg.audit_files(
        case.model, case.file, case.protocol, tmp_path / "out", workers=RayWorkers(2), progress=killer, **case.options
    )
    assert len(killer.killed) == 2
    assert audit.manifest.root_digest == fg.open_audit(case.folder).manifest.root_digest
    assert content(tmp_path / "out") == content(case.folder)

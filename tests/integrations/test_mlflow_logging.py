"""`log_audit`: a run gets the numbers of an audit, with intervals, and files that verify."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from command_line import run
from naive_intervals import share_interval

import fragility as fg
from fragility.base.errors import DataError, ModelError

VERIFY = "fragility verify certificates --model MODEL --data DATA"
CONFIDENT = 0.8  # of the 200 rows, few reach 0.9


@pytest.fixture(scope="module")
def certs(case) -> fg.Certificates:
    return fg.audit(case.model, case.rows, case.protocol, rates=0.02, modes=["wrong"], progress=False)


def read_run(mlflow, run_id: str):
    return mlflow.get_run(run_id).data


def download(mlflow, run_id: str, path: str, home: Path) -> Path:
    return Path(mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path=path, dst_path=str(home)))


def naive_share(holds: list[bool]) -> list[float]:
    count = sum(holds)
    return [count / len(holds), *share_interval(count, len(holds), 1.959963984540054)]


def naive_mean(values: list[float]) -> list[float]:
    """The mean, and the bounds of Maurer and Pontil at 97.5% on each side."""
    n, log = len(values), math.log(2 / 0.025)
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    room = math.sqrt(2 * variance * log / n) + 7 * log / (3 * (n - 1))
    return [mean, max(mean - room, 0.0), min(mean + room, 1.0)]


def test_metrics_are_counted_from_the_certificates(tracking, certs, case) -> None:
    stress = fg.label_brittle(case.model, case.rows, case.protocol, fg.Stress(tau_confidence=CONFIDENT), progress=False)
    found = read_run(tracking, fg.log_audit(certs, stress=stress, min_confidence=CONFIDENT)).metrics
    every = [certs[place] for place in range(len(certs))]
    sure = [cert for cert in every if cert.confidence >= CONFIDENT]
    modes = dict(zip(certs.ids_of_block("modes"), certs.modes["wrong"].exposure.tolist(), strict=True))
    lost = certs.table.column("failure_probability").to_pylist()
    wanted = {
        "flips_after_one": naive_share([(cert.smallest_size or 99) <= 1 for cert in sure]),
        "flips_early": naive_share([(cert.smallest_size or 99) <= 2 for cert in sure]),
        "holds": naive_share([cert.smallest_state == "none at all, proved" for cert in sure]),
        "confident_mean_exposure": naive_mean([cert.exposure for cert in sure]),
        "confident_mean_exposure_wrong": naive_mean([modes[cert.id] for cert in sure]),
        "lost": naive_mean(lost),
        "brittle": naive_share([bool(b) for b, c in zip(stress.brittle, stress.confidence, strict=True) if c >= 0.8]),
    }
    assert found.pop("fragility/rows") == len(every) and found.pop("fragility/confident_rows") == len(sure) > 50
    for name, values in wanted.items():
        own = [found.pop(f"fragility/{name}{end}") for end in ("", "_low", "_high")]
        assert own == pytest.approx(values, abs=1e-9), name
        assert 0.0 <= own[1] <= own[0] <= own[2] <= 1.0
    assert found == {f"fragility/{name}_unsettled": 0.0 for name in ("flips_after_one", "flips_early", "holds")}


def test_the_report_says_the_same_shares(tracking, certs) -> None:
    found = read_run(tracking, fg.log_audit(certs, min_confidence=CONFIDENT)).metrics
    confident = fg.Report.of(certs, min_confidence=CONFIDENT).to_dict()["audits"][0]["confident"]
    share = confident["flips_early"]
    assert [found[f"fragility/flips_early{end}"] for end in ("_low", "_high")] == [share["lower"], share["upper"]]
    assert found["fragility/confident_mean_exposure"] == pytest.approx(confident["mean_exposure"], abs=1e-9)


def test_tags_and_params_bind_the_run_to_the_audit(tracking, certs) -> None:
    data, manifest = read_run(tracking, fg.log_audit(certs)), certs.manifest
    digests = {key: value for key, value in data.tags.items() if key.startswith("fragility/")}
    assert digests == {
        "fragility/root_digest": manifest.root_digest,
        "fragility/model_fingerprint": manifest.model.fingerprint,
        "fragility/protocol_digest": certs.protocol.digest,
        "fragility/input_digest": manifest.input.digest,
    }
    assert data.params["fragility/engine"] == "linear" and data.params["fragility/baseline"] == "typical"
    assert data.params["fragility/min_confidence"] == "0.9" and data.params["fragility/groups"] == "4"


def test_artefacts_download_and_verify(tracking, certs, case, tmp_path) -> None:
    run_id = fg.log_audit(certs)
    home = download(tracking, run_id, "fragility", tmp_path)
    assert sorted(each.name for each in home.iterdir()) == ["certificates", "protocol.json", "report.html"]
    assert (home / "report.html").read_text() == fg.Report.of(certs, verify=VERIFY).to_html()
    assert fg.Protocol.load(home / "protocol.json") == case.protocol
    assert fg.verify(home / "certificates", case.model, case.rows)
    assert fg.Certificates.load(home / "certificates").table.equals(certs.table)


def test_the_run_is_the_active_one_a_given_one_or_a_new_one(tracking, certs) -> None:
    with tracking.start_run() as active:
        assert fg.log_audit(certs) == active.info.run_id
        assert tracking.active_run() is not None
    with tracking.start_run() as other:
        pass
    assert fg.log_audit(certs, other.info.run_id) == fg.log_audit(certs, other) == other.info.run_id
    new = fg.log_audit(certs)
    assert new not in (active.info.run_id, other.info.run_id) and tracking.active_run() is None
    assert tracking.get_run(new).info.status == "FINISHED"


def test_a_folder_is_logged_with_its_signature_and_nothing_else_in_it(tracking, certs, case, tmp_path) -> None:
    pytest.importorskip("securesystemslib", reason="the extra sign is not installed")
    folder = certs.save(tmp_path / "audit")
    (folder / "notes.txt").write_text("not of the audit")
    public = fg.generate_keys(tmp_path / "key")
    fg.sign(folder, tmp_path / "key")
    run_id = fg.log_audit(folder)
    home = download(tracking, run_id, "fragility/certificates", tmp_path / "back")
    own = {each.name for each in folder.iterdir() if not each.name.startswith(".")}
    assert {each.name for each in home.iterdir()} == own - {"notes.txt"}
    assert fg.verify_signature(home, public) and fg.verify(home, case.model, case.rows)
    assert read_run(tracking, run_id).metrics == read_run(tracking, fg.log_audit(fg.open_audit(folder))).metrics


def test_verdicts_of_a_gate_are_counted_and_kept(tracking, certs, tmp_path) -> None:
    rules = (fg.Rule(measure="flips_early", at_most=1.0), fg.Rule(measure="exposure", at_most=0.0, above=0.0))
    verdicts = fg.Gate(rules, min_confidence=CONFIDENT).check(certs)
    run_id = fg.log_audit(certs, gate=verdicts)
    data = read_run(tracking, run_id)
    counts = {name: data.metrics[f"fragility/gate_{name}"] for name in ("passed", "failed", "inconclusive")}
    assert counts == {"passed": 1.0, "failed": 1.0, "inconclusive": 0.0} and data.tags["fragility/gate"] == "fail"
    home = download(tracking, run_id, "fragility", tmp_path)
    assert json.loads((home / "gate.json").read_text()) == json.loads(json.dumps(verdicts.to_dict()))
    assert "❌ fail" in (home / "gate.md").read_text()


def test_a_report_of_ones_own_is_logged(tracking, certs, case, tmp_path) -> None:
    report = fg.Report.of(certs, name="credit", rows=case.rows, by=["age:30"], min_confidence=0.7)
    run_id = fg.log_audit(certs, report=report)
    assert download(tracking, run_id, "fragility/report.html", tmp_path).read_text() == report.to_html()
    sure = int((np.asarray(certs.table.column("confidence")) >= 0.7).sum())
    data = read_run(tracking, run_id)
    assert data.metrics["fragility/confident_rows"] == sure and data.params["fragility/min_confidence"] == "0.7"


def test_an_audit_without_confident_rows_has_no_shares(tracking, certs) -> None:
    found = read_run(tracking, fg.log_audit(certs.take([0, 1, 2]), min_confidence=0.999999)).metrics
    assert {key.removeprefix("fragility/") for key in found} == {
        "rows",
        "confident_rows",
        "lost",
        "lost_low",
        "lost_high",
    }
    assert found["fragility/confident_rows"] == 0.0


def test_one_audit_per_name_and_run(tracking, certs, case) -> None:
    run_id = fg.log_audit(certs)
    fg.log_audit(certs, run_id)  # again: nothing changes
    other = fg.audit(case.model, case.rows[:50], case.protocol, progress=False)
    before = read_run(tracking, run_id).metrics
    with pytest.raises(
        DataError, match=r"^the run \w+ holds another audit as 'fragility': its fragility/root_digest is "
    ) as no:
        fg.log_audit(other, run_id)
    assert str(no.value).endswith("; give this one another name, or another run")
    with pytest.raises(
        DataError, match=r"its fragility/min_confidence is '0\.9', not '0\.5'; give this one another name"
    ):
        fg.log_audit(certs, run_id, min_confidence=0.5)
    assert read_run(tracking, run_id).metrics == before
    fg.log_audit(other, run_id, name="first-50")
    assert read_run(tracking, run_id).metrics["first-50/rows"] == 50.0
    gate = fg.Gate((fg.Rule(measure="flips_early", at_most=1.0),))
    for limit in (1.0, 0.0):  # verdicts may change with the rules
        gate = fg.Gate((fg.Rule(measure="exposure", at_most=limit, above=0.0),), min_confidence=0.5)
        fg.log_audit(certs, run_id, gate=gate.check(certs))
    assert read_run(tracking, run_id).tags["fragility/gate"] == "fail"


def test_what_does_not_belong_together_is_refused(tracking, store, certs, case) -> None:
    before = len(tracking.search_runs([store.experiment]))
    other = fg.audit(case.model, case.rows[:50], case.protocol, progress=False)
    with pytest.raises(DataError, match=r"^the report is of another audit; make one of the audit that is logged, with"):
        fg.log_audit(certs, report=fg.Report.of(other))
    encode, head = case.model
    train, rows = encode.transform(case.train), encode.transform(case.rows)
    inner = fg.audit(head, rows, fg.Protocol.fit(head, train), progress=False)
    verdicts = fg.Gate((fg.Rule(measure="flips_early", at_most=1.0),)).check(inner)
    with pytest.raises(
        DataError, match=r"^the verdicts are of another model, LogisticRegression \(sha256:\w+\); check the"
    ):
        fg.log_audit(certs, gate=verdicts)
    stress = fg.label_brittle(case.model, case.rows[:50], case.protocol, progress=False)
    with pytest.raises(DataError, match=r"150 of the 200"):
        fg.log_audit(certs, stress=stress)
    assert len(tracking.search_runs([store.experiment])) == before  # no run was begun


@pytest.mark.parametrize("name", ["", "a/b", "..", "wie schön", 7])
def test_a_name_is_one_that_mlflow_takes(certs, name: object) -> None:
    wanted = f"name must consist of letters, digits, '_', '-', '.' and blanks, got {name!r}; metrics are called"
    with pytest.raises(DataError, match=f"^{re.escape(wanted)}"):
        fg.log_audit(certs, name=name)


def test_a_run_that_does_not_exist_is_one_sentence(certs) -> None:
    with pytest.raises(DataError, match=r"^MLflow does not find the run 'nothing': .*nothing") as caught:
        fg.log_audit(certs, "nothing")
    assert "\n" not in str(caught.value)


def test_without_mlflow_the_extra_is_named(certs, monkeypatch) -> None:
    monkeypatch.setattr("fragility.base.libraries.find_spec", lambda name: None)
    with pytest.raises(
        ModelError, match=r"^log_audit needs mlflow; install it with: pip install 'fragility\[mlflow\]'$"
    ):
        fg.log_audit(certs)


def test_the_commands_read_what_was_logged(tracking, certs, tmp_path) -> None:
    home = download(tracking, fg.log_audit(certs), "fragility/certificates", tmp_path)
    assert run("show", home, "-n", 3).code == 0

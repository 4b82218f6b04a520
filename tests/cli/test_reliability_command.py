"""`fragility reliability` as a user meets it."""

import json

import pandas as pd
import pytest
import skops.io
from command_line import refuse, run
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg

pytest.importorskip("numba")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("reliability")
    X, y = fg.load_credit_g()
    numeric = list(make_column_selector(dtype_include="number")(X))
    nominal = [name for name in X.columns if name not in numeric]
    prepare = make_column_transformer((StandardScaler(), numeric), (OneHotEncoder(sparse_output=False), nominal))
    model = make_pipeline(prepare, GradientBoostingClassifier(n_estimators=30, random_state=0)).fit(X[:500], y[:500])
    skops.io.dump(model, home / "model.skops")
    fg.Protocol.fit(model, X[:500]).save(home / "protocol.json")
    X.assign(risk=y)[900:930].to_parquet(home / "rows.parquet")
    (home / "rates.json").write_text(json.dumps({"checking_status": 0.2, "purpose": 0.1}))
    log = [("monday", "checking_status"), ("monday", "duration"), ("friday", "checking_status")]
    pd.DataFrame(log, columns=["event", "field"]).to_csv(home / "log.csv", index=False)
    return home


def reliability(folder, *more):
    return (
        "reliability", folder / "protocol.json", "--model", folder / "model.skops", "--data", folder / "rows.parquet",
        "--target", "risk", "--trust", *more,
    )  # fmt: skip


def loaded(folder):
    model = fg.load_model(folder / "model.skops", trust=True)
    rows = pd.read_parquet(folder / "rows.parquet").drop(columns="risk")
    return model, rows, fg.Protocol.load(folder / "protocol.json")


def test_one_rate_for_all(folder, tmp_path):
    done = run(
        *reliability(folder, "--rates", "0.05", "--top", "3", "--out", tmp_path / "lost.json"),
        *("--out", tmp_path / "lost.csv", "--out", tmp_path / "fields.png"),
    )
    assert done.code == 0, done.err
    expected = fg.assess_reliability(*loaded(folder), 0.05)
    assert f"{expected.lost:.1f} of 30 decisions" in done.out and "exact for every row" in done.out
    assert expected.groups()["group"][0] in done.out
    assert json.loads((tmp_path / "lost.json").read_text())["decisions_lost"] == pytest.approx(expected.lost)
    assert pd.read_csv(tmp_path / "lost.csv")["p_flip"].to_numpy() == pytest.approx(expected.p_flip)
    assert (tmp_path / "fields.png").stat().st_size > 5_000


def test_rates_of_lost_and_wrong_values(folder, tmp_path):
    rates = {"checking_status": {"lost": 0.02, "wrong": 0.005}, "purpose": 0.1}
    (tmp_path / "rates.json").write_text(json.dumps(rates))
    done = run(*reliability(folder, "--rates", tmp_path / "rates.json", "--out", tmp_path / "lost.json"))
    assert done.code == 0, done.err
    expected = fg.assess_reliability(*loaded(folder), rates)
    found = json.loads((tmp_path / "lost.json").read_text())
    assert found["decisions_lost"] == pytest.approx(expected.lost)
    assert [row["one_failure"] for row in found["predictions"]] == pytest.approx(expected.one_failure.tolist())
    assert "at the declared rates of missing and wrong values" in done.out


def test_rates_by_field_and_from_a_log(folder, tmp_path):
    named = run(*reliability(folder, "--rates", folder / "rates.json", "--out", tmp_path / "named.json"))
    assert named.code == 0, named.err
    expected = fg.assess_reliability(*loaded(folder), {"checking_status": 0.2, "purpose": 0.1})
    assert json.loads((tmp_path / "named.json").read_text())["decisions_lost"] == pytest.approx(expected.lost)
    logged = run(*reliability(folder, "--rates", folder / "log.csv"))
    assert logged.code == 0 and "when one of 2 recorded outages strikes" in logged.out
    spread = run(*reliability(folder, "--rates", folder / "log.csv", "--observations", "10"))
    assert spread.code == 0 and "at the declared rates" in spread.out


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--rates", "1.5"), "rates must be a number from 0 to 1, got 1.5"),
        (("--rates", "nowhere.csv"), "there is no file nowhere.csv"),
        (("--rates", "0.1", "--observations", "5"), "--observations has no effect without a log of outages"),
        (("--rates", "0.1", "--out", "lost.xlsx"), "must end in .json or .txt or .parquet or .csv"),
    ],
)
def test_wrong_requests_get_one_sentence(folder, more, sentence):
    assert sentence in refuse(*reliability(folder, *more))


def audited(folder, out, *more):
    return run(
        "audit", folder / "model.skops", folder / "rows.parquet", "--protocol", folder / "protocol.json",
        "--target", "risk", "--trust", "--out", out, *more,
    )  # fmt: skip


def test_an_audit_with_rates_is_read_and_verified_with_its_block(folder, tmp_path):
    done = audited(folder, tmp_path / "a", "--rates", folder / "rates.json")
    assert done.code == 0, done.err
    certs = fg.Certificates.load(tmp_path / "a")
    told = " ".join(done.out.split())
    assert f"for {certs.summary()['fewer_suffice'].count} a smaller failing set exists than the path found" in told
    assert f"{certs.summary()['lost'].total:.1f} decisions" in told and "to be lost at the declared rates" in told
    ranked = run("show", tmp_path / "a", "--score", "failure_probability", "--min-confidence", "0.5", "-n", "3")
    assert ranked.code == 0 and "lost" in ranked.out
    row = certs.most_fragile(1, 0.5, by="failure_probability")[0]
    assert str(row.id) in ranked.out
    shown = run("show", tmp_path / "a", "--row", row.id)
    assert "smallest failing set" in shown.out and "at the declared rates" in " ".join(shown.out.split())
    words = ("--model", folder / "model.skops", "--data", folder / "rows.parquet", "--target", "risk", "--trust")
    checked = run("verify", tmp_path / "a", *words)
    assert checked.code == 0 and "lattice" in checked.out and "verified: every claim of all 30" in checked.out
    page = (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    assert "What to make reliable first" in page and 'id="reliable"' in page


def test_audits_with_and_without_a_block_compare(folder, tmp_path):
    assert audited(folder, tmp_path / "plain").code == 0
    assert audited(folder, tmp_path / "sets", "--lattice", "all").code == 0
    assert audited(folder, tmp_path / "log", "--rates", folder / "log.csv").code == 0
    done = run("report", tmp_path / "plain", tmp_path / "sets", tmp_path / "log")
    assert done.code == 0 and "decisions expected to be lost" in " ".join(done.out.split())
    assert "audit with --rates to have it" in refuse("show", tmp_path / "sets", "--score", "failure_probability")
    assert fg.Certificates.load(tmp_path / "log").manifest.blocks["lattice"].events

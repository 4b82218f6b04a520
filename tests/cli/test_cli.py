"""The command line as a user meets it: what it prints, what it writes, and one sentence for every mistake."""

import errno
import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import skops.io
from command_line import COLUMNS, NOMINAL, NUMERIC, Done, audit_words, refuse, replaced, run, verify_words
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fragility as fg
from fragility.cli.terminal import explain, note_command

# --- what works ---------------------------------------------------------------------------------------------


def test_audit_writes_what_the_library_computes(made, model, table):
    certs = fg.Certificates.load(made / "audit")
    X = table[NUMERIC + NOMINAL]
    ids = table["loan"][700:760].tolist()
    expected = fg.audit(model, X[700:760], fg.Protocol.fit(model, X[:700]), ids=ids)
    assert certs.to_pandas()["digest"].tolist() == expected.to_pandas()["digest"].tolist()


@pytest.mark.parametrize("data", ["test.csv", "test.arrow"])
def test_the_file_format_of_the_rows_changes_nothing(made, tmp_path, data):
    assert run(*audit_words(made, data), "--out", tmp_path / "audit").code == 0
    digests = [fg.Certificates.load(f / "audit").to_pandas()["digest"].tolist() for f in (made, tmp_path)]
    assert digests[0] == digests[1]


def test_rows_selects_a_slice(made, tmp_path):
    assert run(*audit_words(made), "--rows", "10:20", "--out", tmp_path / "audit").code == 0
    part = fg.Certificates.load(tmp_path / "audit").to_pandas()["digest"].tolist()
    assert part == fg.Certificates.load(made / "audit").to_pandas()["digest"].tolist()[10:20]


def test_audit_ends_with_numbers_and_a_next_step(made, tmp_path):
    done = run(*audit_words(made), "--rows", "5", "--out", tmp_path / "audit")
    assert "5 certificates in" in done.out
    assert f"next: fragility show {tmp_path / 'audit'}" in done.err


def test_audit_names_the_fields_whose_baseline_no_row_has(made, tmp_path):
    shown = f"{', '.join(NOMINAL[:3])}{', ...' if len(NOMINAL) > 3 else ''}"
    said = f"for {len(NOMINAL)} nominal fields ({shown}) the baseline mean is a value that no training row has"
    done = run(*audit_words(made), "--rows", "5", "--baseline", "mean", "--out", tmp_path / "mean")
    assert done.code == 0 and f"{said}; --baseline typical takes one that exists" in " ".join(done.out.split())
    assert said in " ".join((tmp_path / "mean" / "report.html").read_text(encoding="utf-8").split())
    shown_protocol = run("protocol", "show", tmp_path / "mean").out
    assert f"artificial      {', '.join(NOMINAL)}" in shown_protocol
    usual = run(*audit_words(made), "--rows", "5", "--out", tmp_path / "usual")
    assert usual.code == 0 and "no training row has" not in usual.out + usual.err
    assert "artificial      none" in run("protocol", "show", tmp_path / "usual").out


def test_audit_says_once_that_no_field_was_ever_missing(made, table, tmp_path):
    X = table[NUMERIC + NOMINAL].astype(dict.fromkeys(NUMERIC, float))
    fill = ColumnTransformer(
        [
            ("nominal", OneHotEncoder(handle_unknown="ignore"), NOMINAL),
            ("numeric", make_pipeline(SimpleImputer(), StandardScaler()), NUMERIC),
        ]
    )
    model = make_pipeline(fill, LogisticRegression(max_iter=1000)).fit(X[:700], table["risk"][:700])
    skops.io.dump(model, tmp_path / "model.skops")
    for name, part in {"train": table[:700], "test": table[700:720]}.items():
        part.astype(dict.fromkeys(NUMERIC, float)).to_parquet(tmp_path / f"{name}.parquet")
    words = ["audit", tmp_path / "model.skops", tmp_path / "test.parquet", *COLUMNS, "--out", tmp_path / "audit"]
    said = "fields (duration, credit_amount, age, ...) had no missing value in training"
    done = run(*words, "--train", tmp_path / "train.parquet", "--baseline", "missing")
    assert done.code == 0 and " ".join((done.out + done.err).split()).count(said) == 1
    again = run(*words[:-1], tmp_path / "again", "--protocol", tmp_path / "audit")
    assert " ".join((again.out + again.err).split()).count(said) == 1
    refused = run(
        *words[:-1],
        tmp_path / "no",
        "--train",
        tmp_path / "train.parquet",
        "--baseline",
        "missing",
        "--space",
        "transformed",
    )
    assert refused.code != 0 and "begins behind the preprocessing, so use --space raw" in " ".join(refused.err.split())


def test_show_tells_the_story_of_one_row(made):
    done = run("show", made / "audit", "--row", "L0703")
    assert done.code == 0
    assert done.out.strip() == fg.Certificates.load(made / "audit").by_id("L0703").story().strip()


def test_show_accepts_a_row_number_where_ids_are_numbers(made, tmp_path):
    for name in ("train", "test"):
        pd.read_parquet(made / f"{name}.parquet").drop(columns="loan").to_parquet(tmp_path / f"{name}.parquet")
    words = ["audit", made / "model.skops", tmp_path / "test.parquet", "--train", tmp_path / "train.parquet"]
    assert run(*words, "--target", "risk", "--rows", "5", "--out", tmp_path / "audit").code == 0
    assert "row 3:" in run("show", tmp_path / "audit", "--row", "3").out


def test_show_lists_the_most_fragile_confident_predictions(made):
    done = run("show", made / "audit", "-n", "3", "--min-confidence", "0.7")
    certs = fg.Certificates.load(made / "audit").most_fragile(3, min_confidence=0.7)
    places = [done.out.index(str(cert.id)) for cert in certs]
    assert done.code == 0 and places == sorted(places)


def test_show_says_when_nothing_is_confident(made):
    done = run("show", made / "audit", "--min-confidence", "1.0")
    assert done.code == 0 and "none of the 60 predictions" in done.out
    surest = max(cert.confidence for cert in fg.Certificates.load(made / "audit"))
    assert f"the largest is {surest:.1%}; lower --min-confidence to list less confident ones" in " ".join(
        done.out.split()
    )


def test_show_of_an_audit_without_rows_says_so(made, tmp_path):
    fg.Certificates.load(made / "audit").take([]).save(tmp_path / "empty")
    done = run("show", tmp_path / "empty")
    assert done.code == 0 and done.out == "none of the 0 predictions reaches a confidence of 90%\n"


def test_a_report_of_audits_shows_them_side_by_side(made, tmp_path):
    run(*audit_words(made), "--baseline", "typical", "--out", tmp_path / "again")
    words = ["report", made / "audit", tmp_path / "again"]
    done = run(*words, "--labels", made / "test.parquet", *COLUMNS)
    assert done.code == 0
    for measure in ("accuracy", "mean flip budget k*", "targeted loss (RCMA)", "mean FDS", "flip after one group"):
        assert measure in done.out
    truth = pd.read_parquet(made / "test.parquet")["risk"]
    predicted = fg.Certificates.load(made / "audit").to_pandas()["predicted"]
    assert f"{np.mean(truth.to_numpy() == predicted.to_numpy()):.1%}" in done.out
    assert "cover different rows" not in done.out and "another protocol" not in done.out


def test_audits_that_do_not_compare_are_marked_above_everything(made, tmp_path):
    run(*audit_words(made), "--baseline", "zero", "--out", tmp_path / "zero")
    done = run("report", made / "audit", tmp_path / "zero")
    assert done.code == 0
    told = " ".join(done.out.split())
    assert told.startswith("Not comparable: "), told[:200]
    assert " against zero)" in told and "may come from the protocol, not from the model" in told
    assert "no longer flip early" not in done.out and "flip early under the first protocol only" in done.out


def test_scales_and_rows_that_differ_are_told(made, tmp_path):
    run(*audit_words(made), "--depth", "2", "--rows", "7", "--out", tmp_path / "short")
    done = run("report", made / "audit", tmp_path / "short")
    assert done.code == 0
    assert "not on the same scale" in " ".join(done.out.split()) and "cover different rows" in done.out


@pytest.mark.parametrize(("words", "searched"), [([], None), (["--lattice", "all"], 60), (["--lattice", "none"], 0)])
def test_the_most_exposed_rows_are_searched_unless_said_otherwise(made, tmp_path, words, searched):
    done = run(*audit_words(made), *words, "--out", tmp_path / "a")
    assert done.code == 0, done.err
    certs = fg.Certificates.load(tmp_path / "a")
    confident = int((certs.claims.confidence >= 0.9).sum())
    assert len(certs.ids_of_block("lattice")) == (confident if searched is None else searched)
    which = "the predictions" if words else f"the {confident} most exposed confident predictions"
    assert (f"smallest failing sets of {which}: for " in done.out) == (words != ["--lattice", "none"])
    assert ("smallest failing set" in run("show", tmp_path / "a", "--row", certs[0].id).out) == bool(
        certs.ids_of_block("lattice")
    )


def test_the_finding_is_computed_under_other_baselines_unless_said_otherwise(made, tmp_path):
    done = run(*audit_words(made), "--out", tmp_path / "a")
    assert done.code == 0, done.err
    certs = fg.Certificates.load(tmp_path / "a")
    assert certs.baselines.baselines == ("typical", *certs.protocol.alternatives)
    assert str(certs.baselines) in done.out and "model evaluations" not in done.err  # a linear model is read
    assert "Does the finding depend on the baseline?" in (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    off = run(*audit_words(made), "--other-baselines", "none", "--out", tmp_path / "b")
    assert "(declared)" not in off.out and fg.open_audit(tmp_path / "b").baselines is None
    assert "--other-baselines must be all or none, got 'some'" in refuse(
        *audit_words(made), "--other-baselines", "some", "--out", tmp_path / "c"
    )


def test_what_other_baselines_cost_a_black_box_is_said_first(made, tmp_path):
    done = run(*audit_words(made), "--engine", "blackbox", "--out", tmp_path / "a")
    protocol = fg.open_audit(tmp_path / "a").protocol
    most = 500 * protocol.states_per_row * len(protocol.alternatives)
    assert f"on at most 500 confident rows: up to {most:,} model evaluations; --other-baselines none" in done.err


def test_rates_need_the_search(made, tmp_path):
    said = refuse(*audit_words(made), "--rates", "0.05", "--lattice", "none", "--out", tmp_path / "a")
    assert "--rates needs the search that --lattice none leaves out" in said


def test_verify_exits_0_when_every_claim_holds(made):
    assert run(*verify_words(made)).code == 0
    assert run(*verify_words(made), "--sample", "5").code == 0


def test_verify_finds_the_fields_by_itself(made):
    """The protocol names them, so a label beside them needs no --target."""
    words = verify_words(made)
    place = words.index("--target")
    done = run(*words[:place], *words[place + 2 :])
    assert done.code == 0, done


def test_verify_exits_1_when_the_rows_are_others(made, tmp_path):
    frame = pd.read_parquet(made / "test.parquet")
    frame.loc[3, "age"] += 1
    frame.to_parquet(tmp_path / "other.parquet")
    words = verify_words(made)
    words[words.index("--data") + 1] = tmp_path / "other.parquet"
    done = run(*words)
    assert done.code == 1 and "Traceback" not in done.err


def test_verify_exits_2_when_it_cannot_check(made, tmp_path):
    words = verify_words(made)
    words[1] = tmp_path
    assert "manifest" in refuse(*words)


def test_protocol_is_written_shown_and_checked(made, tmp_path):
    file = tmp_path / "protocol.json"
    source = ["--model", made / "model.skops", "--train", made / "train.parquet", *COLUMNS]
    written = run("protocol", "write", file, *source, "--severities", "0.5,1", "--weights", "1,2,1", "--depth", "3")
    protocol = fg.Protocol.load(file)
    assert written.code == 0 and protocol.digest in written.out
    assert protocol.severities == (0.5, 1.0) and protocol.depth == 3
    shown = run("protocol", "show", file)
    assert all(name in shown.out for name in protocol.group_names) and protocol.digest in shown.out
    assert "Baselines are in the units of the model's transformed columns" in shown.out
    assert run("protocol", "write", tmp_path / "raw.json", *source, "--space", "raw").code == 0
    assert "Baselines are raw values." in run("protocol", "show", tmp_path / "raw.json").out
    asked = ["--model", made / "model.skops", "--data", made / "test.parquet", *COLUMNS]
    checked = run("verify", file, *asked)
    assert checked.code == 0 and "it fits 60 rows: " in checked.out
    assert "not checked: that the protocol is fitted on training rows" in checked.out
    assert "not checked" not in run("verify", file, *asked, "--train", made / "train.parquet").out
    other = run("verify", file, *asked, "--train", made / "test.parquet")
    assert other.code == 1 and "the protocol is not fitted on these training rows" in other.out
    pd.read_parquet(made / "test.parquet").drop(columns="age").to_parquet(tmp_path / "less.parquet")
    assert "'age'" in refuse("verify", file, *asked[:2], "--data", tmp_path / "less.parquet", *COLUMNS)


def test_the_papers_protocol(made, tmp_path):
    source = ["--model", made / "model.skops", "--train", made / "train.parquet", *COLUMNS]
    assert run("protocol", "write", tmp_path / "p.json", *source, "--paper").code == 0
    assert fg.Protocol.load(tmp_path / "p.json").reading == "current"


def test_smoothing_is_declared_and_shown(made, tmp_path):
    source = ["--model", made / "model.skops", "--train", made / "train.parquet", *COLUMNS]
    assert run("protocol", "write", tmp_path / "p.json", *source, "--smoothing", "0.02").code == 0
    assert "smoothing       0.02" in run("protocol", "show", tmp_path / "p.json").out
    assert run(*audit_words(made), "--smoothing", "0.02", "--out", tmp_path / "audit").code == 0
    assert fg.open_audit(tmp_path / "audit").protocol == fg.Protocol.load(tmp_path / "p.json")
    assert "smoothing       0\n" in run("protocol", "show", made / "audit").out
    told = refuse("protocol", "write", tmp_path / "q.json", *source, "--paper", "--smoothing", "0.02")
    assert "--paper already declares the smoothing; leave out --smoothing" in told
    told = refuse("protocol", "write", tmp_path / "q.json", *source, "--smoothing", "1.5")
    assert "smoothing must be a number from 0 to 1, got 1.5" in told


def test_a_decision_threshold_is_declared_by_name_of_its_class(made, model, table, tmp_path):
    rule = ["--threshold", "0.3", "--positive", "bad"]
    assert run(*audit_words(made), *rule, "--out", tmp_path / "audit").code == 0
    certs = fg.Certificates.load(tmp_path / "audit")
    p = model.predict_proba(table[NUMERIC + NOMINAL][700:760])[:, 0]
    assert certs.to_pandas()["predicted"].tolist() == np.where(p >= 0.3, "bad", "good").tolist()
    source = ["--model", made / "model.skops", "--train", made / "train.parquet", *COLUMNS]
    assert run("protocol", "write", tmp_path / "p.json", *source, *rule).code == 0
    assert fg.Protocol.load(tmp_path / "p.json").digest == certs.protocol.digest
    assert "'bad' where its probability is at least 0.3" in run("protocol", "show", tmp_path / "p.json").out
    assert "--threshold" in refuse("protocol", "write", tmp_path / "q.json", *source, "--positive", "bad")
    assert "'ugly'" in refuse("protocol", "write", tmp_path / "q.json", *source, *rule[:3], "ugly")


def test_a_protocol_file_replaces_training_rows(made, tmp_path):
    fg.Certificates.load(made / "audit").protocol.save(tmp_path / "p.json")
    words = [word for word in audit_words(made) if word not in ("--train", made / "train.parquet")]
    assert run(*words, "--protocol", tmp_path / "p.json", "--out", tmp_path / "audit").code == 0
    both = [fg.Certificates.load(f / "audit").to_pandas()["digest"].tolist() for f in (made, tmp_path)]
    assert both[0] == both[1]


def test_a_model_named_as_module_and_attribute(made, tmp_path, monkeypatch):
    code = f"import joblib\npipeline = joblib.load({str(made / 'model.joblib')!r})\n"
    (tmp_path / "scoring_of_this_test.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    words = audit_words(made)
    words[1] = "scoring_of_this_test:pipeline"
    assert run(*words, "--rows", "5", "--out", tmp_path / "audit").code == 0


def test_groups_and_baseline_from_files(made, tmp_path):
    blocks = {name: "account" if name.endswith("status") else name for name in NUMERIC + NOMINAL}
    (tmp_path / "groups.json").write_text(json.dumps(blocks))
    row = pd.read_parquet(made / "train.parquet")[NUMERIC + NOMINAL].iloc[0].to_dict()
    (tmp_path / "baseline.json").write_text(json.dumps(row, default=lambda value: value.item()))
    options = ["--groups", tmp_path / "groups.json", "--baseline", tmp_path / "baseline.json", "--space", "raw"]
    done = run(*audit_words(made), *options, "--out", tmp_path / "audit")
    assert done.code == 0, done.err
    protocol = fg.Certificates.load(tmp_path / "audit").protocol
    assert "account" in protocol.group_names and protocol.baseline == "explicit" and protocol.space == "raw"


def test_nothing_is_drawn_on_standard_error_in_a_pipe(made, tmp_path):
    done = run(*audit_words(made), "--out", tmp_path / "audit")
    assert "\x1b" not in done.out + done.err and "━" not in done.err


# --- the demo -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Path, Done]:
    folder = tmp_path_factory.mktemp("demo") / "demo-audit"
    return folder, run("demo", "--out", folder)


def test_demo_prints_the_finding_and_how_it_depends_on_the_baseline(demo):
    folder, done = demo
    assert done.code == 0, done.err
    certs = fg.Certificates.load(folder)
    sure = [cert for cert in certs if cert.confidence >= 0.9]
    early = sum(cert.flipped and cert.flip_budget <= 2 for cert in sure)
    assert f"{early} of {len(sure)} confident predictions flip early, {early / len(sure):.1%} (95% interval" in done.out
    assert certs.baselines is not None and str(certs.baselines) in done.out
    assert "harden" not in (done.out + done.err).lower()


def test_demo_prints_the_smallest_failing_sets(demo):
    folder, done = demo
    certs = fg.Certificates.load(folder)
    lines = [re.split(r"\s*│\s*", line.strip("│ \n")) for line in done.out.splitlines() if line.startswith("│")]
    worst = list(certs.most_fragile(len(lines), min_confidence=0.9))
    assert len(lines) == 8 and all(cert.smallest_state == "minimum" for cert in worst)
    assert [(line[0], line[1], line[3].replace(" and ", ", ")) for line in lines] == [
        (str(cert.id), cert.predicted, ", ".join(cert.path[: cert.flip_budget])) for cert in worst
    ]
    assert [cert.flip_budget for cert in worst] == [cert.smallest_size for cert in worst]
    sizes = [cert.smallest_size for cert in certs if cert.confidence >= 0.9 and cert.smallest_size]
    assert f"{sizes.count(1)} flip when one field is lost, {sizes.count(2)} only when two are, " in done.out


def test_demo_says_which_field_to_make_reliable_first_and_what_that_assumes(demo):
    folder, done = demo
    first = re.search(
        r"Make (\w+) reliable first: if it never failed, ([\d.]+) of the ([\d.]+) would be kept", done.out
    )
    assert first is not None and float(first[2]) < float(first[3])
    assert (
        "The table assumes that all fields are missing equally often" in done.out
        and "is missing 5% of the time" in done.out
    )
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "What to make reliable first" in page and html.escape(first[0]) in page
    assert "The rates were declared, not measured" in page and "depend on the baseline?" in page


def test_demo_writes_the_report_with_the_command_that_verifies_it(demo):
    folder, done = demo
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Right and wrong" in page and "What a review would find" in page and page.count("<script") == 1
    command = next(line for line in done.err.splitlines() if "fragility verify" in line).strip()
    told = html.unescape(re.search(r"<code>(.*?)</code>", page)[1])
    assert sorted(told.split()) == sorted(command.split())
    assert not (folder / "index.html").exists() and not list(folder.glob("*.png"))


def suggested(done: Done) -> dict[str, list[str]]:
    """Return the words of each command that the demo suggests, by its name."""
    words = [shlex.split(line) for line in done.err.splitlines() if line.startswith("  fragility ")]
    return {own[1]: own[1:] for own in words}


@pytest.mark.parametrize("name", ["show", "verify", "report"])
def test_the_commands_that_the_demo_suggests_work(demo, name):
    _, done = demo
    assert list(suggested(done)) == ["show", "verify", "report", "review"]
    assert run(*suggested(done)[name]).code == 0


@pytest.mark.slow
def test_the_review_that_the_demo_suggests_opens(demo):
    words = [sys.executable, "-m", "fragility", *suggested(demo[1])["review"]]
    environment = {**os.environ, "BROWSER": "true"}  # a browser that shows nothing
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert address.startswith("http://review-") and "/?token=" in address, said


def test_a_suggested_command_is_not_broken_by_a_narrow_terminal_or_a_blank(monkeypatch, capsys):
    monkeypatch.setattr("fragility.cli.terminal.PIPE_WIDTH", 20)
    note_command("fragility", "show", "my audits", "--row", "a rather long identifier")
    assert capsys.readouterr().err == "  fragility show 'my audits' --row 'a rather long identifier'\n"


@pytest.mark.slow
def test_demo_can_be_run_again(demo):
    folder, first = demo
    again = run("demo", "--out", folder)
    assert again.code == 0 and again.out == first.out


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.fixture
def out(tmp_path) -> list[object]:
    return ["--out", tmp_path / "audit"]


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request, tmp_path):
    """A refused command leaves no folder, whole or half."""
    yield
    if "out" in request.fixturenames and request.node.get_closest_marker("leaves_output") is None:
        assert not (tmp_path / "audit").exists()
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_missing_data_file(made, out):
    assert "nowhere.parquet does not exist" in refuse(*audit_words(made, "nowhere.parquet"), *out)


def test_missing_training_file(made, out, tmp_path):
    words = replaced(audit_words(made), "--train", tmp_path / "gone.csv")
    assert "--train" in refuse(*words, *out)


def test_missing_model_file(made, out):
    assert "gone.skops" in refuse(*audit_words(made, model="gone.skops"), *out)


def test_truncated_model_file(made, out, tmp_path):
    (tmp_path / "model.skops").write_bytes((made / "model.skops").read_bytes()[:200])
    words = audit_words(made)
    words[1] = tmp_path / "model.skops"
    assert "model.skops" in refuse(*words, *out)


def test_unknown_kind_of_model_file(made, out, tmp_path):
    (tmp_path / "model.xyz").write_bytes(b"?")
    words = audit_words(made)
    words[1] = tmp_path / "model.xyz"
    assert ".skops" in refuse(*words, *out)


def test_a_pickle_needs_trust(made, out):
    assert "--trust" in refuse(*audit_words(made, model="model.joblib"), *out)


def test_a_pickle_with_trust(made, tmp_path):
    words = [*audit_words(made, model="model.joblib"), "--trust", "--rows", "5", "--out", tmp_path / "trusted"]
    assert run(*words).code == 0


def test_unreadable_data_file(made, out, tmp_path):
    (tmp_path / "data.parquet").write_bytes(b"not a parquet file")
    words = audit_words(made)
    words[2] = tmp_path / "data.parquet"
    assert "data.parquet could not be read" in refuse(*words, *out)


def test_unknown_kind_of_data_file(made, out, tmp_path):
    (tmp_path / "data.xlsx").write_bytes(b"?")
    words = audit_words(made)
    words[2] = tmp_path / "data.xlsx"
    assert ".parquet" in refuse(*words, *out)


def test_a_folder_instead_of_a_data_file(made, out, tmp_path):
    words = audit_words(made)
    words[2] = tmp_path
    assert "names no table; files that end in one of .parquet" in refuse(*words, *out)


def changed(made: Path, tmp_path: Path, change) -> list[object]:
    """Audit words whose DATA is test.parquet after `change`."""
    change(pd.read_parquet(made / "test.parquet")).to_parquet(tmp_path / "changed.parquet")
    words = audit_words(made)
    words[2] = tmp_path / "changed.parquet"
    return words


def test_empty_data(made, out, tmp_path):
    assert "no rows" in refuse(*changed(made, tmp_path, lambda t: t[:0]), *out)


def test_empty_csv_file(made, out, tmp_path):
    (tmp_path / "empty.csv").write_text("")
    words = audit_words(made)
    words[2] = tmp_path / "empty.csv"
    assert "empty.csv" in refuse(*words, *out)


def test_missing_column(made, out, tmp_path):
    assert "'age'" in refuse(*changed(made, tmp_path, lambda t: t.drop(columns="age")), *out)


def test_extra_column(made, out, tmp_path):
    assert "'note'" in refuse(*changed(made, tmp_path, lambda t: t.assign(note=1)), *out)


def test_renamed_column(made, out, tmp_path):
    sentence = refuse(*changed(made, tmp_path, lambda t: t.rename(columns={"age": "Age"})), *out)
    assert "'age'" in sentence and "'Age'" in sentence


def test_text_in_a_numeric_column(made, out, tmp_path):
    assert "'age'" in refuse(*changed(made, tmp_path, lambda t: t.assign(age="old")), *out)


def test_missing_values_that_the_model_refuses(made, out, tmp_path):
    assert "'age'" in refuse(*changed(made, tmp_path, lambda t: t.assign(age=np.nan)), *out)


def test_infinite_value(made, out, tmp_path):
    assert "'age'" in refuse(*changed(made, tmp_path, lambda t: t.assign(age=np.inf)), *out)


def test_duplicate_ids(made, out, tmp_path):
    assert "'L0700'" in refuse(*changed(made, tmp_path, lambda t: t.assign(loan="L0700")), *out)


@pytest.mark.leaves_output
def test_one_row_is_enough(made, out):
    assert run(*audit_words(made), "--rows", "1", *out).code == 0


def test_wrong_target_column(made, out):
    assert "'riks'" in refuse(*replaced(audit_words(made), "--target", "riks"), *out)


def test_wrong_id_column(made, out):
    assert "'lone'" in refuse(*replaced(audit_words(made), "--id", "lone"), *out)


@pytest.mark.parametrize("rows", ["many", "0", "90:99", "1:2:3", "", "-5", "-5:", "3:-1", "1.5", ":0"])
def test_wrong_rows(made, out, rows):
    assert "--rows" in refuse(*audit_words(made), "--rows", rows, *out)


def test_depth_larger_than_the_number_of_groups(made, out):
    assert "depth" in refuse(*audit_words(made), "--depth", "7", *out)


CHOICES = [("--reading", "loud"), ("--baseline", "median-ish"), ("--space", "outer"), ("--engine", "steam")]


@pytest.mark.parametrize(("option", "value"), CHOICES)
def test_a_word_that_is_not_a_choice(made, out, option, value):
    assert f"'{value}'" in refuse(*audit_words(made), option, value, *out)


@pytest.mark.leaves_output
def test_fields_that_a_group_map_leaves_out_are_groups_of_their_own(made, out, tmp_path):
    (tmp_path / "groups.json").write_text(json.dumps({"amounts": NUMERIC}))
    done = run(*audit_words(made), "--groups", tmp_path / "groups.json", *out)
    assert done.code == 0, done.err
    assert set(fg.open_audit(tmp_path / "audit").protocol.group_names) == {"amounts", *NOMINAL}


def test_group_map_that_overlaps(made, out, tmp_path):
    blocks = {"a": NUMERIC + NOMINAL, "b": ["age"]}
    (tmp_path / "groups.json").write_text(json.dumps(blocks))
    assert "age" in refuse(*audit_words(made), "--groups", tmp_path / "groups.json", *out)


def test_group_map_that_is_not_json(made, out, tmp_path):
    (tmp_path / "groups.json").write_text("{")
    assert "groups.json" in refuse(*audit_words(made), "--groups", tmp_path / "groups.json", *out)


def test_neither_training_rows_nor_protocol(made, out):
    words = [word for word in audit_words(made) if word not in ("--train", made / "train.parquet")]
    sentence = refuse(*words, *out)
    assert "--train" in sentence and "--protocol" in sentence


def test_protocol_and_options_that_describe_one(made, out, tmp_path):
    fg.Certificates.load(made / "audit").protocol.save(tmp_path / "p.json")
    assert "--protocol already declares" in refuse(*audit_words(made), "--protocol", tmp_path / "p.json", *out)


def test_protocol_made_for_other_columns(made, out, tmp_path, table):
    X = table[NUMERIC]
    other = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, table["risk"])
    fg.Protocol.fit(other, X).save(tmp_path / "p.json")
    words = [word for word in audit_words(made) if word not in ("--train", made / "train.parquet")]
    assert "protocol" in refuse(*words, "--protocol", tmp_path / "p.json", *out)


def test_protocol_file_that_is_not_one(made, out, tmp_path):
    (tmp_path / "p.json").write_text("[]")
    words = [word for word in audit_words(made) if word not in ("--train", made / "train.parquet")]
    assert "protocol" in refuse(*words, "--protocol", tmp_path / "p.json", *out)


def test_out_is_a_file(made, tmp_path):
    (tmp_path / "taken").write_text("")
    assert "is a file" in refuse(*audit_words(made), "--out", tmp_path / "taken")


def test_out_is_a_folder_with_other_things(made, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.doc").write_text("precious")
    assert "not an audit folder" in refuse(*audit_words(made), "--out", tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.doc").read_text() == "precious"


def test_unwritable_folder(made):
    # /proc refuses new folders even to root, who may write anywhere else
    if not Path("/proc/self").exists():
        pytest.skip("needs a /proc file system")
    assert "/proc" in refuse(*audit_words(made), "--out", "/proc/audit")


def test_full_disk(made, out, monkeypatch):
    def no_space(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pyarrow.parquet.write_table", no_space)
    assert "No space left" in refuse(*audit_words(made), *out)


def test_show_of_an_unknown_row(made):
    assert "'nobody'" in refuse("show", made / "audit", "--row", "nobody")


@pytest.mark.parametrize("command", [["show", "--row", "1"], ["show"]])
def test_a_folder_that_is_no_audit(tmp_path, command):
    assert "manifest" in refuse(command[0], tmp_path, *command[1:])


def test_labels_need_the_name_of_their_column(made, tmp_path):
    run(*audit_words(made), "--rows", "5", "--out", tmp_path / "few")
    assert "--target" in refuse("report", made / "audit", tmp_path / "few", "--labels", made / "test.parquet")


def test_rows_of_one_audit_are_no_table(made, tmp_path):
    assert "must end in .txt or .md or .html or .json" in refuse("report", made / "audit", "--out", tmp_path / "a.csv")


def test_an_error_nobody_foresaw_is_one_sentence_too(made, out, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the flux is inverted\nand more")

    monkeypatch.setattr(fg, "audit_files", broken)
    sentence = refuse(*audit_words(made), *out)
    assert "RuntimeError: the flux is inverted" in sentence and "FRAGILITY_DEBUG=1" in sentence


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "x", "audit/map.png"), "audit/map.png: the disk is full; free some space"),
        (OSError(errno.EACCES, "x", "audit"), "audit: no permission to read or write there"),
        (OSError(errno.ENOENT, "x", "gone"), "gone: no such file or folder"),
        (MemoryError(), "not enough memory; audit fewer rows at a time with --rows"),
        (ZeroDivisionError("division by zero"), "unexpected ZeroDivisionError: division by zero (set FRAG"),
    ],
)
def test_errors_of_the_machine_in_words(error, sentence):
    assert explain(error).startswith(sentence)


def test_the_demo_does_not_write_over_other_things(tmp_path):
    (tmp_path / "thesis.doc").write_text("precious")
    assert "not an audit folder" in refuse("demo", "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.doc"]


SLOW_MODEL = """
import pathlib, time, joblib
pipeline = joblib.load({model!r})
started = pathlib.Path({started!r})

def probabilities(rows):
    if len(rows) > 100:          # more than the 60 rows there are: the states of the audit
        started.touch()
        time.sleep(60)
    return pipeline.predict_proba(rows)
"""


def test_interrupted_run_leaves_nothing(made, tmp_path):
    """Ctrl-C in the middle of an audit; the model tells when it has begun and then takes its time."""
    started = tmp_path / "started"
    code = SLOW_MODEL.format(model=str(made / "model.joblib"), started=str(started))
    (tmp_path / "slow_model_of_this_test.py").write_text(code)
    words = audit_words(made, model="unused")
    words[1] = "slow_model_of_this_test:probabilities"
    options = ["--classes", "bad,good", "--space", "raw", "--baseline", "typical", "--out", "results/audit"]
    (tmp_path / "results").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "fragility", *map(str, words), *options],
        cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not started.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert started.exists(), process.communicate()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; nothing was written" in err and "Traceback" not in err
    assert list((tmp_path / "results").iterdir()) == []

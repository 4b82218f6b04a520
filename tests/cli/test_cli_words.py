"""The command line speaks command line: advice in its own options, and one sentence for a mistyped word."""

import ast
import functools
import gzip
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import joblib
import pandas as pd
import pytest
import typer.main
from command_line import COLUMNS, NOMINAL, NUMERIC, audit_words, refuse, replaced, run, verify_words
from places import SOURCE
from rich.text import Text
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import fragility as fg
from fragility.analysis.ranking.metrics import class_codes
from fragility.analysis.segments import read_by
from fragility.base.errors import PYTHON_OBJECT, Advice
from fragility.cli import app

# --- advice -------------------------------------------------------------------------------------------------


def text_of(node: ast.AST) -> str:
    """The text of a string, its parts that are filled in later shown as {...}."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "{...}"


def called(node: ast.AST) -> str:
    """`Advice`, `Advice.argument`, `DataError`: what is called, empty if nothing is."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


@functools.cache
def parsed(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def sentences(path: Path) -> list[str]:
    """Every part of a message that a module raises as an error or gives as a warning; advice is data, not text."""
    raising = [node for node in parsed(path) if called(node).endswith(("Error", "Warning", "warn"))]
    return [text_of(argument) for node in raising for argument in node.args if not called(argument)]


def advices(path: Path) -> list[Advice]:
    """Every advice in a module."""
    found = []
    for node in parsed(path):
        if called(node) == "Advice":
            python, options = map(text_of, node.args)
            found.append(Advice(python, options))
        elif called(node) == "Advice.argument":
            found.append(Advice.argument(*map(text_of, node.args)))
    return found


# Modules whose errors no command of `fragility` can meet, or whose advice is about Python code the user must write.
PYTHON_ONLY = {"displays.py", "calibration.py", "mlflow_evaluator.py"}
OF_OTHER_LIBRARIES = {"feature_names_out", "init", "refit"}
ADVICE = re.compile(r"(?<![-\w])([a-z_]+)=(?!=)")
MODULES = [p for p in sorted(SOURCE.rglob("*.py")) if p.name not in PYTHON_ONLY and "resmlp" not in p.parts]


def all_options(command) -> set[str]:
    own = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*(all_options(child) for child in getattr(command, "commands", {}).values()))


OPTIONS = all_options(typer.main.get_command(app))


def in_python(text: str) -> set[str]:
    return set(ADVICE.findall(text)) - OF_OTHER_LIBRARIES


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_advice_in_python_reaches_the_command_line(path):
    for sentence in sentences(path):
        assert not in_python(sentence), f"say it as Advice, in options too: {sentence}"
    for advice in advices(path):
        if PYTHON_OBJECT not in advice.options and advice.options != "{...}":
            assert not in_python(advice.options), advice
        assert set(re.findall(r"(?<!\w)--[a-z][a-z-]*", advice.options)) <= OPTIONS, advice


def test_the_inspection_sees_advice():
    found = [advice for path in MODULES for advice in advices(path)]
    assert len(found) >= 40 and any("ids=" in advice.python for advice in found)
    assert Advice("space='raw'", "--space raw") in found


def test_an_error_says_its_advice_in_python_and_in_options():
    error = fg.DataError("2 appears twice; ", Advice("pass ids=, or reset the index", "name a column by --id"), ".")
    assert str(error) == "2 appears twice; pass ids=, or reset the index."
    assert error.in_options() == "2 appears twice; name a column by --id."
    assert error.in_options() == pickle.loads(pickle.dumps(error)).in_options()
    outer = fg.ModelError("rows 5 to 9: ", error, " (", Advice.argument("space", "raw"), ")")
    assert str(outer) == f"rows 5 to 9: {error} (space='raw')"
    assert outer.in_options() == f"rows 5 to 9: {error.in_options()} (--space raw)"


@pytest.mark.parametrize(
    ("fault", "python", "options"),
    [
        (lambda: fg.Model.wrap(lambda rows: rows), "declare them in column order: Model.wrap(model, classes=[...])",
         "declare them in column order with --classes A,B"),
        (lambda: fg.Model.wrap(pytest.importorskip("torch").nn.Linear(2, 2)),
         "of its probabilities; declare them in column order: Model.wrap(model, classes=[...], output='logits')",
         "of its probabilities; declare them in column order with --classes A,B, and what it returns with "
         "--returns logits"),
        (lambda: class_codes(["maybe"], ["no", "yes"]), "y holds 'maybe', not among",
         "the --target column holds 'maybe', not among"),
        (lambda: read_by("age", ["sex"]), "by names the column 'age', but", "--by names the column 'age', but"),
        (lambda: fg.DataError("the data have column 'y=1', which"), "column 'y=1', which", "column 'y=1', which"),
    ],
)  # fmt: skip
def test_advice_in_options(fault, python, options):
    with pytest.raises(fg.FragilityError) as caught:
        raise fault()
    assert python in str(caught.value) and options in caught.value.in_options()


def test_repeated_ids_are_told_in_options(made, tmp_path):
    pd.read_parquet(made / "test.parquet").assign(loan="L1").to_parquet(tmp_path / "twice.parquet")
    words = audit_words(made)
    words[2] = tmp_path / "twice.parquet"
    said = refuse(*words, "--out", tmp_path / "audit")
    assert "--id" in said and "ids=" not in said


def test_repeated_ids_are_told_in_options_by_verify_too(made, tmp_path):
    pd.read_parquet(made / "test.parquet").assign(loan="L1").to_parquet(tmp_path / "twice.parquet")
    done = run(*replaced(verify_words(made), "--data", tmp_path / "twice.parquet"))
    assert done.code != 0
    assert "--id" in done.out + done.err and "ids=" not in done.out + done.err


def test_columns_of_several_fields_are_told_in_options(made, table, tmp_path):
    X = table[NUMERIC]
    joblib.dump(make_pipeline(PCA(2), LogisticRegression()).fit(X[:700], table["risk"][:700]), tmp_path / "m.joblib")
    X[:700].to_parquet(tmp_path / "train.parquet")
    X[700:].to_parquet(tmp_path / "test.parquet")
    words = ["audit", tmp_path / "m.joblib", tmp_path / "test.parquet", "--train", tmp_path / "train.parquet"]
    said = refuse(*words, "--trust", "--out", tmp_path / "audit", "--space", "transformed")
    assert "--groups FILE" in said and "--space raw" in said and "='" not in said
    done = run(*words, "--trust", "--out", tmp_path / "audit")  # a space that nobody named is the raw one then
    assert done.code == 0 and "(--space raw)" in done.err and "'pca0' from 'duration'" in done.err


def test_a_warning_is_one_line_without_source_code(made, tmp_path):
    """Such as scikit-learn's, about a model of another version."""
    code = (
        f"import joblib, warnings\npipeline = joblib.load({str(made / 'model.joblib')!r})\n"
        "warnings.warn('this model is old\\nvery old')\n"
    )
    (tmp_path / "warning_model_of_this_test.py").write_text(code)
    words = audit_words(made)
    words[1] = "warning_model_of_this_test:pipeline"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        done = run(*words, "--rows", "3", "--out", tmp_path / "audit")
    assert done.code == 0 and "warning: this model is old\n" in done.err and "warnings.warn" not in done.err


# --- mistyped words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["audit", "--trian", "x"], "there is no option --trian; did you mean --train? (see fragility audit --help)"),
        (["show", "audit/", "--blue"], "there is no option --blue (see fragility show --help)"),
        (["adit"], "there is no command adit; did you mean audit? (see fragility --help)"),
        (["stduy"], "there is no command stduy; did you mean study? (see fragility --help)"),
        (["zzz"], "there is no command zzz (see fragility --help)"),
        (["protocol", "wirte"], "there is no command wirte; did you mean write? (see fragility protocol --help)"),
        (["--verison"], "there is no option --verison; did you mean --version? (see fragility --help)"),
        (["audit"], "MODEL is missing (see fragility audit --help)"),
        (["audit", "m.skops", "d.csv"], "--out DIR is missing (see fragility audit --help)"),
        (["sign", "kyes", "--out", "k"], "there is no option --out (see fragility sign --help)"),
        (["top", "audit/"], "there is no command top (see fragility --help)"),
        (["audit", "m", "d", "--out"], "option --out requires an argument (see fragility audit --help)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistyped_words_get_one_sentence(words, sentence):
    assert refuse(*words) == f"fragility: {sentence}\n"


def test_impossible_values_get_one_sentence():
    assert "--depth" in refuse("audit", "m.skops", "d.csv", "--out", "x", "--depth", "0")
    assert "--depth" in refuse("audit", "m.skops", "d.csv", "--out", "x", "--depth", "many")
    assert "(surplus)" in refuse("show", "audit/", "surplus")


@pytest.mark.parametrize("words", [[], ["protocol"], ["study"]], ids=" ".join)
def test_no_words_print_the_help(words):
    done = run(*words)
    assert done.code == 2 and "Usage: fragility" in done.out + done.err and "fragility: " not in done.err


def test_help_groups_the_commands():
    shown = run("--help").out
    for panel, commands in {
        "Start here": ["demo"],
        "Declare, audit, verify": ["audit", "verify", "protocol"],
        "Read and decide": ["show", "report", "policy", "review"],
        "Judge and correct": ["gate", "evaluate", "reliability", "harden"],
        "Deploy": ["parity", "serve", "watch"],
        "Sign and hand over": ["sign", "pack"],
        "From other packages": ["bench", "study"],
    }.items():
        part = shown[shown.index(panel) :].split("╰")[0]
        assert re.findall(r"│ (\w[\w ]*?)  ", part) == commands


# --- options that would have no effect ----------------------------------------------------------------------


def write_words(made, tmp_path, *more) -> list[object]:
    source = ["--model", made / "model.skops", "--train", made / "train.parquet", *COLUMNS]
    return ["protocol", "write", tmp_path / "p.json", *source, *more]


@pytest.mark.parametrize(
    ("option", "value"),
    [("depth", 3), ("reading", "support"), ("baseline", "typical"), ("weights", "1,2,1"), ("severities", "0.5,1"),
     ("operators", "attenuate_all"), ("baseline-units", "raw")],
)  # fmt: skip
def test_the_papers_protocol_is_not_changed_by_the_way(made, tmp_path, option, value):
    said = refuse(*write_words(made, tmp_path, "--paper", f"--{option}", value))
    declared = option.replace("-", " ")
    assert f"--paper already declares the {declared}; leave out --{option} or leave out --paper" in said
    assert not (tmp_path / "p.json").exists()


def test_what_the_paper_leaves_open_is_honoured(made, tmp_path):
    blocks = {name: "numbers" if name in NUMERIC else name for name in NUMERIC + NOMINAL}
    (tmp_path / "groups.json").write_text(json.dumps(blocks))
    words = write_words(
        made, tmp_path, "--paper", "--groups", tmp_path / "groups.json", "--space", "raw", "--resolution", 1e-5
    )
    assert run(*words).code == 0
    protocol = fg.Protocol.load(tmp_path / "p.json")
    assert set(protocol.group_names) == {"numbers", *NOMINAL}
    assert (protocol.space, protocol.resolution, protocol.reading) == ("raw", 1e-5, "current")


def test_a_merge_threshold_needs_merged_groups(made, tmp_path):
    assert "--groups merged" in refuse(*write_words(made, tmp_path, "--merge-threshold", 0.5))
    assert run(*write_words(made, tmp_path, "--groups", "merged", "--merge-threshold", 0.5)).code == 0


def test_a_report_refuses_columns_of_a_table_it_was_not_given(made):
    for option in ("--target", "--id"):
        assert "--labels" in refuse("report", made / "audit", option, "risk")


@pytest.mark.parametrize("command", ["evaluate labels", "evaluate"])
def test_recorded_outages_have_no_severity(made, tmp_path, command):
    pd.DataFrame({"event": [1, 2], "field": ["age", "purpose"]}).to_csv(tmp_path / "log.csv", index=False)
    words = [
        *command.split(),
        made / "audit",
        "--model",
        made / "model.skops",
        "--data",
        made / "test.parquet",
        *COLUMNS,
    ]
    said = refuse(*words, "--outages", tmp_path / "log.csv", "--severity", "0.3")
    assert "--severity" in said and "--outages" in said
    assert "--outages" in refuse(*words, "--markers", "?")
    assert "--stressors is the kind of random stress" in refuse(
        *words, "--outages", tmp_path / "log.csv", "--stressors", "noise"
    )


@pytest.mark.parametrize("command", ["evaluate labels", "evaluate"])
def test_stressors_are_named_and_donors_belong_to_one(made, command):
    words = [
        *command.split(),
        made / "audit",
        "--model",
        made / "model.skops",
        "--data",
        made / "test.parquet",
        *COLUMNS,
    ]
    assert "--stressors must be among mask, dropout, noise, donor, with commas between, got 'storm'" in refuse(
        *words, "--stressors", "mask,storm"
    )
    assert "got none" in refuse(*words, "--stressors", " ")
    assert "name them with --donors" in refuse(*words, "--stressors", "noise,donor")
    assert "--stressors does not name it" in refuse(*words, "--donors", made / "train.parquet")


def test_rehearsal_from_labels_to_the_list(made, tmp_path):
    given = ["--model", made / "model.skops", "--data", made / "test.parquet", *COLUMNS]
    labels, file = tmp_path / "labels.parquet", tmp_path / "policy.json"
    assert run("evaluate", "labels", made / "audit", *given, "--draws", 2, "--out", labels).code == 0
    scores = "exposure,rehearsal,confidence"
    done = run("policy", made / "audit", "--stress", labels, "--score", scores, "--risk", 0.9, "--out", file)
    assert done.code == 0 and "which of exposure, rehearsal and confidence needs the least review" in done.out
    written = json.loads(file.read_text())
    assert written["tried"] == scores.split(",") and written["by"] in written["tried"]
    done = run("policy", made / "audit", "--stress", labels, "--score", "rehearsal", "--risk", 0.9, "--out", file)
    assert done.code == 0 and f"--stress {labels}" in done.err
    assert "with --stress" in refuse("show", made / "audit", "--policy", file)
    assert run("show", made / "audit", "--policy", file, "--stress", labels).code == 0
    listed = run("show", made / "audit", "--score", "rehearsal", "--stress", labels, "--min-confidence", 0)
    assert listed.code == 0, listed.err
    assert "with --stress" in refuse("show", made / "audit", "--score", "rehearsal")
    assert "--score rehearsal" in refuse("show", made / "audit", "--stress", labels)


def test_a_policy_by_failure_mode(made, tmp_path):
    """From labels of wrong values to the list of cases, with the score named at every step."""
    given = ["--model", made / "model.skops", "--data", made / "test.parquet", *COLUMNS]
    wrong = ["--stressors", "donor", "--donors", made / "train.parquet", "--draws", 2]
    labels, file = tmp_path / "labels.parquet", tmp_path / "policy.json"
    assert run("evaluate", "labels", made / "audit", *given, *wrong, "--out", labels).code == 0
    done = run("policy", made / "audit", "--stress", labels, "--score", "wrong", "--risk", 0.9, "--out", file)
    assert done.code == 0 and "for the declared stress (donor(0.3))" in done.out and "would match it" not in done.err
    written = json.loads(file.read_text())
    assert written["by"] == "wrong" and written["unscored"] == 0
    written["rules"][0] |= {"threshold": 0.0}
    file.write_text(json.dumps(written))
    listed = run("show", made / "audit", "--policy", file)
    assert listed.code == 0 and "if wrong" in listed.out and "with exposure to wrong values of at least 0" in listed.err
    other = run("policy", made / "audit", "--stress", labels, "--score", "noisy", "--risk", 0.9)
    assert "the labels are of the stress donor, but rows are ordered by noisy: noise would match it" in other.err
    assert run(*audit_words(made), "--modes", "none", "--out", tmp_path / "bare").code == 0
    assert "what the failure mode 'wrong' costs: audit with --modes all" in refuse(
        "policy", tmp_path / "bare", "--stress", labels, "--score", "wrong"
    )
    assert "what the failure mode 'wrong' costs" in refuse("show", tmp_path / "bare", "--policy", file)
    few = [*given, "--random-orders", 0, "--draws", 2]
    judged = run("evaluate", made / "audit", *few, *wrong[:4], "--failure-modes", "wrong", "--score", "wrong")
    assert judged.code == 0 and "exposure_wrong" in judged.out
    assert "got 'wrong'; add it to --failure-modes" in refuse("evaluate", made / "audit", *few, "--score", "wrong")


def test_evaluate_has_an_engine_only_for_validation_rows(made):
    words = ["evaluate", made / "audit", "--model", made / "model.skops", "--data", made / "test.parquet", *COLUMNS]
    assert "--validation" in refuse(*words, "--engine", "blackbox")


def test_classes_in_another_order_are_refused(made, tmp_path):
    said = refuse(*audit_words(made), "--classes", "good,bad", "--out", tmp_path / "audit")
    assert "the model's own classes are ['bad', 'good'], in the order of its probability columns" in said
    assert run(*audit_words(made), "--classes", "bad,good", "--rows", 3, "--out", tmp_path / "audit").code == 0


def test_a_target_that_is_not_there_is_mentioned(made, tmp_path):
    done = run(*replaced(verify_words(made), "--target", "riks"))
    assert done.code == 0 and "no column 'riks', so --target has no effect" in done.err


# --- CSV files of other kinds -------------------------------------------------------------------------------


@pytest.fixture
def csv_words(made, tmp_path):
    """Return f(text bytes, *options) -> done: an audit of rows from that CSV file."""

    def words(content: bytes, *options: object, name: str = "rows.csv") -> list[object]:
        (tmp_path / name).write_bytes(content)
        found = audit_words(made)
        found[2] = tmp_path / name
        return [*found, *options, "--out", tmp_path / "audit"]

    return words


@pytest.fixture
def rows(made) -> pd.DataFrame:
    return pd.read_parquet(made / "test.parquet")


def digests(folder: Path) -> list[str]:
    return fg.Certificates.load(folder).to_pandas()["digest"].tolist()


@pytest.mark.parametrize(
    ("mark", "word", "hint"), [(";", ";", "--separator ';'"), ("\t", "tab", "--separator tab"), ("|", "|", "'|'")]
)
def test_other_separators(made, rows, csv_words, tmp_path, mark, word, hint):
    content = rows.to_csv(index=False, sep=mark).encode()
    assert hint in refuse(*csv_words(content))
    assert run(*csv_words(content, "--separator", word)).code == 0
    assert digests(tmp_path / "audit") == digests(made / "audit")


def test_decimal_commas(made, rows, csv_words, tmp_path):
    content = rows.assign(age=rows["age"] + 0.5).to_csv(index=False, sep=";", decimal=",").encode()
    assert "--separator ';' and --decimal ','" in refuse(*csv_words(content))
    assert run(*csv_words(content, "--separator", ";", "--decimal", ",")).code == 0


@pytest.mark.parametrize(
    ("encoding", "hint"),
    [("latin-1", "--encoding latin-1"), ("cp1252", "--encoding cp1252"), ("utf-16", "--encoding utf-16"),
     ("utf-16-le", "--encoding utf-16")],
)  # fmt: skip
def test_other_encodings(rows, csv_words, encoding, hint):
    word = "€ ’neu’" if encoding == "cp1252" else "Möbel"
    content = rows.assign(purpose=word).to_csv(index=False).encode(encoding)
    assert hint in refuse(*csv_words(content))
    assert run(*csv_words(content, "--encoding", encoding)).code == 0


def test_compressed_files_are_looked_into(rows, csv_words):
    content = gzip.compress(rows.to_csv(index=False, sep=";").encode())
    assert "--separator ';'" in refuse(*csv_words(content, name="rows.csv.gz"))
    assert run(*csv_words(content, "--separator", ";", name="rows.csv.gz")).code == 0


def test_training_rows_have_the_same_format(made, rows, csv_words, tmp_path):
    train = pd.read_parquet(made / "train.parquet")
    train.to_csv(tmp_path / "train.csv", index=False, sep=";")
    words = csv_words(rows.to_csv(index=False, sep=";").encode(), "--separator", ";")
    assert run(*replaced(words, "--train", tmp_path / "train.csv")).code == 0
    assert digests(tmp_path / "audit") == digests(made / "audit")


def test_options_of_csv_files_are_checked(made, rows, csv_words, tmp_path):
    content = rows.to_csv(index=False).encode()
    assert "must be one character" in refuse(*csv_words(content, "--separator", "::"))
    assert "--encoding klingon is not known" in refuse(*csv_words(content, "--encoding", "klingon"))
    for option, value in (("--separator", ";"), ("--encoding", "latin-1"), ("--decimal", ",")):
        said = refuse(*audit_words(made), option, value, "--out", tmp_path / "audit")
        assert f"{option} is for CSV files, but none was given" in said
    assert "is not ascii text" in refuse(
        *csv_words(rows.assign(purpose="Möbel").to_csv(index=False).encode(), "--encoding", "ascii")
    )


# --- models beside their classes ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pickle_finds_its_classes_beside_it(made, tmp_path, monkeypatch):
    """The module of a user's own transformer lies in the folder of the model, not in the current one."""
    folder, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "steps_of_this_test.py").write_text(
        "from sklearn.base import BaseEstimator, TransformerMixin\n"
        "class Same(TransformerMixin, BaseEstimator):\n"
        "    def fit(self, X, y=None):\n        self.fitted_ = True\n        return self\n"
        "    def transform(self, X):\n        return X\n"
        "    def get_feature_names_out(self, names):\n        return names\n"
    )
    make = (
        "import joblib, pandas as pd\nfrom sklearn.linear_model import LogisticRegression\n"
        "from sklearn.pipeline import make_pipeline\nfrom steps_of_this_test import Same\n"
        f"t = pd.read_parquet({str(made / 'train.parquet')!r})\n"
        f"m = make_pipeline(Same(), LogisticRegression(max_iter=5000)).fit(t[{NUMERIC!r}], t['risk'])\n"
        "joblib.dump(m, 'model.joblib')\n"
    )
    subprocess.run([sys.executable, "-c", make], cwd=folder, check=True)
    for name in ("train", "test"):
        pd.read_parquet(made / f"{name}.parquet")[[*NUMERIC, "risk"]].to_parquet(folder / f"{name}.parquet")
    words = ["audit", "../model/model.joblib", "../model/test.parquet", "--train", "../model/train.parquet"]
    options = ["--target", "risk", "--trust", "--space", "raw", "--rows", "3", "--out", "audit"]
    done = subprocess.run(
        [sys.executable, "-m", "fragility", *words, *options],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "3 certificates in audit" in done.stdout


# --- help texts ---------------------------------------------------------------------------------------------------


def all_commands(command, words=()):
    children = getattr(command, "commands", {})
    if not children:
        yield " ".join(words), command
    for name, child in children.items():
        yield from all_commands(child, (*words, name))


COMMANDS = dict(all_commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_no_bracket_of_a_help_text_is_taken_for_markup(name):
    """`{field: [values]}` once read `{field: }`: square brackets are markup unless they are escaped."""
    command = COMMANDS[name]
    for parameter in command.params:
        told = getattr(parameter, "help", None) or ""
        assert Text.from_markup(told).plain == told.replace("\\[", "["), (name, parameter.name)
    tags = set(re.findall(r"(?<!\\)\[[^\]]*\]", command.help or ""))
    assert tags <= {"[bold]", "[/bold]"}, name


def test_brackets_of_markers_are_shown():
    shown = {
        name: " ".join(run(*name.split(), "--help-all").out.split())
        for name in ("evaluate labels", "reliability", "harden")
    }
    assert all("{field: [values]}" in re.sub(r"[│ ]+", " ", text) for text in shown.values())


# Options in the same words everywhere, which name an option that only some of the commands with them have.
OF_OTHERS = {"model", "labels", "outages"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_text_names_only_options_of_its_command(name):
    command = COMMANDS[name]
    own = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    for parameter in command.params:
        told = getattr(parameter, "help", None) or ""
        if parameter.name in OF_OTHERS:
            continue
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", told)) <= own, (name, parameter.name)


def test_evaluate_asks_about_the_score_that_it_judges():
    command = COMMANDS["evaluate"]
    score = next(p for p in command.params if p.name == "score")
    assert score.default in command.help.splitlines()[0]


def test_an_option_means_the_same_in_every_command():
    """The same flags stand for the same kind of value, in the same words, with the same default."""
    told: dict[str, set[tuple[object, ...]]] = {}
    for command in COMMANDS.values():
        for p in command.params:
            if p.param_type_name == "option" and p.name not in OF_EACH_COMMAND:
                default = () if p.required else (p.default,)
                told.setdefault(p.opts[0], set()).add((p.metavar, p.help, *default))
    for name, found in told.items():
        defaults = {each[2] for each in found if len(each) == 3}
        assert len({each[:2] for each in found}) == 1 and len(defaults) <= 1, (name, found)


# What a command writes is its own, and names the forms that it can have; what is an option for one mode of working
# has its default there.
OF_EACH_COMMAND = {"out_dir", "out_file", "out_files", "out_path", "failure_modes"}
SCREEN = 50  # lines of 80 columns


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_fits_a_screen_and_says_how_to_see_the_rest(name, monkeypatch):
    if name.split()[0] in ("study", "bench"):
        pytest.skip("of another package")
    monkeypatch.setenv("COLUMNS", "80")
    done = run(*name.split(), "--help")
    lines = done.out.splitlines()
    assert done.code == 0 and len(lines) <= SCREEN and max(map(len, lines)) <= 80, len(lines)
    others = [p for p in COMMANDS[name].params if getattr(p, "rich_help_panel", None)]
    assert (f"{len(others)} more options: fragility {name} --help-all" in done.out) == bool(others)
    if others:
        whole = re.sub(r"[│ \n]+", " ", run(*name.split(), "--help-all").out)
        assert all(p.opts[0] in whole and p.rich_help_panel in whole for p in others)
        assert not any(f"│ {p.opts[0]} " in done.out for p in others)


def test_examples_in_a_help_are_at_most_three():
    for name, command in COMMANDS.items():
        assert 0 < len(re.findall(r"(?m)^\s*fragility ", command.help or "")) <= 3 or name.split()[0] in (
            "study",
            "bench",
        )


def test_a_help_lists_the_commands_of_two_words():
    for name in ("evaluate labels", "evaluate missing", "gate init", "review export", "sign keys", "sign prove"):
        assert f"fragility {name}: " in run(name.split()[0], "--help").out

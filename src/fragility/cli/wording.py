"""The library's sentences in the words of the command line.

Errors of the library advise whoever calls it from Python: `space='raw'`, `ids=`. At the command line the same remedy is
an option. All such sentences pass through `in_options`; a test holds every advice in the package against it.
"""

from __future__ import annotations

import re

# Arguments of Python functions that are options of the same name: space='raw' -> --space raw.
SAME_NAME = ("baseline", "by", "depth", "engine", "groups", "reading", "sample", "space")

PYTHON_OBJECT = "name it as package.module:attribute"

_PHRASES: tuple[tuple[str, str], ...] = (
    (r"pass ids=, or reset the index", "name a column with distinct ids by --id"),
    (r"pass the ids as text", "store them as text"),
    (r"which the model does not know; drop them",
     "which the model does not know; leave them out with --drop COL (or all such columns with --ignore-extra), name "
     "the label with --target and the row id with --id"),
    (r"\btrust=True", "--trust"),
    (r"give root='sha256:\.\.\.', or public_key=\.\.\. and signature=\.\.\.",
     "give --root DIGEST, or --public-key PUB and --signature FILE"),
    (r"at a time with part_rows=", "at a time with --part-rows"),
    (r": Model\.wrap\(model, classes=\[\.\.\.\]\)", " with --classes A,B"),
    (r"declare them in column order: (Model\.wrap\(model, .*\))", rf"wrap it in Python, \1, and {PYTHON_OBJECT}"),
    (r"(?<!model, )\bclasses=\[\.\.\.\]", "--classes A,B"),
    (r"\bmarkers=\.\.\.", "--markers A,B"),
    (r"keep only known ones with fields=\[\.\.\.\] when reading the log", "remove the others from the log"),
    (r"declare groups=(\{[^}]*\}) that keep", r"declare groups with --groups FILE (JSON: \1) that keep"),
    (r"if these are logits, declare output='logits'",
     f"if these are logits, write a function that turns them into probabilities and {PYTHON_OBJECT}"),
    (r"declare what (\S+) returns with output=('\w+'(?:, '\w+')* or '\w+')",
     rf"wrap it in Python with Model.wrap, which declares what \1 returns (\2), and {PYTHON_OBJECT}"),
    (r"^y holds", "the --target column holds"),
    (r"bound rows have their ids already; give ids= where the rows are bound", "bound rows have their ids already"),
    (r"; if it is a code, fit the protocol with nominal=\[[^]]*\]", "; if it is a code, store it as text"),
    (r"give it the training categories: pd\.Categorical\(.*\)$",
     "store it as a categorical column with the training categories (Parquet keeps them, CSV does not)"),
    (r"; fit it with response_method='predict_proba'", "; fit it anew so that it thresholds predict_proba"),
    (r"give segments=\{id: segment\} for these rows", "apply it in Python, with the segments of these rows"),
    (r"device='cuda' was asked for", "the device cuda was asked for"),
    (r" \(in a Pipeline: set_output\(transform='pandas'\)\)", ""),
    (r"give training rows with donors=X_train", "give training rows, in Python"),
    (r"audit with rates=\.\.\. to have it", "audit with --rates to have it"),
    (r"; say min_confidence$", "; say it with --min-confidence"),
    (r"give the audited rows with the ids of the audit",
     "give the audited rows, and name the column with the audit's ids by --id"),
    (r"name the column with the ids the audit was made with", "name the column with the audit's ids by --id"),
    (r"name the column with the true classes$", "name the column with the true classes by --target"),
    (r"give csv=CsvFormat\(encoding='([^']*)'\)", r"add --encoding \1"),
    (r"\bresume=True", "--resume"),
    (r"^rows (\S*) selects none", r"--rows \1 selects none"),
    (r"the id column ('[^']*') is not in", r"--id names the column \1, which is not in"),
    (r"^by (names the column|must be a column)", r"--by \1"),
    (r"\bbaseline_units='(\w+)'", r"--baseline-units \1"),
    (rf"\b({'|'.join(SAME_NAME)})='([\w-]+)'", r"--\1 \2"),
)  # fmt: skip


def in_options(sentence: str) -> str:
    """Return an error's sentence with advice in options instead of Python arguments."""
    for pattern, words in _PHRASES:
        sentence = re.sub(pattern, words, sentence)
    return sentence

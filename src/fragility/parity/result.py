"""ModelParity: what a comparison of two artefacts found, as data; its text and its JSON."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeAlias

import pandas as pd
import pyarrow as pa

from fragility.base.errors import DataError, FragilityError
from fragility.base.schemas import AtLeastZero, Count, Share, one_of, read_document, write_document
from fragility.base.text import BriefRepr, align_columns, escape_controls
from fragility.evidence.rows import Scalar
from fragility.pages.results import TABLE_SUFFIXES, JsonFile, save_report

FORMAT = "fragility-parity/1"
KINDS = ("clean", "lost", "missing", "wrong", "noisy", "sentinel", "outage", "path", "faded")
StateKind: TypeAlias = Annotated[str, one_of(KINDS)]
CLEAN = "clean"
SAYS = {
    "clean": "the rows as they are",
    "lost": "one group at its baseline",
    "missing": "one field missing",
    "wrong": "a value of the catalogue",
    "noisy": "a number moved by noise",
    "sentinel": "a declared sentinel",
    "outage": "a recorded outage",
    "path": "groups lost along the path",
    "faded": "evidence faded gradually",
}


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """One of the two artefacts.

    Attributes
    ----------
    name : str
        What the user calls it, such as its file.
    kind : str
        Its type in words.
    fingerprint : str
        Digest of what determines its predictions.
    classes : tuple of str
        Its own class labels, in the order in which they are compared.
    columns : {"name", "order"}
        How its columns were matched with those of the rows.
    """

    name: str
    kind: str
    fingerprint: str
    classes: tuple[str, ...]
    columns: Annotated[str, one_of(("name", "order"))]


@dataclass(frozen=True, slots=True)
class Gaps:
    """How far two models lie apart over some states; quantiles are upper bounds, too large by at most 6%."""

    median: AtLeastZero
    q90: AtLeastZero
    q99: AtLeastZero
    largest: AtLeastZero


@dataclass(frozen=True, slots=True)
class KindParity:
    """What was found in one kind of state.

    Attributes
    ----------
    kind : str
        ``clean``, ``lost``, ``missing``, ``wrong``, ``noisy``, ``sentinel``, ``outage``, ``path`` or ``faded``.
    states : int
        How many states there are: rows times changes that change something.
    differing : int
        States in which both models answer and the answers differ: in the label, or by more than the tolerance.
    labels : int
        Those of them in which the labels differ.
    ties : int
        Labels that differ within the tolerance of a tie, which is no difference.
    rounded : int
        Differences that vanish when the state's numbers are rounded to single precision for the other model, which is
        no difference either.
    only_a, only_b : int
        States that only one of the models answers.
    neither : int
        States that neither answers.
    outside : int
        States of changes that the first model refuses in every row it was tried on: they are no input of the model, so
        what the second one answers is not compared.
    skipped : int
        States not asked, because the second model refused the same change in every row it was tried on.
    rows : int
        Rows with at least one state that differs or that only one model answers.
    probability, margin : Gaps
        How far the probabilities and margins of the states that both answer lie apart.
    refusals : tuple of (str, str, int)
        What the models said when they refused: ``a`` or ``b``, the reason, and how often.
    """

    kind: StateKind
    states: Count
    differing: Count
    labels: Count
    ties: Count
    rounded: Count
    only_a: Count
    only_b: Count
    neither: Count
    outside: Count
    skipped: Count
    rows: Count
    probability: Gaps
    margin: Gaps
    refusals: tuple[tuple[Annotated[str, one_of("ab")], str, Count], ...]

    @property
    def alarms(self) -> int:
        """States in which the artefacts are not the same model: answers differ, or only one of them answers."""
        return self.differing + self.only_a + self.only_b

    @property
    def compared(self) -> int:
        """States that both models answered."""
        return self.states - self.only_a - self.only_b - self.neither - self.outside - self.skipped


@dataclass(frozen=True, slots=True)
class Reveal:
    """A field and a value that show a difference.

    Attributes
    ----------
    kind : str
        The kind of state, of rows that agree as they are. For ``clean``, rows that differ as they are and agree once
        the unit is lost.
    unit : str
        The field, group or operator.
    value : str
        What it turned into; for ``clean``, its value in the row.
    states, differing, labels, only_a, only_b : int
        As in :class:`KindParity`.
    largest : float
        The largest difference of a probability.
    """

    kind: StateKind
    unit: str
    value: str
    states: Count
    differing: Count
    labels: Count
    only_a: Count
    only_b: Count
    largest: AtLeastZero


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What a model answers for one row: a label and probabilities, or why it refuses."""

    label: str | None
    probabilities: tuple[Share, ...]  # in the order of ``ComparedModel.classes``; empty if it refuses
    refusal: str | None = None

    def __str__(self) -> str:
        if self.label is None:
            return f"refuses: {self.refusal}"
        return f"answers {self.label} ({', '.join(f'{p:.6f}' for p in self.probabilities)})"


@dataclass(frozen=True, slots=True, repr=False)
class ParityExample(BriefRepr):
    """One row that shows a difference: a row of the data with as few cells changed as possible.

    Attributes
    ----------
    kind : str
        The kind of state it was found in.
    id : str
        The id of the row that it was made from.
    row : dict of str to value
        The whole row; a missing value is None. Empty if the values were left out.
    changed : dict of str to value
        The fields that were changed, with their values in the data. Both models agree on that row. Nothing is changed
        if they differ on an unmodified row. None for each value that was left out.
    cleared_by : tuple of str
        For an unmodified row: groups whose loss makes the models agree.
    a, b : ModelAnswer
        What the models answer.
    numbers : tuple of str
        The numeric fields.
    """

    kind: StateKind
    id: str
    row: dict[str, Scalar]
    changed: dict[str, Scalar]
    cleared_by: tuple[str, ...]
    a: ModelAnswer
    b: ModelAnswer
    numbers: tuple[str, ...]

    def without_values(self) -> ParityExample:
        """Return the example with the names of fields alone, to hand over to others.

        Returns
        -------
        ParityExample
            Without the row; ``changed`` names the fields.
        """
        return replace(self, row={}, changed=dict.fromkeys(self.changed), numbers=())

    def to_pandas(self) -> pd.DataFrame:
        """Return the row as a table of one row.

        Returns
        -------
        pandas.DataFrame
            Numeric fields have NaN where they are missing.
        """
        frame = pd.DataFrame([self.row], dtype=object).infer_objects()
        empty = [name for name in self.numbers if self.row[name] is None]
        return frame.astype(dict.fromkeys(empty, float))

    def to_csv(self) -> str:
        """Return the row as a CSV file of one row.

        Returns
        -------
        str
            A header and a line; a missing value is an empty cell.
        """
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerows([list(self.row), ["" if value is None else value for value in self.row.values()]])
        return stream.getvalue()

    def to_python(self) -> str:
        """Return the row as a Python dict to paste.

        Returns
        -------
        str
            ``float('nan')`` where a number is missing.
        """
        gaps = {name for name in self.numbers if self.row[name] is None}
        texts = {name: "float('nan')" if name in gaps else repr(value) for name, value in self.row.items()}
        parts = (f"{name!r}: {text}" for name, text in texts.items())
        return f"{{{', '.join(parts)}}}"


@dataclass(frozen=True, slots=True, repr=False)
class ModelParity(JsonFile, BriefRepr):
    """Two artefacts of one model, compared; :func:`check_parity` makes one.

    Attributes
    ----------
    a, b : ComparedModel
        The reference, such as the trained model, and the artefact that is to answer as it does.
    tolerance : float
        How far probabilities may differ.
    rows : int
        How many rows were compared.
    rows_given : int
        How many there were; if more, those with the smallest digests were taken.
    protocol : str
        Digest of the protocol whose states were compared.
    kinds : tuple of KindParity
        What was found in each kind of state.
    reveals : tuple of Reveal
        Fields and values that show a difference, most labels first.
    examples : tuple of ParityExample
        The smallest example of each kind that has one, fewest changed cells first.
    notes : tuple of str
        What else a reader should know.
    """

    a: ComparedModel
    b: ComparedModel
    tolerance: AtLeastZero
    rows: Count
    rows_given: Count
    protocol: str
    kinds: tuple[KindParity, ...]
    reveals: tuple[Reveal, ...]
    examples: tuple[ParityExample, ...]
    notes: tuple[str, ...] = ()

    _noun: ClassVar[str] = "comparison"
    _error: ClassVar[type[FragilityError]] = DataError

    @property
    def agrees(self) -> bool:
        """Whether no state differs beyond the tolerance and none is answered by one model only."""
        return not any(one.alarms for one in self.kinds)

    @property
    def states(self) -> int:
        """How many states both models answered."""
        return sum(one.compared for one in self.kinds)

    @property
    def smallest(self) -> ParityExample | None:
        """The example with the fewest changed cells, of rows that agree as they are if there is one."""
        return next((one for one in self.examples if one.changed), next(iter(self.examples), None))

    def __bool__(self) -> bool:
        return self.agrees

    def __getitem__(self, kind: str) -> KindParity:
        for one in self.kinds:
            if one.kind == kind:
                return one
        raise DataError(f"the kinds compared are {', '.join(one.kind for one in self.kinds)}, got {kind!r}")

    def to_pandas(self) -> pd.DataFrame:
        """Return the fields and values that reveal a difference.

        Returns
        -------
        pandas.DataFrame
            One row per field and value that reveals a difference, most labels first.
        """
        return pd.DataFrame([asdict(one) for one in self.reveals], columns=[each.name for each in fields(Reveal)])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write everything (.json), or the fields and values that reveal a difference (.csv, .parquet).

        Parameters
        ----------
        path : str or path
            The file to write; ``load`` reads ``.json`` back.

        Returns
        -------
        Path
            The file written.
        """
        if Path(path).suffix.lower() not in TABLE_SUFFIXES:
            return JsonFile.save(self, path)
        save_report(path, self.to_dict, lambda: pa.Table.from_pandas(self.to_pandas(), preserve_index=False))
        return Path(path)

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, "agrees": self.agrees, **write_document(self)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        read = read_document(document, cls, "the comparison", DataError, format=FORMAT, beside={"agrees": bool})
        if read.agrees != document["agrees"]:
            raise DataError("the comparison contradicts itself: its verdict does not follow from its counts")
        return read

    def without_values(self) -> ModelParity:
        """Return the comparison without the values of rows, to hand over to others.

        Returns
        -------
        ModelParity
            Its examples name fields, and hold no values of them. What reveals a difference still names values that the
            protocol lists.
        """
        return replace(self, examples=tuple(each.without_values() for each in self.examples))

    def to_text(self, top: int = 10) -> str:
        """Return the finding, the counts by kind, what reveals a difference and the smallest example.

        Parameters
        ----------
        top : int, default=10
            How many fields and values to list.

        Returns
        -------
        str
            Several lines.
        """
        return "\n".join(_write_lines(self, top))

    def __str__(self) -> str:
        return self.to_text()


# --- text ---------------------------------------------------------------------------------------------------


def describe_verdict(parity: ModelParity) -> str:
    """Return the finding in one sentence."""
    if parity.agrees:
        return (
            f"{parity.b.name} answers as {parity.a.name} does in all {parity.states:,} states of {parity.rows:,} rows "
            f"(labels equal, probabilities within {parity.tolerance:g})"
        )
    labels, differing = (sum(getattr(one, name) for one in parity.kinds) for name in ("labels", "differing"))
    alone = sum(one.only_a + one.only_b for one in parity.kinds)
    parts = [f"answers differ in {differing:,} of {parity.states:,} states, the label in {labels:,}"]
    if alone:
        parts.append(f"only one of them answers in {alone:,} more")
    clean = "unmodified rows show it" if parity[CLEAN].alarms else "unmodified rows show no difference"
    return f"{parity.b.name} is not the same model as {parity.a.name}: {'; '.join(parts)}; {clean}"


def tabulate_kinds(parity: ModelParity) -> list[tuple[str, ...]]:
    """Return a head and one row per kind of state."""
    head = ("kind of state", "states", "differ", "labels", "ties", "rounded", "only A", "only B", "neither")
    rest = ("not asked", "largest gap", "99% within")
    rows = [
        (
            f"{one.kind} ({SAYS[one.kind]})",
            *(f"{getattr(one, name):,}" for name in ("states", "differing", "labels", "ties", "rounded")),
            *(f"{getattr(one, name):,}" for name in ("only_a", "only_b", "neither")),
            f"{one.outside + one.skipped:,}",
            f"{one.probability.largest:.2g}",
            f"{one.probability.q99:.2g}",
        )
        for one in parity.kinds
    ]
    return [head + rest, *rows]


def tabulate_reveals(parity: ModelParity, top: int) -> list[tuple[str, ...]]:
    """Return a head and one row for each of the first fields and values that reveal a difference."""
    rows = [
        (
            *(one.unit, one.value, one.kind),
            *(f"{n:,}" for n in (one.states, one.labels, one.differing, one.only_a + one.only_b)),
            f"{one.largest:.2g}",
        )
        for one in parity.reveals[:top]
    ]
    head = ("field", "value", "kind", "states", "labels", "differ", "one answers", "largest gap")
    return [head, *rows]


def describe_change(example: ParityExample) -> str:
    """Return what was changed in an example, in words."""
    if not example.changed:
        cleared = f"; they agree once {' or '.join(example.cleared_by)} is lost" if example.cleared_by else ""
        return f"row {example.id} as it is{cleared}"
    if not example.row:
        return f"row {example.id} with other values of {', '.join(example.changed)}"
    parts = (f"{name} {_write(example.row[name])} instead of {_write(was)}" for name, was in example.changed.items())
    return f"row {example.id} with {', '.join(parts)}"


def _write(value: Scalar) -> str:
    return "missing" if value is None else repr(value)


def _write_lines(parity: ModelParity, top: int) -> list[str]:
    few = "" if parity.rows == parity.rows_given else f" of {parity.rows_given:,}, those with the smallest digests"
    lines = [
        describe_verdict(parity),
        f"A: {parity.a.name} ({parity.a.kind})",
        f"B: {parity.b.name} ({parity.b.kind}), columns by {parity.b.columns}",
        f"rows: {parity.rows:,}{few}",
        *(f"note: {note}" for note in parity.notes),
        "",
        *align_columns(tabulate_kinds(parity)),
    ]
    if parity.reveals:
        lines += ["", "what reveals it", *align_columns(tabulate_reveals(parity, top), left=3)]
        if len(parity.reveals) > top:
            lines.append(f"and {len(parity.reveals) - top:,} more")
    for one in parity.kinds:
        lines += [f"{role.upper()} refuses {n:,} {one.kind} states: {reason}" for role, reason, n in one.refusals]
    if parity.smallest is not None:
        example = parity.smallest
        lines += [
            "",
            f"smallest example: {describe_change(example)}",
            f"  A {example.a}",
            f"  B {example.b}",
            *([f"  {example.to_python()}"] if example.row else []),
        ]
    return [escape_controls(line) for line in lines]

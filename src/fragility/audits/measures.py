"""Measures: everything that is counted over the predictions of an audit, once.

A measure is a value of each row, in a population of rows. Summaries, reports, gates, packs, MLflow and the watch read
these measures, and nothing else counts. A share counts the rows whose value is true, a mean averages; a value of NaN
says that the measure does not apply to the row. Where a share is not known of every row, it is at least what was
counted.

A new measure is one entry in `list_measures`.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from fragility.audits.flips import PATH_COLUMNS, SEARCH_COLUMNS, FlipBounds, bound_flips
from fragility.audits.manifest import Manifest
from fragility.base.arrays import Booleans, Floats
from fragility.base.canonical import is_missing
from fragility.base.ids import RowLabels
from fragility.blocks.any_value import AnyValueDeclaration
from fragility.blocks.lattice.values import LatticeDeclaration
from fragility.blocks.modes import ModesDeclaration
from fragility.pages.terms import MINIMUM, MODE_WORDS, NONE_AT_ALL, NOT_SEARCHED, UNDECIDED, UPPER_BOUND
from fragility.protocol import Protocol
from fragility.scores import EARLY

EXPOSED = 0.5  # a prediction is exposed from this exposure on, unless a caller says otherwise
LABELLED = ("id", "predicted")
ANY_BUDGET, ANY_PROVED, ANY_ALONE = "any_value_budget", "any_value_proved", "any_value_alone"
SEARCH_STATE, SIZE = "smallest_state", "smallest_size"
SCORES = {
    "confidence": "confidence",
    "margin": "margin",
    "flip_budget": "flip budget k*",
    "rcma": "RCMA",
    "fds": "FDS",
    "exposure": "exposure",
    "independent_loss": "independent loss",
    "random_loss": "random loss",
    "common_loss": "common loss",
}
# Entries of a protocol that decide which states are asked and what counts as a flip, or that scale a score: two audits
# compare by a measure if these are the same (`gate.rules` names and compares them).
STATES = ("groups", "nominal", "decision", "reading", "resolution")
MARGINS = (*STATES, "smoothing")
EXPOSURE = (*MARGINS, "baseline", "depth", "operators", "severities", "exposure_weights")
OF_MODE = {
    "lost": ("baseline",),
    "wrong": ("catalogue_size",),
    "noisy": ("noise",),
    "sentinel": ("sentinels",),
    "outage": ("outages", "baseline"),
}


class Audited(typing.Protocol):
    """What measures read of an audit."""

    @property
    def protocol(self) -> Protocol: ...
    @property
    def classes(self) -> tuple[Any, ...]: ...
    @property
    def manifest(self) -> Manifest: ...
    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]: ...


class MeasuredRows:
    """Some rows of an audit, and what else is known of them.

    search: False to leave out what a search of all sets found, as if only the path were known. labels: true classes by
    id; brittle: whether each row breaks under held-out stress, NaN for one that is not confident there.
    """

    def __init__(
        self,
        table: pa.Table,
        audit: Audited,
        min_confidence: float,
        *,
        search: bool = True,
        labels: RowLabels | None = None,
        brittle: RowLabels | None = None,
    ) -> None:
        self.table, self.audit, self.min_confidence, self.search = table, audit, min_confidence, search
        self.labels, self.brittle_labels = labels, brittle

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, column: str) -> Floats:
        """Return (n,) a column of numbers."""
        return np.asarray(self.table.column(column).to_numpy(), dtype=np.float64)

    @cached_property
    def confident(self) -> Booleans:
        """(n,) the confident rows."""
        return np.asarray(self["confidence"] >= self.min_confidence)

    @cached_property
    def bounds(self) -> FlipBounds:
        """What is known of the smallest failing sets."""
        return bound_flips(
            self.table, self.audit.protocol, self.audit.manifest.find_block(LatticeDeclaration), search=self.search
        )

    @cached_property
    def state(self) -> Any:
        """(n,) what a search of all sets found."""
        return np.asarray(self.table.column(SEARCH_STATE).to_pylist(), dtype=object)

    @cached_property
    def predicted(self) -> Any:
        """(n,) the predicted classes as text."""
        return np.array([write_class(label) for label in self.table.column("predicted").to_pylist()], dtype=object)

    @cached_property
    def truth(self) -> Any:
        """(n,) the true classes as text; None for a row without one."""
        assert self.labels is not None
        return np.array(self.labels.find(self.table.column("id").to_pylist()), dtype=object)

    @cached_property
    def brittle(self) -> Floats:
        """(n,) whether a row breaks under held-out stress; NaN if it is not confident there, or has no label."""
        assert self.brittle_labels is not None
        return np.array(self.brittle_labels.find(self.table.column("id").to_pylist()), dtype=np.float64)


Value: TypeAlias = Callable[[MeasuredRows], Any]


@dataclass(frozen=True, slots=True)
class Measure:
    """What is measured: a value of each row, and of which rows.

    words: what the predictions counted do, after a number of them; of a mean, what it is the mean of.
    among: all predictions, the confident ones, or those that held-out labels call confident.
    columns: of the table; those of a block that the audit lacks are left out. unsettled: of which further rows nobody
    knows whether they have the property. positive: of an AUROC, the rows of the class that its scores are for.
    larger_is_worse: whether a rule about it has a largest or a smallest value. formula: what a row counted has, by the
    columns of the table.
    scales: entries of a protocol that must be the same in audits that are compared by it; None: it is not compared.
    """

    words: str
    columns: tuple[str, ...]
    value: Value  # (n,)
    among: Literal["all", "confident", "labelled"] = "all"
    kind: Literal["share", "mean", "median", "auroc"] = "share"
    unsettled: Value | None = None
    positive: Value | None = None
    larger_is_worse: bool = True
    formula: str = ""
    scales: tuple[str, ...] | None = None

    @property
    def title(self) -> str:
        """What it is called."""
        return (
            f"{'confident ' * (self.among == 'confident')}predictions that {self.words}"
            if self.kind == "share"
            else self.words
        )

    @property
    def label(self) -> str:
        """What to write after its value."""
        return f"of {'all' if self.among == 'all' else 'the confident'} predictions {self.words}"

    def read(self, rows: MeasuredRows) -> tuple[Floats, Booleans]:
        """Return (n,) values, NaN outside the population, and (n,) the rows of which a share is not settled."""
        values = np.asarray(self.value(rows), dtype=np.float64)
        inside = rows.confident if self.among == "confident" else np.ones(len(rows), dtype=bool)
        unsettled = np.zeros(len(rows), dtype=bool) if self.unsettled is None else self.unsettled(rows) & inside
        return np.where(inside, values, np.nan), unsettled


# --- the table ------------------------------------------------------------------------------------------------


def flips_within(groups: int) -> Measure:
    """Return the share of confident predictions that some set of up to so many groups is known to flip."""
    lost = {1: "one group is", 2: "one or two groups are"}.get(groups, f"up to {groups} groups are")
    return Measure(
        f"flip when {lost} lost",
        (*PATH_COLUMNS, *SEARCH_COLUMNS),
        lambda rows: rows.bounds.flips_within(groups),
        "confident",
        unsettled=lambda rows: rows.bounds.unsettled_within(groups),
        formula=f"fewest_groups <= {groups} (the smaller of k* and the smallest failing set)",
        scales=(*STATES, "baseline"),
    )


def changed_within(groups: int) -> Measure:
    """Return the share of confident predictions that some values of up to so many groups flip, whatever a baseline is.

    Of a row that was not searched this is not known.
    """
    which = {1: "one group", 2: "one or two groups"}.get(groups, f"up to {groups} groups")
    return Measure(
        f"flip by some values of {which}",
        (ANY_BUDGET, ANY_PROVED),
        lambda rows: rows[ANY_BUDGET] <= groups,
        "confident",
        unsettled=lambda rows: ~(rows[ANY_BUDGET] <= groups) & ~(rows[ANY_PROVED] >= groups),
        formula=f"{ANY_BUDGET} <= {groups}",
        scales=(*STATES, "domains"),
    )


def exposed(above: float = EXPOSED, mode: str | None = None) -> Measure:
    """Return the share of confident predictions with a large exposure, or a large exposure to a failure mode."""
    column, to_mode = ("exposure", "") if mode is None else (f"exposure_{mode}", f" to {MODE_WORDS[mode][0]}")
    return Measure(
        f"have an exposure{to_mode} above {above:g}",
        (column,),
        lambda rows: np.where(np.isnan(rows[column]), np.nan, rows[column] > above),
        "confident",
        formula=f"{column} > {above:g}",
        scales=EXPOSURE if mode is None else (*MARGINS, "min_confidence", *OF_MODE.get(mode, ())),
    )


def _mean(column: str, words: str, among: Literal["all", "confident"] = "all") -> Measure:
    return Measure(f"mean {words}", (column,), lambda rows: rows[column], among, "mean")


def _is_right(rows: MeasuredRows) -> Booleans:
    return np.asarray(rows.truth == rows.predicted)


def _score_second_class(rows: MeasuredRows) -> Floats:
    second = rows.predicted == write_class(rows.audit.classes[1])
    return np.where(second, rows["confidence"], 1.0 - rows["confidence"])


FLIPS_EARLY = flips_within(EARLY)
PLAIN = {
    "confident": Measure("are confident", (), lambda rows: rows.confident),
    "flips_after_one": flips_within(1),
    "flips_early": FLIPS_EARLY,
    "early_on_path": Measure(
        "flip within two groups of the path",
        PATH_COLUMNS,
        lambda rows: rows.bounds.on_path <= EARLY,
        "confident",
        formula=f"flip_budget <= {EARLY} and flipped",
    ),
    "holds": Measure(
        "hold whatever groups are lost",
        (*PATH_COLUMNS, *SEARCH_COLUMNS),
        lambda rows: rows.bounds.holds,
        "confident",
        unsettled=lambda rows: rows.bounds.holds_unsettled,
        formula="no failing set, whatever groups are lost",
    ),
    "exposed": exposed(),
    "never_flips": Measure(
        "keep their class along the whole path",
        ("flipped",),
        lambda rows: rows["flipped"] == 0.0,
        formula="flipped == False",
    ),
    **{f"mean_{column}": _mean(column, words) for column, words in SCORES.items()},
    "median_independent_loss": Measure(
        "median independent loss", ("independent_loss",), lambda rows: rows["independent_loss"], kind="median"
    ),
    "confident_mean_fds": _mean("fds", "FDS", "confident"),
    "confident_mean_exposure": _mean("exposure", "exposure", "confident"),
}
RIGHT = Measure(
    "are right",
    LABELLED,
    _is_right,
    larger_is_worse=False,
    formula="the predicted class that is their true one",
    scales=("decision",),
)
LABELS = {"accuracy": RIGHT, "confident_accuracy": replace(RIGHT, among="confident")}
AUROC = Measure(
    "AUROC of the model",
    LABELLED,
    _score_second_class,
    kind="auroc",
    positive=lambda rows: rows.truth == write_class(rows.audit.classes[1]),
    larger_is_worse=False,
    scales=(),
)
BRITTLE = Measure(
    "are brittle under held-out stress", ("id",), lambda rows: rows.brittle, "labelled", scales=(*MARGINS, "baseline")
)
LOST = Measure(
    "decisions expected to be lost at the declared rates",
    ("failure_probability",),
    lambda rows: rows["failure_probability"],
    kind="mean",
    scales=("groups", "nominal", "decision", "resolution", "baseline", "rates"),
)


def _of_searched(words: str, columns: tuple[str, ...], value: Value, formula: str = "") -> Measure:
    """Return a share of the rows whose smallest failing set was searched."""
    return Measure(
        words,
        (SEARCH_STATE, *columns),
        lambda rows: np.where(rows.state == NOT_SEARCHED, np.nan, np.asarray(value(rows), dtype=np.float64)),
        formula=formula,
    )


SEARCHED = {
    "searched": Measure(
        "had their smallest failing set searched",
        (SEARCH_STATE,),
        lambda rows: rows.state != NOT_SEARCHED,
        formula=f"{SEARCH_STATE} other than {NOT_SEARCHED!r}",
    ),
    "fewer_suffice": _of_searched(
        "flip with fewer groups than their path needs",
        (SIZE, *PATH_COLUMNS),
        lambda rows: (rows["flipped"] > 0.0) & (rows[SIZE] < rows["flip_budget"]),
    ),
    "path_missed": _of_searched(
        "flip, though not on their path",
        (SIZE, "flipped"),
        lambda rows: (rows["flipped"] == 0.0) & ~np.isnan(rows[SIZE]),
    ),
    "proved": _of_searched(
        "keep their class whatever groups are lost, proved",
        (),
        lambda rows: rows.state == NONE_AT_ALL,
        f"{SEARCH_STATE} {NONE_AT_ALL!r}",
    ),
    "minimum": _of_searched(
        "have a failing set that is proved to be the smallest", (), lambda rows: rows.state == MINIMUM
    ),
    "unsettled": _of_searched(
        "have a smallest failing set that is not settled",
        (),
        lambda rows: np.isin(rows.state, (UPPER_BOUND, UNDECIDED)),
    ),
    "mean_smallest_size": _mean(SIZE, "size of the smallest failing set"),
}


def list_measures(audit: Audited, *, labels: bool = False) -> dict[str, Measure]:
    """Return every measure that an audit has, by name; labels: whether true classes are known too."""
    found = {**PLAIN, **(LABELS if labels else {})}
    if audit.protocol.fading is None:
        del found["mean_common_loss"]
    for operator in audit.protocol.operators:
        column = f"lambda_{operator}"
        found[f"no_flip_under_{operator}"] = Measure(
            f"do not flip under {operator}", (column,), partial(_is_unflipped, column)
        )
    if (modes := audit.manifest.find_block(ModesDeclaration)) is not None:
        for mode in modes.units:
            column, words = f"exposure_{mode}", f"exposure to {MODE_WORDS[mode][0]}"
            found |= {
                f"exposed_{mode}": exposed(mode=mode),
                f"confident_mean_exposure_{mode}": _mean(column, words, "confident"),
            }
    if audit.manifest.find_block(AnyValueDeclaration) is not None:
        found |= {"changes_with_one": changed_within(1), "changes_early": changed_within(EARLY)}
    if (lattice := audit.manifest.find_block(LatticeDeclaration)) is not None:
        found |= SEARCHED | ({"lost": LOST} if lattice.has_failures else {})
    return found


def _is_unflipped(column: str, rows: MeasuredRows) -> Booleans:
    return np.isnan(rows[column])


# --- reading --------------------------------------------------------------------------------------------------


def list_columns(measures: Iterable[Measure], audit: Audited) -> list[str]:
    """Return the columns of certificates that some measures read."""
    absent = () if audit.manifest.find_block(LatticeDeclaration) is not None else SEARCH_COLUMNS
    wanted = ["confidence", *(column for measure in measures for column in measure.columns)]
    return [column for column in dict.fromkeys(wanted) if column not in absent]


def read_whole(
    audit: Audited, measures: Sequence[Measure], min_confidence: float, *, columns: Sequence[str] = (), **known: Any
) -> MeasuredRows:
    """Return all rows of an audit, with the columns that some measures read, and others."""
    wanted = list(dict.fromkeys([*columns, *list_columns(measures, audit)]))
    return MeasuredRows(pa.concat_tables(audit.batches(wanted)), audit, min_confidence, **known)


def settled_within(groups: int, audits: Iterable[Audited], min_confidence: float) -> bool:
    """Return whether it is known of every confident prediction of some audits if so many groups flip it.

    Only then do their shares compare by sets; else they compare by the path, which every audit has.
    """
    measure = flips_within(groups)
    return not any(
        measure.read(MeasuredRows(batch, audit, min_confidence))[1].any()
        for audit in audits
        for batch in audit.batches(list_columns([measure], audit))
    )


def label_rows(labels: Mapping[Any, Any]) -> RowLabels:
    """Return true classes by id, as text: a file may give back 1 where the certificate says "1"."""
    return RowLabels({own_id: write_class(label) for own_id, label in labels.items() if not is_missing(label)})


def write_class(label: object) -> str:
    """Return a class as text; 1.0 is 1, because missing values turn a column of integers into floats."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)

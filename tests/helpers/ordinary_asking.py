"""Are the claims of certificates what the pipeline itself says? Asked of `predict_proba` alone, on tables made here.

Nothing of the library takes part but the files it wrote: the protocol as JSON and the certificates. In the raw space a
field that is lost takes its baseline in the raw table; in the transformed space the last step of the pipeline is asked
about its own input. A field that is missing in a row stays as it is (SPEC section 4).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from sklearn.pipeline import Pipeline

SMALLEST = 1e-12
TRIED_INSIDE = 3  # values of an interval, beside its ends
TRIED_SETS = 12  # of each size that is said to be too small


@dataclass
class Asker:
    """A pipeline, the protocol of its audit, and raw rows to ask about."""

    model: Any
    protocol: dict[str, Any]
    rows: pd.DataFrame
    hand_over: Callable[[pd.DataFrame], Any] = lambda table: table  # rows as the model was given them
    classes: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.classes = list(np.asarray(self.model.classes_).ravel().tolist())
        self.groups = [group["name"] for group in self.protocol["groups"]]
        self.columns = [column["name"] for column in self.protocol["columns"]]
        self.members = {
            group["name"]: [self.columns.index(name) for name in group["columns"]] for group in self.protocol["groups"]
        }
        self.raw = self.protocol["space"] == "raw"
        made_from = {own["name"]: own["fields"] for own in self.protocol["inputs"]}
        self.sources = [[name] if self.raw else made_from.get(name, [name]) for name in self.columns]
        self.fields = {
            name: list(dict.fromkeys(one for j in members for one in self.sources[j]))
            for name, members in self.members.items()
        }
        self.missing = self.rows.isna()
        self.prepares = isinstance(self.model, Pipeline)
        self.head = self.model[-1] if self.prepares else self.model
        if not self.raw:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                given = self.hand_over(self.rows)
                prepared = self.model[:-1].transform(given) if self.prepares else given
                self.matrix = np.asarray(prepared, dtype=None if self.prepares else float)
            assert self.matrix.shape[1] == len(self.columns)

    # --- states -------------------------------------------------------------------------------------------------

    def present(self, place: int) -> list[str]:
        """The groups of a row that hold something to lose."""
        return [name for name in self.groups if self.held(place, name)]

    def held(self, place: int, group: str) -> list[str]:
        """The fields of a group that are not missing in a row."""
        return [name for name in self.fields[group] if not self.missing.iloc[place][name]]

    def change(self, places: list[int], changes: list[dict[str, Any]]) -> pd.DataFrame:
        """Return rows with some fields set to other values, in the types of the table."""
        made = self.rows.iloc[places].reset_index(drop=True)
        for name in {name for change in changes for name in change}:
            at = [row for row, change in enumerate(changes) if name in change]
            cells = made[name].astype(object).to_numpy(copy=True)
            for row in at:
                cells[row] = changes[row][name]
            made[name] = as_column(cells, self.rows[name].dtype)
        return made

    def ask_raw(self, table: pd.DataFrame) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return as_probabilities(self.model.predict_proba(self.hand_over(table)))

    def ask_changed(self, places: list[int], changes: list[dict[str, Any]]) -> np.ndarray:
        """Return what the whole pipeline answers on raw rows with some fields set."""
        return self.ask_raw(self.change(places, changes)) if places else np.empty((0, len(self.classes)))

    def ask_lost(self, places: list[int], lost: list[list[str]], severities: list[float] | None = None) -> np.ndarray:
        """Return probabilities where some groups are lost, or faded as far as the severities say."""
        if not places:
            return np.empty((0, len(self.classes)))
        severities = [1.0] * len(places) if severities is None else severities
        gone = [
            {name for group in groups for name in self.held(place, group)}
            for place, groups in zip(places, lost, strict=True)
        ]
        baseline = [column["baseline"] for column in self.protocol["columns"]]
        if self.raw:
            changes = [
                {name: self.fade(place, self.columns.index(name), baseline, severity) for name in names}
                for place, names, severity in zip(places, gone, severities, strict=True)
            ]
            return self.ask_changed(places, changes)
        states = self.matrix[places].copy()
        for state, groups, names, severity in zip(states, lost, gone, severities, strict=True):
            for j in (j for group in groups for j in self.members[group] if names.issuperset(self.sources[j])):
                state[j] = baseline[j] if severity == 1.0 else state[j] + severity * (baseline[j] - state[j])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return as_probabilities(self.head.predict_proba(states))

    def fade(self, place: int, j: int, baseline: list[Any], severity: float) -> Any:
        own, target = self.rows.iloc[place][self.columns[j]], baseline[j]
        nominal = self.protocol["columns"][j]["kind"] == "nominal" or target is None
        if severity == 1.0 or nominal:
            return target if severity >= 0.5 else own
        value = own + severity * (target - own)
        whole = self.protocol["fields"][j]["type"] == "integer"
        return float(np.rint(value)) if whole else value

    # --- margins ------------------------------------------------------------------------------------------------

    def margins(self, probabilities: np.ndarray, own: Any, smoothing: float | None = None) -> np.ndarray:
        """Return log p of the class over the best other's; negative after a flip."""
        added = self.protocol["smoothing"] if smoothing is None else smoothing
        p = np.maximum(probabilities, SMALLEST)
        p = p / p.sum(axis=1, keepdims=True)
        p = (p + added) / (1 + p.shape[1] * added)
        own = np.broadcast_to(np.asarray(own), len(p))
        mine = p[np.arange(len(p)), own].copy()
        p[np.arange(len(p)), own] = 0.0
        return np.log(mine) - np.log(p.max(axis=1))

    def rounding(self, probabilities: np.ndarray) -> np.ndarray:
        """Return by how much a margin may be off: single precision of probabilities, and the resolution."""
        least = np.maximum(np.sort(probabilities, axis=1)[:, -2], 1e-7)
        return 2e-6 + 3e-7 / least

    def flips(self, probabilities: np.ndarray, own: Any) -> np.ndarray:
        """Return 1 where the decision flips, 0 where it holds, and -1 within rounding of the edge."""
        margin = self.margins(probabilities, own, 0.0)
        sure = np.abs(margin + self.protocol["resolution"]) > self.rounding(probabilities)
        return np.where(sure, (margin < 0).astype(int), -1)


def as_probabilities(answer: Any) -> np.ndarray:
    return np.asarray(answer, dtype=float)


def as_column(cells: np.ndarray, dtype: Any) -> pd.Series:
    """Return cells as a column of a type; whole numbers stay so if none is a fraction or missing."""
    column = pd.Series(cells, dtype=object)
    if isinstance(dtype, pd.CategoricalDtype):
        return column.astype(dtype)
    if pd.api.types.is_bool_dtype(dtype):
        return column.astype(bool)
    if pd.api.types.is_integer_dtype(dtype):
        numbers = column.astype(float)
        return numbers.astype(dtype) if (numbers == np.rint(numbers)).all() else numbers
    return column.astype(dtype)


# --- claims -----------------------------------------------------------------------------------------------------


def check_rows(asker: Asker, certificates: list[Any], places: list[int]) -> None:
    """Compare certificates, each about the row at its place, with what the pipeline says."""
    for certificate, place in zip(certificates, places, strict=True):
        check_losses(asker, certificate, place)
        check_smallest(asker, certificate, place)
        check_wrong(asker, certificate, place)
        check_intervals(asker, certificate, place)


def check_losses(asker: Asker, certificate: Any, place: int) -> None:
    """The prediction, the one-step drops, the path, k*, RCMA, the independent loss and the thresholds."""
    about = f"row {certificate.id!r}"
    clean = asker.ask_raw(asker.rows.iloc[[place]])
    own = asker.classes.index(certificate.predicted)
    assert clean[0, own] >= clean[0].max() - 1e-6, f"{about}: predicted {certificate.predicted!r} of {clean[0]}"
    assert abs(certificate.confidence - clean[0, own]) < 2e-6, f"{about}: confidence"
    margin, present = asker.margins(clean, own)[0], asker.present(place)
    assert abs(certificate.margin - margin) <= asker.rounding(clean)[0], (
        f"{about}: margin {certificate.margin} {margin}"
    )

    singles = asker.ask_lost([place] * len(asker.groups), [[name] for name in asker.groups])
    slack = asker.rounding(singles) + asker.rounding(clean)
    drops = margin - asker.margins(singles, own)
    for g, name in enumerate(asker.groups):
        claimed = certificate.one_step_drop[name]
        if name not in present:
            assert claimed == 0, f"{about}: {name} is missing, and its drop is {claimed}"
        assert abs(claimed - drops[g]) <= slack[g], (
            f"{about}: drop of {name} {claimed}, and the pipeline says {drops[g]}"
        )
        less = certificate.one_step_confidence_drop[name]
        assert abs(less - (clean[0, own] - singles[g, own])) < 2e-6, f"{about}: confidence drop of {name}"
    loss = np.maximum([certificate.one_step_drop[name] for name in asker.groups], 0).sum() / (abs(margin) + 1e-8)
    assert np.isclose(certificate.independent_loss, loss, rtol=1e-4, atol=1e-6), f"{about}: independent loss"

    path = list(certificate.path)
    assert not set(path) - set(present), f"{about}: missing fields in its path {path}"
    order = [round(certificate.one_step_drop[name] / asker.protocol["resolution"]) for name in path]
    assert order == sorted(order, reverse=True), f"{about}: path is not in the order of its drops"
    left = [certificate.one_step_drop[name] for name in present if name not in path]
    assert not left or not path or max(left) <= certificate.one_step_drop[path[-1]] + 1e-6, (
        f"{about}: path leaves one out"
    )
    along = np.vstack([clean, asker.ask_lost([place] * len(path), [path[: k + 1] for k in range(len(path))])])
    margins, slack = asker.margins(along, own), asker.rounding(along)
    claimed = np.array(certificate.path_margin[: len(along)])
    if asker.protocol["reading"] == "support":
        wrong = np.flatnonzero(np.abs(claimed - margins) > slack)
        assert not len(wrong), f"{about}: margins along {path}: {claimed}, and the pipeline says {margins}"
    for k, probabilities in enumerate(along):
        p = probabilities[asker.classes.index(certificate.path_predicted[k])]
        assert p >= probabilities.max() - 1e-6, f"{about}: after {k} removals {certificate.path_predicted[k]!r}"
    flips = asker.flips(along, own)
    if certificate.flipped:
        assert flips[certificate.flip_budget] != 0, f"{about}: does not flip at its k* {certificate.flip_budget}"
        assert 1 not in flips[: certificate.flip_budget], f"{about}: flips before its k* {certificate.flip_budget}"
    else:
        assert 1 not in flips, f"{about}: said not to flip, and flips after {list(flips).index(1)}"
    check_fading(asker, certificate, place, own)


def check_fading(asker: Asker, certificate: Any, place: int, own: int) -> None:
    """The mildest severity of each operator flips, and no milder one does."""
    grid = asker.protocol["severities"]
    for operator, value in certificate.thresholds.items():
        faded = asker.groups if operator == "attenuate_all" else list(certificate.path[:1])
        flips = asker.flips(asker.ask_lost([place] * len(grid), [faded] * len(grid), grid), own)
        milder = [flip for flip, severity in zip(flips, grid, strict=True) if value is None or severity < value]
        assert 1 not in milder, f"row {certificate.id!r}: {operator} flips it before {value}: {flips}"
        assert value is None or flips[grid.index(value)] != 0, f"row {certificate.id!r}: {operator} no flip at {value}"


def check_smallest(asker: Asker, certificate: Any, place: int) -> None:
    """The smallest failing set fails, and smaller ones, of which some are tried, do not."""
    state = certificate.smallest_state
    if state is None:
        return
    about, own = f"row {certificate.id!r}", asker.classes.index(certificate.predicted)
    present, size = asker.present(place), certificate.smallest_size
    found = list(certificate.smallest_set or ())
    assert not set(found) - set(present), f"{about}: missing fields in its smallest set {found}"
    if size is not None:
        assert size == len(found) > 0
        assert asker.flips(asker.ask_lost([place], [found]), own)[0] != 0, f"{about}: {found} does not flip it"
        assert not certificate.flipped or size <= certificate.flip_budget, f"{about}: its path is smaller than {found}"
    proved = {"minimum": (size or 0) - 1, "none at all, proved": len(present)}
    most = proved.get(state, 0)
    if state.startswith("none up to"):
        most = int(state.split()[3].strip(","))
    chance = np.random.default_rng(place)
    sets: list[list[str]] = [[name] for name in present] if most >= 1 else []
    for k in range(2, min(most, len(present)) + 1):
        sets += [list(chance.choice(present, k, replace=False)) for _ in range(TRIED_SETS)]
    flips = asker.flips(asker.ask_lost([place] * len(sets), sets), own)
    assert 1 not in flips, f"{about}: {state} {found}, and {sets[list(flips).index(1)] if 1 in flips else ''} flips it"
    if size == 1 and certificate.smallest_count is not None and state == "minimum":
        flips = asker.flips(asker.ask_lost([place] * len(present), [[name] for name in present]), own)
        known, doubtful = (flips == 1).sum(), (flips == -1).sum()
        assert known <= certificate.smallest_count <= known + doubtful, f"{about}: {certificate.smallest_count} sets"


def check_wrong(asker: Asker, certificate: Any, place: int) -> None:
    """What one field costs the prediction when it holds another row's value, of those in the catalogue."""
    cost = None if certificate.modes is None else certificate.modes.get("wrong")
    if cost is None:
        return
    about, own = f"row {certificate.id!r}", asker.classes.index(certificate.predicted)
    clean = asker.ask_raw(asker.rows.iloc[[place]])
    entries = {entry["group"]: entry for entry in asker.protocol["modes"]["catalogue"]}
    name = list(entries)[place % len(entries)]  # a group of too many fields, or of nearly unique values, has no entry
    held = asker.held(place, name)
    if not held:
        assert cost.drop[name] == 0 and cost.flip_chance[name] == 0, f"{about}: {name} is missing, and may be wrong"
        return
    values = [dict(zip(entries[name]["fields"], row, strict=True)) for row in entries[name]["values"]]
    weights = np.array(entries[name]["counts"]) / sum(entries[name]["counts"])
    asked = asker.ask_changed([place] * len(values), [{one: as_cell(row[one]) for one in held} for row in values])
    drop = asker.margins(clean, own)[0] - weights @ asker.margins(asked, own)
    slack = (asker.rounding(asked) + asker.rounding(clean)).max()
    assert abs(cost.drop[name] - drop) <= slack, (
        f"{about}: wrong {name} costs {cost.drop[name]}, the pipeline says {drop}"
    )
    flips = asker.flips(asked, own)
    low, high = weights[flips == 1].sum(), weights[flips != 0].sum()
    chance = cost.flip_chance[name]
    assert low - 1e-9 <= chance <= high + 1e-9, f"{about}: wrong {name} flips it with {chance}, not {low}"


def check_intervals(asker: Asker, certificate: Any, place: int) -> None:
    """Inside an interval nothing flips; what is said to flip does, to the class that is said."""
    if certificate.intervals is None:
        return
    about, own = f"row {certificate.id!r}", asker.classes.index(certificate.predicted)
    chance = np.random.default_rng(place)
    held: list[tuple[str, Any]] = []
    flipping: list[tuple[str, Any, Any]] = []
    for name, interval in certificate.intervals.items():
        assert (interval.state == "missing") == bool(asker.missing.iloc[place][name]), (
            f"{about}: {name} {interval.state}"
        )
        if interval.nominal:
            flipping += [(name, flip.value, flip.predicted) for flip in interval.categories]
            if interval.exact:
                known = {flip.value for flip in interval.categories}
                held += [(name, value) for value in listed_values(asker, name) if value not in known]
        elif interval.low is not None:
            held += [(name, value) for value in inside(asker, name, interval, chance)]
            ends = (interval.flips_below, interval.flips_above)
            flipping += [(name, flip.value, flip.predicted) for flip in ends if flip is not None]
    asked = asker.ask_changed(
        [place] * (len(held) + len(flipping)), [{name: as_cell(value)} for name, value, *_ in (*held, *flipping)]
    )
    flips = asker.flips(asked, own)
    for (name, value), flip in zip(held, flips, strict=False):
        assert flip != 1, f"{about}: {certificate.intervals[name].sentence()}; {value!r} flips it"
    for (name, value, predicted), flip, p in zip(flipping, flips[len(held) :], asked[len(held) :], strict=True):
        assert flip != 0, f"{about}: {certificate.intervals[name].sentence()}; {value!r} does not flip it"
        assert p[asker.classes.index(predicted)] >= p.max() - 1e-6, f"{about}: {name} {value!r} gives no {predicted!r}"


def as_cell(value: Any) -> Any:
    return np.nan if value is None else value


def listed_values(asker: Asker, name: str) -> list[Any]:
    entries = asker.protocol["modes"]["catalogue"]
    holding = [entry for entry in entries if name in entry["fields"]]
    values = [row[entry["fields"].index(name)] for entry in holding for row in entry["values"]]
    return [value for value in dict.fromkeys(values) if value is not None]


def inside(asker: Asker, name: str, interval: Any, chance: np.random.Generator) -> list[Any]:
    """Return the ends and some values between them; of whole numbers whole ones, of bracketed ends those in between."""
    low, high = interval.low, interval.high
    if isinstance(low, str) or isinstance(high, str):
        return [low, high]
    values = [low, high]
    if interval.exact:
        tried = chance.uniform(low, high, TRIED_INSIDE)
        whole = next(own["type"] for own in asker.protocol["fields"] if own["name"] == name) == "integer"
        values += np.rint(tried).tolist() if whole else tried.tolist()
    return values

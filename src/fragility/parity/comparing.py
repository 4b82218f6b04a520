"""check_parity: is the deployed model the one that was audited?

A state s of a row is asked of both models. With p_A(s), p_B(s) in the same class order and tolerance t:

    gap(s)    = max_c |p_A,c(s) - p_B,c(s)|
    differs   if gap(s) > t, or the labels differ
    a tie     if gap(s) <= t, the labels differ, and either model lies within t of its decision boundary: no difference
    rounded   if it differs, but one model answers at s, its numbers rounded to single precision, as the other does at
              s: no difference
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fragility.base.arrays import DEFAULT_BYTE_BUDGET, Booleans, Floats, Integers, is_count, is_number, rows_within
from fragility.base.canonical import is_missing
from fragility.base.errors import DataError, ModelError
from fragility.base.progress import progress_bar
from fragility.engines.blackbox import distinct_rows
from fragility.evidence.codec import RawCodec
from fragility.evidence.fields import date_text
from fragility.evidence.replacements import value_text
from fragility.evidence.rows import Scalar, input_digests, list_names
from fragility.models import Model
from fragility.models.outputs import to_python
from fragility.parity.pairing import Artefact, Pair, pair_models
from fragility.parity.result import CLEAN, ModelAnswer, ModelParity, ParityExample
from fragility.parity.states import (
    REMEDY,
    Candidate,
    ChangedRows,
    Count,
    Counts,
    JudgedStates,
    StateChange,
    StateList,
    find_changed,
    read_protocol,
)
from fragility.protocol import Protocol
from fragility.scores import removal_order, sigmoid_probabilities

TOLERANCE = 1e-5  # what sums in single precision differ by, in probability
MOST_ROWS = 1000
PROBE_ROWS = 16  # a change that a model refuses in all of these rows is not asked of the others
Judged = tuple[Floats, Floats, Booleans]  # p_A, p_B, alarm


def check_parity(
    model_a: Any,
    model_b: Any,
    X: Any,
    protocol: Protocol | None = None,
    *,
    tolerance: float = TOLERANCE,
    most_rows: int = MOST_ROWS,
    names: tuple[str, str] = ("model_a", "model_b"),
    ids: Any = None,
    byte_budget: int = DEFAULT_BYTE_BUDGET,
    progress: Any = None,
) -> ModelParity:
    """Compare two artefacts of one model on rows and on every state of their certificates.

    Converters agree on clean rows and differ on missing values. Both models are therefore asked about each row as it
    is, with each group lost, each field missing, each value of the protocol's catalogue, noisy values, and along the
    removal path.

    Parameters
    ----------
    model_a : estimator, pipeline, booster or Model
        The reference: the model that was trained and audited. Whatever :meth:`Model.wrap` takes.
    model_b : estimator, pipeline, booster or Model
        The artefact that is to answer as it does: a converted file, a file of a booster, a function that asks a
        service.
    X : array or table of shape (n, d)
        The raw rows that both take. A model's columns are matched by name if the rows have columns of those names,
        and else by order if it has none or a library counted them; classes by label if both have the same, and else by
        order.
    protocol : Protocol, optional
        Declares the groups, the baseline, the severities and the failure modes. By default one is fitted on ``X``.
    tolerance : float, default=1e-5
        How far probabilities may differ. A label that differs within the tolerance of a tie is no difference.
    most_rows : int, default=1000
        How many rows to compare at most: those whose content has the smallest digests.
    names : tuple of two str, default=("model_a", "model_b")
        What to call the models.
    ids : sequence, optional
        One distinct id per row, as in :func:`audit`.
    byte_budget : int, default=256 MiB
        Bound on the states held in memory at a time; it changes nothing in the result.
    progress : bool or callable, optional
        A bar on the terminal (the default if there is one), or a function (rows done, rows in all).

    Returns
    -------
    ModelParity
        Counts by kind of state, the fields and values that reveal a difference, and the smallest example. True if the
        models agree.

    Raises
    ------
    FragilityError
        The columns or classes of the models cannot be matched, or one of them answers no row.

    See Also
    --------
    load_model : Reads an artefact from its file.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.impute import SimpleImputer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> trained = make_pipeline(SimpleImputer(), LogisticRegression()).fit(X[:700], y[:700])
    >>> deployed = fg.Model.wrap(lambda rows: trained.predict_proba(rows.fillna(0)), classes=["bad", "good"])
    >>> found = fg.check_parity(trained, deployed, X[700:])
    >>> found.agrees, found["clean"].differing, found["missing"].differing
    (False, 0, 900)
    >>> list(found.smallest.changed)
    ['age']
    """
    if not is_number(tolerance) or not 0.0 <= tolerance < 1.0:
        raise DataError(f"tolerance must be a number from 0 to 1, got {tolerance!r}")
    if not is_count(most_rows):
        raise DataError(f"most_rows must be a whole number of at least 1, got {most_rows!r}")
    if not isinstance(names, (tuple, list)) or len(names) != 2 or names[0] == names[1]:
        raise DataError(f"names must be two different names, one for each model, got {names!r}")
    decision = None if protocol is None else getattr(protocol, "decision", None)
    pair = pair_models(Model.wrap(model_a), Model.wrap(model_b), X, ids, (names[0], names[1]), decision)
    given = len(pair.rows)
    digests = input_digests(pair.rows)
    order = sorted(range(given), key=lambda i: (digests[i], str(pair.rows.ids[i])))[:most_rows]
    chosen = Pair(pair.a, pair.b, pair.rows.take(order), pair.sides)
    declared = read_protocol(protocol, pair.a, pair.rows)
    listed = StateList.of(pair.a, chosen.rows, declared)
    with progress_bar("comparing", progress) as report:
        comparison = _Comparison(chosen, listed, float(tolerance), byte_budget)
        for done in comparison.run():
            if report is not None:
                report(done, len(order))
        return comparison.result(given)


class _Comparison:
    """One comparison at work."""

    def __init__(self, pair: Pair, listed: StateList, tolerance: float, byte_budget: int) -> None:
        self.pair, self.listed, self.tolerance = pair, listed, tolerance
        self.rows, self.protocol = listed.rows, listed.protocol
        self.counts = Counts(len(self.rows))
        # cells, their copies without repetition, what the models are handed and what they make of it
        self.capacity = rows_within(byte_budget, self.rows.width + 2 * self.rows.n_classes, copies=12)
        self.waiting: list[tuple[ChangedRows, Integers, Judged | None, int]] = []
        self.fill = 0

    def run(self) -> Iterator[int]:
        """Compare part after part; the first rows show which changes a model refuses altogether."""
        n, start = len(self.rows), 0
        self._check_steady()
        share = max(1, self.capacity // (1 + self.rows.n_groups))
        while start < n:
            stop = min(n, start + PROBE_ROWS if start == 0 else start + min(share, self.capacity))
            self._compare_part(slice(start, stop))
            if start == 0:
                self.counts.find_refusing()
            start = stop
            yield start

    def _check_steady(self) -> None:
        """Refuse a model that answers none of the first rows, or whose answer to a row depends on the other rows."""
        few = self.rows.dense(0, PROBE_ROWS)
        for artefact in (self.pair.a, self.pair.b):
            together, refused = artefact.ask_each(len(few), partial(_decode, self.listed.codec, few))
            if len(refused) == len(few):
                raise ModelError(f"{artefact.name} answers none of the first {len(few)} rows: {refused[0]}; {REMEDY}")
            for i in sorted({0, len(few) - 1} - set(refused)):
                alone = artefact.ask_each(1, partial(_decode, self.listed.codec, few[i : i + 1]))[0][0]
                self._check_same(artefact, alone, together[i])

    def _check_same(self, artefact: Artefact, alone: Floats, among: Floats) -> None:
        """Refuse a model whose answer (C,) to a single row differs from its answer in a batch."""
        if np.isnan(alone[0]) and np.isnan(among[0]):
            return
        gap = np.abs(alone - among).max()
        if not gap <= max(self.tolerance, 1e-9):
            differ = "refuses it once" if np.isnan(gap) else f"probabilities differ by {gap:.3g}"
            raise ModelError(
                f"{artefact.name} answers a row alone otherwise than among other rows ({differ}), so it cannot be "
                "compared; give a model that answers row by row"
            )

    # --- one part -------------------------------------------------------------------------------------------

    def _compare_part(self, part: slice) -> None:
        x = self.rows.dense(part.start, part.stop)
        places = np.arange(part.start, part.stop)
        clean = self._compare_clean(x, places)
        self.clean_alarm, self.places, self.x = clean.alarm, places, x
        m, groups = len(x), self.rows.n_groups
        lost: Judged = (
            np.repeat(clean.p_a[:, None], groups, axis=1),  # a group at its baseline already changes nothing
            np.repeat(clean.p_b[:, None], groups, axis=1),
            np.ones((m, groups), dtype=bool),
        )
        for g, block in enumerate(self.listed.list_lost(part, x)):
            self._enqueue(block, lost, g)
        self._flush()
        self._note_cleared(clean, lost[2])
        for block in self.listed.list_missing(part):
            self._enqueue(block)
        for block in self.listed.list_modes(part, x):
            self._enqueue(block)
        sides = (clean.p_a, lost[0], self.pair.a), (clean.p_b, lost[1], self.pair.b)
        spared = self.rows.spared(part.start, part.stop)
        absent = None if spared is None else spared.groups
        orders = [self._order(*side, absent) for side in sides]
        for block in self.listed.list_paths(part, x, orders):
            self._enqueue(block)
        self._flush()

    def _compare_clean(self, x: Floats, places: Integers) -> JudgedStates:
        native = self.listed.codec.decode(x)
        labels = [artefact.own_labels(native) for artefact in (self.pair.a, self.pair.b)]
        outcome = self._judge(self.listed.codec, x, labels)
        change = StateChange(CLEAN, "", "")
        self.counts.add(change, outcome, places, np.empty(0, dtype=np.int64))
        self._offer(ChangedRows(change, self.listed.codec, np.arange(len(x)), x), outcome, places, x)
        return outcome

    def _order(self, p: Floats, lost: Floats, artefact: Artefact, absent: Booleans | None) -> Integers:
        """Return (m, G) the removal order by one model; -1 in a row for which it refused a state.

        absent: (m, G) groups that are missing in a row.
        """
        rule = self.protocol.rule(artefact.offset)
        original = rule.predict(np.nan_to_num(p, nan=1.0))
        drops = rule.margin(p, original)[:, None] - rule.margin(lost, original[:, None])
        order = removal_order(np.nan_to_num(drops), self.protocol.resolution, absent)
        order[np.isnan(drops).any(axis=1)] = -1
        return order

    def _note_cleared(self, clean: JudgedStates, lost_alarm: Booleans) -> None:
        """Count, for rows that differ as they are, the groups whose loss makes the models agree."""
        frame = self.listed.codec.rows.frame
        assert frame is not None
        for i, g in zip(*np.nonzero(clean.alarm[:, None] & ~lost_alarm), strict=True):
            group, row = self.protocol.groups[g], frame.iloc[int(self.places[i])]
            shown = ", ".join(value_text(to_python(row[name])) for name in group.columns)
            count = self.counts.revealed.setdefault(StateChange(CLEAN, group.name, shown), Count())
            count.add(clean.take(np.array([i])))
            self.counts.cleared_rows.setdefault(int(self.places[i]), []).append(group.name)

    # --- asking ---------------------------------------------------------------------------------------------

    def _enqueue(self, block: ChangedRows, sink: Judged | None = None, column: int = 0) -> None:
        """Ask for a block with others, or count it if a model refuses its unit."""
        change = block.change
        if not len(block.who):
            return
        if (change.kind, change.unit) in self.counts.refusing:
            self.counts.pass_over(change, len(block.who))
            if sink is not None:
                for p in sink[:2]:
                    p[block.who, column] = np.nan
            return
        if self.fill + len(block.who) > self.capacity:
            self._flush()
        self.waiting.append((block, block.who, sink, column))
        self.fill += len(block.who)

    def _flush(self) -> None:
        """Ask for everything that waits, each distinct state once."""
        for codec in (self.listed.codec, self.listed.missing):
            blocks = [waiting for waiting in self.waiting if waiting[0].codec is codec]
            if codec is None or not blocks:
                continue
            cells = np.concatenate([block.cells for block, *_ in blocks])
            distinct, copy_of = distinct_rows(cells, None, None)
            judged = self._judge(codec, cells[distinct])
            x = self.x if codec is self.listed.codec else self.listed.missing_matrix[self.places]
            start = 0
            for block, who, sink, column in blocks:
                outcome = judged.take(copy_of[start : start + len(who)])
                start += len(who)
                self.counts.add(block.change, outcome, self.places[who], np.flatnonzero(~self.clean_alarm[who]))
                self._offer(block, outcome, self.places[who], x[who])
                if sink is not None:
                    for into, values in zip(sink, (outcome.p_a, outcome.p_b, outcome.alarm), strict=True):
                        into[who, column] = values
        self.waiting, self.fill = [], 0

    def _judge(self, codec: RawCodec, cells: Floats, labels: list[Integers | None] | None = None) -> JudgedStates:
        """Ask both models about states (k, d), and compare; labels: what their own ``predict`` says."""
        models = self.pair.a, self.pair.b
        (p_a, why_a), (p_b, why_b) = (m.ask_each(len(cells), partial(_decode, codec, cells)) for m in models)
        refused = [np.isnan(p[:, 0]) for p in (p_a, p_b)]
        gap, differs, label, tie = self._compare_answers(p_a, p_b, labels)
        rounded = self._find_rounded(codec, cells, p_a, p_b, differs)
        predicted = models[0].rule.predict(np.nan_to_num(p_a, nan=1.0))
        margins = [m.rule.support(p, predicted) for p, m in zip((p_a, p_b), models, strict=True)]
        answered = ~(refused[0] | refused[1])
        return JudgedStates(
            p_a=p_a,
            p_b=p_b,
            refused_a=refused[0],
            refused_b=refused[1],
            gap=gap,
            margin_gap=np.where(answered, np.abs(margins[0] - margins[1]), 0.0),
            differs=differs & ~rounded,
            label=label & ~rounded,
            tie=tie,
            rounded=rounded,
            reasons={("a", i): why for i, why in why_a.items()} | {("b", i): why for i, why in why_b.items()},
        )

    def _compare_answers(
        self, p_a: Floats, p_b: Floats, labels: list[Integers | None] | None = None
    ) -> tuple[Floats, Booleans, Booleans, Booleans]:
        """Return gap, whether answers differ, whether in the label, and whether in a tie only; all (k,)."""
        answered = ~(np.isnan(p_a[:, 0]) | np.isnan(p_b[:, 0]))
        gap = np.where(answered, np.abs(p_a - p_b).max(axis=1), 0.0)
        models = self.pair.a, self.pair.b
        said = [
            model.rule.predict(np.nan_to_num(p, nan=1.0)) if labelled is None else labelled
            for p, model, labelled in zip((p_a, p_b), models, labels or (None, None), strict=True)
        ]
        other = answered & (said[0] != said[1])
        near = [
            _distance(p, said[0], said[1], model.offset) <= self.tolerance
            for p, model in zip((p_a, p_b), models, strict=True)
        ]
        tie = other & (gap <= self.tolerance) & (near[0] | near[1])
        label = other & ~tie
        return gap, (gap > self.tolerance) | label, label, tie

    def _find_rounded(self, codec: RawCodec, cells: Floats, p_a: Floats, p_b: Floats, differs: Booleans) -> Booleans:
        """Return (k,) differences that come from reading numbers in single precision."""
        numbers = np.array([form.values is None for form in codec.forms])
        single = np.where(numbers, cells.astype(np.float32).astype(np.float64), cells)
        who = np.flatnonzero(differs & find_changed(cells, single).any(axis=1))
        rounded = np.zeros(len(cells), dtype=bool)
        if len(who):
            decode = partial(_decode, codec, single[who])
            for artefact, fixed, first in ((self.pair.a, p_b, True), (self.pair.b, p_a, False)):
                moved = artefact.ask_each(len(who), decode)[0]
                both = (moved, fixed[who]) if first else (fixed[who], moved)
                gone = ~self._compare_answers(*both)[1] & ~np.isnan(moved[:, 0])
                rounded[who[gone]] = True
        return rounded

    # --- examples -------------------------------------------------------------------------------------------

    def _offer(self, block: ChangedRows, outcome: JudgedStates, places: Integers, x: Floats) -> None:
        """Offer the best state of a block as an example; rows that differ as they are make none but themselves."""
        clean = block.change.kind == CLEAN
        good = outcome.alarm if clean else outcome.alarm & ~self.clean_alarm[block.who]
        who = np.flatnonzero(good)
        if not len(who):
            return
        changed = find_changed(x[who], block.cells[who]).sum(axis=1)
        rank = np.select([outcome.label[who], outcome.refused_b[who], outcome.differs[who]], [0, 1, 2], 3)
        size = -np.rint(outcome.gap[who] * 1e6).astype(np.int64)
        best = int(np.lexsort((places[who], size, rank, changed))[0])
        at = who[best]
        key = int(changed[best]), int(rank[best]), int(size[best]), int(places[at]), block.change.value
        answers = outcome.p_a[at], outcome.p_b[at]
        self.counts.offer(Candidate(key, block.change, block.codec, block.cells[at].copy(), x[at].copy(), answers))

    def _shrink(self, example: Candidate) -> Candidate:
        """Return a candidate in which no changed field can be put back."""
        fields = np.flatnonzero(find_changed(example.clean, example.cells))
        if len(fields) < 2:
            return example
        singles = np.repeat(example.clean[None], len(fields), axis=0)
        singles[np.arange(len(fields)), fields] = example.cells[fields]
        alone = self._judge(example.codec, singles)
        if alone.alarm.any():
            at = np.flatnonzero(alone.alarm)
            best = at[np.lexsort((-np.rint(alone.gap[at] * 1e6), ~alone.label[at]))[0]]
            return example._replace(cells=singles[best], answers=(alone.p_a[best], alone.p_b[best]))
        for j in fields:
            trial = example.cells.copy()
            trial[j] = example.clean[j]
            judged = self._judge(example.codec, trial[None])
            if judged.alarm[0]:
                example = example._replace(cells=trial, answers=(judged.p_a[0], judged.p_b[0]))
        return example

    def _show(self, example: Candidate) -> ParityExample:
        """Return an example as the user reads it."""
        outcome = self._judge(example.codec, example.cells[None])
        place, columns = example.key[3], [column.name for column in self.protocol.columns]
        rows, was = (_plain_row(example.codec, cells) for cells in (example.cells, example.clean))
        changed = [columns[j] for j in np.flatnonzero(find_changed(example.clean, example.cells))]
        answers = []
        sides = ("a", self.pair.a, outcome.p_a[0]), ("b", self.pair.b, outcome.p_b[0])
        for (role, artefact, p), before in zip(sides, example.answers, strict=True):
            self._check_same(artefact, p, before)
            refusal = outcome.reasons.get((role, 0))
            if refusal is not None:
                answers.append(ModelAnswer(None, (), refusal))
                continue
            label = int(artefact.rule.predict(p))
            if example.change.kind == CLEAN:
                labels = artefact.own_labels(example.codec.decode(example.cells[None]))
                label = label if labels is None else int(labels[0])
            answers.append(ModelAnswer(str(artefact.model.classes[artefact.class_order[label]]), tuple(map(float, p))))
        return ParityExample(
            kind=example.change.kind,
            id=str(self.rows.ids[place]),
            row=rows,
            changed={name: was[name] for name in changed if rows[name] != was[name]},
            cleared_by=tuple(self.counts.cleared_rows.get(place, ())) if example.change.kind == CLEAN else (),
            a=answers[0],
            b=answers[1],
            numbers=tuple(column.name for column in self.protocol.columns if column.kind == "numeric"),
        )

    def result(self, given: int) -> ModelParity:
        """Return everything found."""
        by_kind: dict[str, Candidate] = {}
        for (kind, _), candidate in self.counts.best.items():
            if kind not in by_kind or candidate.key < by_kind[kind].key:
                by_kind[kind] = candidate
        examples = [self._show(self._shrink(candidate)) for candidate in by_kind.values()]
        examples.sort(key=lambda one: (len(one.changed), one.a.label == one.b.label, one.kind))
        notes = []
        a, b = self.pair.sides
        if a.classes != b.classes:
            pairs = ", ".join(f"{one} = {other}" for one, other in zip(a.classes, b.classes, strict=True))
            notes.append(f"classes are matched by order: {pairs}")
        if self.listed.missing is None:
            notes.append("no field was made missing, because one of them holds whole numbers beyond 2**53")
        refused: dict[tuple[str, str], list[str]] = {}
        for (kind, unit), role in sorted(self.counts.refusing.items()):
            refused.setdefault(((a if role == "a" else b).name, kind), []).append(unit)
        for (name, kind), units in refused.items():
            then = "these states are not compared" if name == a.name else "further rows were not asked"
            notes.append(f"{name} refuses every {kind} value of {list_names(units)} that was tried: {then}")
        return ModelParity(
            a=a,
            b=b,
            tolerance=self.tolerance,
            rows=len(self.rows),
            rows_given=given,
            protocol=self.protocol.digest,
            kinds=self.counts.list_kinds(),
            reveals=self.counts.list_reveals(),
            examples=tuple(examples),
            notes=tuple(notes),
        )


def _decode(codec: RawCodec, cells: Floats, part: slice) -> Any:
    return codec.decode(cells[part])


def _distance(p: Floats, one: Integers, other: Integers, offset: Floats | None) -> Floats:
    """Return (k,) how far probabilities p (k, C) lie from the boundary between two classes."""
    if p.shape[1] == 2:
        boundary = 0.5 if offset is None else float(sigmoid_probabilities(offset[0] - offset[1])[..., 1])
        return np.abs(p[:, 1] - boundary)
    every = np.arange(len(p))
    return np.abs(p[every, one] - p[every, other]) / 2.0


def _plain_row(codec: RawCodec, cells: Floats) -> dict[str, Scalar]:
    """Return cells (d,) as a row of plain values, in the order of the table; a missing value is None."""
    native: Any = codec.decode(cells[None])
    row: dict[Hashable, Any]
    if isinstance(native, np.ndarray):
        row = dict(zip(codec.rows.names, native[0], strict=True))
    elif hasattr(native, "to_dicts"):
        row = native.to_dicts()[0]
    else:
        row = {name: native[name].iloc[0] for name in codec.rows.names}
    return {str(name): _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Scalar:
    if is_missing(value):
        return None
    plain = to_python(value)
    return plain if isinstance(plain, (str, bool, int, float)) else date_text(plain)

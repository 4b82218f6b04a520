"""One prediction's certificate, to read: as fields, as a sentence, as a story."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fragility.base.errors import CertificateError
from fragility.base.text import escape_controls
from fragility.blocks.any_value import AnyValueBudget
from fragility.blocks.block import AuditBlock
from fragility.blocks.claims import ALONG_THE_PATH, PER_STEP, present_path
from fragility.blocks.lattice.values import UNSEARCHED, LatticeOfRow
from fragility.blocks.modes import ModeCost
from fragility.models import ClassLabel
from fragility.pages.drawing import MarginCurve, draw_curve_svg, draw_curve_text, draw_table, escape, put_side_by_side
from fragility.pages.wording import (
    describe_curve,
    describe_failure,
    describe_losses,
    describe_missing,
    describe_mode,
    describe_prediction,
    describe_smallest,
    describe_threshold,
    name_lost_groups,
)
from fragility.protocol import Protocol
from fragility.questions.modes.stability import SHOWN_INTERVALS, StabilityInterval, describe_intervals

PLAIN_FIELDS = (
    *("id", "predicted", "confidence", "margin", "bare_margin", "flip_budget", "flipped", "rcma", "fds"),
    *("exposure", "independent_loss", "common_loss", "random_loss", "digest"),
)


@dataclass(frozen=True)
class Certificate:
    """One prediction's certificate, to read. Field names are the table's.

    In an audit whose ``claims`` are a summary, the fields with one entry per step, severity or group are empty.

    Attributes
    ----------
    id : int or str
        The row's id.
    predicted : class label
        The class predicted on the full record.
    confidence : float
        The model's probability of it.
    margin : float
        Log of that probability over the best competitor's, under the protocol's reading.
    bare_margin : float
        The margin of the same class with all evidence lost.
    flip_budget : int
        k*: the first step of the path at which the prediction flips; depth + 1 if it never does.
    flipped : bool
        Whether it flipped at all.
    rcma : float
        The mean share of the margin lost along the path.
    fds : float
        Fragility dominance score: 0 rests on much, 1 on little.
    exposure : float
        How much of the margin is lost in the four ways evidence fails, as one number: 0 nothing, toward 1 everything.
    independent_loss : float
        What the groups take from the margin each on its own, added up, as a share of it; may exceed 1.
    common_loss : float or None
        The mean share of the margin lost as all evidence fades together; None where the protocol lacks
        ``attenuate_all``.
    random_loss : float
        The share of the margin lost if every group is lost independently, by the mean over the rates 0.1, 0.3 and 0.5;
        approximated from the one-step drops and ``bare_margin``.
    thresholds : mapping of str to float or None
        lambda* by operator; None where no severity flips.
    path : tuple of str
        Names of the groups in order of removal, as many as the protocol's depth or as are there.
    path_margin, path_predicted, path_collapse : tuple
        The margin, the class and the share of the margin lost after 0, 1, 2 ... removals.
    fade_margin : tuple of float
        The margin as all evidence fades, by severity, as far as the prediction holds.
    one_step_drop, one_step_confidence_drop : mapping of str to float
        How much margin, and how much confidence, each group alone carries.
    already_missing : tuple of str
        The raw fields that hold no value in this row. They stay as they are in every state, and are in no path, set or
        probability; a group of which nothing is there is not on ``path``.
    digest : str
        Of this row's claims.
    smallest_state : str or None
        How far the search for the smallest failing set got: ``minimum``, ``upper bound``, ``none up to K, proved``,
        ``none at all, proved``, ``not decided`` or ``not searched``. This and what follows is None without a lattice
        block.
    smallest_size : int or None
        How many groups the smallest set found has; None where none was found.
    smallest_set : tuple of str or None
        One such set, in declared order of groups; the first of them where they were counted.
    smallest_count : int or None
        How many sets of that size fail; None where they were not counted.
    failure_probability : float or None
        How likely the decision is lost; this and what follows is None where the audit was given no rates.
    failure_low, failure_high : float or None
        Ends of its 95% interval; the probability itself where that is exact.
    failure_exact : bool or None
        Whether the probability is exact.
    expected_margin : float or None
        The margin to expect at those rates; None where it has no closed form.
    failure_condition : str or None
        How evidence fails, in words: ``if each field is missing 5% of the time``.
    modes : mapping of str to ModeCost or None
        By failure mode: ``exposure``, and by unit ``drop`` (expected loss of margin) and ``flip_chance``; None where
        the row has no modes block.
    intervals : mapping of str to StabilityInterval or None
        By raw field: how far its value may move before the decision flips; None where the row has no intervals block.
    any_value : AnyValueBudget or None
        How many groups must change, to any values, before it flips; None where the row has no any_value block.
    blocks : mapping of str to object
        What every block says of this row, by name; None where the audit has the block and this row has not.
    block_digests : mapping of str to str
        Of the blocks that this row has, by name.
    becomes : mapping of str to tuple
        By group: each raw field in it, and what takes its place when it is lost, as texts. Where preprocessing stands
        before the model and the evidence is replaced behind it, the protocol knows only the rule, such as ``typical``.
    """

    id: Hashable
    predicted: ClassLabel
    confidence: float
    margin: float
    bare_margin: float
    flip_budget: int
    flipped: bool
    rcma: float
    fds: float
    exposure: float
    independent_loss: float
    common_loss: float | None
    random_loss: float
    thresholds: Mapping[str, float | None]
    path: tuple[str, ...]
    path_margin: tuple[float, ...]
    path_predicted: tuple[ClassLabel, ...]
    path_collapse: tuple[float, ...]
    fade_margin: tuple[float, ...]
    one_step_drop: Mapping[str, float]
    one_step_confidence_drop: Mapping[str, float]
    already_missing: tuple[str, ...]
    digest: str
    blocks: Mapping[str, Any] = field(default_factory=dict)
    block_digests: Mapping[str, str] = field(default_factory=dict)
    becomes: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    @classmethod
    def from_row(cls, row: Mapping[str, Any], protocol: Protocol, blocks: Mapping[str, AuditBlock]) -> Certificate:
        """Return the certificate in a row of the table.

        Parameters
        ----------
        row : mapping of str to value
            The values by the names of their columns.
        protocol : Protocol
            The protocol it was made under.
        blocks : mapping of str to AuditBlock
            Those that the audit has.

        Returns
        -------
        Certificate
            To read.
        """
        if row["flipped"] is not (0 < (row["flip_budget"] or 0) <= protocol.depth):
            raise CertificateError(f"flipped and flip_budget of row {row['id']!r} contradict each other")
        steps: dict[str, Any] = {name: tuple(row.get(name, ())) for name in PER_STEP}  # none in a summary
        by_group = {name: dict(zip(protocol.group_names, steps[name], strict=False)) for name in PER_STEP[-2:]}
        path = present_path(row, protocol)
        along = {name: steps[name][: len(path) + 1] for name in ALONG_THE_PATH}
        digests = {name: row[own.digest] for name, own in blocks.items() if row[own.digest] is not None}
        found = {
            name: own.kind.read_row(row, own.declared, protocol) if name in digests else None
            for name, own in blocks.items()
        }
        return cls(
            **{name: row[name] for name in PLAIN_FIELDS},
            thresholds={operator: row[f"lambda_{operator}"] for operator in protocol.operators},
            path=path,
            already_missing=tuple(row["already_missing"]),
            becomes=protocol.becomes,
            **{**steps, **along, **by_group},
            blocks=found,
            block_digests=digests,
        )

    @property
    def modes(self) -> Mapping[str, ModeCost] | None:
        """By failure mode, what it costs this prediction; None where the row has no modes block."""
        found: Mapping[str, ModeCost] | None = self.blocks.get("modes")
        return found

    @property
    def intervals(self) -> Mapping[str, StabilityInterval] | None:
        """By raw field, how far it may move; None where the row has no intervals block."""
        found: Mapping[str, StabilityInterval] | None = self.blocks.get("intervals")
        return found

    @property
    def any_value(self) -> AnyValueBudget | None:
        """How many groups must change, to any values, before it flips; None where the row has no any_value block."""
        found: AnyValueBudget | None = self.blocks.get("any_value")
        return found

    @property
    def _search(self) -> LatticeOfRow:
        """The lattice block of the row; without one, what it says of rows that were not searched, or nothing."""
        return self.blocks.get("lattice") or (UNSEARCHED if "lattice" in self.blocks else LatticeOfRow())

    @property
    def smallest_state(self) -> str | None:
        """How far the search for the smallest failing set got; None without a lattice block."""
        return self._search.smallest_state

    @property
    def smallest_size(self) -> int | None:
        """How many groups the smallest set found has."""
        return self._search.smallest_size

    @property
    def smallest_set(self) -> tuple[str, ...] | None:
        """One such set, in declared order of groups."""
        return self._search.smallest_set

    @property
    def smallest_count(self) -> int | None:
        """How many sets of that size fail; None where they were not counted."""
        return self._search.smallest_count

    @property
    def failure_probability(self) -> float | None:
        """How likely the decision is lost; None where the audit was given no rates."""
        return self._search.failure_probability

    @property
    def failure_low(self) -> float | None:
        """The lower end of its 95% interval."""
        return self._search.failure_low

    @property
    def failure_high(self) -> float | None:
        """The upper end of its 95% interval."""
        return self._search.failure_high

    @property
    def failure_exact(self) -> bool | None:
        """Whether the probability is exact."""
        return self._search.failure_exact

    @property
    def expected_margin(self) -> float | None:
        """The margin to expect at those rates; None where it has no closed form."""
        return self._search.expected_margin

    @property
    def failure_condition(self) -> str | None:
        """How evidence fails, in words."""
        return self._search.failure_condition

    @property
    def failing_groups(self) -> tuple[str, ...]:
        """The groups whose removal, in path order, first changes the prediction; empty if none does."""
        return self.path[: self.flip_budget] if self.flipped else ()

    @property
    def flips_to(self) -> ClassLabel | None:
        """The class predicted at the flip, or None."""
        return self.path_predicted[self.flip_budget] if self.flipped and self.path_predicted else None

    @property
    def fewer_suffice(self) -> bool:
        """Whether the lattice block names fewer groups than the path needed, or some where the path found none."""
        return self.smallest_size is not None and (not self.flipped or self.smallest_size < self.flip_budget)

    @property
    def curve(self) -> MarginCurve:
        """The margin along the removal path, to draw; empty in an audit whose ``claims`` are a summary."""
        flip = self.flip_budget if self.flipped else None
        drawn = (self.path, self.path_margin, flip, self.flips_to, self.path_predicted)
        return MarginCurve(self.id, self.predicted, self.confidence, *drawn)

    def sentence(self) -> str:
        """Return one sentence for someone who decides about this case.

        Returns
        -------
        str
            What was predicted, how surely, what it would take to flip it, how likely that is where it is known, and
            which fields were missing to begin with.
        """
        what = describe_prediction(
            self.predicted,
            self.confidence,
            self._name_lost(self.path),
            self.flip_budget if self.flipped else None,
            self.flips_to,
            self._name_lost(self.smallest_set or ()),
            self.smallest_state,
            self.thresholds.values(),
        )
        chance = self.chance()
        missing = describe_missing(self.already_missing)
        return "; ".join(told for told in (what, chance, missing) if told is not None)

    def _name_lost(self, groups: Sequence[str]) -> list[str]:
        return name_lost_groups(groups, self.becomes, self.already_missing)

    def chance(self) -> str | None:
        """Return how likely the decision is lost, in words; None where the audit was given no rates.

        Returns
        -------
        str or None
            ``lost in 1 of 8 cases if each field is missing 5% of the time``.
        """
        if self.failure_probability is None or self.failure_low is None or self.failure_high is None:
            return None
        interval = None if self.failure_exact else (self.failure_low, self.failure_high)
        return describe_failure(self.failure_probability, str(self.failure_condition), interval)

    def smallest(self) -> str | None:
        """Return the smallest failing set and how far it is proved, in words; None without a lattice block.

        Returns
        -------
        str or None
            ``duration and purpose; no smaller set flips it; 3 sets of 2 groups flip it``.
        """
        if self.smallest_state is None:
            return None
        budget = self.flip_budget if self.flipped else None
        return describe_smallest(self.smallest_state, self.smallest_set or (), self.smallest_count, budget)

    def story(self) -> str:
        """Return the removal path in lines: what went, what margin was left, where it flipped.

        Returns
        -------
        str
            Several lines of text; also what printing a certificate shows.
        """
        lines = [escape_controls(f"row {self.id}: {self.sentence()}"), ""]
        lines += (
            draw_curve_text(self.curve) if self.path_margin else [f"     removed in this order: {', '.join(self.path)}"]
        )
        budget = f"k* = {self.flip_budget}{'' if self.flipped else ' (no flip)'}"
        lines += ["", f"     {budget}   RCMA = {self.rcma:.3f}   FDS = {self.fds:.3f}   exposure = {self.exposure:.3f}"]
        lines += [f"     {way:<22} {told}" for way, told in self.losses()]
        lines += [f"     {operator}: {describe_threshold(value)}" for operator, value in self.thresholds.items()]
        margin = None if self.expected_margin is None else f"{self.expected_margin:+.3f}"
        block = {"smallest failing set": self.smallest(), "outages": self.chance(), "expected margin": margin}
        lines += [f"     {what}: {told}" for what, told in block.items() if told is not None]
        if self.any_value is not None:
            lines.append(escape_controls(f"     whatever the value: {self.any_value.sentence()}"))
        lines += [f"     {sentence}" for sentence in self.mode_sentences()]
        lines += [escape_controls(f"     {sentence}") for sentence in self.interval_sentences()]
        return "\n".join(lines)

    def mode_sentences(self) -> list[str]:
        """Return what each failure mode costs this prediction, in words.

        Returns
        -------
        list of str
            One sentence per mode; empty where the row has no modes block.
        """
        return [
            describe_mode(mode, cost.exposure, cost.weakest, cost.flip_chance.get(cost.weakest or "", 0.0))
            for mode, cost in (self.modes or {}).items()
        ]

    def interval_sentences(self, most: int = SHOWN_INTERVALS) -> list[str]:
        """Return how far single values may move before the decision flips, in words.

        Parameters
        ----------
        most : int, default=3
            How many fields to name; those with the least room come first.

        Returns
        -------
        list of str
            One sentence per field that can flip the decision, and one that counts the others; empty where the row has
            no intervals block.
        """
        return [] if self.intervals is None else describe_intervals([*self.intervals.values()], most)

    def losses(self) -> list[tuple[str, str]]:
        """Return the ways evidence fails, and how much of the margin each takes, in words.

        Returns
        -------
        list of tuple of two str
            The way and its loss: the strongest groups first, each group on its own, groups at random, and all together
            where the protocol has ``attenuate_all``.
        """
        strongest = self.path[0] if self.path else None
        return describe_losses(self.rcma, self.independent_loss, self.random_loss, self.common_loss, strongest)

    __str__ = __repr__ = story

    def _repr_html_(self) -> str:
        opening = f"<p><b>Row {escape(self.id)}</b>: {escape(self.sentence())}.</p>"
        figures = [("exposure", f"{self.exposure:.3f}"), ("FDS", f"{self.fds:.3f}"), *self.losses()]
        thresholds = [(name, describe_threshold(value)) for name, value in self.thresholds.items()]
        budget = str(self.flip_budget) if self.flipped else "no flip"
        scores = draw_table(("score", ""), [("k*", budget), *figures, *thresholds])
        if not self.path_margin:
            steps = draw_table(("step", "removed"), list(enumerate(self.path, start=1)), numeric=(0,))
            return opening + put_side_by_side(scores, steps)
        marks = [" (flips)" if self.flipped and step == self.flip_budget else "" for step in range(len(self.path) + 1)]
        rows = [
            (step, removed, f"{margin:+.3f}", f"{predicted}{mark}")
            for step, (removed, margin, predicted, mark) in enumerate(
                zip(("(nothing)", *self.path), self.path_margin, self.path_predicted, marks, strict=True)
            )
        ]
        steps = draw_table(("step", "removed", "margin", "predicts"), rows, numeric=(0, 2))
        curve = draw_curve_svg(self.curve, describe_curve(self.id, self.sentence()), width=300.0)
        return opening + put_side_by_side(curve + scores, steps)

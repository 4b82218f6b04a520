"""One prediction's certificate, to read: as fields, as a sentence, as a story."""

from __future__ import annotations

import html
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from fragility.models import ClassLabel


@dataclass(frozen=True)
class Certificate:
    """One prediction's certificate, to read. Field names are the table's.

    In an audit whose ``claims`` are a summary, the fields with one entry a step, severity or group are empty.

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
    flip_budget : int
        k*: the first step of the path at which the prediction turns; depth + 1 if it never does.
    flipped : bool
        Whether it turned at all.
    rcma : float
        The mean share of the margin lost along the path.
    fds : float
        Fragility dominance score: 0 rests on much, 1 on little.
    exposure : float
        How much of the margin is lost in the three ways evidence fails, as one number: 0 nothing, toward 1 everything.
    independent_loss : float
        What the groups take from the margin each on its own, added up, as a share of it; may exceed 1.
    common_loss : float or None
        The mean share of the margin lost as all evidence fades together; None where the protocol lacks
        ``attenuate_all``.
    thresholds : mapping of str to float or None
        lambda* by operator; None where no severity flips.
    path : tuple of str
        Names of the groups in order of removal.
    path_margin : tuple of float
        The margin after 0, 1, 2 ... removals.
    path_predicted : tuple of class labels
        The class after 0, 1, 2 ... removals.
    path_collapse : tuple of float
        The share of the margin lost after 0, 1, 2 ... removals.
    fade_margin : tuple of float
        The margin as all evidence fades, by severity, as far as the prediction holds.
    one_step_drop : mapping of str to float
        How much margin each group alone carries.
    one_step_confidence_drop : mapping of str to float
        The same for the confidence.
    digest : str
        Of this row's claims.

    See Also
    --------
    Certificates : All certificates of an audit.
    """

    id: Hashable
    predicted: ClassLabel
    confidence: float
    margin: float
    flip_budget: int
    flipped: bool
    rcma: float
    fds: float
    exposure: float
    independent_loss: float
    common_loss: float | None  # None where the protocol does not fade all evidence together
    thresholds: Mapping[str, float | None]  # lambda* by operator, None where no severity flips
    path: tuple[str, ...]
    path_margin: tuple[float, ...]
    path_predicted: tuple[ClassLabel, ...]
    path_collapse: tuple[float, ...]
    fade_margin: tuple[float, ...]  # as all evidence fades, by severity, as far as the prediction holds
    one_step_drop: Mapping[str, float]
    one_step_confidence_drop: Mapping[str, float]
    digest: str

    @property
    def failing_groups(self) -> tuple[str, ...]:
        """The groups whose removal, in path order, first changes the prediction; empty if none does."""
        return self.path[: self.flip_budget] if self.flipped else ()

    @property
    def turns_to(self) -> ClassLabel | None:
        """The class predicted at the flip, or None."""
        return self.path_predicted[self.flip_budget] if self.flipped and self.path_predicted else None

    def sentence(self) -> str:
        """Return one sentence for someone who decides about this case.

        Returns
        -------
        str
            What was predicted, how surely, and what it would take to turn it.
        """
        opening = f"{self.predicted!r} at {self.confidence:.0%}"
        if self.flipped:
            becomes = f" {self.turns_to!r}" if self.path_predicted else ""
            return f"{opening}, but without {_and(self.failing_groups)} it turns{becomes}"
        weakest = min((v for v in self.thresholds.values() if v is not None), default=None)
        if weakest is not None:
            return f"{opening}; no {len(self.path)} removals change it, but evidence weakened by {weakest:.0%} does"
        left = f" ({self._margin_left()})" if self.path_margin else ""
        return f"{opening}, and it holds without its {len(self.path)} strongest groups{left}"

    def _margin_left(self) -> str:
        if self.path_margin[-1] >= self.margin:
            return "its margin does not shrink"
        share = self.path_margin[-1] / self.margin if self.margin > 0 else 0.0
        return f"{max(share, 0.0):.0%} of its margin left"

    def story(self) -> str:
        """Return the removal path in lines: what went, what margin was left, where it flipped.

        Returns
        -------
        str
            Several lines of text; also what printing a certificate shows.
        """
        lines = [f"row {self.id}: {self.sentence()}", ""]
        lines += self._steps() if self.path_margin else [f"     removed in this order: {', '.join(self.path)}"]
        budget = f"k* = {self.flip_budget}{'' if self.flipped else ' (no flip)'}"
        lines += ["", f"     {budget}   RCMA = {self.rcma:.3f}   FDS = {self.fds:.3f}   exposure = {self.exposure:.3f}"]
        lines += [f"     {way:<18} {told}" for way, told in self.losses()]
        for operator, value in self.thresholds.items():
            told = "no severity flips it" if value is None else f"flips at severity {value:g}"
            lines.append(f"     {operator}: {told}")
        return "\n".join(lines)

    def _steps(self) -> list[str]:
        lines = []
        width = max(len("(nothing removed)"), *(len(name) + 2 for name in self.path))
        scale = max(abs(m) for m in self.path_margin) or 1.0
        for k, (margin, label) in enumerate(zip(self.path_margin, self.path_predicted, strict=True)):
            name = "(nothing removed)" if k == 0 else f"- {self.path[k - 1]}"
            mark = "  <- flips" if self.flipped and k == self.flip_budget else ""
            lines.append(f"{k:>3}  {name:<{width}}  {margin:>+8.3f}  {_bar(margin / scale)}  {label}{mark}")
        return lines

    def losses(self) -> list[tuple[str, str]]:
        """Return the ways evidence fails, and how much of the margin each takes, in words.

        Returns
        -------
        list of tuple of two str
            The way and its loss: the strongest groups first, each group on its own, and all together where the protocol
            has ``attenuate_all``.
        """
        ways = [
            ("what goes first", f"{self.rcma:.0%} of the margin lost along the path, on average"),
            ("each on its own", f"{_of_margin(self.independent_loss)}, all groups added up; most by {self.path[0]}"),
        ]
        if self.common_loss is not None:
            ways.append(
                ("all together", f"{self.common_loss:.0%} of the margin lost as all evidence fades, on average")
            )
        return ways

    def __str__(self) -> str:
        return self.story()

    def __repr__(self) -> str:
        return self.story()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.story())}</pre>"


def _of_margin(loss: float) -> str:
    return f"{loss:.0%} of the margin" if loss < 1.0 else f"{loss:.1f} times the margin"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _bar(share: float, width: int = 10) -> str:
    """Return a bar of fixed length: filled to the right of the middle for support, to the left for support lost."""
    filled = round(min(abs(share), 1.0) * width)
    left, right = ("", "#" * filled) if share >= 0 else ("#" * filled, "")
    return f"{left:>{width}}|{right:<{width}}"

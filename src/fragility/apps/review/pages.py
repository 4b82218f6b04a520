"""What each page shows: one frozen context per page, made from cases and history, rendered by a template of its name.

Every text that comes from data, from an audit or from a reviewer is escaped by the templates.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2
import pyarrow as pa
from markupsafe import Markup, escape

from fragility.apps.review.history import DECISIONS, WORDS, CaseState, Entry, find_undos
from fragility.apps.review.queries import QueuedCase, QueuePage
from fragility.apps.review.rows import FieldLine
from fragility.apps.review.searches import MissingFields, MovableField
from fragility.apps.review.store import Bulk
from fragility.apps.review.views import STATUSES, View, write_name, write_number
from fragility.audits import Certificate, Certificates, Manifest
from fragility.base.text import escape_controls
from fragility.blocks.claims import present_path
from fragility.blocks.modes import ModesDeclaration, costs_of_row
from fragility.pages.drawing import draw_curve_svg
from fragility.pages.terms import LOSS_NAMES, MODE_MEANINGS, MODE_WORDS
from fragility.pages.wording import (
    describe_curve,
    describe_flip,
    describe_missing,
    describe_operator,
    describe_prediction,
    describe_smallest,
    name_lost_groups,
)
from fragility.protocol import Protocol

STEPS = ("path_margin", "path_predicted", "path_collapse", "fade_margin", "one_step_drop", "one_step_confidence_drop")

FLIP_WORDS = {"1": "without 1 group", "2": "without 2 groups", "3": "without 3 groups", "4": "without 4 groups or more",
              "none": "never on its path"}  # fmt: skip
RANKING_WORDS = {"exposure": "exposure", "fds": "FDS", "rehearsal": "rehearsal"}
RANKING_WORDS |= {mode: f"exposure to {words[0]}" for mode, words in MODE_WORDS.items()}
WEAKEST = 4  # units of a failure mode that a page names
RIGHT_TO_LEFT = ("R", "AL", "AN")
SEEN = 5e-4  # drops below this are shown as 0.000

_templates = jinja2.Environment(
    loader=jinja2.PackageLoader("fragility.apps.review", "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.globals.update(words=WORDS, decisions=DECISIONS, rankings=RANKING_WORDS)
_templates.globals["modes"] = {mode: words[0] for mode, words in MODE_WORDS.items()}


def _isolate(text: str) -> Markup:
    """Return a text of unknown origin: control characters written out, and isolated from the words around it."""
    return Markup("<bdi>{}</bdi>").format(escape_controls(text))


def _allow_breaks(name: str) -> Markup:
    """Return a name that may be broken after an underscore, where a narrow screen must break it."""
    return Markup("<bdi>{}</bdi>").format(
        Markup("_<wbr>").join(escape(part) for part in escape_controls(name).split("_"))
    )


def _isolate_names(text: str, names: Iterable[str]) -> Markup:
    """Return one of our sentences with right-to-left names in it isolated."""
    left = (name for name in names if any(unicodedata.bidirectional(letter) in RIGHT_TO_LEFT for letter in name))
    isolated = sorted({escape_controls(name) for name in left}, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, isolated))})" if isolated else "(?!)", escape_controls(text))
    return Markup("").join(_isolate(part) if part in isolated else escape(part) for part in parts)


_templates.filters.update(
    moment=lambda at: f"{at[:16].replace('T', ' ')} UTC",
    note=lambda text: Markup("<bdi>{}</bdi>").format(escape_controls(text, lines=True)),
    shown=_isolate, breakable=_allow_breaks, with_names=_isolate_names, plain=escape_controls,
    name=write_name, number=write_number, count=lambda n: f"{n:,}", share=lambda p: f"{p:.1%}",
)  # fmt: skip


def render(context: Any) -> str:
    """Return the page of a context."""
    return _templates.get_template(context.template).render(page=context, frame=context.frame)


@dataclass(frozen=True)
class Frame:
    """What is around every page."""

    title: str
    audit: str  # the folder's name
    reviewer: str | None
    view: str  # the address of the view to come back to
    tab: str = ""
    alert: str | None = None
    notice: DoneNotice | None = None


@dataclass(frozen=True)
class DoneNotice:
    """What was just done, and how to take it back."""

    text: str
    case: str | None = None  # the id of the row it is about
    undo: str | None = None  # where to send the undo
    fields: Mapping[str, str] = field(default_factory=dict)
    also: str = ""  # what else there is to say
    saved: str | None = None  # the name of the draft that was saved


@dataclass(frozen=True)
class WhoPage:
    frame: Frame
    goto: str
    known: tuple[str, ...]
    template: str = "who.html"


@dataclass(frozen=True)
class AddressPage:
    frame: Frame
    address: str
    template: str = "address.html"


@dataclass(frozen=True)
class ErrorPage:
    frame: Frame
    sentence: str
    template: str = "error.html"


# --- the queue ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QueueLine:
    queued: QueuedCase
    status: str  # as this reviewer may see it
    reviewers: tuple[str, ...]
    second: bool


@dataclass(frozen=True)
class FilterChoices:
    """What filters offer."""

    labels: tuple[str, ...]
    groups: tuple[str, ...]
    fields: tuple[str, ...]
    reviewers: tuple[str, ...]
    policy: str | None  # in words
    modes: tuple[str, ...]  # failure modes that the audit assessed
    rehearsed: bool  # whether cases have the rehearsal of a stress
    statuses: tuple[str, ...] = STATUSES


@dataclass(frozen=True)
class QueuePageContext:
    frame: Frame
    view: View
    queue: QueuePage | None  # None where a filter cannot be read
    lines: tuple[QueueLine, ...]
    choices: FilterChoices
    scope: tuple[tuple[str, str], ...]  # which predictions these are, in words
    rows: int
    model: str
    template: str = "queue.html"

    @property
    def decided(self) -> int:
        """Cases on which all who decided agree."""
        return sum(self.queue.done.get(decision, 0) for decision in DECISIONS) if self.queue else 0

    @property
    def progress(self) -> list[tuple[str, int, float, float]]:
        """(status, cases, start, length) of the bar that shows how far the review is, in percent."""
        if self.queue is None:
            return []
        start, parts, total = 0.0, [], max(self.queue.budgeted, 1)
        for status in ("accept", "escalate", "reacquire", "park", "conflict", "second"):
            count = self.queue.done.get(status, 0)
            parts.append((status, count, round(start, 2), round(100 * count / total, 2)))
            start += 100 * count / total
        return parts

    def sorting(self, column: str) -> str:
        """Return the address that sorts by a column, or turns its order round."""
        up = not self.view.up if self.view.order == column else False
        return self.view.address(sort="" if column == self.view.by else column, up=up, page=1)

    def sorted_as(self, column: str) -> str | None:
        if self.view.order != column:
            return None
        return "ascending" if self.view.up != (column == "id") else "descending"


def list_queue(cases: Sequence[QueuedCase], states: Mapping[str, CaseState], viewer: str) -> tuple[QueueLine, ...]:
    """Return the lines of a page as this reviewer may see them."""
    lines = []
    for queued in cases:
        state = states.get(queued.case.digest)
        if state is None:
            lines.append(QueueLine(queued, "open", (), False))
        elif state.hidden_from(viewer):
            lines.append(QueueLine(queued, "second", (), True))
        else:
            lines.append(QueueLine(queued, state.status, state.reviewers, state.second))
    return tuple(lines)


# --- one case -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One removal of the path."""

    k: int
    group: str
    margin: float
    predicted: str
    flips: bool  # the prediction flips here


@dataclass(frozen=True)
class Story:
    """A certificate, to read."""

    sentence: str
    curve: Markup | None  # SVG
    steps: tuple[Step, ...]
    drops: tuple[tuple[str, float, float, float, float], ...]  # group, margin, confidence, bar's start and length in %
    idle: tuple[str, ...]  # groups that carry nothing that can be seen
    thresholds: tuple[tuple[str, float | None], ...]
    losses: tuple[tuple[str, str, float], ...]  # way, in words, share
    path: tuple[str, ...]
    rcma: float
    lattice: tuple[tuple[str, str], ...]  # name, in words
    modes: tuple[ModeStory, ...]  # none where the row was not assessed


@dataclass(frozen=True)
class ModeStory:
    """What one failure mode costs a prediction, to read."""

    name: str
    meaning: str
    exposure: float
    flips: tuple[tuple[str, float], ...]  # in words, chance; the units that flip it most likely
    rest: int  # units of which none flips it
    units: int


def tell_story(row: Mapping[str, Any], queued: QueuedCase, protocol: Protocol, manifest: Manifest) -> Story:
    """Return one row of the certificate table, to read; an audit may have been written without its steps."""
    operators = [name.removeprefix("lambda_") for name in row if name.startswith("lambda_")]
    thresholds = tuple((describe_operator(name), row[f"lambda_{name}"]) for name in operators)
    has_steps = all(name in row for name in STEPS)
    cert = Certificates(pa.Table.from_pylist([dict(row)]), protocol, manifest)[0] if has_steps else None
    path = present_path(row, protocol)
    curve: Markup | None = None
    steps: tuple[Step, ...] = ()
    if cert:
        states = zip(("nothing removed", *cert.path), cert.path_margin, cert.path_predicted, strict=True)
        steps = tuple(
            Step(k, name, margin, str(label), cert.flipped and k == cert.flip_budget)
            for k, (name, margin, label) in enumerate(states)
        )
        label = describe_curve(cert.id, cert.sentence())
        curve = Markup(draw_curve_svg(cert.curve, label, width=640.0, height=236.0, styled=False))
    return Story(
        sentence=f"Predicted {cert.sentence() if cert else _summarise(queued, row, path, protocol.becomes)}.",
        curve=curve,
        steps=steps,
        drops=_list_drops(cert) if cert else (),
        idle=_list_idle(cert, protocol) if cert else (),
        thresholds=thresholds,
        losses=_list_losses(row, cert),
        path=path,
        rcma=row["rcma"],
        lattice=_describe_search(row, cert),
        modes=() if (modes := manifest.find_block(ModesDeclaration)) is None else _tell_modes(row, modes),
    )


def _list_idle(cert: Certificate, protocol: Protocol) -> tuple[str, ...]:
    """Return the groups that have values but carry no visible part of the margin."""
    missing, fields_of = set(cert.already_missing), protocol.evidence.group_fields
    there = (name for name in protocol.group_names if not missing.issuperset(fields_of[name]))
    return tuple(name for name in there if abs(cert.one_step_drop[name]) < SEEN)


def _tell_modes(row: Mapping[str, Any], declared: ModesDeclaration) -> tuple[ModeStory, ...]:
    stories = []
    for mode, cost in (costs_of_row(row, declared) or {}).items():
        likely = sorted(
            ((unit, chance) for unit, chance in cost.flip_chance.items() if chance > 0), key=lambda e: -e[1]
        )
        flips = tuple((describe_flip(mode, unit, chance), chance) for unit, chance in likely[:WEAKEST])
        units, name = len(cost.flip_chance), MODE_WORDS[mode][0]
        stories.append(ModeStory(name, MODE_MEANINGS[mode], cost.exposure, flips, units - len(likely), units))
    return tuple(stories)


def _summarise(
    queued: QueuedCase, row: Mapping[str, Any], path: Sequence[str], becomes: Mapping[str, tuple[tuple[str, str], ...]]
) -> str:
    """Say what flips a prediction whose certificate was written without its steps."""
    sentence = describe_prediction(
        queued.label,
        queued.confidence,
        name_lost_groups(path, becomes, row["already_missing"]),
        queued.flip_budget if queued.flipped else None,
        queued.flips_to,
        name_lost_groups(row.get("smallest_set") or (), becomes, row["already_missing"]),
        row.get("smallest_state"),
        [value for name, value in row.items() if name.startswith("lambda_")],
    )
    missing = describe_missing(row["already_missing"])
    return sentence if missing is None else f"{sentence}; {missing}"


def _list_drops(cert: Certificate) -> tuple[tuple[str, float, float, float, float], ...]:
    """Return what each group carries alone, with its bar: those below 0 grow to the left of a common zero."""
    drops = {name: drop for name, drop in cert.one_step_drop.items() if abs(drop) >= SEEN}
    low, high = min([0.0, *drops.values()]), max([0.0, *drops.values()])
    scale = 100.0 / ((high - low) or 1.0)
    return tuple(
        (
            name,
            drop,
            cert.one_step_confidence_drop[name],
            round(scale * (min(drop, 0.0) - low), 2),
            round(scale * abs(drop), 2),
        )
        for name, drop in sorted(drops.items(), key=lambda entry: -entry[1])
    )


def _list_losses(row: Mapping[str, Any], cert: Certificate | None) -> tuple[tuple[str, str, float], ...]:
    shares = [row["rcma"], row["independent_loss"], row["random_loss"], row["common_loss"]]
    names = LOSS_NAMES.values()
    defined = [(name, share) for name, share in zip(names, shares, strict=True) if share is not None]
    texts = [words for _, words in cert.losses()] if cert else [f"{share:.0%} of the margin" for _, share in defined]
    return tuple((name, words, share) for (name, share), words in zip(defined, texts, strict=True))


def _describe_search(row: Mapping[str, Any], cert: Certificate | None) -> tuple[tuple[str, str], ...]:
    """Describe what searches over all sets of groups add, of their loss and of any values; empty without a search."""
    free = None if cert is None else cert.any_value
    any_value = () if free is None else (("whatever the value", free.sentence()),)
    state = row.get("smallest_state")
    if state is None:
        return any_value
    budget = row["flip_budget"] if row["flipped"] else None
    smallest = describe_smallest(state, row["smallest_set"] or (), row.get("smallest_count"), budget)
    facts = [("smallest set that flips it", smallest), ("how likely it is lost", cert.chance() if cert else None)]
    if (margin := row.get("expected_margin")) is not None:
        facts.append(("margin to expect then", f"{margin:+.3f}"))
    return (*((name, words) for name, words in facts if words is not None), *any_value)


@dataclass(frozen=True)
class HistoryLine:
    entry: Entry
    undone: bool
    can_undo: bool


def list_history(entries: Sequence[Entry], state: CaseState, viewer: str) -> tuple[HistoryLine, ...]:
    """Return the history, newest first, as this reviewer may see it; their own newest standing entry can be undone."""
    visible = [entry for entry in entries if not state.hidden_from(viewer) or entry.reviewer == viewer]
    undone = find_undos(entries)
    mine = [e for e in visible if e.reviewer == viewer and e.action != "undo" and e.seq not in undone]
    newest = mine[-1].seq if mine else None
    return tuple(HistoryLine(entry, entry.seq in undone, entry.seq == newest) for entry in reversed(visible))


@dataclass(frozen=True)
class CasePage:
    frame: Frame
    view: View
    queued: QueuedCase
    status: str
    story: Story
    place: int | None  # in the view, counted from 1; None if it is not in it
    total: int  # cases of the view
    fields: tuple[FieldLine, ...] | None
    groups: tuple[str, ...]  # the path's first, then the others
    whatif: bool
    movable: tuple[MovableField, ...] | None  # None: not known, or to be searched for with the model
    missing: tuple[str, ...]  # fields that hold no value
    history: tuple[HistoryLine, ...]
    seen: int  # newest entry that is shown
    hidden: bool
    second: bool
    mine: Entry | None
    claimed_by: str | None
    before: QueuedCase | None
    after: QueuedCase | None
    similar: tuple[QueueLine, ...]
    similar_total: int
    reasons: Mapping[str, str]
    draft: Mapping[str, Any]  # what was typed before a conflict stopped it
    draft_key: str  # under which the browser keeps what is typed
    template: str = "case.html"

    @property
    def here(self) -> str:
        return f"/case/{self.queued.key}"

    @property
    def replaced(self) -> bool:
        """Whether it is known what replaces the values."""
        return any(line.replacement is not None for line in self.fields or ())

    def fields_of(self, group: str) -> list[FieldLine]:
        """Return the fields that a group has a part of."""
        return [line for line in self.fields or () if group in line.groups]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of unknown origin in sentences about the case."""
        return (*self.groups, self.queued.label, self.queued.flips_to or "")


@dataclass(frozen=True)
class FieldsPart:
    """The part of a case's page that is asked for by itself: how far its values may move."""

    frame: Frame
    movable: tuple[MovableField, ...]
    whatif: bool = True
    template: str = "fields.html"


@dataclass(frozen=True)
class MissingPart:
    """The part of a case's page that is asked for by itself: what its missing fields would have changed."""

    frame: Frame
    missing: MissingFields
    template: str = "missing.html"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of unknown origin in the sentences."""
        return (*self.missing.fields, self.missing.changes_to or "")


# --- many cases, and the team -------------------------------------------------------------------------------


@dataclass(frozen=True)
class BulkPage:
    frame: Frame
    view: View
    scope: tuple[tuple[str, str], ...]  # which predictions these are, in words
    decided: int  # cases of this scope that are not open, and will be left alone
    open: int
    lines: tuple[QueuedCase, ...]  # the first of the open ones
    never: int  # open cases that have no groups of their own
    expected: str  # names exactly the open cases
    chosen: bool  # these were ticked in the queue
    groups: tuple[str, ...]
    reasons: Mapping[str, str]
    draft: Mapping[str, Any]
    draft_key: str
    template: str = "bulk.html"


@dataclass(frozen=True)
class TeamLine:
    entry: Entry
    key: str | None  # of the case, if it is in this audit
    hidden: bool


@dataclass(frozen=True)
class TeamPage:
    frame: Frame
    counts: tuple[tuple[str, Mapping[str, int]], ...]  # standing decisions by reviewer
    pairs: int
    agreeing: int
    kappa: float | None
    waiting: int  # second reviews asked for and not yet given
    eligible: int  # cases that one reviewer decided
    recent: tuple[TeamLine, ...]
    bulks: tuple[Bulk, ...]
    store: str
    template: str = "team.html"


def describe_view(view: View, predictions: int, fields: Sequence[tuple[str, str]] = ()) -> tuple[tuple[str, str], ...]:
    """Return which predictions a view is about; ``fields`` are the conditions on fields, in words."""
    confident = f"predictions at least {100 * view.confident:.12g}% confident"
    if view.search:
        parts = [("among", f"all {predictions:,} predictions"), ("id contains", f"“{view.search}”")]
    elif view.budget == "policy":  # which has a confidence of its own
        parts = [("among", "what the review policy sends to review")]
    elif view.budget == "all":
        parts = [("among", f"all {confident}")]
    else:
        top = f"{view.cases_in_time:,}" if view.budget == "time" else f"{view.budget}%"
        time = f" ({write_number(view.hours)} h at {write_number(view.rate)} an hour)" if view.budget == "time" else ""
        of = confident if view.by not in MODE_WORDS else f"{confident} whose failure modes were assessed"
        parts = [("among", f"the top {top} by {RANKING_WORDS[view.by]}{time} of the {of}")]
    parts += [("predicted", view.label)] if view.label is not None else []
    parts += [("flips", FLIP_WORDS[view.k])] if view.k else []
    parts += [("flipped by", view.group)] if view.group is not None else []
    parts += [(RANKING_WORDS[view.mode], f"at least {write_number(view.least)}")] if view.mode else []
    parts += fields
    parts += [("status", WORDS[view.status])] if view.status else []
    parts += [("reviewer", view.reviewer)] if view.reviewer is not None else []
    return tuple(parts)

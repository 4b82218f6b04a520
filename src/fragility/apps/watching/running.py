"""watch: read decisions in order of time, follow them, and say what changed."""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fragility.apps.watching.events import EPOCH, STATES, EventLayout, LateDecisions, cut_by_day
from fragility.apps.watching.findings import (
    Alarm,
    ExpectedLoss,
    GroupLoss,
    LossTable,
    Watched,
    WatchedValue,
    count_single_losses,
    name_measure,
    tabulate_losses,
)
from fragility.apps.watching.following import (
    LOOK_ROWS,
    DayTally,
    Episode,
    Follower,
    FollowSettings,
    Reference,
    ReferenceKeeper,
    ReferenceSums,
    sum_days,
)
from fragility.apps.watching.outcome import WatchResult
from fragility.apps.watching.sequences import bound_shares
from fragility.apps.watching.sources import DatedAudits, LoggedDecisions, ReplayedRows, check_folder, is_log, read_audit
from fragility.audits import Audit, open_audit
from fragility.audits.measures import settled_within
from fragility.base.arrays import Floats, is_number
from fragility.base.errors import Advice, DataError
from fragility.pages.wording import write_count
from fragility.protocol import Protocol
from fragility.questions.reliability.outcomes import FailureProbability
from fragility.scores import EARLY

DecisionSource = LoggedDecisions | DatedAudits | ReplayedRows

HORIZON = 365
REFERENCE_DAYS = 7
WINDOW = 7


def watch(
    source: Any,
    *,
    dates: Sequence[dt.date | str] | None = None,
    time: str | None = None,
    model: Any = None,
    protocol: Protocol | None = None,
    reference_days: int | None = None,
    released: Audit | str | os.PathLike[str] | None = None,
    rates: float | Mapping[str, float] | None = None,
    reliability: FailureProbability | str | os.PathLike[str] | None = None,
    alpha: float = 0.05,
    horizon: int = HORIZON,
    allowance: float = 0.0,
    window: int = WINDOW,
    min_confidence: float | None = None,
) -> WatchResult:
    """Say what happened to decisions and their evidence over time, with alarms that hold however often one looks.

    Parameters
    ----------
    source : path, Audit, sequence of them, or table
        The log of ``fragility serve``; or dated audits; or past rows to replay, with ``time``, ``model`` and
        ``protocol``.
    dates : sequence of date or str, optional
        One date per audit; by default those in the names of their folders, such as ``audit-2026-11-18``.
    time : str, optional
        The column of a table to replay that says when each row was decided; UTC unless it has a time zone.
    model : estimator, pipeline, booster or Model, optional
        What decided the rows of a table.
    protocol : Protocol, optional
        The protocol to certify them under.
    reference_days : int, optional
        The first so many days with decisions are the reference: 7 by default, 1 for dated audits.
    released : Audit or path, optional
        The audit that the model was released with: the reference of exposure, flips and decisions.
    rates : float or mapping of str to float, optional
        How often fields are expected to be missing: the reference of those fields.
    reliability : FailureProbability or path, optional
        A reliability result, or its JSON file, for the decisions expected to be lost; by default the certificates of
        the released audit, or the first of the log, say which decisions hang on one group.
    alpha : float, default=0.05
        The chance of any false alarm over the horizon, all fields together.
    horizon : int, default=365
        The days over which alpha is spent; then it is spent anew.
    allowance : float, default=0.0
        How far a share or mean may move from the reference without an alarm.
    window : int, default=7
        The last days from which current rates are taken.
    min_confidence : float, optional
        Where a decision counts as confident; by default as the protocol declares, of dated audits that of the first.

    Returns
    -------
    WatchResult
        Days, figures and alarms; false while an alarm is open.

    Raises
    ------
    DataError
        There is nothing to read, an audit has no date, or a setting is out of range.

    See Also
    --------
    Gate : One audit against declared rules.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X[:400], y[:400])
    >>> protocol = fg.Protocol.fit(model, X[:400])
    >>> months = [fg.audit(model, X[start : start + 200], protocol) for start in (400, 600, 800)]
    >>> found = fg.watch(months, dates=["2026-01-31", "2026-02-28", "2026-03-31"], min_confidence=0.7)
    >>> found.headline()
    '600 decisions from 2026-01-31 to 2026-03-31: no open alarm'
    """
    _check_settings(alpha, horizon, allowance, window, reference_days, min_confidence)
    opened, source_name = _open_source(source, dates, time, model, protocol)
    if min_confidence is None:
        min_confidence = opened.protocol.min_confidence
    layout = opened.layout
    settings = FollowSettings(
        alpha=alpha,
        horizon=horizon,
        reference_days=reference_days or (1 if isinstance(opened, DatedAudits) else REFERENCE_DAYS),
        allowance=allowance,
        rates=_read_rates(rates, layout),
    )
    audit = open_audit(released) if isinstance(released, (str, os.PathLike)) else released
    if audit is not None and not isinstance(audit, Audit):
        raise DataError(f"released must be an audit or its folder, got {type(audit).__name__}")
    if isinstance(opened, DatedAudits):
        compared = opened.audits if audit is None else (*opened.audits, audit)
        opened = replace(opened, by_sets=settled_within(EARLY, compared, min_confidence))
    keeper, kept = _find_kept(opened, settings, min_confidence, reference_days)
    follower, late = Follower(layout, settings, kept=kept), LateDecisions()
    if audit is not None:
        follower.released = _measure_released(audit, opened, follower, min_confidence)
    for piece in cut_by_day(opened.batches(min_confidence), LOOK_ROWS, late):
        follower.follow(piece)
    if not follower.days:
        raise DataError(f"{source_name} holds no decisions; at least one was expected")
    reference_notes = _keep_reference(keeper, follower)
    table = _find_losses(opened, audit, reliability)
    days = tuple(_date(day.day) for day in follower.days)
    sums = follower.sums
    return WatchResult(
        alarms=tuple(_tell(episode, follower.reference, settings, layout, table) for episode in follower.episodes),
        days=days,
        decisions=tuple(day.rows for day in follower.days),
        without=tuple(day.decided_without for day in follower.days),
        changed=tuple(day.p_change for day in follower.days),
        watched=_describe_columns(follower, window),
        loss=_expect_loss(follower, window, layout, table),
        models=tuple(f"{kind} ({fingerprint[:23]})" for kind, fingerprint in opened.models()),
        source=source_name,
        settings={
            "alpha": alpha,
            "horizon": horizon,
            "reference_days": settings.reference_days,
            "reference": None if sums is None else {"first": sums.first, "last": sums.last, "decisions": sums.rows},
            "window": window,
            "allowance": allowance,
            "min_confidence": min_confidence,
        },
        notes=(*opened.notes, *_tell_late(late), *reference_notes, *_tell_varying(follower)),
    )


def _find_kept(
    opened: DecisionSource, settings: FollowSettings, min_confidence: float, declared_days: int | None
) -> tuple[ReferenceKeeper | None, ReferenceSums | None]:
    """Return the keeper of a log's reference, and the stored reference; None for other sources."""
    if not isinstance(opened, LoggedDecisions):
        return None, None
    key = {
        "protocol_digest": opened.protocol.digest,
        "classes": list(opened.layout.classes),
        "reference_days": settings.reference_days,
        "min_confidence": min_confidence,
    }
    keeper = ReferenceKeeper(opened.folder, key, opened.layout.columns)
    kept = keeper.load()
    if kept is None and opened.lacks_beginning and declared_days is None:
        raise DataError(
            f"the audit folders of {opened.folder} before {opened.audits[0].name} were moved away, and no reference of "
            f"their days is kept; restore them, or take the first days that are left as the reference with ",
            Advice("reference_days", "--reference-days"),
        )
    return keeper, kept


def _keep_reference(keeper: ReferenceKeeper | None, follower: Follower) -> list[str]:
    """Store a complete reference; return the notes about it."""
    sums = follower.sums
    if keeper is None or sums is None:
        return []
    where = f"kept in {keeper.path.name} of the log"
    if follower.kept is None:
        try:
            keeper.save(sums)
        except OSError as error:
            where = f"which cannot be kept in {keeper.path} ({error.strerror or error}): it changes with the first days"
    return [f"Reference: {sums.first} to {sums.last}, {write_count(sums.rows, 'decision')}, {where}."]


def _tell_late(late: LateDecisions) -> list[str]:
    if not late.count:
        return []
    count = write_count(late.count, "decision")
    return [f"Recorded after a decision of a later day, and counted for that day: {count}."]


def _tell_varying(follower: Follower) -> list[str]:
    """Say which shares vary from day to day in the reference."""
    spread = np.zeros(0) if follower.sums is None else follower.sums.spread
    columns = [follower.columns[place] for place in np.flatnonzero(spread)]
    named = [name_measure(column.measure, column.name) for column in columns]
    if not named:
        return []
    return [f"In the reference these vary from day to day, and alarms allow for it: {'; '.join(named)}."]


def _check_settings(
    alpha: float, horizon: int, allowance: float, window: int, reference_days: int | None, min_confidence: float | None
) -> None:
    whole = {"horizon": horizon, "window": window, "reference_days": 1 if reference_days is None else reference_days}
    for name, value in whole.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise DataError(f"{name} must be a whole number of days, at least 1, got {value!r:.80}")
    if not is_number(alpha) or not 0.0 < alpha < 1.0:
        raise DataError(f"alpha must lie between 0 and 1, got {alpha!r:.80}")
    for name, share in {"allowance": allowance, "min_confidence": min_confidence}.items():
        if share is not None and (not is_number(share) or not 0.0 <= share < 1.0):
            raise DataError(f"{name} must be at least 0 and below 1, got {share!r:.80}")


def _open_source(
    source: Any, dates: Sequence[dt.date | str] | None, time: str | None, model: Any, protocol: Protocol | None
) -> tuple[DecisionSource, str]:
    """Return where decisions come from, and its name."""
    if time is not None:
        if model is None or protocol is None:
            raise DataError(
                "rows are replayed as a model decides them; give ",
                Advice("model and protocol", "--model and --protocol"),
            )
        if dates is not None:
            raise DataError("rows to replay have a time each; leave out ", Advice("dates", "--dates"))
        return ReplayedRows.of(source, time, model, protocol), "the replayed rows"
    if model is not None or protocol is not None:
        raise DataError(
            "a model and a protocol are for rows to replay; name their time column with ", Advice("time", "--time")
        )
    listed = list(source) if isinstance(source, (list, tuple)) else [source]
    if not listed:
        raise DataError("at least one audit folder or log was expected, got none")
    for item in listed:
        if not isinstance(item, (str, os.PathLike, Audit)):
            raise DataError(
                f"an audit, its folder or a log was expected, got {type(item).__name__}; for rows to replay, name "
                "their time column with ",
                Advice("time", "--time"),
            )
        if isinstance(item, (str, os.PathLike)):
            check_folder(Path(item))
    logs = [item for item in listed if isinstance(item, (str, os.PathLike)) and is_log(item)]
    if logs:
        if len(listed) > 1:
            raise DataError(f"{logs[0]} is a log, which is watched by itself; leave out the other folders")
        if dates is not None:
            raise DataError("a log knows the time of each decision; leave out ", Advice("dates", "--dates"))
        return LoggedDecisions.of(Path(logs[0])), f"the log {Path(logs[0]).name}"
    return DatedAudits.of(listed, dates), "1 audit" if len(listed) == 1 else f"{len(listed)} audits"


def _read_rates(rates: float | Mapping[str, float] | None, layout: EventLayout) -> dict[str, float]:
    if rates is None:
        return {}
    if not layout.fields:
        raise DataError(
            "rates are of missing fields, which audits do not record; leave out ", Advice("rates", "--rates")
        )
    if not isinstance(rates, Mapping) and not is_number(rates):
        raise DataError(f"rates must be a number or a mapping of fields to rates, got {rates!r:.80}")
    declared = rates if isinstance(rates, Mapping) else dict.fromkeys(layout.fields, rates)
    for name, rate in declared.items():
        if name not in layout.fields:
            raise DataError(f"rates name {name!r}, which is no field; known are {', '.join(layout.fields)}")
        if not is_number(rate) or not 0.0 <= rate <= 1.0:
            raise DataError(f"the rate of {name!r} must be a number from 0 to 1, got {rate!r:.80}")
    return {str(name): float(rate) for name, rate in declared.items()}


def _measure_released(audit: Audit, opened: DecisionSource, follower: Follower, min_confidence: float) -> DayTally:
    """Return what the released audit shows, in the columns of the decisions watched."""
    if [*map(str, audit.classes)] != list(opened.layout.classes):
        raise DataError("the released audit is of a model with other classes than the decisions watched")
    if audit.protocol.digest != opened.protocol.digest:
        raise DataError(
            "the released audit was made under another protocol than the decisions watched; audit the model under the "
            "protocol that is served"
        )
    means = tuple(mean for mean in opened.layout.means if mean == "exposure")
    layout = EventLayout((), (), opened.layout.classes, means, ())
    counted, by_sets = Follower(layout, follower.settings), isinstance(opened, DatedAudits) and opened.by_sets
    for piece in cut_by_day(read_audit(audit, layout, 0, min_confidence, by_sets=by_sets), LOOK_ROWS):
        counted.follow(piece)
    if not counted.days:
        raise DataError("the released audit has no certificates")
    tally, places = follower.new_tally(0), {column: place for place, column in enumerate(follower.columns)}
    for place, column in enumerate(counted.columns):
        for name in ("n", "k", "squares"):
            getattr(tally, name)[places[column]] = getattr(counted.days[0], name)[place]
    return tally


def _find_losses(
    opened: DecisionSource, released: Audit | None, reliability: FailureProbability | str | os.PathLike[str] | None
) -> LossTable | None:
    if isinstance(opened, DatedAudits):
        if reliability is not None:
            raise DataError(
                "a reliability result is for the rates of missing fields, which audits do not record; leave out ",
                Advice("reliability", "--reliability"),
            )
        return None
    if reliability is None:
        audit = released if released is not None else opened.first_audit()
        return None if audit is None else count_single_losses(audit)
    if isinstance(reliability, (str, os.PathLike)):
        reliability = FailureProbability.load(reliability)
    return tabulate_losses(reliability, opened.protocol.group_names)


# --- the result ---------------------------------------------------------------------------------------------


def _date(day: int) -> dt.date:
    return EPOCH + dt.timedelta(days=int(day))


def _describe_columns(follower: Follower, window: int) -> tuple[Watched, ...]:
    """Return each column, day by day and over the last days, with its confidence sequences."""
    days, columns, reference = follower.days, follower.columns, follower.reference
    recent = days[-window:]
    n = np.array([*(day.n for day in days), sum_days(recent, "n")])  # (D + 1, C)
    k = np.array([*(day.k for day in days), sum_days(recent, "k")])
    lower, upper = bound_shares(n, k, follower.settings.alpha)
    for row, day in enumerate(days):
        for place, sequence in day.intervals.items():
            lower[row, place], upper[row, place] = sequence.interval()
    value = np.divide(k, n, out=np.full(k.shape, np.nan), where=n > 0)
    watched = []
    for place, column in enumerate(columns):
        figures = [
            WatchedValue(float(value[i, place]), int(n[i, place]), float(lower[i, place]), float(upper[i, place]))
            for i in range(len(n))
        ]
        mean, low, high = (
            (math.nan, math.nan, math.nan)
            if reference is None
            else (float(array[place]) for array in (reference.mean, reference.lower, reference.upper))
        )
        watched.append(Watched(column.measure, column.name, mean, low, high, tuple(figures[:-1]), figures[-1]))
    return tuple(watched)


def _expect_loss(follower: Follower, window: int, layout: EventLayout, table: LossTable | None) -> ExpectedLoss | None:
    if table is None or not layout.groups:
        return None
    recent = follower.days[-window:]
    rows = sum(day.rows for day in recent)
    rates = sum_days(recent, "without") / rows
    share, per_day = table.expect(rates), rows / len(recent)
    due = table.by_group(rates) * per_day
    groups = [
        GroupLoss(name, float(rates[g]), float(table.importance[g]), float(due[g]))
        for g, name in enumerate(table.groups)
    ]
    by_day = tuple(day.rows * table.expect(day.without / day.rows) for day in follower.days)
    ordered = tuple(sorted(groups, key=lambda group: (-group.lost_per_day, -group.importance)))
    return ExpectedLoss(share * per_day, share, by_day, ordered, table.source, table.rows)


def _tell(
    episode: Episode,
    reference: Reference | None,
    settings: FollowSettings,
    layout: EventLayout,
    table: LossTable | None,
) -> Alarm:
    """Return the alarm of an episode, in the values of its column: those of a fall are turned back."""
    assert reference is not None
    column, falls = episode.stream.column, episode.stream.direction == "down"
    total = episode.n - episode.k if falls else episode.k
    value, mean = total / episode.n, float(reference.mean[episode.stream.place])
    lower, upper = float(reference.lower[episode.stream.place]), float(reference.upper[episode.stream.place])
    bound = max(lower - settings.allowance, 0.0) if falls else min(upper + settings.allowance, 1.0)
    decisions = round(episode.n)
    if column.measure in STATES:
        affected = round(episode.k)
    elif column.measure == "repeated":  # counted in pairs
        decisions, affected = 2 * decisions, round(2.0 * abs(total - mean * episode.n))
    elif column.is_mean:
        affected = round(episode.n)
    else:
        affected = round(abs(total - mean * episode.n))
    return Alarm(
        measure=column.measure,
        name=column.name,
        direction=episode.stream.direction,
        day=_date(episode.raised),
        decision_number=episode.raised_at,
        since=_date(episode.since),
        value=value,
        reference=mean,
        bound=bound,
        decisions=decisions,
        affected=affected,
        changed=_expect_changed(episode, layout, table),
        closed=None if episode.closed is None else _date(episode.closed),
    )


def _expect_changed(episode: Episode, layout: EventLayout, table: LossTable | None) -> float | None:
    """Return how many decisions made without a field would differ with it; None if it is not known."""
    column = episode.stream.column
    if column.measure not in ("missing", "stale"):
        return None
    if episode.known:
        return episode.changed
    if table is None or column.name is None:
        return None
    place = layout.fields.index(column.name)
    importance: Floats = table.importance
    for g, (_, members) in enumerate(layout.groups):
        if members == (place,):
            return float(episode.k * max(importance[g], 0.0))
    return None

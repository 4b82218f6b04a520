"""From audits to the report's summary: one pass over each audit, a bounded number of rows at a time.

The headline names the segment that flips early clearly more often than the rest. It is named only if its difference
from the rest stays above zero in Newcombe's interval at the level 1 - 0.05 / m, with m the number of segments looked at
(Bonferroni): the more one looks, the more one finds by chance.

Audits are compared over the rows they share, matched by id. That needs one entry per row of each audit, and is the one
part of the report whose memory grows with rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from fragility.arrays import Floats, Integers
from fragility.certificates import Audit, BaselineComparison
from fragility.certificates.comparison import differences_between, rows_by_id
from fragility.certificates.dependence import STABLE
from fragility.errors import DataError
from fragility.evidence.replacements import Replacement, fields_of_groups, find_replacements
from fragility.intervals import Share, difference_of, normal_quantile, paired_difference, share_of
from fragility.models import Model
from fragility.protocol import Protocol
from fragility.reliability.outcomes import FailureProbability
from fragility.report.inputs import GivenRows, LabelTally, add_values, read_brittle, read_classes
from fragility.report.summary import (
    AuditFacts,
    AuditNumbers,
    BaselineNumbers,
    Byline,
    Case,
    Compared,
    ComparedSegments,
    DensityMap,
    Dependence,
    GroupFacts,
    PairedAudits,
    ProtocolFacts,
    ReliabilityNumbers,
    ReportSummary,
    SmallestSet,
    WorstSegment,
)
from fragility.report.tally import Row, SetTally, read_pieces
from fragility.segments import ByColumn, Coded, SegmentTally, read_by, segment_rows
from fragility.stress.labels import BrittleLabels

ALPHA = 0.05
EXPOSED_SHARE = 0.2  # the exposed corner: the most exposed fifth of the confident predictions
MAP_COLUMNS, MAP_LINES, MAP_RIGHT = 40, 40, 4.0

# A column, or None for the predicted class, and its segments: their names and the shares that flip early.
Cut: TypeAlias = tuple[str | None, Sequence[tuple[str, Share]]]


@dataclass(frozen=True)
class Asked:
    """One audit to report on: what to call it, and the command that verifies it."""

    name: str
    audit: Audit
    verify: str
    signed_by: str | None = None


@dataclass(frozen=True)
class Settings:
    """What the report is to say beyond the audits themselves."""

    labels: Mapping[Hashable, object] | None
    brittle: BrittleLabels | pa.Table | None
    min_confidence: float
    risk: float
    rows: GivenRows | None = None
    by: ByColumn = ()
    byline: Byline = field(default_factory=Byline)
    reliability: FailureProbability | None = None


def summarise(asked: Sequence[Asked], settings: Settings) -> ReportSummary:
    """Return the summary that every rendering of a report reads."""
    _check(asked, settings)
    given, codes = settings.rows, list[list[Coded]]([] for _ in asked)
    if settings.by:
        if given is None:
            raise DataError("by cuts rows by a column of theirs; give the rows that were audited too")
        codes = segment_rows(
            given.values, read_by(settings.by, given.values.column_names), [one.audit for one in asked]
        )
    truth = None if settings.labels is None else read_classes(settings.labels)
    audits = [_summarise_audit(one, settings, truth, own) for one, own in zip(asked, codes, strict=True)]
    if given is not None:
        audits = [_show_values(numbers, one.audit, given) for numbers, one in zip(audits, asked, strict=True)]
    paired = pair_audits([(one.name, one.audit) for one in asked], settings.min_confidence, codes)
    return ReportSummary(tuple(audits), paired, settings.byline)


def _check(asked: Sequence[Asked], settings: Settings) -> None:
    if not 0.0 <= settings.min_confidence <= 1.0:
        raise DataError(f"min_confidence must lie between 0 and 1, got {settings.min_confidence!r}")
    if not 0.0 < settings.risk < 1.0:
        raise DataError(f"risk must lie between 0 and 1, such as 0.02, got {settings.risk!r}")
    if not asked:
        raise DataError("a report needs at least one audit, got none")
    for one in asked:
        if len(one.audit) == 0:
            raise DataError(f"the audit {one.name} holds no certificates; there is nothing to report")
    if settings.brittle is not None and len(asked) > 1:
        raise DataError("held-out stress labels belong to one model; report on its audit alone")
    if settings.reliability is not None:
        if len(asked) > 1:
            raise DataError("failure probabilities belong to one model; report on its audit alone")
        audit, found = asked[0].audit, settings.reliability
        ids = [own for batch in audit.batches(["id"]) for own in batch.column("id").to_pylist()]
        if ids != list(found.id) or audit.protocol.group_names != found.group_names:
            raise DataError("the failure probabilities are of other rows or groups than the audit")


# --- one audit ------------------------------------------------------------------------------------------------


def _summarise_audit(
    one: Asked, settings: Settings, truth: dict[str, str] | None, coded: Sequence[Coded]
) -> AuditNumbers:
    audit, protocol, least = one.audit, one.audit.protocol, settings.min_confidence
    detailed, declared = audit.manifest.claims == "full", audit.manifest.lattice
    everything, confident = (SetTally(protocol, audit.classes, detailed) for _ in range(2))
    tallies = [] if truth is None else [LabelTally("wrong", truth, least)]
    if settings.brittle is not None:
        tallies.append(LabelTally("brittle", *read_brittle(settings.brittle, least, protocol)))
    density = np.zeros((MAP_COLUMNS, MAP_LINES), dtype=np.int64)
    segments = [SegmentTally(own, protocol.depth, least) for own in coded]
    for piece in read_pieces(audit):
        everything.add(piece)
        confident.add(piece.take(piece.confidence >= least))
        np.add.at(density, _place_on_map(piece.confidence, piece.exposure), 1)
        for segment in segments:
            segment.add(int(piece.position[0]), piece.budget, piece.confidence, piece.exposure)
        for tally in tallies:
            tally.add(piece, audit.classes)
    condition = declared.condition(protocol) if declared is not None and declared.has_failures else None
    cases = [_read_case(row, protocol, everything.classes) for _, _, row in (confident.worst or everything.worst)]
    every = everything.summarise(() if confident.rows else cases, condition)
    sure = confident.summarise(cases if confident.rows else (), condition)
    focus, shares = sure if sure.rows else every, tuple(segment.shares() for segment in segments)
    cuts: list[Cut] = [(None, [(each.predicted, each.flips_early) for each in focus.class_losses])]
    for own in shares:
        numbers = [(each.name, each.confident if sure.rows else each.everything) for each in own.segments]
        cuts.append((own.column, [(name, each.flips_early) for name, each in numbers]))
    threshold, corner = (confident if confident.rows else everything).find_threshold(EXPOSED_SHARE)
    cells = tuple((int(x), int(y), int(density[x, y])) for x, y in np.argwhere(density > 0))
    return AuditNumbers(
        facts=_state_facts(one),
        protocol=_state_protocol(protocol, find_replacements(protocol.evidence)),
        min_confidence=least,
        everything=every,
        confident=sure,
        worst=find_worst(cuts),
        segments=shares,
        density=DensityMap(MAP_RIGHT, MAP_COLUMNS, MAP_LINES, cells, threshold, corner),
        accuracy=None if truth is None else tallies[0].measure_accuracy(),
        reviews=tuple(tally.simulate_review(settings.risk) for tally in tallies),
        detailed=detailed,
        dependence=None if audit.baselines is None else _summarise_baselines(audit.baselines, protocol),
        reliability=None if settings.reliability is None else _summarise_reliability(settings.reliability),
    )


def _place_on_map(confidence: Floats, exposure: Floats) -> tuple[Integers, Integers]:
    with np.errstate(divide="ignore"):
        place = -np.log10(np.maximum(1.0 - confidence, 0.0))
    across = np.clip(place / MAP_RIGHT * MAP_COLUMNS, 0, MAP_COLUMNS - 1).astype(np.int64)
    return across, np.clip(exposure * MAP_LINES, 0, MAP_LINES - 1).astype(np.int64)


def find_worst(cuts: Sequence[Cut]) -> WorstSegment | None:
    """Return the segment that differs most clearly from the rest, or None."""
    count = sum(len(segments) for _, segments in cuts if len(segments) > 1)
    if not count:
        return None
    z, clearest, found = normal_quantile(1 - ALPHA / count), 0.0, None
    for column, segments in cuts:
        for place, (name, early) in enumerate(segments):
            others = [*segments[:place], *segments[place + 1 :]]
            rest = share_of(sum(share.count for _, share in others), sum(share.rows for _, share in others))
            if not early.rows or not rest.rows:
                continue
            bound = difference_of(share_of(early.count, early.rows, z), share_of(rest.count, rest.rows, z)).lower
            if bound > clearest:
                rest_name = others[0][0] if len(others) == 1 else None
                clearest = bound
                found = WorstSegment(column, name, early, rest_name, rest, difference_of(early, rest))
    return found


def _summarise_reliability(found: FailureProbability) -> ReliabilityNumbers:
    table = found.groups()
    return ReliabilityNumbers(
        condition=found.condition,
        recorded=found.rates is None,
        rows=len(found),
        exact=int(found.exact.sum()),
        lost=found.lost,
        kept=tuple(zip(table["group"].tolist(), table["decisions_kept"].tolist(), strict=True)),
    )


def _summarise_baselines(found: BaselineComparison, protocol: Protocol) -> Dependence:
    rows = len(found)
    return Dependence(
        rows=rows,
        depth=found.depth,
        stable=found.verdict == STABLE,
        baselines=tuple(
            BaselineNumbers(
                name=one.baseline,
                artificial=protocol.with_baseline(one.baseline).artificial,
                flips_after_one=share_of(one.flip_within_one, rows),
                flips_early=share_of(one.flip_within_two, rows),
                never_flips=share_of(one.never_flip, rows),
                median_budget=one.median_flip_budget,
            )
            for one in found.figures
        ),
        disagreeing=found.disagreeing,
        under_all=tuple(str(own) for own in found.under_all),
        under_only=tuple((name, len(found.under_only(name))) for name in found.baselines),
    )


# --- facts and cases ----------------------------------------------------------------------------------------


def _state_facts(one: Asked) -> AuditFacts:
    manifest = one.audit.manifest
    model = manifest.model
    return AuditFacts(
        name=one.name,
        model=model.kind,
        classes=tuple(str(label) for label in one.audit.classes),
        rows=len(one.audit),
        engine=manifest.engine.name,
        evaluations=manifest.engine.evaluations,
        probabilities=model.probabilities,
        partial=model.partial,
        model_fingerprint=model.fingerprint,
        input_digest=manifest.input.digest,
        root_digest=manifest.root_digest,
        versions=dict(manifest.versions),
        limits=manifest.limits,
        verify=one.verify,
        folder=None if (folder := getattr(one.audit, "folder", None)) is None else str(folder),
        signed_by=one.signed_by,
    )


def _state_protocol(
    protocol: Protocol, becomes: Mapping[str, Replacement], model: Model | None = None
) -> ProtocolFacts:
    fields = fields_of_groups(protocol.evidence, model)
    known = {name: str(one) for name, one in becomes.items() if one.state != "unknown"}
    return ProtocolFacts(
        space=protocol.space,
        grouping=protocol.grouping,
        groups=tuple(
            GroupFacts(
                group.name,
                len(group.columns),
                tuple((name, known[name]) for name in fields[group.name] if name in known),
            )
            for group in protocol.groups
        ),
        fields=len(protocol.fields),
        columns=len(protocol.columns),
        baseline=protocol.baseline,
        artificial=protocol.artificial,
        operators=tuple(protocol.operators),
        severities=tuple(protocol.severities),
        depth=protocol.depth,
        reading=protocol.reading,
        decision=None if protocol.decision is None else str(protocol.decision),
        resolution=protocol.resolution,
        smoothing=protocol.smoothing,
        exposure_weights=protocol.exposure_weights,
        training_rows=protocol.training_rows,
        digest=protocol.digest,
    )


def _read_case(row: Row, protocol: Protocol, classes: Sequence[str]) -> Case:
    flips_to, others = None, [label for label in classes if label != str(row["predicted"])]
    if row["flipped"] and "path_predicted" in row:
        flips_to = str(row["path_predicted"][row["flip_budget"]])
    elif row["flipped"] and len(others) == 1:
        flips_to = others[0]
    smallest = None
    if "smallest_state" in row:
        smallest = SmallestSet(
            state=row["smallest_state"],
            size=row["smallest_size"],
            groups=tuple(row["smallest_set"]),
            count=row["smallest_count"],
            failure_probability=row.get("failure_probability"),
            failure_interval=None if row.get("failure_exact", True) else (row["failure_low"], row["failure_high"]),
        )
    return Case(
        id=str(row["id"]),
        predicted=str(row["predicted"]),
        confidence=row["confidence"],
        exposure=row["exposure"],
        fds=row["fds"],
        flip_budget=row["flip_budget"],
        flipped=row["flipped"],
        path=tuple(row["path"]),
        margins=tuple(row["path_margin"]) if "path_margin" in row else None,
        flips_to=flips_to,
        thresholds={operator: row[f"lambda_{operator}"] for operator in protocol.operators},
        smallest=smallest,
    )


def _show_values(numbers: AuditNumbers, audit: Audit, given: GivenRows) -> AuditNumbers:
    """Return the summary with the values of the cases' rows, and what replaces them."""
    names = set(given.values.column_names)
    lacking = next((field.name for field in audit.protocol.fields if field.name not in names), None)
    if lacking is not None:
        return replace(numbers, lacks_field=lacking)
    shown, becomes = add_values(numbers.focus.cases, given, audit)
    numbers = replace(numbers, protocol=_state_protocol(audit.protocol, becomes, given.model))
    if numbers.confident.rows:
        return replace(numbers, confident=replace(numbers.confident, cases=shown))
    return replace(numbers, everything=replace(numbers.everything, cases=shown))


# --- several audits -------------------------------------------------------------------------------------------


def pair_audits(
    audits: Sequence[tuple[str, Audit]], min_confidence: float, codes: Sequence[Sequence[Coded]]
) -> tuple[PairedAudits, ...]:
    """Compare every audit with the first; ``codes`` are the segments of each audit's rows, by column."""
    if len(audits) < 2:
        return ()
    tables = [
        rows_by_id(audit, min_confidence).assign(**{f"segment_{place}": one.codes for place, one in enumerate(own)})
        for (_, audit), own in zip(audits, codes, strict=True)
    ]
    return tuple(
        _pair(audits[0], later, tables[0], table, codes[0]) for later, table in zip(audits[1:], tables[1:], strict=True)
    )


def _pair(
    first: tuple[str, Audit],
    second: tuple[str, Audit],
    before: pd.DataFrame,
    after: pd.DataFrame,
    codes: Sequence[Coded],
) -> PairedAudits:
    """Compare shares of the same rows if the audits share some, else of each audit's own rows."""
    both = before.index.intersection(after.index)
    shared = len(both) > 0
    one, two = (before.loc[both], after.loc[both]) if shared else (before, after)
    sure = one["confident"] & two["confident"] if shared else None
    sets = sure_one, sure_two = [table[table["confident"] if sure is None else sure] for table in (one, two)]

    def compare(measure: str, first: pd.Series, second: pd.Series) -> Compared:
        shares = share_of(int(first.sum()), len(first)), share_of(int(second.sum()), len(second))
        if not shared:
            return Compared(measure, *shares, difference_of(shares[1], shares[0]))
        return Compared(
            measure, *shares, paired_difference(int((second & ~first).sum()), int((first & ~second).sum()), len(first))
        )

    early = [sure_one["early"], sure_two["early"]] if shared else [pd.Series(dtype=bool)] * 2
    return PairedAudits(
        first=first[0],
        second=second[0],
        differences=differences_between(first[1].protocol, second[1].protocol),
        shared=len(both),
        same_class=int((one["predicted"].map(str) == two["predicted"].map(str)).sum()) if shared else 0,
        both_confident=len(sure_one) if shared else 0,
        flip_in_both=int((early[0] & early[1]).sum()),
        flip_in_first_only=int((early[0] & ~early[1]).sum()),
        flip_in_second_only=int((~early[0] & early[1]).sum()),
        compared=(
            compare("early", sure_one["early"], sure_two["early"]),
            compare("after_one", sure_one["after_one"], sure_two["after_one"]),
            compare("confident_early", one["confident"] & one["early"], two["confident"] & two["early"]),
            compare("confident", one["confident"], two["confident"]),
        ),
        segments=tuple(
            ComparedSegments(
                coded.column,
                tuple(
                    (name, compare("early", *(table["early"][table[f"segment_{place}"] == code] for table in sets)))
                    for code, name in enumerate(coded.names)
                ),
            )
            for place, coded in enumerate(codes)
        ),
        rank_correlation=_correlate_ranks(one["exposure"], two["exposure"]) if shared else None,
    )


def _correlate_ranks(one: pd.Series, other: pd.Series) -> float | None:
    """Return Spearman's correlation, or None if there is nothing to rank."""
    if one.nunique() < 2 or other.nunique() < 2:
        return None
    # Rounded: the last digits of a correlation differ between machines, and nobody reads them.
    return round(float(np.corrcoef(one.rank(), other.rank())[0, 1]), 6)

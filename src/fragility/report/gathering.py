"""From audits to the report's summary: one pass over each audit, a bounded piece at a time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from fragility.certificates import Audit, BaselineComparison
from fragility.certificates.comparison import differences_between, rows_by_id
from fragility.certificates.dependence import STABLE
from fragility.errors import DataError
from fragility.evidence.replacements import Replacement, fields_of_groups, find_replacements
from fragility.intervals import difference_of, paired_difference, share_of
from fragility.models import Model
from fragility.protocol import Protocol
from fragility.reliability.outcomes import FailureProbability
from fragility.report.headline import Segmentation, find_worst
from fragility.report.labels import LabelTally, brittle_labels, class_labels
from fragility.report.rows import GivenRows, lacking_field, with_values
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
    SetNumbers,
    SmallestSet,
)
from fragility.report.tally import Piece, Row, SetTally, columns_of, failure_condition, is_detailed, pieces_of
from fragility.segments import ByColumn, Coded, SegmentShares, SegmentTally, read_by, segment_rows
from fragility.stress.labels import BrittleLabels

EXPOSED_SHARE = 0.2  # the exposed corner: the most exposed fifth of the confident predictions
MAP_COLUMNS, MAP_LINES, MAP_RIGHT = 40, 40, 4.0


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
    truth = None if settings.labels is None else class_labels(settings.labels)
    coded = _segmented(asked, settings)
    audits = tuple(_numbers(one, settings, truth, own) for one, own in zip(asked, coded, strict=True))
    if settings.rows is not None:
        given = settings.rows
        audits = tuple(_with_values(numbers, one.audit, given) for numbers, one in zip(audits, asked, strict=True))
    named = [(one.name, one.audit) for one in asked]
    paired = paired_audits(named, settings.min_confidence, coded) if len(asked) > 1 else ()
    return ReportSummary(audits, paired, settings.byline)


def _segmented(asked: Sequence[Asked], settings: Settings) -> list[list[Coded]]:
    """Return the segments of every audit's rows, by each column asked for."""
    if not settings.by:
        return [[] for _ in asked]
    if settings.rows is None:
        raise DataError("by cuts rows by a column of theirs; give the rows that were audited too")
    columns = read_by(settings.by, settings.rows.values.column_names)
    return segment_rows(settings.rows.values, columns, [one.audit for one in asked])


def _with_values(numbers: AuditNumbers, audit: Audit, given: GivenRows) -> AuditNumbers:
    lacking = lacking_field(given, audit)
    if lacking is not None:
        return replace(numbers, lacks_field=lacking)
    shown, becomes = with_values(numbers.focus.cases, given, audit)
    numbers = replace(numbers, protocol=_protocol_facts(audit.protocol, becomes, given.model))
    if numbers.confident.rows:
        return replace(numbers, confident=replace(numbers.confident, cases=shown))
    return replace(numbers, everything=replace(numbers.everything, cases=shown))


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


def _numbers(one: Asked, settings: Settings, truth: dict[str, str] | None, coded: Sequence[Coded]) -> AuditNumbers:
    audit, protocol = one.audit, one.audit.protocol
    detailed, least = is_detailed(audit), settings.min_confidence
    everything, confident = (SetTally(protocol, audit.classes, detailed) for _ in range(2))
    tallies = _label_tallies(settings, truth, protocol)
    density = np.zeros((MAP_COLUMNS, MAP_LINES), dtype=np.int64)
    segments = [SegmentTally(own, protocol.depth, least) for own in coded]
    for piece in pieces_of(audit, columns_of(audit)):
        everything.add(piece, np.ones(len(piece), dtype=bool))
        confident.add(piece, piece.confidence >= least)
        density += _density(piece)
        for segment in segments:
            segment.add(piece.start, everything.budget(piece), piece.confidence, piece.exposure)
        for tally in tallies:
            tally.add(piece, audit.classes)
    by_class = {tally.sought: tally for tally in tallies}
    condition = failure_condition(audit.manifest.lattice)
    every = everything.numbers(_cases(everything, protocol) if not confident.rows else (), condition)
    sure = confident.numbers(_cases(confident, protocol), condition)
    focus, shares = sure if sure.rows else every, tuple(segment.shares() for segment in segments)
    return AuditNumbers(
        facts=_facts(one),
        protocol=_protocol_facts(protocol, find_replacements(protocol.evidence)),
        min_confidence=least,
        everything=every,
        confident=sure,
        worst=find_worst([_by_class(focus), *(_by_column(each, bool(sure.rows)) for each in shares)]),
        segments=shares,
        density=_density_map(density, confident if confident.rows else everything),
        accuracy=by_class["wrong"].accuracy() if "wrong" in by_class else None,
        reviews=tuple(tally.review(settings.risk) for tally in tallies),
        detailed=detailed,
        dependence=None if audit.baselines is None else _dependence(audit.baselines, protocol),
        reliability=None if settings.reliability is None else _reliability(settings.reliability),
    )


def _reliability(found: FailureProbability) -> ReliabilityNumbers:
    table = found.groups()
    return ReliabilityNumbers(
        condition=found.condition,
        recorded=found.rates is None,
        rows=len(found),
        exact=int(found.exact.sum()),
        lost=found.lost,
        kept=tuple(zip(table["group"].tolist(), table["decisions_kept"].tolist(), strict=True)),
    )


def _dependence(found: BaselineComparison, protocol: Protocol) -> Dependence:
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


def _by_class(numbers: SetNumbers) -> Segmentation:
    return Segmentation(None, [(one.predicted, one.flips_early) for one in numbers.class_losses])


def _by_column(shares: SegmentShares, confident: bool) -> Segmentation:
    segments = [(one.name, (one.confident if confident else one.everything).flips_early) for one in shares.segments]
    return Segmentation(shares.column, segments)


def _label_tallies(settings: Settings, truth: dict[str, str] | None, protocol: Protocol) -> list[LabelTally]:
    tallies = [] if truth is None else [LabelTally("wrong", truth, settings.min_confidence)]
    if settings.brittle is not None:
        tallies.append(LabelTally("brittle", *brittle_labels(settings.brittle, settings.min_confidence, protocol)))
    return tallies


# --- confidence against exposure ----------------------------------------------------------------------------


def _density(piece: Piece) -> npt.NDArray[np.int64]:
    with np.errstate(divide="ignore"):
        place = -np.log10(np.maximum(1.0 - piece.confidence, 0.0))
    across = np.clip(place / MAP_RIGHT * MAP_COLUMNS, 0, MAP_COLUMNS - 1).astype(np.int64)
    up = np.clip(piece.exposure * MAP_LINES, 0, MAP_LINES - 1).astype(np.int64)
    counts = np.bincount(across * MAP_LINES + up, minlength=MAP_COLUMNS * MAP_LINES)
    return np.asarray(counts.reshape(MAP_COLUMNS, MAP_LINES), dtype=np.int64)


def _density_map(counts: npt.NDArray[np.int64], focus: SetTally) -> DensityMap:
    threshold, corner = focus.threshold(EXPOSED_SHARE)
    cells = tuple((int(x), int(y), int(counts[x, y])) for x, y in np.argwhere(counts > 0))
    return DensityMap(MAP_RIGHT, MAP_COLUMNS, MAP_LINES, cells, threshold, corner)


# --- facts and cases ----------------------------------------------------------------------------------------


def _facts(one: Asked) -> AuditFacts:
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


def _protocol_facts(
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


def _cases(tally: SetTally, protocol: Protocol) -> list[Case]:
    return [_case(row, protocol, tally.classes) for _, _, row in tally.worst]


def _case(row: Row, protocol: Protocol, classes: Sequence[str]) -> Case:
    budget, flipped = row["flip_budget"], row["flipped"]
    return Case(
        id=str(row["id"]),
        predicted=str(row["predicted"]),
        confidence=row["confidence"],
        exposure=row["exposure"],
        fds=row["fds"],
        flip_budget=budget,
        flipped=flipped,
        path=tuple(row["path"]),
        margins=tuple(row["path_margin"]) if "path_margin" in row else None,
        flips_to=_flips_to(row, classes) if flipped else None,
        thresholds={operator: row[f"lambda_{operator}"] for operator in protocol.operators},
        smallest=_smallest(row),
    )


def _flips_to(row: Row, classes: Sequence[str]) -> str | None:
    if "path_predicted" in row:
        return str(row["path_predicted"][row["flip_budget"]])
    others = [label for label in classes if label != str(row["predicted"])]
    return others[0] if len(others) == 1 else None


def _smallest(row: Row) -> SmallestSet | None:
    if "smallest_state" not in row:
        return None
    return SmallestSet(
        state=row["smallest_state"],
        size=row["smallest_size"],
        groups=tuple(row["smallest_set"]),
        count=row["smallest_count"],
        failure_probability=row.get("failure_probability"),
        failure_interval=None if row.get("failure_exact", True) else (row["failure_low"], row["failure_high"]),
    )


def paired_audits(
    audits: Sequence[tuple[str, Audit]], min_confidence: float, coded: Sequence[Sequence[Coded]] | None = None
) -> tuple[PairedAudits, ...]:
    """Compare every audit with the first; ``coded`` are the segments of each audit's rows."""
    codes: Sequence[Sequence[Coded]] = coded or [()] * len(audits)
    tables = [
        rows_by_id(audit, min_confidence).assign(**{f"segment_{place}": one.codes for place, one in enumerate(own)})
        for (_, audit), own in zip(audits, codes, strict=True)
    ]
    (first, one), before = audits[0], tables[0]
    return tuple(
        _paired(first, second, before, after, one.protocol, other.protocol, codes[0])
        for (second, other), after in zip(audits[1:], tables[1:], strict=True)
    )


def _paired(
    first: str, second: str, before: pd.DataFrame, after: pd.DataFrame, one: Protocol, other: Protocol,
    coded: Sequence[Coded],
) -> PairedAudits:  # fmt: skip
    both = before.add_suffix("_first").join(after.add_suffix("_second"), how="inner")
    confident = both[both["confident_first"] & both["confident_second"]]
    early_before, early_after = confident["early_first"], confident["early_second"]
    return PairedAudits(
        first=first,
        second=second,
        differences=differences_between(one, other),
        shared=len(both),
        same_class=int((both["predicted_first"].map(str) == both["predicted_second"].map(str)).sum()),
        both_confident=len(confident),
        flip_in_both=int((early_before & early_after).sum()),
        flip_in_first_only=int((early_before & ~early_after).sum()),
        flip_in_second_only=int((~early_before & early_after).sum()),
        compared=_compared_rows(both, confident) if len(both) else _compared_apart(before, after),
        segments=tuple(
            _segments(own, place, confident, before, after, bool(len(both))) for place, own in enumerate(coded)
        ),
        rank_correlation=_rank_correlation(both["exposure_first"], both["exposure_second"]),
    )


def _compared_rows(both: pd.DataFrame, confident: pd.DataFrame) -> tuple[Compared, ...]:
    """Compare shares of the same rows."""

    def sure_and_early(when: str) -> pd.Series:
        return both[f"confident_{when}"] & both[f"early_{when}"]

    return (
        _compared("early", confident["early_first"], confident["early_second"]),
        _compared("after_one", confident["after_one_first"], confident["after_one_second"]),
        _compared("confident_early", sure_and_early("first"), sure_and_early("second")),
        _compared("confident", both["confident_first"], both["confident_second"]),
    )


def _compared(measure: str, first: pd.Series, second: pd.Series) -> Compared:
    rows = len(first)
    difference = paired_difference(int((second & ~first).sum()), int((first & ~second).sum()), rows)
    return Compared(measure, share_of(int(first.sum()), rows), share_of(int(second.sum()), rows), difference)


def _compared_apart(before: pd.DataFrame, after: pd.DataFrame) -> tuple[Compared, ...]:
    """Compare shares of rows that the audits do not share."""
    sure = [table[table["confident"]] for table in (before, after)]
    shares = {
        "early": [share_of(int(table["early"].sum()), len(table)) for table in sure],
        "after_one": [share_of(int(table["after_one"].sum()), len(table)) for table in sure],
        "confident_early": [
            share_of(int(part["early"].sum()), len(table)) for part, table in zip(sure, (before, after), strict=True)
        ],
        "confident": [share_of(len(part), len(table)) for part, table in zip(sure, (before, after), strict=True)],
    }
    return tuple(Compared(name, one, two, difference_of(two, one)) for name, (one, two) in shares.items())


def _segments(
    coded: Coded, place: int, both: pd.DataFrame, before: pd.DataFrame, after: pd.DataFrame, shared: bool
) -> ComparedSegments:
    """Compare the confident predictions of each segment: on the same rows where audits share some."""
    found = []
    for code, name in enumerate(coded.names):
        if shared:
            mine = both[both[f"segment_{place}_first"] == code]
            found.append((name, _compared("early", mine["early_first"], mine["early_second"])))
        else:
            one, other = (
                table[table["confident"] & (table[f"segment_{place}"] == code)]["early"] for table in (before, after)
            )
            shares = share_of(int(one.sum()), len(one)), share_of(int(other.sum()), len(other))
            found.append((name, Compared("early", *shares, difference_of(shares[1], shares[0]))))
    return ComparedSegments(coded.column, tuple(found))


def _rank_correlation(one: pd.Series, other: pd.Series) -> float | None:
    """Return Spearman's correlation; None where there is nothing to rank."""
    if one.nunique() < 2 or other.nunique() < 2:
        return None
    # Rounded: the last digits of a correlation differ between machines, and nobody reads them.
    return round(float(np.corrcoef(one.rank(), other.rank())[0, 1]), 6)

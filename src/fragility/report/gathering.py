"""From audits to the report's summary: one pass over each audit, a bounded number of rows at a time.

The headline names the segment that flips early clearly more often than the rest. It is named only if its difference
from the rest stays above zero in Newcombe's interval at the level 1 - 0.05 / m, with m the number of segments looked at
(Bonferroni): the more one looks, the more one finds by chance.

Audits are compared over the rows they share, matched by id. This needs one entry per row of each audit, and is the only
part of the report whose memory grows with the number of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

import fragility.report.summary as summary
from fragility.analysis.segments import ByColumn, Coded, SegmentTally, read_by, segment_rows
from fragility.audits import Audit, BaselineComparison
from fragility.audits.comparison import IDS_SHOWN, AuditChanges, differences_between, join_changes, rows_by_id
from fragility.audits.measures import ANY_ALONE, ANY_BUDGET, ANY_PROVED, label_rows, settled_within
from fragility.base.arrays import Floats, Integers
from fragility.base.errors import DataError
from fragility.base.shares import Share, add_shares, difference_of, normal_quantile, paired_difference, share_of
from fragility.blocks.any_value import AnyValueDeclaration
from fragility.blocks.baselines.comparison import name_stability
from fragility.blocks.claims import present_path
from fragility.blocks.lattice.values import LatticeDeclaration
from fragility.blocks.modes import ModesDeclaration, costs_of_row
from fragility.evidence.replacements import Replacement, find_replacements
from fragility.models import Model
from fragility.parity import ModelParity
from fragility.protocol import Protocol
from fragility.questions.any_value.deciding import list_units
from fragility.questions.any_value.found import CAN, CANNOT
from fragility.questions.reliability.outcomes import FailureProbability
from fragility.questions.stress.labels import BrittleLabels
from fragility.report.inputs import LabelTally, ShownRows, add_values, read_brittle
from fragility.report.summary import AuditNumbers
from fragility.report.tally import Row, SetTally, read_pieces
from fragility.scores import EARLY

ALPHA = 0.05
EXPOSED_SHARE = 0.2  # the exposed corner: the most exposed fifth of the confident predictions
MAP_COLUMNS, MAP_LINES, MAP_RIGHT = 40, 40, 4.0

# A column, or None for the predicted class, its segments (names and shares that flip early), and which may be named.
Cut: TypeAlias = tuple[str | None, Sequence[tuple[str, Share]], Collection[str]]


@dataclass(frozen=True)
class ReportedAudit:
    """One audit to report on, with its name, the command that verifies it, and the key that signed it."""

    name: str
    audit: Audit
    verify: str
    signed_by: str | None = None


@dataclass(frozen=True)
class ReportSettings:
    """The inputs and settings of a report, besides the audits."""

    labels: Mapping[Hashable, object] | None
    brittle: BrittleLabels | pa.Table | None
    min_confidence: float
    risk: float
    rows: ShownRows | None
    by: ByColumn
    byline: summary.Byline
    reliability: FailureProbability | None
    parities: tuple[ModelParity, ...] = ()


def summarise(
    reported: Sequence[ReportedAudit], settings: ReportSettings
) -> tuple[summary.ReportSummary, tuple[AuditChanges, ...]]:
    """Return the summary of a report, and the rows of each further audit beside those of the first."""
    _check(reported, settings)
    rows, codes = settings.rows, list[list[Coded]]([] for _ in reported)
    if settings.by:
        if rows is None:
            raise DataError("by groups rows by one of their columns; give the audited rows too")
        by = read_by(settings.by, rows.values.column_names)
        codes = segment_rows(rows.values, by, [one.audit for one in reported])
    audits = [_summarise_audit(one, settings, coded) for one, coded in zip(reported, codes, strict=True)]
    if rows is not None:
        audits = [_show_values(numbers, one.audit, rows) for numbers, one in zip(audits, reported, strict=True)]
    if len(reported) == 1:
        return summary.ReportSummary(tuple(audits), (), settings.byline, settings.parities), ()
    named, least = [(one.name, one.audit) for one in reported], settings.min_confidence
    pairs = pair_audits(named, least, codes, settings.labels)
    measured = tuple(audit.summary(min_confidence=least, labels=settings.labels) for _, audit in named)
    paired = tuple(pair for pair, _ in pairs)
    made = summary.ReportSummary(tuple(audits), paired, settings.byline, settings.parities, measured)
    return made, tuple(changes for _, changes in pairs)


def _check(reported: Sequence[ReportedAudit], settings: ReportSettings) -> None:
    if not 0.0 <= settings.min_confidence <= 1.0:
        raise DataError(f"min_confidence must lie between 0 and 1, got {settings.min_confidence!r}")
    if not 0.0 < settings.risk < 1.0:
        raise DataError(f"risk must lie between 0 and 1, such as 0.02, got {settings.risk!r}")
    if not reported:
        raise DataError("a report needs at least one audit, got none")
    empty = next((one.name for one in reported if len(one.audit) == 0), None)
    if empty is not None:
        raise DataError(f"the audit {empty} contains no certificates; there is nothing to report")
    if settings.brittle is not None and len(reported) > 1:
        raise DataError("held-out stress labels belong to one model; report on its audit alone")
    if settings.reliability is not None:
        if len(reported) > 1:
            raise DataError("failure probabilities belong to one model; report on its audit alone")
        settings.reliability.check_audit(reported[0].audit)
    audited = {one.audit.manifest.model.fingerprint for one in reported}
    for compared in settings.parities:
        if compared.a.fingerprint not in audited:
            raise DataError(
                f"the comparison of {compared.a.name} with {compared.b.name} is of another model than the audit's; "
                "compare the audited model with its artefact"
            )


# --- one audit ------------------------------------------------------------------------------------------------


def _summarise_audit(one: ReportedAudit, settings: ReportSettings, coded: Sequence[Coded]) -> AuditNumbers:
    audit, protocol, least = one.audit, one.audit.protocol, settings.min_confidence
    detailed, declared = audit.manifest.claims == "full", audit.manifest.find_block(LatticeDeclaration)
    modes = audit.manifest.find_block(ModesDeclaration)
    everything, confident = SetTally(audit), SetTally(audit)
    tallies = [] if settings.labels is None else [LabelTally("wrong", label_rows(settings.labels), least)]
    if settings.brittle is not None:
        tallies.append(LabelTally("brittle", *read_brittle(settings.brittle, least, protocol)))
    density = np.zeros((MAP_COLUMNS, MAP_LINES), dtype=np.int64)
    segments = [SegmentTally(cut, audit, least) for cut in coded]
    for piece in read_pieces(audit):
        everything.add(piece)
        confident.add(piece.take(piece.confidence >= least))
        np.add.at(density, _place_on_map(piece.confidence, piece.exposure), 1)
        for segment in segments:
            segment.add(int(piece.position[0]), piece.table)
        for tally in tallies:
            tally.add(piece, audit.classes)
    condition = declared.condition(protocol) if declared is not None and declared.has_failures else None
    worst = confident.worst or everything.worst
    cases = [_read_case(row, protocol, everything.classes, modes) for _, _, row in worst]
    if "intervals" in audit.blocks:  # long lists, which only the cases need
        certs = audit.take([position for _, position, _ in worst])
        intervals = [certs.certificate(place).intervals for place in range(len(worst))]
        known = [None if line is None else tuple(line.values()) for line in intervals]
        cases = [replace(case, intervals=line) for case, line in zip(cases, known, strict=True)]
    every = everything.summarise(() if confident.rows else cases, condition)
    sure = confident.summarise(cases if confident.rows else (), condition)
    focus, shares = sure if sure.rows else every, tuple(segment.shares() for segment in segments)
    classes = [(line.predicted, line.flips_early) for line in focus.class_losses]
    cuts: list[Cut] = [(None, classes, {name for name, _ in classes})]
    for cut in shares:
        numbers = [(line.name, line.confident if sure.rows else line.everything) for line in cut.segments]
        # The headline names no segment that differs only because of its predicted classes.
        clear = {name for name, line in numbers if line.differs_within_class}
        cuts.append((cut.column, [(name, line.flips_early) for name, line in numbers], clear))
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
        density=summary.DensityMap(MAP_RIGHT, MAP_COLUMNS, MAP_LINES, cells, threshold, corner),
        accuracy=None if settings.labels is None else tallies[0].measure_accuracy(),
        reviews=tuple(tally.simulate_review(settings.risk) for tally in tallies),
        detailed=detailed,
        dependence=None if audit.baselines is None else _summarise_baselines(audit.baselines, protocol),
        reliability=None if settings.reliability is None else _summarise_reliability(settings.reliability),
        any_value=_summarise_any_value(audit),
    )


def _place_on_map(confidence: Floats, exposure: Floats) -> tuple[Integers, Integers]:
    with np.errstate(divide="ignore"):
        place = -np.log10(np.maximum(1.0 - confidence, 0.0))
    across = np.clip(place / MAP_RIGHT * MAP_COLUMNS, 0, MAP_COLUMNS - 1).astype(np.int64)
    return across, np.clip(exposure * MAP_LINES, 0, MAP_LINES - 1).astype(np.int64)


def find_worst(cuts: Sequence[Cut]) -> summary.WorstSegment | None:
    """Return the segment that differs most clearly from the rest, or None."""
    count = sum(len(segments) for _, segments, _ in cuts if len(segments) > 1)
    if not count:
        return None
    z, clearest, worst = normal_quantile(1 - ALPHA / count), 0.0, None
    for column, segments, named in cuts:
        for place, (name, early) in enumerate(segments):
            if name not in named:
                continue
            others = [*segments[:place], *segments[place + 1 :]]
            rest = add_shares(share for _, share in others)
            if not early.rows or not rest.rows:
                continue
            bound = difference_of(share_of(early.count, early.rows, z), share_of(rest.count, rest.rows, z)).lower
            if bound > clearest:
                rest_name = others[0][0] if len(others) == 1 else None
                clearest = bound
                worst = summary.WorstSegment(column, name, early, rest_name, rest, difference_of(early, rest))
    return worst


def _summarise_any_value(audit: Any) -> summary.AnyValueNumbers | None:
    declared = audit.manifest.find_block(AnyValueDeclaration)
    if declared is None:
        return None
    names = [ANY_BUDGET, ANY_PROVED, "flip_budget", "flipped"]
    table = pa.concat_tables(audit.batches([*names, ANY_ALONE]))
    budget, proved, path, flipped = (
        np.asarray(table.column(name).to_numpy(zero_copy_only=False), dtype=np.float64) for name in names
    )
    units = list_units(audit.protocol)
    lists = [own for own in table.column(ANY_ALONE).to_pylist() if own is not None]
    alone = np.array(lists, dtype=np.int64).reshape(len(lists), len(units))
    safe = [
        summary.SafeGroup(name, len(fields), int((own == CANNOT).sum()), int((own == CAN).sum()))
        for (name, fields), own in zip(units.items(), alone.T, strict=True)
    ]
    searched, early, most = ~np.isnan(proved), (path <= EARLY) & (flipped > 0), declared.max_size
    cases = {f"{k}": (budget == k) & (proved == k - 1) for k in range(1, most + 1)}
    cases[f"at least {most + 1}"] = proved >= most
    cases["not decided"] = searched & ~np.logical_or.reduce([*cases.values()])
    budgets = tuple((name, int(which.sum()), int((which & early).sum())) for name, which in cases.items())
    most_exposed = None if declared.rows is None else declared.rows.most
    # a group of several fields says more; among equals the order of the groups
    safe.sort(key=lambda own: (own.fields == 1, -own.holds, own.flips))
    return summary.AnyValueNumbers(int(searched.sum()), most_exposed, len(declared.groups), budgets, tuple(safe))


def _summarise_reliability(reliability: FailureProbability) -> summary.ReliabilityNumbers:
    table = reliability.groups()
    return summary.ReliabilityNumbers(
        condition=reliability.condition,
        recorded=reliability.rates is None,
        rows=len(reliability),
        exact=int(reliability.exact.sum()),
        lost=reliability.lost,
        kept=tuple(zip(table["group"].tolist(), table["decisions_kept"].tolist(), strict=True)),
    )


def _summarise_baselines(comparison: BaselineComparison, protocol: Protocol) -> summary.Dependence:
    rows = len(comparison)
    return summary.Dependence(
        rows=rows,
        depth=comparison.depth,
        verdict=comparison.verdict,
        short=name_stability(comparison),
        sentence=comparison.sentence(),
        baselines=tuple(
            summary.BaselineNumbers(
                name=one.baseline,
                artificial=protocol.with_baseline(one.baseline).artificial,
                flips_after_one=share_of(one.flip_within_one, rows),
                flips_early=share_of(one.flip_within_two, rows),
                never_flips=share_of(one.never_flip, rows),
                median_budget=one.median_flip_budget,
            )
            for one in comparison.figures
        ),
        agreements=comparison.agreements,
        under_all=tuple(str(row_id) for row_id in comparison.under_all),
        under_only=tuple((name, len(comparison.under_only(name))) for name in comparison.baselines),
    )


# --- facts and cases ----------------------------------------------------------------------------------------


def _state_facts(one: ReportedAudit) -> summary.AuditFacts:
    manifest = one.audit.manifest
    model = manifest.model
    return summary.AuditFacts(
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
) -> summary.ProtocolFacts:
    """Return the protocol's own fields, with groups, fields, columns and the decision in short."""
    replacements = {name: str(one) for name, one in becomes.items() if one.state != "unknown"}
    names, groups = protocol.evidence.group_fields, []
    for group in protocol.groups:
        shown = tuple((name, replacements[name]) for name in names[group.name] if name in replacements)
        groups.append(summary.GroupFacts(group.name, len(group.columns), shown))
    facts: dict[str, Any] = {fact.name: getattr(protocol, fact.name) for fact in fields(summary.ProtocolFacts)}
    facts |= {"groups": tuple(groups), "fields": len(protocol.fields), "columns": len(protocol.columns)}
    facts["decision"] = None if protocol.decision is None else str(protocol.decision)
    return summary.ProtocolFacts(**facts)


def _read_case(
    row: Row, protocol: Protocol, classes: Sequence[str], modes: ModesDeclaration | None
) -> summary.FragileCase:
    flips_to, others = None, [label for label in classes if label != str(row["predicted"])]
    if row["flipped"] and "path_predicted" in row:
        flips_to = str(row["path_predicted"][row["flip_budget"]])
    elif row["flipped"] and len(others) == 1:
        flips_to = others[0]
    smallest, path = None, present_path(row, protocol)
    if "smallest_state" in row:
        smallest = summary.SmallestSet(
            state=row["smallest_state"],
            size=row["smallest_size"],
            groups=tuple(row["smallest_set"]),
            count=row["smallest_count"],
            failure_probability=row.get("failure_probability"),
            failure_interval=None if row.get("failure_exact", True) else (row["failure_low"], row["failure_high"]),
        )
    return summary.FragileCase(
        id=str(row["id"]),
        predicted=str(row["predicted"]),
        confidence=row["confidence"],
        exposure=row["exposure"],
        fds=row["fds"],
        flip_budget=row["flip_budget"],
        flipped=row["flipped"],
        path=path,
        already_missing=tuple(row["already_missing"]),
        margins=tuple(row["path_margin"][: len(path) + 1]) if "path_margin" in row else None,
        flips_to=flips_to,
        thresholds={operator: row[f"lambda_{operator}"] for operator in protocol.operators},
        smallest=smallest,
        modes=None if modes is None else _read_modes(row, modes),
        intervals=None,
        becomes={name: protocol.becomes[name] for name in (*path, *row.get("smallest_set", ()))},
    )


def _read_modes(row: Row, declared: ModesDeclaration) -> tuple[summary.CaseMode, ...] | None:
    costs = costs_of_row(row, declared)
    if costs is None:
        return None
    # Rounded, because the last digits of small costs differ between machines.
    return tuple(
        summary.CaseMode(mode, round(cost.exposure, 9), cost.weakest, cost.flip_chance.get(cost.weakest or "", 0.0))
        for mode, cost in costs.items()
    )


def _show_values(numbers: AuditNumbers, audit: Audit, given: ShownRows) -> AuditNumbers:
    """Return the summary with the values of the cases' rows, and their replacements."""
    names = set(given.values.column_names)
    lacking = next((field.name for field in audit.protocol.fields if field.name not in names), None)
    if lacking is not None:
        return replace(numbers, lacks_field=lacking)
    shown, becomes = add_values(numbers.focus.cases, given, audit)
    focus = replace(numbers.focus, cases=shown)
    numbers = replace(numbers, protocol=_state_protocol(audit.protocol, becomes, given.model))
    return replace(numbers, confident=focus) if numbers.confident.rows else replace(numbers, everything=focus)


# --- several audits -------------------------------------------------------------------------------------------


def pair_audits(
    audits: Sequence[tuple[str, Audit]],
    min_confidence: float,
    codes: Sequence[Sequence[Coded]],
    labels: Mapping[Hashable, object] | None,
) -> list[tuple[summary.PairedAudits, AuditChanges]]:
    """Compare every audit with the first; ``codes`` are the segments of each audit's rows, by column."""
    by_sets = settled_within(EARLY, [audit for _, audit in audits], min_confidence)
    tables = [
        rows_by_id(audit, min_confidence, by_sets=by_sets).assign(
            **{f"segment_{place}": one.codes for place, one in enumerate(coded)}
        )
        for (_, audit), coded in zip(audits, codes, strict=True)
    ]
    return [
        _pair(audits[0], later, tables[0], table, codes[0], by_sets, labels)
        for later, table in zip(audits[1:], tables[1:], strict=True)
    ]


def _pair(
    first: tuple[str, Audit],
    second: tuple[str, Audit],
    before: pd.DataFrame,
    after: pd.DataFrame,
    codes: Sequence[Coded],
    by_sets: bool,
    labels: Mapping[Hashable, object] | None,
) -> tuple[summary.PairedAudits, AuditChanges]:
    """Compare shares of the same rows if the audits share some, else of each audit's own rows."""
    shared = before.index.intersection(after.index)
    one, two, paired = before.loc[shared], after.loc[shared], len(shared) > 0
    sure = one["confident"] & two["confident"]
    early_one, early_two = one["early"] & sure, two["early"] & sure
    rows = (one, two) if paired else (before, after)
    sets = (one[sure], two[sure]) if paired else tuple(table[table["confident"]] for table in rows)

    def compare(measure: str, first: pd.Series, second: pd.Series) -> summary.Compared:
        shares = share_of(int(first.sum()), len(first)), share_of(int(second.sum()), len(second))
        if not paired:
            return summary.Compared(measure, *shares, difference_of(shares[1], shares[0]))
        second_only, first_only = int((second & ~first).sum()), int((first & ~second).sum())
        return summary.Compared(measure, *shares, paired_difference(second_only, first_only, len(first)))

    differences = differences_between(first[1].protocol, second[1].protocol)
    changes = join_changes((before, after), differences, by_sets=by_sets)
    made = summary.PairedAudits(
        first=first[0],
        second=second[0],
        differences=differences,
        shared=len(shared),
        same_class=int((one["predicted"].map(str) == two["predicted"].map(str)).sum()),
        both_confident=int(sure.sum()),
        flip_in_both=int((early_one & early_two).sum()),
        flip_in_first_only=int((early_one & ~early_two).sum()),
        flip_in_second_only=int((early_two & ~early_one).sum()),
        compared=(
            compare("early", *(table["early"] for table in sets)),
            compare("after_one", *(table["after_one"] for table in sets)),
            compare("confident_early", *(table["confident"] & table["early"] for table in rows)),
            compare("confident", *(table["confident"] for table in rows)),
        ),
        segments=tuple(
            summary.ComparedSegments(
                coded.column,
                tuple(
                    (name, compare("early", *(table["early"][table[f"segment_{place}"] == code] for table in sets)))
                    for code, name in enumerate(coded.names)
                ),
            )
            for place, coded in enumerate(codes)
        ),
        by_sets=by_sets,
        rank_correlation=_correlate_ranks(one["exposure"], two["exposure"]),
        changed=tuple(
            summary.RowChanges(words, len(rows), tuple(rows["id"].head(IDS_SHOWN)))
            for words, rows in (changes.list_groups() if paired else ())
        ),
        right=None if labels is None or not paired else changes.count_right(labels),
    )
    return made, changes


def _correlate_ranks(one: pd.Series, other: pd.Series) -> float | None:
    """Return Spearman's correlation, or None if there is nothing to rank."""
    if one.nunique() < 2 or other.nunique() < 2:
        return None
    # Rounded: the last digits of a correlation differ between machines.
    return round(float(np.corrcoef(one.rank(), other.rank())[0, 1]), 6)

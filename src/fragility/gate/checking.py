"""A gate: rules, checked on an audit, alone or against an earlier one.

For each comparison the one-sided bounds of the value (or of its difference from the earlier audit) are taken at the
level 1 - (1 - confidence) / m, where m is the number of comparisons (Bonferroni). With ``at_most``:

    fail           the lower bound lies above the limit
    pass           the upper bound lies at or below the limit
    inconclusive   the limit lies between them, or there are no rows

With ``at_least`` the two bounds change places. A rule with an allowance compares the difference with the allowance.

Either side may be the audits of several models that differ only by being trained again. The verdict is then about the
mean of such models, and its bounds cover how far they differ.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from fragility.analysis.policy import LabelledRows
from fragility.audits import Audit, open_audit
from fragility.audits.comparison import differences_between, list_differences
from fragility.audits.measures import EXPOSED, read_whole
from fragility.base.errors import Advice, DataError
from fragility.base.files import write_text
from fragility.base.schemas import Level, check_fields
from fragility.base.text import BriefRepr
from fragility.blocks.baselines.comparison import name_stability
from fragility.blocks.lattice.values import LatticeDeclaration
from fragility.blocks.modes import ModesDeclaration
from fragility.gate.estimates import (
    AuditEvidence,
    RetrainedEstimates,
    choose_counting,
    compare_retrained,
    cut_into_segments,
    prepare_estimator,
)
from fragility.gate.rules import (
    ENTRIES,
    PREDICTED,
    Rule,
    check_scales,
    check_written_for,
    parse_rules,
    read_scales,
    write_rules,
)
from fragility.gate.verdicts import GateResult, RuleOutcome, Verdict
from fragility.questions.stress.labels import BrittleLabels
from fragility.scores import EARLY

LARGEST_FILE = 1_000_000  # bytes of a rules file
AnyAudit: TypeAlias = Audit | str | os.PathLike[str]
AnyStress: TypeAlias = BrittleLabels | pa.Table


@dataclass(frozen=True, slots=True, repr=False)
class Gate(BriefRepr):
    """Rules that an audit must keep to.

    Attributes
    ----------
    rules : tuple of Rule
        What is checked.
    confidence : float, default=0.95
        The level at which all verdicts hold together.
    min_confidence : float, optional
        Where a prediction counts as confident; by default as the protocol of the audit declares.
    written_for : mapping of str to str
        Entries of the protocol that the limits depend on, with their values in the audits that the rules were written
        for; an audit with other values is refused. If empty, nothing is refused.
    derived_from : tuple of str
        Root digests of the audits that the limits were derived from; verdicts on one of these audits say so.

    See Also
    --------
    share_by : Shares that flip early, segment by segment.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X[:700], y[:700])
    >>> certs = fg.audit(model, X[700:], fg.Protocol.fit(model, X[:700]))
    >>> gate = fg.Gate((fg.Rule(measure="flips_early", at_most=0.2),), min_confidence=0.7)
    >>> gate.check(certs).outcome
    'pass'
    """

    rules: tuple[Rule, ...]
    confidence: Level = 0.95
    min_confidence: Level | None = None
    written_for: Mapping[str, str] = field(default_factory=dict)
    derived_from: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, "a gate", DataError)
        if not self.rules:
            raise DataError("a gate needs at least one rule; declare one as [[rule]]")
        if unknown := sorted(set(self.written_for) - set(ENTRIES)):
            raise DataError(f"rules are written for entries among {', '.join(ENTRIES)}; got {unknown[0]!r:.80}")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Gate:
        """Read the rules of a TOML file.

        Parameters
        ----------
        path : str or path
            The file.

        Returns
        -------
        Gate
            The rules, checked.
        """
        file = Path(path)
        try:
            if file.stat().st_size > LARGEST_FILE:
                raise DataError(f"{path} is larger than a file of rules can be ({LARGEST_FILE:,} bytes)")
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise DataError(f"cannot read the rules {path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"the rules {path} are not UTF-8 text") from error
        read = parse_rules(text)
        return cls(read.rule, read.confidence, read.min_confidence, read.written_for, read.derived_from)

    def save(self, path: str | os.PathLike[str], heading: str = "") -> Path:
        """Write the rules as a TOML file.

        Parameters
        ----------
        path : str or path
            The file.
        heading : str, optional
            Comment lines at its top.

        Returns
        -------
        Path
            The file written.
        """
        settings: dict[str, Any] = {"confidence": self.confidence}
        settings |= {} if self.min_confidence is None else {"min_confidence": self.min_confidence}
        settings |= {"derived_from": list(self.derived_from)} if self.derived_from else {}
        write_text(path, write_rules(self.rules, settings, self.written_for, heading))
        return Path(path)

    @classmethod
    def derive(
        cls,
        audit: AnyAudit | Sequence[AnyAudit],
        *,
        allowance: float | None = None,
        confidence: float = 0.95,
        min_confidence: float | None = None,
    ) -> Gate:
        """Derive rules from a good audit, to check later audits with.

        Parameters
        ----------
        audit : Certificates, StoredAudit or path, or a sequence of them
            The audit; or the audits of several good models that differ only by being trained again, at least three.
            Limits then also cover how far one more such model may differ.
        allowance : float, optional
            Compare later audits with earlier ones and allow them to be this much worse. By default each rule has a
            fixed limit: the upper bound of this audit's value, rounded up to a whole percent, so that the audit itself
            passes. Rules whose limit would be 100% are left out.
        confidence : float, default=0.95
            The level of the gate.
        min_confidence : float, optional
            Where a prediction counts as confident; by default as the audit's protocol declares.

        Returns
        -------
        Gate
            Rules about predictions that flip early, overall and per predicted class, about exposure and, if the audit
            has them, about failure modes and decisions lost at declared rates.
        """
        audits = [AuditEvidence(opened) for opened in _open_retrained(audit)]
        if len(audits) == 2:
            raise DataError("rules are derived from one audit, or from those of at least three retrained models; got 2")
        min_confidence = audits[0].audit.confident_from(min_confidence)
        planned = []
        for declaration in _list_derived(audits[0].audit):
            rule = Rule(**declaration, at_most=1.0)
            counted = choose_counting(rule, audits, min_confidence)
            estimators = [prepare_estimator(rule, evidence, min_confidence, counted) for evidence in audits]
            declaration |= {} if counted is None else {"counted": counted}
            planned.append((declaration, estimators, cut_into_segments(rule.by, audits)))
        # The level of the gate itself, so that the audit passes the rules derived from it.
        level = 1.0 - (1.0 - confidence) / sum(len(segments[0].names) for *_, segments in planned)
        rules = []
        for declaration, estimators, segments in planned:
            estimates = [
                RetrainedEstimates(
                    tuple(e(segment.rows(name), level) for e, segment in zip(estimators, segments, strict=True))
                )
                for name in segments[0].names
            ]
            if allowance is not None:
                rules.append(Rule(**declaration, allowance=allowance))
                continue
            limit = math.ceil(100.0 * max(estimate.bound_next(level) for estimate in estimates)) / 100.0
            rules += [Rule(**declaration, at_most=limit)] if limit < 1.0 else []  # no audit can fail a limit of 100%
        if not rules:
            raise DataError(*_say_underivable(audits, min_confidence))
        roots = tuple(evidence.audit.manifest.root_digest for evidence in audits)
        return cls(tuple(rules), confidence, min_confidence, read_scales(rules, audits[0].audit), roots)

    def check(
        self,
        audit: AnyAudit | Sequence[AnyAudit],
        against: AnyAudit | Sequence[AnyAudit] | None = None,
        *,
        rows: Any = None,
        labels: Mapping[Any, Any] | None = None,
        labels_against: Mapping[Any, Any] | None = None,
        stress: AnyStress | Sequence[AnyStress] | None = None,
        stress_against: AnyStress | Sequence[AnyStress] | None = None,
    ) -> GateResult:
        """Return a verdict for each rule.

        Parameters
        ----------
        audit : Certificates, StoredAudit or path, or a sequence of them
            The audit to judge; or the audits of several models that differ only by being trained again, so that their
            mean is judged.
        against : Certificates, StoredAudit or path, or a sequence of them, optional
            The earlier audit, or the earlier audits, for rules with an allowance.
        rows : table, optional
            The audited rows, for rules by a column; with an earlier audit, rows that both have.
        labels : mapping of id to class, optional
            True classes by row id, for ``accuracy`` and ``auroc``.
        labels_against : mapping of id to class, optional
            The same of the earlier audit; by default ``labels``.
        stress : BrittleLabels or table, or a sequence of them, optional
            Held-out labels of the audit, for ``brittle``; one for each of several audits, in their order.
        stress_against : BrittleLabels or table, or a sequence of them, optional
            The same of the earlier audits.

        Returns
        -------
        GateResult
            The verdicts; false if one is ``fail``.

        Raises
        ------
        DataError
            A rule needs an argument that is missing, the audits were made under different protocols, or two are of
            one model.
        """
        opened = _open_retrained(audit)
        earlier_audits = [] if against is None else _open_retrained(against)
        least = self._confident_from([*opened, *earlier_audits])
        new, old = _gather(opened, rows, labels, stress, least), []
        if against is not None:
            earlier_labels = labels if labels_against is None else labels_against
            old = _gather(earlier_audits, rows, earlier_labels, stress_against, least)
        if old and all(rule.allowance is None for rule in self.rules):
            raise DataError(
                "an earlier audit was given, but no rule compares with it; declare a rule with an allowance, or leave "
                "out ",
                Advice("against", "--against"),
            )
        planned = []
        for rule in self.rules:
            audits = new
            for evidence in new:
                check_written_for(rule, evidence.audit, self.written_for)
            if rule.allowance is not None:
                if not old:
                    raise DataError(
                        f"the rule about {rule.title!r} has an allowance, so it needs an earlier audit; give one with ",
                        Advice("against", "--against"),
                    )
                _check_comparable(new[0].audit, old[0].audit)
                audits = [*new, *old]
            for evidence in audits[1:]:
                check_scales(rule, audits[0].audit, evidence.audit)
                _check_same_stress(rule, audits[0], evidence)
            counted = choose_counting(rule, audits, least)
            estimators = [prepare_estimator(rule, evidence, least, counted) for evidence in audits]
            planned.append((rule, counted, estimators, cut_into_segments(rule.by, audits)))
        comparisons = sum(len(segments[0].names) for *_, segments in planned)
        level = 1.0 - (1.0 - self.confidence) / comparisons
        verdicts = []
        for rule, counted, estimators, segments in planned:
            for name in segments[0].names:
                estimates = [
                    estimate(segment.rows(name), level) for estimate, segment in zip(estimators, segments, strict=True)
                ]
                ours, theirs = (RetrainedEstimates(tuple(s)) for s in (estimates[: len(new)], estimates[len(new) :]))
                verdicts.append(_judge(rule, name, counted, ours, theirs, level))
        models, earlier = (tuple(_name(evidence.audit) for evidence in side) for side in (new, old))
        stability = tuple(name_stability(evidence.audit.baselines) for evidence in new)
        from_itself = any(evidence.audit.manifest.root_digest in self.derived_from for evidence in new)
        return GateResult(tuple(verdicts), self.confidence, models, earlier, stability, from_itself)

    def _confident_from(self, audits: Sequence[Audit]) -> float:
        """Return the threshold of confidence: the gate's, or else the one that all audits declare."""
        if self.min_confidence is not None:
            return self.min_confidence
        declared = [audit.protocol.min_confidence for audit in audits]
        other = next((level for level in declared if level != declared[0]), None)
        if other is not None:
            raise DataError(
                f"the audits have different thresholds of confidence, {declared[0]:g} and {other:g}; declare "
                "min_confidence in the rules, or audit under one protocol"
            )
        return declared[0]


def _gather(audits: Sequence[Audit], rows: Any, labels: Any, stress: Any, least: float) -> list[AuditEvidence]:
    """Return the audits of one side, each with its rows, labels and stress."""
    listed = [stress] * len(audits) if stress is None else _list(stress, BrittleLabels | pa.Table)
    if len(listed) != len(audits):
        raise DataError(
            f"held-out labels are of one model, so each audit needs its own; got {len(listed)} for {len(audits)} audits"
        )
    tables = [None if item is None else LabelledRows.of(item, least) for item in listed]
    return [AuditEvidence(audit, rows, labels, table) for audit, table in zip(audits, tables, strict=True)]


def _list(values: Any, kind: Any) -> list[Any]:
    return [values] if isinstance(values, kind) else list(values)


def _open_retrained(audits: AnyAudit | Sequence[AnyAudit]) -> list[Audit]:
    """Return one audit, or those of several models that differ only by being trained again."""
    listed = _list(audits, Audit | str | os.PathLike)
    if not listed:
        raise DataError("an audit was expected, or a sequence of audits; the sequence is empty")
    opened = [audit if isinstance(audit, Audit) else open_audit(audit) for audit in listed]
    places: dict[str, int] = {}
    for place, audit in enumerate(opened, start=1):
        _check_comparable(audit, opened[0])
        first = places.setdefault(audit.manifest.model.fingerprint, place)
        if first != place:
            raise DataError(
                f"several audits must be of models that were trained again, but number {first} and number {place} are "
                f"of one model, {_name(audit)}; give it once"
            )
    return opened


def _say_underivable(audits: Sequence[AuditEvidence], min_confidence: float) -> tuple[str | Advice, ...]:
    """Return why no rule can be derived: the audits have too few rows to bound a share below 100%."""
    confident = min(int(read_whole(evidence.audit, (), min_confidence).confident.sum()) for evidence in audits)
    noun = "prediction is" if confident == 1 else "predictions are"
    return (
        f"no rule can be derived: {confident} {noun} at least {min_confidence:.0%} confident, too few to bound a share "
        "below 100%; audit more rows, count less confident predictions too with ",
        Advice("min_confidence", "--min-confidence"),
        ", or compare with an earlier audit with ",
        Advice("allowance", "--allowance"),
    )


def _list_derived(audit: Audit) -> list[dict[str, Any]]:
    """Return the rules to derive from an audit, without limits: one for each measure that its certificates support."""
    groups = min(EARLY, audit.protocol.depth)
    derived: list[dict[str, Any]] = [
        {"measure": "flips_early", "groups": groups},
        {"measure": "flips_early", "groups": groups, "by": PREDICTED},
        {"measure": "exposure", "above": EXPOSED},
    ]
    modes = audit.manifest.find_block(ModesDeclaration)
    lattice = audit.manifest.find_block(LatticeDeclaration)
    derived += [{"measure": "exposure", "mode": mode, "above": EXPOSED} for mode in modes.units] if modes else []
    if lattice is not None and lattice.has_failures:
        derived.append({"measure": "lost"})
    return derived


def _name(audit: Audit) -> str:
    return f"{audit.manifest.model.kind} ({audit.manifest.model.fingerprint[:23]})"


def _check_comparable(new: Audit, old: Audit) -> None:
    """Refuse two audits whose protocols define a flip differently."""
    deciding = [
        difference for difference in differences_between(old.protocol, new.protocol) if difference.decides_flips
    ]
    if deciding:
        raise DataError(
            f"the two audits were made under protocols that differ in {list_differences(deciding)}, so their "
            "difference is not due to the models alone; audit both under one protocol"
        )


def _check_same_stress(rule: Rule, new: AuditEvidence, old: AuditEvidence) -> None:
    """Refuse two audits whose held-out labels were made with different stress."""
    if rule.measure != "brittle" or new.stress is None or old.stress is None:
        return
    if new.stress.stress != old.stress.stress:
        raise DataError(
            f"the rule about {rule.title!r} depends on the held-out stress, which differs between the labels of the "
            "two audits; label both with the same settings"
        )


def _judge(
    rule: Rule,
    segment: str | None,
    counted: str | None,
    audits: RetrainedEstimates,
    against: RetrainedEstimates,
    level: float,
) -> Verdict:
    new, larger_is_worse = audits.bound_mean(level), rule.measured.larger_is_worse
    earlier = shared = None
    if rule.allowance is None:
        lower, upper = new.lower, new.upper
        limit = rule.at_most if larger_is_worse else rule.at_least
        assert limit is not None
    else:
        difference = compare_retrained(audits, against, level)
        earlier, shared = against.average().value, difference.shared
        lower, upper = difference.lower, difference.upper
        limit = rule.allowance if larger_is_worse else -rule.allowance
    outcome: RuleOutcome = "inconclusive"
    if not math.isnan(new.value) and not (earlier is not None and math.isnan(earlier)):
        beyond, within = (lower > limit, upper <= limit) if larger_is_worse else (upper < limit, lower >= limit)
        outcome = "fail" if beyond else "pass" if within else "inconclusive"
    return Verdict(
        rule.title, rule.measure, segment, outcome, new.value, new.rows, earlier, shared, lower, upper, limit,
        larger_is_worse, counted,
    )  # fmt: skip

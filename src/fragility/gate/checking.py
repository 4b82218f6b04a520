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
        Entries of the protocol that the limits depend on, as the audits have them that the rules were written for; an
        audit with other entries is refused. Empty: nothing is known, and nothing refused.
    derived_from : tuple of str
        Root digests of the audits that the limits were derived from; the verdicts on such an audit say so.

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
        """Return rules that a good audit keeps to, for later audits to be checked by.

        Parameters
        ----------
        audit : Certificates, StoredAudit or path, or a sequence of them
            The audit; or the audits of several good models that differ only by being trained again, at least three.
            Limits then also cover how far one more such model may differ.
        allowance : float, optional
            Compare later audits with earlier ones and let them be this much worse. By default each rule has a fixed
            limit: the upper bound of what this audit shows, rounded up to a whole percent, so that the audit itself
            passes. A rule without a limit below 100% is left out.
        confidence : float, default=0.95
            The level of the gate.
        min_confidence : float, optional
            Where a prediction counts as confident; by default as the audit's protocol declares.

        Returns
        -------
        Gate
            Rules about predictions that flip early, overall and per predicted class, about exposure, and about what
            else the audit holds: failure modes, and decisions lost at declared rates.
        """
        given = [AuditEvidence(one) for one in _open_retrained(audit)]
        if len(given) == 2:
            raise DataError("rules are derived from one audit, or from those of at least three retrained models; got 2")
        min_confidence = given[0].audit.confident_from(min_confidence)
        planned = []
        for one in _list_derived(given[0].audit):
            rule = Rule(**one, at_most=1.0)
            counted = choose_counting(rule, given, min_confidence)
            estimators = [prepare_estimator(rule, evidence, min_confidence, counted) for evidence in given]
            declared = one if counted is None else {**one, "counted": counted}
            planned.append((declared, estimators, cut_into_segments(rule.by, given)))
        # At the level of the gate itself, so that the audit passes what is derived from it.
        level = 1.0 - (1.0 - confidence) / sum(len(segments[0].names) for *_, segments in planned)
        rules = []
        for one, estimators, segments in planned:
            shown = [
                RetrainedEstimates(
                    tuple(e(segment.rows(name), level) for e, segment in zip(estimators, segments, strict=True))
                )
                for name in segments[0].names
            ]
            if allowance is not None:
                rules.append(Rule(**one, allowance=allowance))
                continue
            limit = math.ceil(100.0 * max(evidence.bound_next(level) for evidence in shown)) / 100.0
            rules += [Rule(**one, at_most=limit)] if limit < 1.0 else []  # no audit could fail the others
        if not rules:
            raise DataError(*_say_underivable(given, min_confidence))
        roots = tuple(evidence.audit.manifest.root_digest for evidence in given)
        return cls(tuple(rules), confidence, min_confidence, read_scales(rules, given[0].audit), roots)

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
            A rule needs what was not given, the audits ask different questions, or two are of one model.
        """
        opened = _open_retrained(audit)
        earlier_audits = [] if against is None else _open_retrained(against)
        least = self._confident_from([*opened, *earlier_audits])
        new, old = _gather(opened, rows, labels, stress, least), []
        if against is not None:
            own_labels = labels if labels_against is None else labels_against
            old = _gather(earlier_audits, rows, own_labels, stress_against, least)
        if old and all(rule.allowance is None for rule in self.rules):
            raise DataError(
                "an earlier audit was given, and no rule compares with one; declare a rule with an allowance, or leave "
                "out ",
                Advice("against", "--against"),
            )
        planned = []
        for rule in self.rules:
            audits = new
            for one in new:
                check_written_for(rule, one.audit, self.written_for)
            if rule.allowance is not None:
                if not old:
                    raise DataError(
                        f"the rule about {rule.title!r} has an allowance, so it needs an earlier audit; give one with ",
                        Advice("against", "--against"),
                    )
                _check_comparable(new[0].audit, old[0].audit)
                audits = [*new, *old]
            for one in audits[1:]:
                check_scales(rule, audits[0].audit, one.audit)
                _check_same_stress(rule, audits[0], one)
            counted = choose_counting(rule, audits, least)
            estimators = [prepare_estimator(rule, one, least, counted) for one in audits]
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
        models, earlier = (tuple(_name(one.audit) for one in side) for side in (new, old))
        stability = tuple(name_stability(one.audit.baselines) for one in new)
        from_itself = any(one.audit.manifest.root_digest in self.derived_from for one in new)
        return GateResult(tuple(verdicts), self.confidence, models, earlier, stability, from_itself)

    def _confident_from(self, audits: Sequence[Audit]) -> float:
        """Return where confident begins: as the gate declares, else as all audits do."""
        if self.min_confidence is not None:
            return self.min_confidence
        declared = [one.protocol.min_confidence for one in audits]
        other = next((level for level in declared if level != declared[0]), None)
        if other is not None:
            raise DataError(
                f"the audits call other predictions confident, from {declared[0]:g} and from {other:g} on; declare "
                "min_confidence in the rules, or audit under one protocol"
            )
        return declared[0]


def _gather(audits: Sequence[Audit], rows: Any, labels: Any, stress: Any, least: float) -> list[AuditEvidence]:
    """Return the audits of one side, each with what else is known of its rows."""
    listed = [stress] * len(audits) if stress is None else _list(stress, BrittleLabels | pa.Table)
    if len(listed) != len(audits):
        raise DataError(
            f"held-out labels are of one model, so each audit needs its own; got {len(listed)} for {len(audits)} audits"
        )
    labelled = [None if one is None else LabelledRows.of(one, least) for one in listed]
    return [AuditEvidence(one, rows, labels, labels_of) for one, labels_of in zip(audits, labelled, strict=True)]


def _list(given: Any, kind: Any) -> list[Any]:
    return [given] if isinstance(given, kind) else list(given)


def _open_retrained(given: AnyAudit | Sequence[AnyAudit]) -> list[Audit]:
    """Return one audit, or those of several models that differ only by being trained again."""
    listed = _list(given, Audit | str | os.PathLike)
    if not listed:
        raise DataError("an audit was expected, or a sequence of audits; the sequence is empty")
    opened = [one if isinstance(one, Audit) else open_audit(one) for one in listed]
    seen: dict[str, int] = {}
    for place, one in enumerate(opened, start=1):
        _check_comparable(one, opened[0])
        first = seen.setdefault(one.manifest.model.fingerprint, place)
        if first != place:
            raise DataError(
                f"several audits are of models that were trained again, but number {first} and number {place} are of "
                f"one model, {_name(one)}; give it once"
            )
    return opened


def _say_underivable(given: Sequence[AuditEvidence], min_confidence: float) -> tuple[str | Advice, ...]:
    """Return why no rule follows from audits: what they show bounds no share below 100%."""
    confident = min(int(read_whole(one.audit, (), min_confidence).confident.sum()) for one in given)
    noun = "prediction is" if confident == 1 else "predictions are"
    return (
        f"no rule can be derived: {confident} {noun} at least {min_confidence:.0%} confident, too few to bound a share "
        "below 100%; audit more rows, count less confident predictions too with ",
        Advice("min_confidence", "--min-confidence"),
        ", or compare with an earlier audit with ",
        Advice("allowance", "--allowance"),
    )


def _list_derived(audit: Audit) -> list[dict[str, Any]]:
    """Return the measures of rules derived from an audit: all that its certificates support."""
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
    """Refuse two audits whose difference would not be the model's."""
    deciding = [one for one in differences_between(old.protocol, new.protocol) if one.decides_flips]
    if deciding:
        raise DataError(
            f"the two audits were made under protocols that differ in {list_differences(deciding)}, so a difference "
            "between them is not the model's; audit both under one protocol"
        )


def _check_same_stress(rule: Rule, one: AuditEvidence, other: AuditEvidence) -> None:
    """Refuse two audits whose held-out labels were made by different stress."""
    if rule.measure != "brittle" or one.stress is None or other.stress is None:
        return
    if one.stress.stress != other.stress.stress:
        raise DataError(
            f"the rule about {rule.title!r} depends on the held-out stress, which the labels of the two audits declare "
            "differently; label both with the same settings"
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

"""A gate: rules, checked on an audit, alone or against an earlier one.

For each comparison the one-sided bounds of the value (or of its difference from the earlier audit) are taken at the
level 1 - (1 - confidence) / m, where m is the number of comparisons (Bonferroni). With ``at_most``:

    fail           the lower bound lies above the limit
    pass           the upper bound lies at or below the limit
    inconclusive   the limit lies between them, or there are no rows

With ``at_least`` the two bounds change places. A rule with an allowance compares the difference with the allowance.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from fragility.arrays import is_number
from fragility.certificates import Audit, open_audit
from fragility.certificates.comparison import differences_between, list_differences
from fragility.errors import Advice, DataError
from fragility.files import write_text
from fragility.gate.estimates import RetrainedEstimates, compare_estimates
from fragility.gate.measuring import AuditEvidence, cut_into_segments, prepare_estimator
from fragility.gate.rules import MEASURES, PREDICTED, Rule, parse_rules, write_rules
from fragility.gate.verdicts import GateResult, Outcome, Verdict
from fragility.policy import LabelledRows
from fragility.scores import CONFIDENT
from fragility.stress.labels import BrittleLabels

LARGEST_FILE = 1_000_000  # bytes of a rules file
EXPOSED = 0.5
AnyAudit: TypeAlias = Audit | str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Gate:
    """Rules that an audit must keep to.

    Attributes
    ----------
    rules : tuple of Rule
        What is checked.
    confidence : float, default=0.95
        The level at which all verdicts hold together.
    min_confidence : float, default=0.9
        Where a prediction counts as confident.

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
    confidence: float = 0.95
    min_confidence: float = CONFIDENT

    def __post_init__(self) -> None:
        if not self.rules:
            raise DataError("a gate needs at least one rule; declare one as [[rule]]")
        for name in ("confidence", "min_confidence"):
            value = getattr(self, name)
            if not is_number(value) or not 0.0 <= value < 1.0:
                raise DataError(f"{name} of a gate must be at least 0 and below 1, got {value!r:.80}")

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
        rules, settings = parse_rules(text)
        return cls(rules, **settings)

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
        settings = {"confidence": self.confidence, "min_confidence": self.min_confidence}
        write_text(path, write_rules(self.rules, settings, heading))
        return Path(path)

    @classmethod
    def derive(
        cls,
        audit: AnyAudit | Sequence[AnyAudit],
        *,
        allowance: float | None = None,
        confidence: float = 0.95,
        min_confidence: float = CONFIDENT,
    ) -> Gate:
        """Return rules that a good audit keeps to, for later audits to be checked by.

        Parameters
        ----------
        audit : Certificates, StoredAudit or path, or a sequence of them
            The audit; or the audits of several good models that differ only by being trained again, at least three.
            Limits and allowances then also cover how far such models differ.
        allowance : float, optional
            Compare later audits with an earlier one and let them be this much worse; with several audits, at least
            this much. By default each rule has a fixed limit: the upper bound of what this audit shows, rounded up to a
            whole percent, so that the audit itself passes. A rule without a limit below 100% is left out.
        confidence : float, default=0.95
            The level of the gate.
        min_confidence : float, default=0.9
            Where a prediction counts as confident.

        Returns
        -------
        Gate
            Rules about predictions that flip early, overall and per predicted class, about exposure, and about what
            else the audit holds: failure modes, and decisions lost at declared rates.
        """
        listed = [audit] if isinstance(audit, Audit | str | os.PathLike) else audit
        given = [AuditEvidence(_open(one)) for one in listed]
        if len(given) == 2 or not given:
            raise DataError(
                f"rules are derived from one audit, or from those of at least three retrained models; got {len(given)}"
            )
        for other in given[1:]:
            _check_comparable(other.audit, given[0].audit)
        planned = []
        for one in _list_derived(given[0].audit):
            rule = Rule(**one, at_most=1.0)
            estimators = [prepare_estimator(rule, each, min_confidence) for each in given]
            planned.append((one, estimators, cut_into_segments(rule.by, given)))
        # At the level of the gate itself, so that the audit passes what is derived from it.
        level = 1.0 - (1.0 - confidence) / sum(len(segments[0].names) for *_, segments in planned)
        rules = []
        for one, estimators, segments in planned:
            shown = [
                RetrainedEstimates(tuple(e(own.rows(name), level) for e, own in zip(estimators, segments, strict=True)))
                for name in segments[0].names
            ]
            if allowance is not None:
                widest = max(each.bound_change(level) for each in shown)
                rules.append(Rule(**one, allowance=max(allowance, min(_round_up(widest), 1.0))))
                continue
            limit = _round_up(max(each.bound_next(level) for each in shown))
            rules += [Rule(**one, at_most=limit)] if limit < 1.0 else []  # no audit could fail the others
        return cls(tuple(rules), confidence, min_confidence)

    def check(
        self,
        audit: Audit | str | os.PathLike[str],
        against: Audit | str | os.PathLike[str] | None = None,
        *,
        rows: Any = None,
        labels: Mapping[Any, Any] | None = None,
        labels_against: Mapping[Any, Any] | None = None,
        stress: BrittleLabels | pa.Table | None = None,
        stress_against: BrittleLabels | pa.Table | None = None,
    ) -> GateResult:
        """Return a verdict for each rule.

        Parameters
        ----------
        audit : Certificates, StoredAudit or path
            The audit to judge.
        against : Certificates, StoredAudit or path, optional
            The earlier audit, for rules with an allowance.
        rows : table, optional
            The audited rows, for rules by a column; with an earlier audit, rows that both have.
        labels : mapping of id to class, optional
            True classes by row id, for ``accuracy`` and ``auroc``.
        labels_against : mapping of id to class, optional
            The same of the earlier audit; by default ``labels``.
        stress : BrittleLabels or table, optional
            Held-out labels of the audit, for ``brittle``.
        stress_against : BrittleLabels or table, optional
            The same of the earlier audit.

        Returns
        -------
        GateResult
            The verdicts; false if one is ``fail``.

        Raises
        ------
        DataError
            A rule needs what was not given, or the two audits ask different questions.
        """
        new = AuditEvidence(_open(audit), rows, labels, self._take_labels(stress))
        old = None
        if against is not None:
            earlier_labels = labels if labels_against is None else labels_against
            old = AuditEvidence(_open(against), rows, earlier_labels, self._take_labels(stress_against))
        planned = []
        for rule in self.rules:
            audits = [new]
            if rule.allowance is not None:
                if old is None:
                    raise DataError(
                        f"the rule about {rule.title!r} has an allowance, so it needs an earlier audit; give one with ",
                        Advice("against", "--against"),
                    )
                _check_comparable(new.audit, old.audit)
                audits.append(old)
            estimators = [prepare_estimator(rule, one, self.min_confidence) for one in audits]
            planned.append((rule, estimators, cut_into_segments(rule.by, audits)))
        comparisons = sum(len(segments[0].names) for _, _, segments in planned)
        level = 1.0 - (1.0 - self.confidence) / comparisons
        verdicts = []
        for rule, estimators, segments in planned:
            for name in segments[0].names:
                estimates = [
                    estimate(own.rows(name), level) for estimate, own in zip(estimators, segments, strict=True)
                ]
                verdicts.append(_judge(rule, name, estimates))
        return GateResult(tuple(verdicts), self.confidence, _name(new.audit), None if old is None else _name(old.audit))

    def _take_labels(self, stress: BrittleLabels | pa.Table | None) -> LabelledRows | None:
        return None if stress is None else LabelledRows.of(stress, self.min_confidence)


def _open(audit: Audit | str | os.PathLike[str]) -> Audit:
    return audit if isinstance(audit, Audit) else open_audit(audit)


def _list_derived(audit: Audit) -> list[dict[str, Any]]:
    """Return what rules derived from an audit measure: whatever its certificates hold."""
    derived: list[dict[str, Any]] = [
        {"measure": "flips_early"},
        {"measure": "flips_early", "by": PREDICTED},
        {"measure": "exposure", "above": EXPOSED},
    ]
    modes, lattice = audit.modes_declaration, audit.lattice_declaration
    derived += [{"measure": "exposure", "mode": mode, "above": EXPOSED} for mode in modes.units] if modes else []
    if lattice is not None and lattice.has_failures:
        derived.append({"measure": "lost"})
    return derived


def _round_up(share: float) -> float:
    return math.ceil(share * 100.0) / 100.0


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


def _judge(rule: Rule, segment: str | None, estimates: list[Any]) -> Verdict:
    new, larger_is_worse = estimates[0], MEASURES[rule.measure].larger_is_worse
    earlier = shared = None
    if rule.allowance is None:
        lower, upper = new.lower, new.upper
        limit = rule.at_most if larger_is_worse else rule.at_least
        assert limit is not None
    else:
        difference = compare_estimates(new, estimates[1])
        earlier, shared = estimates[1].value, difference.shared
        lower, upper = difference.lower, difference.upper
        limit = rule.allowance if larger_is_worse else -rule.allowance
    outcome: Outcome = "inconclusive"
    if not math.isnan(new.value) and not (earlier is not None and math.isnan(earlier)):
        beyond, within = (lower > limit, upper <= limit) if larger_is_worse else (upper < limit, lower >= limit)
        outcome = "fail" if beyond else "pass" if within else "inconclusive"
    return Verdict(
        rule.title, rule.measure, segment, outcome, new.value, new.rows, earlier, shared, lower, upper, limit,
        larger_is_worse,
    )  # fmt: skip

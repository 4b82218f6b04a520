"""Protocol: the declared evidence-failure protocol Pi = (G, baseline, P, Lambda, K) and how margins are read.

A protocol is fitted once, on training data, and then it is data: groups, baseline values, operators, severities, depth,
reading, weights and resolution, with a digest. ``bind`` applies it to a model and the rows to audit.
"""

from __future__ import annotations

import html
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fragility.base.arrays import Floats, Integers
from fragility.base.canonical import digest_of, table_digest
from fragility.base.errors import ProtocolError
from fragility.base.files import write_text
from fragility.base.schemas import (
    AtLeastZero,
    Count,
    Level,
    Positive,
    between,
    check_fields,
    load_json,
    named,
    one_of,
    parse_text,
    read_document,
    write_document,
)
from fragility.evidence import EvidenceRows
from fragility.evidence import protocol_parts as parts
from fragility.evidence.agreement import ROUNDING_ROWS, measure_rounding
from fragility.evidence.baselines import (
    ALTERNATIVES,
    BASELINES,
    Alternative,
    Units,
    check_baseline_accepted,
    fit_alternatives,
    fit_baseline,
    list_refused,
    missing_space,
    with_values,
)
from fragility.evidence.bound import Column, EvidenceSpace, Group, InputColumn, Space
from fragility.evidence.domains import (
    DECLARED,
    RULE,
    TRAINING_RANGE,
    Domain,
    DomainRequest,
    fit_domains,
    list_domain_values,
)
from fragility.evidence.fields import Field
from fragility.evidence.fitting import read_training_rows
from fragility.evidence.form import Form, bind_rows, check_decision
from fragility.evidence.groups import GroupMap, group_columns
from fragility.evidence.modes import CATALOGUE_SIZE, DEFAULT_MODES, NO_MODES, NOISE, FailureModes, fit_modes
from fragility.evidence.replacements import name_replacements
from fragility.evidence.rows import read_model_rows
from fragility.models import Decision, Model
from fragility.pages.wording import describe_artificial
from fragility.scores import CONFIDENT, DecisionRule, Reading

FORMAT = "fragility-protocol/1"
DEFAULT_BASELINE = "typical"
DEFAULT_DEPTH = 10
RESOLUTION = parts.RESOLUTIONS[0]
DEFAULT_OPERATORS = ("attenuate_all", "attenuate_top1")
DEFAULT_SEVERITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
EQUAL_WEIGHTS = (1 / 3, 1 / 3, 1 / 3)
EXPOSURE_WEIGHTS = (1 / 3, 1 / 3, 1 / 3, 1.0)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What is removed and degraded, toward what, how far, and how the result is read. Validated on construction.

    :meth:`fit` makes one from a model and its training rows; a protocol is then data, with a digest.

    Attributes
    ----------
    space : {"transformed", "raw"}
        Whether the estimator's input matrix or the raw fields are stressed.
    fields : tuple of Field
        The raw fields of the training table: name, kind and type.
    columns : tuple of Column
        The columns of the evidence space: name, kind, baseline and spread.
    inputs : tuple of InputColumn
        The columns that the preprocessing hands to the estimator, and the raw fields that each is made from, as tried
        on training rows. None where there is no preprocessing, or where the raw space has no need of them.
    groups : tuple of Group
        Columns that fail together; every column is in one group.
    grouping : str
        How they were made: ``raw-origin``, ``declared``, or merged at a threshold.
    baseline : str
        ``typical``, ``mean``, ``median``, ``zero``, ``missing`` or ``explicit``.
    artificial : tuple of str
        The raw fields whose baseline is a value that no training row has, such as nominal fields under ``mean``.
    stored : tuple of Alternative
        The other baselines that the model admits; :attr:`alternatives` has their names.
    refused : tuple of str
        Those among ``typical``, ``median``, ``missing`` and ``mean`` that it does not admit.
    operators, severities, depth, reading, weights, exposure_weights, resolution, smoothing, min_confidence : settings
        As :meth:`fit` explains them.
    decision : Decision or None
        How a two-class model decides; None: the class with the largest probability is predicted.
    modes : FailureModes
        What evidence may turn into when it is wrong, not only lost: the declared modes and their values.
    domain : str
        How the domains were made: ``range``, ``declared``, or two quantiles such as ``0.01-0.99``.
    domains : tuple of Domain
        The values that each raw field may take at all; a field without one is never varied.
    training_digest : str
        Of the training rows.
    training_rows : int
        How many there were.

    See Also
    --------
    audit : Certificates under a protocol.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> protocol = fg.Protocol.fit(LogisticRegression().fit(X, y), X)
    >>> protocol.group_names, protocol.depth
    (('duration', 'age', 'installment_commitment'), 3)
    """

    space: Space
    fields: tuple[Field, ...]
    columns: tuple[Column, ...]
    inputs: tuple[InputColumn, ...] = ()
    groups: tuple[Group, ...]
    grouping: Annotated[str, parts.GROUPING]
    baseline: Annotated[str, one_of((*BASELINES, "explicit"))]
    artificial: tuple[str, ...] = ()
    stored: tuple[Alternative, ...] = field(default=(), metadata=named("alternatives"))
    refused: tuple[str, ...] = ()
    operators: tuple[str, ...] = DEFAULT_OPERATORS
    severities: tuple[float, ...] = DEFAULT_SEVERITIES
    depth: Positive = DEFAULT_DEPTH
    reading: Reading = "support"
    weights: tuple[AtLeastZero, AtLeastZero, AtLeastZero] = EQUAL_WEIGHTS
    exposure_weights: tuple[AtLeastZero, AtLeastZero, AtLeastZero, AtLeastZero] = EXPOSURE_WEIGHTS
    resolution: Annotated[float, parts.RESOLUTION] = 1e-6
    smoothing: Annotated[float, between(0, parts.MAX_SMOOTHING)] = 0.0  # of (p + smoothing) / (1 + C smoothing)
    min_confidence: Level = CONFIDENT
    decision: Decision | None = None
    modes: FailureModes = NO_MODES
    domain: Annotated[str, RULE] = TRAINING_RANGE
    domains: tuple[Domain, ...] = ()
    training_digest: Annotated[str, parts.DIGEST] = ""
    training_rows: Count = 0

    def __post_init__(self) -> None:
        check_fields(self, "", ProtocolError)
        object.__setattr__(self, "stored", parts.order_alternatives(self))
        parts.check_evidence(self)
        parts.check_settings(self)
        parts.check_alternatives(self)
        parts.check_modes(self)
        parts.check_domains(self)
        parts.check_inputs(self)
        parts.check_values(self)

    # --- making one -------------------------------------------------------------------------------------

    @classmethod
    def fit(
        cls,
        model: Any,
        X_train: Any,
        *,
        space: Space | None = None,
        groups: str | os.PathLike[str] | GroupMap = "raw-origin",
        baseline: Any = DEFAULT_BASELINE,
        baseline_units: Units = "raw",
        operators: Sequence[str] = DEFAULT_OPERATORS,
        severities: Sequence[float] = DEFAULT_SEVERITIES,
        depth: int | None = None,
        reading: Reading = "support",
        weights: Sequence[float] = EQUAL_WEIGHTS,
        exposure_weights: Sequence[float] = EXPOSURE_WEIGHTS,
        resolution: float | None = None,
        smoothing: float | None = None,
        min_confidence: float = CONFIDENT,
        merge_threshold: float = 0.8,
        nominal: Sequence[str] = (),
        decision: Decision | float | Mapping[str, Any] | None = None,
        modes: Sequence[str] = DEFAULT_MODES,
        catalogue: int = CATALOGUE_SIZE,
        joint_values: bool = False,
        noise: float = NOISE,
        sentinels: Mapping[str, Sequence[Any]] | None = None,
        outages: Any = None,
        domain: DomainRequest = TRAINING_RANGE,
        immutable: Sequence[str] = (),
    ) -> Protocol:
        """Declare a protocol for ``model``: trace the groups and fit the baseline on training data.

        Parameters
        ----------
        model : estimator, pipeline, booster or Model
            The fitted classifier; whatever :meth:`Model.wrap` takes.
        X_train : array or table of shape (n, d)
            The raw rows the model was trained on.
        space : {"transformed", "raw"}, optional
            ``transformed`` stresses the estimator's input matrix (the default wherever that is a numeric matrix whose
            columns come from one field each, unless the baseline is ``missing``); ``raw`` stresses the raw fields
            before any preprocessing. Where columns come from several fields, as behind PCA or a ``KNNImputer``, the
            default is ``raw``, and a warning says why.
        groups : str, path or mapping, default="raw-origin"
            ``raw-origin`` (one group per raw field), ``merged`` (fields joined where their association on the training
            data is at least ``merge_threshold``), or a map field -> block or block -> fields (a dict or the path of a
            JSON file).
        baseline : str, array, mapping or table, default="typical"
            ``typical`` (the most frequent category of a nominal field, the mean of a numeric one), ``mean``,
            ``median``, ``zero``, ``missing``, or explicit values (a vector, a mapping from fields to values, or a
            one-row table). Under ``mean`` encoded nominal fields take values that no row has. Under ``missing`` the
            raw field is missing, so that the model's own imputer or rule for missing values answers as in production;
            a warning names the fields that had none in training.
        baseline_units : {"raw", "transformed"}, default="raw"
            What explicit values are measured in: ``raw`` (one value per raw field, sent through the model's
            preprocessing) or ``transformed`` (one value per column of the estimator's input).
        operators : sequence of str, default=("attenuate_all", "attenuate_top1")
            Gradual degradations: ``attenuate_all``, or ``attenuate_topJ`` for the J strongest groups.
        severities : sequence of float, default=(0.1, 0.2, ..., 1.0)
            The grid on which each operator looks for the mildest degradation that flips the prediction.
        depth : int, optional
            K, how many groups the removal path takes at most; by default 10, or all groups if there are fewer.
        reading : {"support", "current", "support_unbounded"}, default="support"
            The margin of the class predicted on the full record, with its collapse bounded to the whole margin
            (``support``) or not (``support_unbounded``); or of whichever class leads (``current``).
        weights : sequence of three float, default=(1/3, 1/3, 1/3)
            Of RCMA, 1/k* and 1/lambda* in FDS.
        exposure_weights : sequence of four float, default=(1/3, 1/3, 1/3, 1)
            Of targeted loss (RCMA), independent loss, common loss and random loss in exposure. Without the operator
            ``attenuate_all`` there is no common loss, and its weight goes to the first two.
        resolution : float, optional
            Margins closer than this count as equal, and a verified margin may lie this far off, from 1e-9 to 1e-3. By
            default 1e-6, or the finest of 1e-5, 1e-4 and 1e-3 that is twice the rounding measured where the model
            answers in single precision.
        smoothing : float, optional
            What is added to every probability before margins are computed, from 0 to 1. By default one vote for each
            class, 1/T, where the model averages the votes of T estimators (a random forest, extra trees, bagging), and
            0 for any other model. Confidences, predicted classes and flips do not depend on it.
        min_confidence : float, default=0.9
            From which probability of the predicted class on a prediction is confident. Which rows are searched,
            assessed and compared follows from it; reports and gates count these rows unless they are told otherwise.
        merge_threshold : float, default=0.8
            The association from which ``groups="merged"`` joins fields.
        nominal : sequence of str, default=()
            Numeric fields whose numbers are codes, not quantities.
        decision : float, mapping or Decision, optional
            How a two-class model decides, where that is not by the larger probability: the threshold of its second
            class (``0.3``), or ``{"class": label, "threshold": 0.3}``. scikit-learn's threshold classifiers bring their
            own.
        modes : sequence of str, default=("lost", "wrong", "noisy")
            The failure modes to declare; ``stale`` needs an earlier table at the audit. ``sentinel`` and ``outage`` are
            added where their values are given.
        catalogue : int, default=24
            How many values per group the mode ``wrong`` takes from the training rows. A nominal field in which most
            rows have a value of their own, such as a name, has none; of one with more categories than this, those of
            fewer than 5 rows are left out.
        joint_values : bool, default=False
            Whether the protocol may hold joint values of more than 4 fields that only single training rows have. Else
            a group of so many fields has no values for the mode ``wrong``.
        noise : float, default=0.3
            How far the mode ``noisy`` moves a number, in training standard deviations.
        sentinels : mapping of str to sequence, optional
            Values that stand in for a field when its source fails, such as ``{"income": [-999, "x / 12"]}``; a pair
            ``(value, weight)`` gives a value its weight.
        outages : Outages, optional
            Recorded outages, for the mode ``outage``.
        domain : str or mapping, default="range"
            Which values a field may take where a finding is about any value of it: ``range``,
            the training range of numbers and dates and the training categories of nominal fields; two quantiles of the
            training values such as ``0.01-0.99``; or, by field, its lowest and highest value or its categories, where
            fields that are not named have the training range. Missing is among them where it was in training.
        immutable : sequence of str, default=()
            Fields that keep the row's own value.

        Returns
        -------
        Protocol
            Ready for :func:`audit`.

        Raises
        ------
        EvidenceError
            Columns cannot be traced to fields, or a baseline cannot be made.
        ProtocolError
            A setting is out of range, or the model does not accept the baseline.
        """
        wrapped = Model.wrap(model)
        declared = Decision.read(decision, wrapped.classes)
        rows = read_model_rows(wrapped, X_train)
        if isinstance(baseline, str) and baseline == "missing" and space is None and rows.frame is not None:
            space = "raw"  # where a value is missing in production
        one_each = isinstance(groups, str) and groups in ("raw-origin", "merged")
        evidence = read_training_rows(wrapped, rows, space, nominal, one_each=one_each)
        blocks, grouping = group_columns(groups, evidence, merge_threshold)
        fitted = fit_baseline(baseline, baseline_units, evidence, wrapped, rows)
        columns = map(Column, evidence.columns, evidence.kinds, fitted.values, evidence.spreads)
        depth = min(DEFAULT_DEPTH, len(blocks)) if depth is None else depth
        one_vote = 0.0 if wrapped.votes is None else 1.0 / wrapped.votes
        own_groups = tuple(Group(name, tuple(members)) for name, members in blocks.items())
        protocol = cls(
            space=evidence.space,
            fields=evidence.fields,
            columns=tuple(columns),
            groups=own_groups,
            grouping=grouping,
            baseline=fitted.name,
            artificial=fitted.artificial,
            inputs=evidence.inputs,
            operators=tuple(parts.read_operator(operator) for operator in parts.read_list("operators", operators)),
            severities=tuple(
                parts.read_number("a severity", severity) for severity in parts.read_list("severities", severities)
            ),
            depth=int(depth) if isinstance(depth, np.integer) else depth,  # a file holds Python's numbers
            reading=reading,
            weights=parts.read_weights("weights", weights),
            exposure_weights=parts.read_weights("exposure_weights", exposure_weights),
            resolution=RESOLUTION if resolution is None else parts.read_number("resolution", resolution),
            smoothing=one_vote if smoothing is None else parts.read_number("smoothing", smoothing),
            min_confidence=parts.read_number("min_confidence", min_confidence),
            decision=wrapped.decision if declared is None else declared,
            modes=fit_modes(modes, catalogue, noise, sentinels, outages, evidence, own_groups, joint_values),
            domain=domain if isinstance(domain, str) else DECLARED,
            domains=fit_domains(domain, immutable, evidence),
            training_digest=table_digest(rows.columns()),
            training_rows=len(rows),
        )
        check_decision(wrapped, protocol.evidence)
        if resolution is None:
            few = Form.of(wrapped, rows.head(ROUNDING_ROWS), protocol.evidence).first
            protocol = replace(protocol, resolution=parts.choose_resolution(measure_rounding(few)))
        bound = check_baseline_accepted(wrapped, rows, protocol.evidence, fitted.name)
        if fitted.name == "missing" and fitted.artificial:
            warnings.warn(describe_artificial(fitted.name, fitted.artificial), stacklevel=2)
        others = fit_alternatives(fitted.name, evidence, protocol.evidence, wrapped, rows, bound)
        return replace(protocol, stored=others, refused=list_refused(fitted.name, others))

    @classmethod
    def paper(cls, model: Any, X_train: Any, **changes: Any) -> Protocol:
        """Return the paper's protocol: margins read literally (``current``), mean baseline, no smoothing, K = 10.

        Parameters
        ----------
        model : estimator, pipeline, booster or Model
            The fitted classifier.
        X_train : array or table of shape (n, d)
            The raw rows the model was trained on.
        **changes : Any
            Other settings of :meth:`fit`, or other values for these.

        Returns
        -------
        Protocol
            Ready for :func:`audit`.
        """
        return cls.fit(model, X_train, **{"reading": "current", "baseline": "mean", "smoothing": 0.0, **changes})

    # --- reading it -------------------------------------------------------------------------------------

    @property
    def group_names(self) -> tuple[str, ...]:
        """Names of the groups, in declared order."""
        return tuple(group.name for group in self.groups)

    @property
    def group_thing(self) -> str:
        """What a group is, in words: ``field`` where each holds one raw field, else ``group of fields``."""
        one_each = all(fields == (name,) for name, fields in self.evidence.group_fields.items())
        return "field" if one_each else "group of fields"

    def rule(self, offset: Floats | None) -> DecisionRule:
        """Return the rule that decides about states.

        Parameters
        ----------
        offset : ndarray of shape (C,) or None
            What a declared threshold adds to log-probabilities.

        Returns
        -------
        DecisionRule
            When a state flips, and its margin.
        """
        return DecisionRule(self.resolution, offset, self.reading, self.smoothing)

    @property
    def alternatives(self) -> tuple[str, ...]:
        """Names of the other baselines that the model admits, which the protocol stores."""
        return tuple(other.name for other in self.stored)

    def with_baseline(self, name: str) -> Protocol:
        """Return the same protocol under another of its baselines.

        Parameters
        ----------
        name : str
            One of ``alternatives``, or the protocol's own baseline.

        Returns
        -------
        Protocol
            With everything else equal. Under ``missing`` it is in the raw space and has no alternatives.
        """
        if name == self.baseline:
            return self
        other = next((one for one in self.stored if one.name == name), None)
        if other is None:
            known = ", ".join((self.baseline, *self.alternatives))
            raise ProtocolError(f"the protocol has the baselines {known}, got {name!r}; fit one with that baseline")
        named = partial(replace, self, baseline=name, artificial=other.artificial)
        if other.values is None:
            raw = missing_space(self.evidence, other)
            modes = self.modes.in_raw_fields(self.fields)
            return named(space=raw.space, columns=raw.columns, groups=raw.groups, stored=(), refused=(), modes=modes)
        values = None if self.baseline == "missing" else tuple(column.baseline for column in self.columns)
        by_name = {one.name: one for one in (Alternative(self.baseline, self.artificial, values), *self.stored)}
        stored = tuple(by_name[each] for each in ALTERNATIVES if each in by_name and each != name)
        return named(columns=with_values(self.columns, other.values), stored=stored)

    @cached_property
    def evidence(self) -> EvidenceSpace:
        """The part of the protocol that rows are bound by."""
        listed = self.modes.listed_values()
        for name, values in list_domain_values(self.domains).items():
            listed[name] = tuple(dict.fromkeys((*listed.get(name, ()), *values)))
        return EvidenceSpace(
            self.space,
            self.fields,
            self.columns,
            self.groups,
            self.decision,
            self.resolution,
            listed,
            self.inputs,
        )

    @cached_property
    def becomes(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """What the fields of each group become when it is lost, as texts: the value, or the rule where only the model
        could tell it."""
        nominal = {field.name for field in self.fields if field.kind == "nominal" and field.type != "date"}
        usual = {
            entry.fields[0]: entry.values[0][0]  # the most frequent category stands first
            for entry in self.modes.catalogue
            if self.baseline in ("typical", "median") and len(entry.fields) == 1 and entry.fields[0] in nominal
        }
        return name_replacements(self.evidence, self.baseline, usual)

    @property
    def column_group(self) -> Integers:
        """(d,) index of each column's group."""
        return self.evidence.column_group

    @property
    def fading(self) -> int | None:
        """Which operator is attenuate_all; None if there is none, and then no common loss."""
        return self.operators.index("attenuate_all") if "attenuate_all" in self.operators else None

    @property
    def states_per_row(self) -> int:
        """Model evaluations for one certificate, as the paper counts them: 1 + G + K + operators times severities."""
        return 1 + len(self.groups) + self.depth + len(self.operators) * len(self.severities)

    @cached_property
    def digest(self) -> str:
        """``sha256:...`` over everything the protocol declares."""
        return digest_of(self.to_dict())

    def __repr__(self) -> str:
        artificial = f" (artificial for {len(self.artificial)} fields)" if self.artificial else ""
        return (
            f"Protocol({self.space} space, {len(self.groups)} groups over {len(self.columns)} columns, baseline "
            f"{self.baseline}{artificial}, depth {self.depth}, reading {self.reading}, smoothing {self.smoothing:g}, "
            f"predicts {self.decision or 'the larger probability'}, {self.digest[:19]}...)"
        )

    def _repr_html_(self) -> str:
        facts = {
            "space": self.space,
            "groups": f"{len(self.groups)} ({self.grouping}): {', '.join(self.group_names)}",
            "baseline": self.baseline,
            "artificial": ", ".join(self.artificial) or "none",
            "alternatives": ", ".join(self.alternatives) or "none",
            "refused": ", ".join(self.refused) or "none",
            "operators": ", ".join(self.operators),
            "severities": ", ".join(f"{severity:g}" for severity in self.severities),
            "depth": self.depth,
            "reading": self.reading,
            "resolution": f"{self.resolution:g}",
            "smoothing": f"{self.smoothing:g}",
            "confident from": f"{self.min_confidence:g}",
            "training rows": self.training_rows,
            "digest": self.digest,
        }
        rows = (f"<tr><th>{name}</th><td>{html.escape(str(fact))}</td></tr>" for name, fact in facts.items())
        return f"<table>{''.join(rows)}</table>"

    # --- files ------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the protocol as plain JSON values; field names are this class's.

        Returns
        -------
        dict
            What ``from_dict`` takes.
        """
        return {"format": FORMAT, **write_document(self)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Protocol:
        """Return the protocol that ``to_dict`` wrote; an unknown version and unknown fields are refused.

        Parameters
        ----------
        document : mapping
            What ``to_dict`` returned.

        Returns
        -------
        Protocol
            The same protocol, with the same digest.
        """
        protocol = read_document(document, cls, "the protocol", ProtocolError, format=FORMAT)
        for name in protocol.alternatives:
            protocol.with_baseline(name)  # held to the same rules
        return protocol

    def to_json(self) -> str:
        """Return the protocol as JSON text.

        Returns
        -------
        str
            What ``save`` writes.
        """
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Protocol:
        """Return the protocol that ``to_json`` wrote.

        Parameters
        ----------
        text : str
            A JSON document.

        Returns
        -------
        Protocol
            The same protocol, with the same digest.
        """
        return cls.from_dict(parse_text(text, "the protocol", ProtocolError))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the protocol as JSON; the file appears whole or not at all.

        Parameters
        ----------
        path : path
            The file to write.
        """
        try:
            write_text(Path(path), self.to_json())
        except OSError as error:
            raise ProtocolError(f"cannot write the protocol to {path}: {error.strerror or error}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Protocol:
        """Return the protocol of a file.

        Parameters
        ----------
        path : path
            What ``save`` wrote.

        Returns
        -------
        Protocol
            The same protocol, with the same digest.
        """
        return cls.from_dict(load_json(path, "the protocol", ProtocolError))


def bind(model: Any, X: Any, protocol: Protocol, ids: Any = None, *, tried: bool = False) -> EvidenceRows:
    """Return the rows of ``X`` in the protocol's evidence space, ready for an engine; rows may be bound already.

    tried: the model has been tried on these rows, when they were bound before in a space of the same columns.
    """
    if not isinstance(protocol, Protocol):
        raise ProtocolError(
            f"a Protocol was expected, got {type(protocol).__name__}; make one with Protocol.fit or read one with "
            "Protocol.load"
        )
    return bind_rows(model, X, protocol.evidence, ids, tried=tried)

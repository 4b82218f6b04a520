"""Protocol: the declared evidence-failure protocol Pi = (G, baseline, P, Lambda, K) and how margins are read.

A protocol is fitted once, on training data, and then it is data: groups, baseline values, operators, severities, depth,
reading, weights and resolution, with a digest. ``bind`` applies it to a model and the rows to audit.
"""

from __future__ import annotations

import html
import itertools
import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fragility.arrays import Floats, Integers
from fragility.canonical import digest_of, table_digest
from fragility.errors import FragilityError, ProtocolError
from fragility.evidence import EvidenceRows
from fragility.evidence.baselines import (
    ALTERNATIVES,
    BASELINES,
    Alternative,
    Units,
    fit_alternatives,
    fit_baseline,
    missing_space,
    with_values,
)
from fragility.evidence.binding import bind_rows, check_baseline_accepted, check_decision
from fragility.evidence.bound import SPACES, Column, EvidenceSpace, Group, Space
from fragility.evidence.fields import FIELD_TYPES, Field, is_date_dtype, read_date
from fragility.evidence.fitting import training_evidence
from fragility.evidence.groups import GroupMap, group_columns
from fragility.evidence.rows import read_rows
from fragility.files import JSON_LIMIT, parse_json, read_bounded, write_text
from fragility.models import ClassLabel, Decision, Model
from fragility.scores import READINGS, Reading
from fragility.wording import describe_artificial

FORMAT = "fragility-protocol/1"
DEFAULT_BASELINE = "typical"
DEFAULT_DEPTH = 10
DEFAULT_OPERATORS = ("attenuate_all", "attenuate_top1")
DEFAULT_SEVERITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
EQUAL_WEIGHTS = (1 / 3, 1 / 3, 1 / 3)
GROUPING = re.compile(r"raw-origin|declared|merged at (0?\.\d+|[01](\.\d+)?)")
MIN_RESOLUTION, MAX_RESOLUTION = 1e-9, 1e-3  # part of the format: float64 margins round at 1e-10, float32 need 1e-4
DIGEST = re.compile(r"(sha256:[0-9a-f]{64})?")
MAX_SMOOTHING = 1.0  # part of the format: one vote for each class of a single tree


@dataclass(frozen=True)
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
    groups : tuple of Group
        Columns that fail together; every column is in one group.
    grouping : str
        How they were made: ``raw-origin``, ``declared``, or merged at a threshold.
    baseline : str
        ``typical``, ``mean``, ``median``, ``zero``, ``missing`` or ``explicit``.
    artificial : tuple of str
        The raw fields for which the baseline is a value that no training row has, such as nominal fields under
        ``mean``.
    stored : tuple of Alternative
        The other baselines that the model admits; :attr:`alternatives` has their names.
    operators : tuple of str
        The gradual degradations, such as ``attenuate_all`` and ``attenuate_top1``.
    severities : tuple of float
        The grid on which each operator looks for the mildest degradation that flips the prediction.
    depth : int
        K, how many groups the removal path takes.
    reading : {"support", "current", "support_unbounded"}
        How margins are read.
    weights : tuple of three float
        Of RCMA, 1/k* and 1/lambda* in FDS.
    exposure_weights : tuple of three float
        Of targeted loss (RCMA), independent loss and common loss in exposure.
    resolution : float
        Margins closer than this count as equal.
    smoothing : float
        Added to every probability before margins are computed; classes and flips do not depend on it.
    decision : Decision or None
        How a two-class model decides; None: the class with the largest probability is predicted.
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
    groups: tuple[Group, ...]
    grouping: str  # raw-origin, declared, or merged at a threshold
    baseline: str  # typical, mean, median, zero, missing or explicit
    artificial: tuple[str, ...] = ()  # raw fields for which it is a value that no training row has
    stored: tuple[Alternative, ...] = ()  # the other baselines that the model admits
    operators: tuple[str, ...] = DEFAULT_OPERATORS
    severities: tuple[float, ...] = DEFAULT_SEVERITIES
    depth: int = DEFAULT_DEPTH
    reading: Reading = "support"
    weights: tuple[float, float, float] = EQUAL_WEIGHTS  # of RCMA, 1 / k* and degradation in FDS
    exposure_weights: tuple[float, float, float] = EQUAL_WEIGHTS  # of targeted, independent and common loss in exposure
    resolution: float = 1e-6
    smoothing: float = 0.0  # margins are those of (p + smoothing) / (1 + C smoothing)
    decision: Decision | None = None  # None: the class with the largest probability is predicted
    training_digest: str = ""
    training_rows: int = 0

    def __post_init__(self) -> None:
        _check_choice("space", self.space, SPACES)
        _check_choice("reading", self.reading, READINGS)
        if not isinstance(self.grouping, str) or not GROUPING.fullmatch(self.grouping):
            raise ProtocolError(
                f"grouping must be raw-origin, declared or merged at a threshold from 0 to 1, got {self.grouping!r:.80}"
            )
        for name, kind in [*((f.name, f.kind) for f in self.fields), *((c.name, c.kind) for c in self.columns)]:
            _check_choice(f"kind of {name!r}", kind, ("numeric", "nominal"))
        for f in self.fields:
            _check_choice(f"type of {f.name!r}", f.type, FIELD_TYPES)
            if f.dtype is not None and not (f.type == "date" and is_date_dtype(f.dtype)):
                raise ProtocolError(
                    f"dtype of {f.name!r} must be null or that of timestamps in a known time zone, such as "
                    f"'datetime64[us, UTC]', got {f.dtype!r:.80}"
                )
        _check_partition(self.groups, [column.name for column in self.columns])
        _check_depth(self.depth, len(self.groups))
        _check_severities(self.severities)
        _check_weights("weights", self.weights)
        _check_weights("exposure_weights", self.exposure_weights)
        if not MIN_RESOLUTION <= self.resolution <= MAX_RESOLUTION:  # it is also how far a verified margin may lie
            raise ProtocolError(
                f"resolution must be a number from {MIN_RESOLUTION:g} to {MAX_RESOLUTION:g} in margin units, "
                f"got {self.resolution!r}"
            )
        if not 0 <= self.smoothing <= MAX_SMOOTHING:  # NaN is refused too
            raise ProtocolError(f"smoothing must be a number from 0 to {MAX_SMOOTHING:g}, got {self.smoothing!r}")
        if self.decision is not None and not isinstance(self.decision, Decision):
            raise ProtocolError(f"decision must be a Decision or None, got {self.decision!r}")
        if len(set(self.operators)) != len(self.operators):
            raise ProtocolError(f"operators must be distinct, got {list(self.operators)}")
        for operator in self.operators:
            operator_width(operator, len(self.groups))
        _check_alternatives(self)
        _check_dates(self)
        _check_consistent(self)
        if self.fading is None and not sum(self.exposure_weights[:2]) > 0:
            raise ProtocolError(
                "exposure_weights put all weight on the common loss, which needs the operator attenuate_all; "
                f"add it to the operators {list(self.operators)}"
            )

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
        exposure_weights: Sequence[float] = EQUAL_WEIGHTS,
        resolution: float = 1e-6,
        smoothing: float | None = None,
        merge_threshold: float = 0.8,
        nominal: Sequence[str] = (),
        decision: Decision | float | Mapping[str, Any] | None = None,
    ) -> Protocol:
        """Declare a protocol for ``model``: trace the groups and fit the baseline on training data.

        Parameters
        ----------
        model : estimator, pipeline, booster or Model
            The fitted classifier; whatever :meth:`Model.wrap` takes.
        X_train : array or table of shape (n, d)
            The raw rows the model was trained on.
        space : {"transformed", "raw"}, optional
            ``transformed`` stresses the estimator's input matrix (the default wherever that is a numeric matrix, unless
            the baseline is ``missing``); ``raw`` stresses the raw fields before any preprocessing.
        groups : str, path or mapping, default="raw-origin"
            ``raw-origin`` (one group a raw field), ``merged`` (fields joined where they are associated on the training
            data at ``merge_threshold`` or more), or a map field -> block or block -> fields (a dict or the path of a
            JSON file).
        baseline : str, array, mapping or table, default="typical"
            ``typical`` (the most frequent category of a nominal field, whatever encodes it, and the mean of a numeric
            one), ``mean``, ``median``, ``zero``, ``missing``, or explicit values (a vector, a mapping from fields to
            values, or a one-row table). Under ``mean`` encoded nominal fields take values that no row has, and models
            may read them in unexpected ways: LightGBM splits one-hot columns at about 1e-35, so that every category
            reads as present. Under ``missing`` the raw field is missing, so that the model's own imputer or rule for
            missing values answers as in production; a warning names the fields that had none in training.
        baseline_units : {"raw", "transformed"}, default="raw"
            What explicit values are measured in: ``raw`` (one value a raw field, sent through the model's
            preprocessing) or ``transformed`` (one value a column of the estimator's input).
        operators : sequence of str, default=("attenuate_all", "attenuate_top1")
            Gradual degradations: ``attenuate_all``, or ``attenuate_topJ`` for the J strongest groups.
        severities : sequence of float, default=(0.1, 0.2, ..., 1.0)
            The grid of their severities.
        depth : int, optional
            How many groups the removal path takes at most; by default 10, or all groups if there are fewer.
        reading : {"support", "current", "support_unbounded"}, default="support"
            The margin of the class predicted on the full record, with its collapse bounded to the whole margin
            (``support``) or not (``support_unbounded``); or of whichever class leads (``current``).
        weights : sequence of three float, default=(1/3, 1/3, 1/3)
            Of RCMA, 1/k* and 1/lambda* in FDS.
        exposure_weights : sequence of three float, default=(1/3, 1/3, 1/3)
            Of targeted loss (RCMA), independent loss and common loss in exposure.
        resolution : float, default=1e-6
            Margins closer than this count as equal; a float32 torch module needs 1e-4.
        smoothing : float, optional
            What is added to every probability before margins are computed, from 0 to 1. By default one vote for each
            class, 1/T, where the model averages the votes of T estimators (a random forest, extra trees, bagging), and
            0 for any other model. Confidences, predicted classes and flips do not depend on it.
        merge_threshold : float, default=0.8
            The association from which ``groups="merged"`` joins fields.
        nominal : sequence of str, default=()
            Numeric fields whose numbers are codes, not quantities.
        decision : float, mapping or Decision, optional
            How a two-class model decides, where that is not by the larger probability: the threshold of its second
            class (``0.3``), or ``{"class": label, "threshold": 0.3}``. scikit-learn's threshold classifiers bring their
            own.

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
        rows = read_rows(X_train, wrapped.columns, wrapped.n_columns)
        if isinstance(baseline, str) and baseline == "missing" and space is None and rows.frame is not None:
            space = "raw"  # where a value is missing in production
        evidence = training_evidence(wrapped, rows, space, nominal)
        blocks, grouping = group_columns(
            groups, evidence.columns, evidence.origins, rows.frame, evidence.field_kinds, merge_threshold
        )
        fitted = fit_baseline(baseline, baseline_units, evidence, wrapped, rows)
        described = zip(evidence.columns, evidence.kinds, fitted.values, evidence.spreads, strict=True)
        protocol = cls(
            space=evidence.space,
            fields=evidence.fields,
            columns=tuple(Column(*of_one) for of_one in described),
            groups=tuple(Group(name, tuple(members)) for name, members in blocks.items()),
            grouping=grouping,
            baseline=fitted.name,
            artificial=fitted.artificial,
            operators=tuple(_canonical_operator(operator) for operator in _listed("operators", operators)),
            severities=tuple(_number("a severity", severity) for severity in _listed("severities", severities)),
            depth=_whole(min(DEFAULT_DEPTH, len(blocks)) if depth is None else depth),
            reading=reading,
            weights=_three("weights", weights),
            exposure_weights=_three("exposure_weights", exposure_weights),
            resolution=_number("resolution", resolution),
            smoothing=_one_vote(wrapped) if smoothing is None else _number("smoothing", smoothing),
            decision=wrapped.decision if declared is None else declared,
            training_digest=table_digest(rows.columns()),
            training_rows=len(rows),
        )
        check_decision(wrapped, protocol.evidence)
        bound = check_baseline_accepted(wrapped, rows, protocol.evidence, fitted.name)
        if fitted.name == "missing" and fitted.artificial:
            warnings.warn(describe_artificial(fitted.name, fitted.artificial), stacklevel=2)
        others = fit_alternatives(fitted.name, evidence, protocol.evidence, wrapped, rows, bound)
        return replace(protocol, stored=others)

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
        one_each = self.grouping == "raw-origin" or set(self.group_names) == {field.name for field in self.fields}
        return "field" if one_each else "group of fields"

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

        Raises
        ------
        ProtocolError
            The protocol does not store this baseline.
        """
        if name == self.baseline:
            return self
        other = next((one for one in self.stored if one.name == name), None)
        if other is None:
            known = ", ".join((self.baseline, *self.alternatives))
            raise ProtocolError(f"the protocol has the baselines {known}, got {name!r}; fit one with that baseline")
        if other.values is None:
            raw = missing_space(self.evidence, other)
            return replace(
                self,
                space=raw.space,
                columns=raw.columns,
                groups=raw.groups,
                baseline=name,
                artificial=other.artificial,
                stored=(),
            )
        values = None if self.baseline == "missing" else tuple(column.baseline for column in self.columns)
        own = Alternative(self.baseline, self.artificial, values)
        stored = [one for one in (own, *self.stored) if one is not other and one.name in ALTERNATIVES]
        return replace(
            self,
            columns=with_values(self.columns, other.values),
            baseline=name,
            artificial=other.artificial,
            stored=tuple(sorted(stored, key=lambda one: ALTERNATIVES.index(one.name))),
        )

    @cached_property
    def evidence(self) -> EvidenceSpace:
        """The part of the protocol that rows are bound by."""
        return EvidenceSpace(self.space, self.fields, self.columns, self.groups, self.decision, self.resolution)

    @property
    def column_group(self) -> Integers:
        """(d,) index of each column's group."""
        return self.evidence.column_group

    def decision_offset(self, classes: Sequence[ClassLabel]) -> Floats | None:
        """Return what the declared decision adds to the log-probabilities.

        Parameters
        ----------
        classes : sequence of class labels
            The model's classes, in its order.

        Returns
        -------
        array of shape (C,) or None
            None: nothing is added.
        """
        return self.evidence.decision_offset(classes)

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
            "operators": ", ".join(self.operators),
            "severities": ", ".join(f"{severity:g}" for severity in self.severities),
            "depth": self.depth,
            "reading": self.reading,
            "resolution": f"{self.resolution:g}",
            "smoothing": f"{self.smoothing:g}",
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
        return {
            "format": FORMAT,
            "space": self.space,
            "fields": [
                {"name": f.name, "kind": f.kind, "type": f.type, "categorical": f.categorical, "dtype": f.dtype}
                for f in self.fields
            ],
            "columns": [
                {"name": c.name, "kind": c.kind, "baseline": c.baseline, "spread": c.spread} for c in self.columns
            ],
            "groups": _groups_to_list(self.groups),
            "grouping": self.grouping,
            "baseline": self.baseline,
            "artificial": list(self.artificial),
            "alternatives": {one.name: _alternative_to_dict(one) for one in self.stored},
            "operators": list(self.operators),
            "severities": list(self.severities),
            "depth": self.depth,
            "reading": self.reading,
            "weights": list(self.weights),
            "exposure_weights": list(self.exposure_weights),
            "resolution": self.resolution,
            "smoothing": self.smoothing,
            "decision": None if self.decision is None else self.decision.to_dict(),
            "training_digest": self.training_digest,
            "training_rows": self.training_rows,
        }

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

        Raises
        ------
        ProtocolError
            The document is malformed.
        """
        if not isinstance(document, Mapping):
            raise ProtocolError(f"a protocol must be a JSON object, got {type(document).__name__}")
        if document.get("format") != FORMAT:
            raise ProtocolError(f"expected a protocol of format {FORMAT!r}, got {document.get('format')!r}")
        unknown = sorted(map(str, set(document) - _KNOWN_KEYS))
        if unknown:
            raise ProtocolError(f"the format of protocols has no field {unknown[0]!r:.80}; remove it")
        try:
            columns = tuple(_column_from(c) for c in document["columns"])
            protocol = cls(
                space=document["space"],
                fields=tuple(_field_from(f) for f in document["fields"]),
                columns=columns,
                groups=_groups_from(document["groups"]),
                grouping=document["grouping"],
                baseline=document["baseline"],
                artificial=_names("artificial", document["artificial"]),
                stored=tuple(
                    _alternative_from(name, document["alternatives"][name], columns)
                    for name in sorted(document["alternatives"], key=_place_of_alternative)
                ),
                operators=tuple(document["operators"]),
                severities=tuple(float(s) for s in document["severities"]),
                depth=document["depth"],
                reading=document["reading"],
                weights=_three("weights", document["weights"]),
                exposure_weights=_three("exposure_weights", document["exposure_weights"]),
                resolution=float(document["resolution"]),
                smoothing=_finite("smoothing", document["smoothing"]),
                decision=Decision.read(document["decision"]),
                training_digest=document["training_digest"],
                training_rows=document["training_rows"],
            )
            for name in protocol.alternatives:
                protocol.with_baseline(name)  # held to the same rules
        except KeyError as error:
            raise ProtocolError(f"the protocol lacks the field {error.args[0]!r}") from error
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, FragilityError):
                raise
            raise ProtocolError(f"the protocol is malformed: {error}") from error
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
        try:
            document = parse_json(text)
        except ValueError as error:
            raise ProtocolError(f"the protocol is not valid JSON: {error}") from error
        return cls.from_dict(document)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the protocol as JSON; the file appears whole or not at all.

        Parameters
        ----------
        path : path
            The file to write.
        """
        target = Path(path)
        try:
            write_text(target, self.to_json())
        except OSError as error:
            raise ProtocolError(f"cannot write the protocol to {target}: {error.strerror or error}") from error

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

        Raises
        ------
        ProtocolError
            The file cannot be read, or holds no protocol.
        """
        try:
            text = read_bounded(path, JSON_LIMIT).decode("utf-8")
        except (OSError, ValueError) as error:
            raise ProtocolError(
                f"cannot read the protocol {path}: {getattr(error, 'strerror', None) or error}"
            ) from error
        return cls.from_json(text)


_KNOWN_KEYS = frozenset(
    {"format", "space", "fields", "columns", "groups", "grouping", "baseline", "artificial", "alternatives"}
    | {"operators", "severities", "depth", "reading", "weights", "exposure_weights", "resolution", "smoothing"}
    | {"decision", "training_digest", "training_rows"}
)


# --- validation ---------------------------------------------------------------------------------------------


def _check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ProtocolError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _check_partition(groups: Sequence[Group], columns: Sequence[str]) -> None:
    if not groups:
        raise ProtocolError("at least one evidence group is needed, got none")
    names = [group.name for group in groups]
    if len(set(names)) != len(names):
        raise ProtocolError(f"group names must be distinct, got {names}")
    if len(set(columns)) != len(columns):
        raise ProtocolError("column names must be distinct")
    seen: dict[str, str] = {}
    for group in groups:
        if not group.columns:
            raise ProtocolError(f"group {group.name!r} has no columns")
        for column in group.columns:
            if column in seen:
                raise ProtocolError(f"column {column!r} is in both groups {seen[column]!r} and {group.name!r}")
            seen[column] = group.name
    unknown = [column for column in seen if column not in set(columns)]
    left_out = [column for column in columns if column not in seen]
    if unknown or left_out:
        raise ProtocolError(f"groups must cover the columns exactly: unknown {unknown[:5]}, left out {left_out[:5]}")


def _check_consistent(protocol: Protocol) -> None:
    """Refuse words that do not fit the values."""
    kinds = {field.name: field.kind for field in protocol.fields}
    if type(protocol.training_rows) is not int or protocol.training_rows < 0:
        raise ProtocolError(f"training_rows must be a whole number of rows, got {protocol.training_rows!r}")
    if not isinstance(protocol.training_digest, str) or not DIGEST.fullmatch(protocol.training_digest):
        raise ProtocolError(f"training_digest must be sha256: and 64 digits, got {protocol.training_digest!r:.90}")
    if protocol.grouping == "raw-origin" and not set(protocol.group_names) <= set(kinds):
        raise ProtocolError(
            "the protocol contradicts itself: grouping 'raw-origin', but groups are not named after fields"
        )
    if protocol.space == "raw" and {c.name: c.kind for c in protocol.columns} != kinds:
        raise ProtocolError("the protocol contradicts itself: space 'raw', but the columns are not the fields")
    unknown = set(protocol.artificial) - set(kinds)
    if unknown:
        raise ProtocolError(f"the protocol contradicts itself: artificial names {min(unknown)!r}, which is not a field")
    _check_choice("baseline", protocol.baseline, (*BASELINES, "explicit"))
    for column in protocol.columns:
        _check_column(column, protocol.baseline)


def _check_column(column: Column, word: str) -> None:
    value, numeric = column.baseline, column.kind == "numeric"
    if not isinstance(value, (str, bool, int, float, type(None))):
        raise ProtocolError(f"the baseline of {column.name!r} must be a number, a text or null, got {value!r:.80}")
    if column.spread is not None and not column.spread >= 0:
        raise ProtocolError(f"the spread of {column.name!r} must be a number from 0 on, got {column.spread!r}")
    if word == "zero" and numeric and value != 0.0:
        expected = "0"
    elif word == "missing" and value is not None:
        expected = "null"
    elif word in ("typical", "mean", "median") and numeric and value is None and column.spread is not None:
        expected = "a number, as it had values in training"
    else:
        return
    raise ProtocolError(
        f"the protocol contradicts itself: baseline {word!r}, but the baseline of {column.name!r} is {value!r}, "
        f"expected {expected}"
    )


def _check_alternatives(protocol: Protocol) -> None:
    if len({protocol.baseline, *protocol.alternatives}) != 1 + len(protocol.stored):
        raise ProtocolError(
            f"alternatives must be distinct and other than the baseline {protocol.baseline!r}, got "
            f"{list(protocol.alternatives)}"
        )
    for other in protocol.stored:
        _check_choice("an alternative", other.name, ALTERNATIVES)
        if (other.values is None) != (other.name == "missing"):
            raise ProtocolError("every alternative but missing has a value for each column, and missing has none")
        if other.name == "missing":
            _check_missing(other, protocol)


def _check_missing(missing: Alternative, protocol: Protocol) -> None:
    fields = [f.name for f in protocol.fields]
    by_column = [c.name for c in protocol.columns] == fields
    if (missing.groups is None, missing.spreads is None) != (by_column, by_column):
        raise ProtocolError(
            "the alternative missing must have groups and spreads of the raw fields exactly if the columns are not the "
            "raw fields"
        )
    if missing.groups is not None and missing.spreads is not None:
        _check_partition(missing.groups, fields)
        if len(missing.spreads) != len(fields) or len(missing.groups) < len(protocol.groups):
            raise ProtocolError(
                f"the alternative missing must have {len(fields)} spreads and at least {len(protocol.groups)} groups, "
                f"got {len(missing.spreads)} and {len(missing.groups)}"
            )


def _check_dates(protocol: Protocol) -> None:
    dates = {f.name for f in protocol.fields if f.type == "date"} if protocol.space == "raw" else set()
    for j, column in enumerate(protocol.columns):
        if column.name not in dates:
            continue
        for value in (column.baseline, *(other.values[j] for other in protocol.stored if other.values is not None)):
            if value is not None and read_date(value) is None:
                raise ProtocolError(
                    f"the baseline of {column.name!r} must be a date in ISO form (2020-05-17), got {value!r:.60}"
                )


def _check_depth(depth: object, n_groups: int) -> None:
    if isinstance(depth, bool) or not isinstance(depth, (int, np.integer)) or not 1 <= depth <= n_groups:
        raise ProtocolError(
            f"depth must be a whole number from 1 to the number of groups, {n_groups}, got {depth!r}; "
            "leave it out for 10, or all groups if there are fewer"
        )


def _whole(depth: Any) -> Any:
    return int(depth) if isinstance(depth, np.integer) else depth  # a file holds Python's numbers


def _check_severities(severities: Sequence[float]) -> None:
    rising = all(a < b for a, b in itertools.pairwise(severities))
    if not severities or not rising or not (severities[0] > 0 and severities[-1] <= 1):
        raise ProtocolError(f"severities must rise strictly within (0, 1], got {list(severities)}")


def _check_weights(name: str, weights: Sequence[float]) -> None:
    if not all(np.isfinite(w) and w >= 0 for w in weights) or sum(weights) <= 0:
        raise ProtocolError(f"{name} must be three numbers >= 0, not all 0, got {list(weights)}")


WEIGHTED = {
    "weights": "RCMA, flip budget, degradation",
    "exposure_weights": "targeted, independent and common loss",
}


def _three(name: str, weights: Sequence[float]) -> tuple[float, float, float]:
    if len(_listed(name, weights)) != 3:
        raise ProtocolError(f"{name} must be three numbers ({WEIGHTED[name]}), got {len(weights)}")
    a, b, c = (_number("a weight", w) for w in weights)
    return a, b, c


def _listed(name: str, values: Any) -> Sequence[Any]:
    if isinstance(values, str) or not isinstance(values, (Sequence, np.ndarray)):
        raise ProtocolError(f"{name} must be a list, got {values!r}")
    return list(values)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"{name} must be a number, got {value!r}") from error


def _names(name: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ProtocolError(f"{name} must be a list of names, got {values!r:.80}")
    return tuple(values)


def _one_vote(model: Model) -> float:
    """Return one vote among those that the model averages, 0 for a model that averages none."""
    return 0.0 if model.votes is None else 1.0 / model.votes


def _field_from(document: Mapping[str, Any]) -> Field:
    if not isinstance(document["categorical"], bool):
        raise ProtocolError(f"categorical must be true or false, got {document['categorical']!r}")
    return Field(str(document["name"]), document["kind"], document["type"], document["categorical"], document["dtype"])


def _groups_to_list(groups: Sequence[Group]) -> list[dict[str, Any]]:
    return [{"name": group.name, "columns": list(group.columns)} for group in groups]


def _groups_from(document: Sequence[Mapping[str, Any]]) -> tuple[Group, ...]:
    return tuple(Group(str(group["name"]), tuple(group["columns"])) for group in document)


def _place_of_alternative(name: str) -> int:
    return ALTERNATIVES.index(name) if name in ALTERNATIVES else len(ALTERNATIVES)


def _alternative_to_dict(other: Alternative) -> dict[str, Any]:
    document: dict[str, Any] = {"artificial": list(other.artificial)}
    if other.values is not None:
        document["values"] = list(other.values)
    if other.groups is not None and other.spreads is not None:
        document |= {"groups": _groups_to_list(other.groups), "spreads": list(other.spreads)}
    return document


def _alternative_from(name: str, document: Mapping[str, Any], columns: Sequence[Column]) -> Alternative:
    unknown = set(document) - {"artificial", "values", "groups", "spreads"}
    if unknown:
        raise ProtocolError(f"the alternative {name!r} has the unknown field {min(unknown)!r}")
    values, groups, spreads = (document.get(key) for key in ("values", "groups", "spreads"))
    if values is not None:
        if len(values) != len(columns):
            raise ProtocolError(
                f"the alternative {name!r} must have {len(columns)} values, one per column, got {len(values)}"
            )
        values = tuple(_baseline_from(column.kind, value) for column, value in zip(columns, values, strict=True))
    return Alternative(
        name,
        _names("artificial", document["artificial"]),
        values,
        None if groups is None else _groups_from(groups),
        None if spreads is None else tuple(_spread_from(spread) for spread in spreads),
    )


def _column_from(document: Mapping[str, Any]) -> Column:
    kind = document["kind"]
    return Column(
        str(document["name"]), kind, _baseline_from(kind, document["baseline"]), _spread_from(document["spread"])
    )


def _baseline_from(kind: str, value: Any) -> Any:
    return _finite("a baseline", value) if kind == "numeric" and value is not None else value


def _spread_from(value: Any) -> float | None:
    return None if value is None else _finite("a spread", value)


def _finite(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise ProtocolError(f"{name} must be a number, got {value!r}")
    return float(value)


def _canonical_operator(operator: str) -> str:
    if not isinstance(operator, str):
        raise ProtocolError(f"an operator is a name such as attenuate_all, got {operator!r}")
    return re.sub(r"^attenuate_top\((\d+)\)$", r"attenuate_top\1", operator.strip())


def operator_width(operator: str, n_groups: int) -> int:
    """Return how many groups of the path an operator degrades: all of them, or its first j."""
    if operator == "attenuate_all":
        return n_groups
    match = re.fullmatch(r"attenuate_top(\d+)", operator)
    if match is None or not 1 <= int(match[1]) <= n_groups:
        raise ProtocolError(
            f"an operator is attenuate_all or attenuate_topJ with J from 1 to {n_groups}, the number of groups; "
            f"got {operator!r}"
        )
    return int(match[1])


def bind(model: Any, X: Any, protocol: Protocol, ids: Any = None) -> EvidenceRows:
    """Return the rows of ``X`` in the protocol's evidence space, ready for an engine; rows already bound stay."""
    if not isinstance(protocol, Protocol):
        raise ProtocolError(
            f"a Protocol was expected, got {type(protocol).__name__}; make one with Protocol.fit or read one with "
            "Protocol.load"
        )
    return bind_rows(model, X, protocol.evidence, ids)

"""Auditor: a model and a protocol made ready once, so that single rows are certified as they come.

What an audit asks of the model and its engine before the first row is asked here on rows made of values that the
protocol knows. Every certified row is still compared with the model's own answer, at x and at one other state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fragility.auditing.certifying import PartAuditor, TracedRows
from fragility.auditing.pipeline import FEW_ROWS, add_blocks, certify_rows, finish_few
from fragility.audits import Certificates
from fragility.base.arrays import DEFAULT_BYTE_BUDGET
from fragility.base.errors import DataError, EvidenceError, FragilityError, ModelError, ProtocolError
from fragility.blocks.all import want_none
from fragility.blocks.block import Requests
from fragility.blocks.choice import Wanted
from fragility.engines.choice import choose_oracle
from fragility.engines.engine import Engine
from fragility.engines.oracle import CheckedOracle, Oracle, make_oracle
from fragility.evidence import EvidenceRows
from fragility.evidence.form import Form, Unanswered, bind_rows, reads_codes
from fragility.evidence.modes import make_records
from fragility.evidence.rows import are_records, read_records
from fragility.models import Model
from fragility.protocol import Protocol

FORM_ROWS = 64  # of the first rows, which show in which form rows come
ASKED_TOGETHER = 64  # rows whose checks the model answers in one call
FORMS = 4  # that are held ready: most services send rows in one


class _ReadyForm(NamedTuple):
    """What is made once for rows that come in one form."""

    form: Form
    engine: Engine | None  # None: the black box


class Auditor:
    """A model and a protocol made ready once: rows are then certified as they come, one or many at a time.

    The model is read and fingerprinted, its engine is compared with the model itself, and kernels are compiled, on rows
    made of the values that the protocol knows. Where it knows none for some field, the first rows certified take their
    place. A certificate is the one that :func:`audit` makes of the same row, whatever the rows it is made with.

    An auditor may be used by several threads at once and after a fork. It can be pickled if the model can.

    Parameters
    ----------
    model : estimator, pipeline, booster or Model
        The fitted classifier; whatever :meth:`Model.wrap` takes.
    protocol : Protocol
        What is removed and degraded, and how the result is read.
    engine : str, default="auto"
        As in :func:`audit`.
    byte_budget : int, default=256 MiB
        As in :func:`audit`.
    lattice : bool, optional
        As in :func:`audit`, but False by default: no smallest failing sets.
    rates, modes, intervals, any_value
        As in :func:`audit`.

    Raises
    ------
    FragilityError
        The model and the protocol do not belong together, or the model contradicts itself.

    See Also
    --------
    audit : The same for rows that are at hand all at once.

    Examples
    --------
    >>> import fragility as fg
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = fg.load_credit_g()
    >>> X = X[["duration", "age", "installment_commitment"]]
    >>> model = LogisticRegression().fit(X[:700], y[:700])
    >>> auditor = fg.Auditor(model, fg.Protocol.fit(model, X[:700]))
    >>> certs = auditor.certify({"duration": 36, "age": 25, "installment_commitment": 4}, ids=["A-17"])
    >>> certs[0].id, certs[0].path[0]
    ('A-17', 'installment_commitment')
    """

    def __init__(
        self,
        model: Any,
        protocol: Protocol,
        *,
        engine: str = "auto",
        byte_budget: int = DEFAULT_BYTE_BUDGET,
        lattice: bool | None = False,
        rates: Any = None,
        modes: Wanted = None,
        intervals: Wanted = None,
        any_value: bool | int | None = None,
    ) -> None:
        if not isinstance(protocol, Protocol):
            raise ProtocolError(
                f"a Protocol was expected, got {type(protocol).__name__}; make one with Protocol.fit or read one with "
                "Protocol.load"
            )
        self._model = Model.wrap(model)
        self._protocol = protocol
        self._engine = engine
        self._blocks: Requests = {
            "lattice": lattice,
            "rates": rates,
            "modes": modes,
            "intervals": intervals,
            "any_value": any_value,
            "baselines": False,
        }
        self._byte_budget = byte_budget
        self._space = protocol.evidence
        self._reads_codes = False  # of categories, and not their values
        self._parts: PartAuditor | None = None
        self._forms: tuple[_ReadyForm, ...] = ()  # replaced as a whole: threads share them
        self._make_ready_without_rows()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_forms": (), "_space": self._protocol.evidence}  # closures, which are made again

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._make_ready_without_rows()

    def __repr__(self) -> str:
        return f"Auditor({self.model.kind}, {len(self.protocol.groups)} groups, engine {self.engine})"

    @property
    def model(self) -> Model:
        """The model, with its link confirmed."""
        return self._model if self._parts is None else self._parts.model

    @property
    def protocol(self) -> Protocol:
        """The protocol."""
        return self._protocol

    @property
    def engine(self) -> str:
        """The engine that makes the certificates, ``blackbox`` if the model is asked for every state.

        Where the first rows certified make the auditor ready, it is the engine that was asked for until then.
        """
        return self._engine if self._parts is None else self._parts.engine

    def certify(self, rows: Any, ids: Any = None) -> Certificates:
        """Return one certificate for each row, the same as :func:`audit` makes.

        Parameters
        ----------
        rows : mapping, list of mappings, array or table
            One row as a mapping from fields to values, several as a list of them, or whatever :func:`audit` takes. A
            mapping names every field; a missing value is None.
        ids : sequence, optional
            One distinct id per row; by default the index of a pandas frame, else 0, 1, ...

        Returns
        -------
        Certificates
            One certificate per row, in the order of the rows.

        Raises
        ------
        FragilityError
            The rows do not fit the model or the protocol, or the model contradicts itself.
        """
        given = self._read(rows)
        try:
            if (few := self._bind_few(given, ids)) is not None:
                return self._certify_few(*few)
        except FragilityError:
            pass  # said again below, of these very rows
        return self._certify_afresh(given, ids)

    def bind(self, rows: Any, ids: Any = None) -> EvidenceRows:
        """Return rows bound to the model and the protocol, with the model's own answers about them.

        Parameters
        ----------
        rows, ids
            As in :meth:`certify`, which also takes what this returns.

        Returns
        -------
        EvidenceRows
            The rows in the protocol's evidence space.
        """
        given = self._read(rows)
        try:
            if (few := self._bind_few(given, ids)) is not None:
                return self._answer(*few)
        except FragilityError:
            pass  # said again below, of these very rows
        return bind_rows(self.model, given, self._space, ids)

    def choose_oracle(self, rows: EvidenceRows) -> Oracle:
        """Return who answers about stressed copies of bound rows: the engine, except where the model denies it.

        Parameters
        ----------
        rows : EvidenceRows
            What :meth:`bind` returned.

        Returns
        -------
        Oracle
            The engine with the model's own word for rows in doubt; with the black box, the model itself.
        """
        ready = self._find_ready(rows)
        return choose_oracle(rows, self._engine) if ready is None else make_oracle(ready.engine, rows)

    def _find_ready(self, rows: EvidenceRows) -> _ReadyForm | None:
        return next((ready for ready in self._forms if ready.form is rows.form), None)

    # --- made ready ---------------------------------------------------------------------------------------

    def _read(self, rows: Any) -> Any:
        if not are_records(rows):
            return rows
        if self._reads_codes:
            raise DataError(
                f"{self._model.kind} reads categories by their codes, which the values of a mapping do not have; give "
                "a table whose categorical columns have the categories of the training data"
            )
        return self._read_records(rows)

    def _read_records(self, records: Any) -> Any:
        named = self._model.columns is not None
        return read_records(records, self._protocol.fields, self._space.listed, named=named)

    def _make_ready_without_rows(self) -> None:
        """Take the decisions that hold for all rows, by rows made of the values that the protocol knows.

        If it knows too few, or values that never stand together in a row, the first rows certified will tell.
        """
        baseline: dict[str, Any] = {}
        if self._protocol.space == "raw":
            baseline = {column.name: column.baseline for column in self._protocol.columns}
        made = make_records(self._protocol.fields, self._protocol.modes, baseline)
        if made is None:
            return
        try:
            rows = self._read_records(made)
            self._reads_codes = reads_codes(self._model, rows)
            if self._reads_codes:
                return
            form = Form.learn(self._model, rows, self._space)
        except (DataError, EvidenceError):
            return
        except ModelError as error:
            if error.__cause__ is None:  # a fault of the model itself, not of such a row
                raise
            return
        self._make_ready(form)

    def _make_ready(self, form: Form) -> PartAuditor:
        """Take the decisions that hold for all rows, by the first ones."""
        rows = form.first
        parts = PartAuditor.of(rows, self._protocol, self._engine, self._byte_budget)
        engine, one = self._add_form(parts, form).engine, rows.between(0, 1)
        finish_few(parts, TracedRows(one, parts.trace(one, engine=engine)))  # compiles and reads what it needs
        self._parts = parts
        return parts

    def _add_form(self, parts: PartAuditor, form: Form) -> _ReadyForm:
        """Make the form in which rows came ready for others; the newest form is tried first."""
        ready = _ReadyForm(form, parts.make_ready(form.first.between(0, FORM_ROWS)))
        self._space = form.list_values()
        self._forms = (ready, *self._forms)[:FORMS]
        return ready

    def _bind_few(self, given: Any, ids: Any) -> tuple[Unanswered, _ReadyForm] | None:
        """Return few rows bound in a form that is ready; None if they are many, or in no such form."""
        if isinstance(given, EvidenceRows) or not 0 < _count_rows(given) <= FEW_ROWS:
            return None
        for ready in self._forms:
            bound = ready.form.bind(given, ids)
            if bound is not None:
                return bound, ready
        return None

    def _answer(self, bound: Unanswered, ready: _ReadyForm) -> EvidenceRows:
        """Return few rows with the model's own answers, also to the states at which an engine will be checked."""
        rows, engine = bound.rows, ready.engine
        if engine is None or len(rows) > ASKED_TOGETHER:
            return bound.answer(rows.dense())
        return bound.answer(CheckedOracle(engine, rows).list_checked_states(self._protocol))

    def _certify_few(self, bound: Unanswered, ready: _ReadyForm) -> Certificates:
        assert self._parts is not None
        if ready.engine is not None and want_none(self._blocks):
            trace = CheckedOracle(ready.engine, bound.rows).trace_undecided(self._protocol, bound.decide)
            if trace is not None:
                return finish_few(self._parts, TracedRows(bound.rows, trace))
        return self._certify_bound(self._parts, bound.answer(bound.rows.dense()), ready.engine)

    def _certify_afresh(self, given: Any, ids: Any) -> Certificates:
        """Certify rows that are many, or in a form that is not ready, as an audit does: by decisions of their own."""
        rows = bind_rows(self.model, given, self._space, ids)
        parts = self._parts
        if parts is None:
            parts = self._make_ready(rows.form)
        ready = self._find_ready(rows)
        if ready is not None:
            return self._certify_bound(parts, rows, ready.engine)
        auditor = PartAuditor.of(rows, self._protocol, self._engine, self._byte_budget)
        certs = self._certify_bound(auditor, rows)
        if (auditor.model.link, auditor.native) == (parts.model.link, parts.native):
            self._add_form(parts, rows.form)
        return certs

    def _certify_bound(self, auditor: PartAuditor, rows: EvidenceRows, engine: Engine | None = None) -> Certificates:
        ready = auditor.with_blocks(self._blocks, rows, self._engine)
        return add_blocks(certify_rows(auditor, rows, False, engine), ready, rows, False)


def _count_rows(given: Any) -> int:
    shape = getattr(given, "shape", None)
    return int(shape[0]) if shape is not None else len(given) if hasattr(given, "__len__") else 0

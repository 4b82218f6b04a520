"""The any_value block: how many groups must change, to any values of their domains, before a decision flips. (SPEC 19)

No baseline stands in for anything here. The block of a row depends on row, protocol and declaration alone.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fragility.base.arrays import Floats, Integers
from fragility.base.errors import CertificateError
from fragility.blocks.block import (
    NUMBER,
    TEXT,
    Block,
    BlockRecheck,
    Column,
    Contradictions,
    Declaration,
    Requests,
    in_units,
)
from fragility.blocks.checks import Difference, find_differences
from fragility.blocks.choice import ChosenRows, name_engine, read_wanted
from fragility.blocks.claims import Claims, RowArrays, list_of, nullable_column, whole_column
from fragility.blocks.intervals.values import check_narrow
from fragility.engines.blackbox import ENGINE as BLACKBOX
from fragility.engines.choice import SELF_CHECK_ROWS, never_reads, refusal
from fragility.engines.engine import Run
from fragility.evidence import EvidenceRows
from fragility.evidence.origins import Origin
from fragility.evidence.rows import Scalar
from fragility.models import ClassLabel
from fragility.pages.wording import write_count
from fragility.protocol import Protocol
from fragility.questions.any_value.asking import Change, RawAsker
from fragility.questions.any_value.budgets import budgets_of_rows
from fragility.questions.any_value.deciding import AnyValues, Witness, list_units
from fragility.questions.any_value.found import CAN, CANNOT, UNKNOWN, AnyValueBudgets
from fragility.questions.modes.intervals import bind_estimator, find_narrow
from fragility.questions.modes.searching import Search

MAX_SIZE = 2  # groups of a set that is searched
MOST_EXPOSED = 1000  # rows that the command line searches where nobody asks for every row
DRAWN = 8  # combinations of values that the verifier asks the model about, for each "cannot"
NONE = -1  # a count that is not known
CHANCE_TOLERANCE = 1e-9
NAMES = ("budget", "proved", "sets", "witness", "alone", "chance_one", "chance_two")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyValueDeclaration(Declaration):
    """What an any_value block was made with."""

    max_size: int
    groups: list[str]  # that are varied, in declared order
    narrow: dict[str, str]  # the types of decimals narrower than float64, by field


@dataclass(frozen=True, eq=False, repr=False)
class AnyValueClaims(RowArrays):
    """The block of n certificates as arrays; U groups."""

    groups: tuple[str, ...]
    budget: Integers  # (n,) of the smallest set found; max_size + 1 where none was
    proved: Integers  # (n,) no set of up to so many groups flips the decision
    sets: Integers  # (n,) of that size that flip; NONE where they were not all decided
    witness: Any  # (n,) JSON text of the values and the class, None without a set
    alone: Integers  # (n, U) CAN, CANNOT or UNKNOWN
    chance_one: Floats  # (n,) NaN where it is not known
    chance_two: Floats


@dataclass(frozen=True, slots=True)
class AnyValueBudget:
    """How many groups must change, to any values, before one decision flips.

    Attributes
    ----------
    budget : int or None
        The size of the smallest set that was found to flip the decision; None if none was.
    proved : int
        No values of up to so many groups flip it.
    sets : int or None
        How many sets of that size flip it; None where they were not all decided.
    witness : Witness or None
        Values that flip it.
    alone : mapping of str to bool or None
        By group: whether some values of it alone flip the decision; None where that is not known.
    chance_one, chance_two : float or None
        How likely one field, and two fields drawn at random, flip it with values of the catalogue.
    """

    budget: int | None
    proved: int
    sets: int | None
    witness: Witness | None
    alone: Mapping[str, bool | None]
    chance_one: float | None
    chance_two: float | None

    def sentence(self) -> str:
        """Return the finding in words.

        Returns
        -------
        str
            Without its full stop, such as ``no value of any one group flips it; a = 4 and b = none: bad``.
        """
        none = {0: "", 1: "no value of any one group flips it"}.get(
            self.proved, f"no values of any {self.proved} groups together flip it"
        )
        if self.witness is None:
            return none or "no values that flip it were found; only some were tried"
        return f"{none}; {self.witness.to_text()}" if none else self.witness.to_text()


# --- table --------------------------------------------------------------------------------------------------


def _column(name: str) -> str:
    return f"any_value_{name}"


def list_columns() -> list[Column]:
    """Return the columns of the block."""
    whole, number = pa.int32(), pa.float64()
    return [
        *(Column(_column(name), whole, NUMBER) for name in ("budget", "proved", "sets")),
        Column(_column("witness"), pa.string(), TEXT),
        Column(_column("alone"), list_of(whole), NUMBER),
        *(Column(_column(name), number, in_units()) for name in ("chance_one", "chance_two")),
    ]


def write_json(value: Any) -> str:
    """Return the one JSON text of a value."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def claims_of_budgets(ids: Sequence[Any], found: AnyValueBudgets) -> AnyValueClaims:
    """Return what was found as arrays."""
    texts = [None if one is None else write_json([one.values, one.predicted]) for one in found.witnesses]
    return AnyValueClaims(
        tuple(ids),
        tuple(name for name, _ in found.units),
        found.budget,
        found.proved,
        found.count,
        np.array([*texts, None], dtype=object)[:-1],
        found.alone,
        found.chance_one,
        found.chance_two,
    )


def write_columns(claims: AnyValueClaims) -> dict[str, Any]:
    """Return the arrays as the columns of the block."""
    chances = {
        _column(name): [None if np.isnan(own) else float(own) for own in getattr(claims, name)]
        for name in ("chance_one", "chance_two")
    }
    known = {
        "budget": ~np.array([text is None for text in claims.witness], dtype=bool),
        "proved": True,
        "sets": claims.sets != NONE,
    }
    whole = {
        _column(name): [
            int(value) if is_known else None for value, is_known in np.broadcast(getattr(claims, name), own)
        ]
        for name, own in known.items()
    }
    return {**whole, _column("witness"): list(claims.witness), _column("alone"): claims.alone.tolist(), **chances}


def read_claims(table: pa.Table, declared: AnyValueDeclaration) -> AnyValueClaims:
    """Return the block of a table of rows that all have one; refuses values that no block can hold."""
    absent = {"budget": declared.max_size + 1, "proved": None, "sets": NONE}
    whole = {
        name: whole_column(table, _column(name), nulls=none is not None)
        .fill_null(none if none is not None else 0)
        .to_numpy(zero_copy_only=False)
        .astype(np.int64)
        for name, none in absent.items()
    }
    lists = whole_column(table, _column("alone")).to_pylist()
    if any(len(own) != len(declared.groups) or not {*own} <= {CAN, CANNOT, UNKNOWN} for own in lists):
        raise CertificateError(
            f"column {_column('alone')!r} must hold 1, 0 or -1 for each of the {len(declared.groups)} groups declared"
        )
    texts = whole_column(table, _column("witness"), nulls=True).to_pylist()
    for text in texts:
        if text is not None and read_witness(text) is None:
            raise CertificateError(
                f"column {_column('witness')!r} must hold the JSON text of values and a class, got {text!r:.80}"
            )
    alone = np.array(lists, dtype=np.int64).reshape(len(lists), len(declared.groups))
    one, two = (nullable_column(table, _column(name), np.nan) for name in ("chance_one", "chance_two"))
    ids = tuple(whole_column(table, "id").to_pylist())
    witness = np.array([*texts, None], dtype=object)[:-1]
    sizes = whole["budget"], whole["proved"], whole["sets"]
    return AnyValueClaims(ids, tuple(declared.groups), *sizes, witness, alone, one, two)


def read_witness(text: str) -> tuple[dict[str, Scalar], ClassLabel] | None:
    """Return the values and the class of a witness; None if the text is not the one JSON text of such."""
    try:
        values, predicted = json.loads(text)
        known = (*values.values(), predicted)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    plain = all(value is None or isinstance(value, (str, bool, int, float)) for value in known)
    return (values, predicted) if plain and values and write_json([values, predicted]) == text else None


# --- what can be checked without the model ------------------------------------------------------------------


def find_faults(block: AnyValueClaims, declared: AnyValueDeclaration, units: Mapping[str, Sequence[str]]) -> Any:
    """Yield (position, claim) wherever the block contradicts itself."""
    most = declared.max_size
    for row in range(len(block)):
        budget, proved, sets = int(block.budget[row]), int(block.proved[row]), int(block.sets[row])
        alone, text = block.alone[row], block.witness[row]
        known = budget <= most
        witness = None if text is None else read_witness(text)
        changed = set() if witness is None else {u for u, own in units.items() if set(own) & set(witness[0])}
        free = {name for own in units.values() for name in own}
        faults = {
            "budget": not 1 <= budget <= most + (text is None),
            "proved": not 0 <= proved <= min(budget - 1, most),
            "sets": (sets != 0) != known or sets < NONE or (known and proved < budget - 1 and sets != NONE),
            "witness": (witness is not None) != known
            or len(changed) > budget
            or not set((witness or ({},))[0]) <= free,
            "alone": (alone == CAN).any() != (budget == 1) or (proved >= 1 and (alone != CANNOT).any()),
            "chance_one": not (np.isnan(block.chance_one[row]) or 0 <= block.chance_one[row] <= 1 + CHANCE_TOLERANCE),
            "chance_two": not (np.isnan(block.chance_two[row]) or 0 <= block.chance_two[row] <= 1 + CHANCE_TOLERANCE),
        }
        if sets > 0 and budget == 1:
            faults["sets"] |= int((alone == CAN).sum()) != sets
        if proved >= 1 and block.chance_one[row] > CHANCE_TOLERANCE:
            faults["chance_one"] = True
        if proved >= 2 and block.chance_two[row] > CHANCE_TOLERANCE:
            faults["chance_two"] = True
        yield from ((row, _column(name)) for name, wrong in faults.items() if wrong)


# --- how it is made -----------------------------------------------------------------------------------------


def search_budgets(
    rows: EvidenceRows, protocol: Protocol, declared: AnyValueDeclaration, run: Run, *, by_sets: bool = False
) -> AnyValueClaims:
    """Return the block of some rows, found as it is declared."""
    engine = BLACKBOX if declared.engine == BLACKBOX else "auto"
    with run.show("whatever the value") as report:
        found = budgets_of_rows(
            rows,
            protocol,
            declared.max_size,
            engine=engine,
            byte_budget=run.byte_budget,
            report=report,
            narrow=declared.narrow,
            by_sets=by_sets,
        )
    return claims_of_budgets(rows.ids, found)


# --- how it is verified -------------------------------------------------------------------------------------


@dataclass(eq=False)
class AnyValueRecheck(BlockRecheck):
    """The any_value block of rows, asked of the model and searched again.

    1. Each witness must have values of the domains, and is put to the whole pipeline on the raw row: it must flip the
       decision, to the class named.
    2. Random values of what is said not to flip a decision alone, or together, are put to it as well.
    3. All sets are decided again, each by itself, by grids instead of the effects by which an audit finds them.
    """

    def compare(self, block: pa.Table, claims: Claims, rows: EvidenceRows) -> list[Difference]:
        protocol, declared = self.own.protocol, self.own.declared
        assert isinstance(declared, AnyValueDeclaration)
        claimed = read_claims(block, declared)
        disputed = _Asking(rows, protocol, declared, self.tolerance, self.own.classes).ask(claimed)
        handed, _ = bind_estimator(rows, protocol)
        self.never = self.never or never_reads(declared.engine, handed)
        unread = self.never or refusal(declared.engine, handed)
        if unread is not None:
            self.unread, self.unsearched = unread, self.unsearched + len(rows)
            return disputed
        fresh = search_budgets(rows, protocol, declared, Run(), by_sets=True)
        for name in ("budget", "proved", "sets", "alone"):
            disputed += find_differences(claimed.ids, _column(name), getattr(claimed, name), getattr(fresh, name))
        for name in ("chance_one", "chance_two"):
            own, again = getattr(claimed, name), getattr(fresh, name)
            disputed += find_differences(claimed.ids, _column(name), own, again, CHANCE_TOLERANCE)
        return disputed

    def describe(self) -> str:
        rows, missed = write_count(self.rows, "row"), write_count(self.unsearched, "row")
        told = f"{rows} searched again, and the model asked about every witness and inside, {self.result}"
        verb = "was" if self.unsearched == 1 else "were"
        return told + (f"; {missed} {verb} not searched again: {self.unread}" if self.unsearched else "")


class _Asking:
    """What the whole pipeline says of raw rows, whatever is known of its preprocessing."""

    def __init__(
        self,
        rows: EvidenceRows,
        protocol: Protocol,
        declared: AnyValueDeclaration,
        tolerance: float,
        classes: Sequence[ClassLabel],
    ) -> None:
        self.classes, self.tolerance = classes, tolerance
        self.values = AnyValues(rows, protocol, BLACKBOX, narrow=declared.narrow)
        anywhere = Origin(tuple(field.name for field in protocol.fields), rising=False)
        search = self.values.search
        plain = Search(
            rows, [anywhere] * rows.width, protocol, BLACKBOX, search.step, declared.narrow, dict(search.ranges)
        )
        self.asker = RawAsker(plain)
        self.chance = np.random.default_rng(secrets.randbits(128))  # which nobody can foresee

    def ask(self, claimed: AnyValueClaims) -> list[Difference]:
        """Return the witnesses that flip nothing or have other values than their fields may take, and the values that
        flip what is said not to flip."""
        witnesses = {row: read_witness(text) for row, text in enumerate(claimed.witness) if text is not None}
        known, disputed = dict[int, tuple[dict[str, Scalar], ClassLabel]](), list[Difference]()
        for row, own in witnesses.items():
            if own is None:
                continue
            beyond = {name: value for name, value in own[0].items() if not self.values.may_take(row, name, value)}
            if beyond:
                where = f"{write_json(beyond)} is not in the domain"
                disputed.append(Difference(claimed.ids[row], _column("witness"), claimed.witness[row], where))
            else:
                known[row] = own
        residual, to = self.asker.measure(list(known), [values for values, _ in known.values()])
        for (row, (_, predicted)), left, label in zip(known.items(), residual, to, strict=True):
            told = "holds" if left >= self.tolerance else None
            if told is None and write_json(self.classes[label]) != write_json(predicted):
                told = f"flips to {self.classes[label]!r}"
            if told is not None:
                disputed.append(Difference(claimed.ids[row], _column("witness"), claimed.witness[row], told))
        drawn = [(row, name, change) for row in range(len(claimed)) for name, change in self._draw(claimed, row)]
        residual, _ = self.asker.measure([row for row, *_ in drawn], [change for *_, change in drawn])
        for i in np.flatnonzero(residual < -self.tolerance):
            row, name, change = drawn[i]
            claim = getattr(claimed, name)[row]
            claim = claim.tolist() if isinstance(claim, np.ndarray) else int(claim)
            disputed.append(Difference(claimed.ids[row], _column(name), claim, f"{write_json(change)} flips it"))
        return disputed

    def _draw(self, claimed: AnyValueClaims, row: int) -> list[tuple[str, Change]]:
        """Return random values of groups that alone, or together, are said not to flip a row."""
        units, found = list(self.values.units.values()), list[tuple[str, Change]]()
        for u in np.flatnonzero(claimed.alone[row] == CANNOT):
            found += [("alone", self._pick(units[u])) for _ in range(DRAWN)]
        size = min(int(claimed.proved[row]), len(units))
        for _ in range(DRAWN * len(units) if size > 1 else 0):
            chosen = self.chance.choice(len(units), size, replace=False)
            found.append(("proved", {name: value for u in chosen for name, value in self._pick(units[u]).items()}))
        return found

    def _pick(self, fields: Sequence[str]) -> Change:
        return {name: self._pick_value(name) for name in fields if self.values.tried[name]}

    def _pick_value(self, name: str) -> Scalar:
        """Return a value of a domain: one that is tried anyway, or one drawn evenly from its range."""
        tried, search = self.values.tried[name], self.values.search
        if name in search.ranges and self.chance.random() < 0.5:
            scale = search.make_axis(self.values.field(name)).scale
            ends = np.array([scale.low]), np.array([scale.high])
            return scale.value(int(next(iter(scale.draw(*ends, 1, self.chance)))[0]))
        return tried[int(self.chance.integers(len(tried)))]


# --- the block ----------------------------------------------------------------------------------------------


class AnyValueBlock(Block):
    """Budgets whatever the value, asked for by ``any_value``."""

    name = "any_value"
    rows = "rows with budgets whatever the value"
    declaration = AnyValueDeclaration
    recheck = AnyValueRecheck

    def columns(self, declared: AnyValueDeclaration, protocol: Protocol) -> list[Column]:
        return list_columns()

    def declare(self, wanted: Requests, rows: EvidenceRows, protocol: Protocol, run: Run) -> AnyValueDeclaration:
        _, most = read_wanted(wanted["any_value"], "any_value", "search")
        few, _ = bind_estimator(rows.between(0, SELF_CHECK_ROWS), protocol)
        return AnyValueDeclaration(
            engine=name_engine(few, run.engine),
            rows=None if most is None else ChosenRows(most, "exposure"),
            max_size=MAX_SIZE,
            groups=list(list_units(protocol)),
            narrow=find_narrow(rows, protocol.fields),
        )

    def check_declaration(self, declared: AnyValueDeclaration, protocol: Protocol, fingerprint: str) -> None:
        implied = {"max_size": MAX_SIZE, "groups": list(list_units(protocol))}
        for name, own in implied.items():
            if getattr(declared, name) != own:
                raise CertificateError(
                    f"blocks.any_value.{name} in the manifest must be {own!r:.80}, got {getattr(declared, name)!r:.80}"
                )
        check_narrow("any_value", declared.narrow, protocol.fields)

    def make(
        self,
        rows: EvidenceRows,
        protocol: Protocol,
        declared: AnyValueDeclaration,
        claims: Mapping[str, Any],
        run: Run,
    ) -> Mapping[str, Any]:
        return write_columns(search_budgets(rows, protocol, declared, run))

    def read(self, table: pa.Table, declared: AnyValueDeclaration, protocol: Protocol) -> AnyValueClaims:
        return read_claims(table, declared)

    def find_contradictions(
        self,
        values: AnyValueClaims,
        claims: Claims,
        declared: AnyValueDeclaration,
        protocol: Protocol,
        classes: Sequence[ClassLabel],
    ) -> Contradictions:
        found = list(find_faults(values, declared, list_units(protocol)))
        for row, text in enumerate(values.witness):
            witness = None if text is None else read_witness(text)
            others = [write_json(label) for i, label in enumerate(classes) if i != claims.predicted[row]]
            if witness is not None and write_json(witness[1]) not in others:
                found.append((row, _column("witness")))
        return found

    def read_row(
        self, row: Mapping[str, Any], declared: AnyValueDeclaration, protocol: Protocol
    ) -> AnyValueBudget | None:
        if row["any_value_digest"] is None:
            return None
        own = {name: row[_column(name)] for name in NAMES}
        witness = None if own["witness"] is None else read_witness(own["witness"])
        return AnyValueBudget(
            budget=own["budget"],
            proved=own["proved"],
            sets=own["sets"],
            witness=None if witness is None else Witness(*witness),
            alone={
                name: {CAN: True, CANNOT: False}.get(state)
                for name, state in zip(declared.groups, own["alone"], strict=True)
            },
            chance_one=own["chance_one"],
            chance_two=own["chance_two"],
        )

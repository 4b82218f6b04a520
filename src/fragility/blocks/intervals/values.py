"""The intervals block: how far each field of a row may move before the decision flips, beside the other claims.

Per field of the declaration, with the words of `fragility.questions.modes.stability`:

    ordered field   state, own value, low and high end, nearest flip below and above with the class predicted there
    nominal field   state, own value, the categories that flip the decision with the class predicted at each

Values are whole numbers, decimals, dates, texts and truth values, so they stand in the table as JSON text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fragility.base.errors import CertificateError
from fragility.blocks.block import TEXT, Column, Declaration, position_in
from fragility.blocks.claims import (
    Claims,
    RowArrays,
    list_of,
    lists_of,
    whole_column,
)
from fragility.evidence.fields import Field, read_date
from fragility.evidence.modes import Range, weigh_values
from fragility.models import ClassLabel
from fragility.pages.terms import BRACKETED, EXACT, NOT_WHOLE, UNLISTED
from fragility.protocol import Protocol
from fragility.questions.modes.scales import NARROW
from fragility.questions.modes.stability import STATES, Flip, StabilityInterval, count_room, measure_room, to_number

Texts = npt.NDArray[np.object_]  # (n, F) text, or None
# The columns of the block, in order, and what the JSON text of an entry must be; states are plain words.
VALUE, FLIP, FLIPS = "a value", "a list of a value and a class", "a list of such lists"
CONTENT = {
    "state": None,
    "value": VALUE,
    "low": VALUE,
    "high": VALUE,
    "below": FLIP,
    "above": FLIP,
    "categories": FLIPS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalsDeclaration(Declaration):
    """What an intervals block was made with."""

    fields: list[str]  # in the order of the protocol
    narrow: dict[str, str]  # of those of decimals narrower than float64, their types


@dataclass(frozen=True, eq=False, repr=False)
class IntervalsClaims(RowArrays):
    """The block of n certificates as arrays (n, F) of text, None where there is nothing to say; F fields."""

    fields: tuple[str, ...]
    state: Texts
    value: Texts
    low: Texts
    high: Texts
    below: Texts
    above: Texts
    categories: Texts

    def texts(self) -> dict[str, Texts]:
        """Return the arrays by name, in the order of the columns."""
        return {name: getattr(self, name) for name in CONTENT}


def write_json(value: Any) -> str:
    """Return the one JSON text of a value, a flip or flips."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def intervals_of_row(
    row: Mapping[str, Any], declared: IntervalsDeclaration, protocol: Protocol
) -> dict[str, StabilityInterval] | None:
    """Return the block in a row of the joined table, by field; None if the row has none."""
    if row["intervals_digest"] is None:
        return None
    lists = {name: row[f"interval_{name}"] or [] for name in CONTENT}
    if any(len(texts) != len(declared.fields) for texts in lists.values()):
        raise CertificateError("the columns of stability intervals must hold one text for each field of the manifest")
    found = {}
    for place, field in enumerate(declared.fields):
        texts = {name: values[place] for name, values in lists.items() if name != "state"}
        try:
            found[field] = _read_interval(field, lists["state"][place], texts, protocol)
        except (ValueError, TypeError, StopIteration) as error:
            raise CertificateError(f"the stability interval of {field!r} is malformed: {error}") from error
    return found


def _read_interval(field: str, state: str, texts: Mapping[str, str | None], protocol: Protocol) -> StabilityInterval:
    read: dict[str, Any] = {name: None if text is None else json.loads(text) for name, text in texts.items()}
    value, low, high, below, above, categories = read.values()
    if categories is not None:
        flips = tuple(Flip(*flip) for flip in categories)
        room = count_room(weigh_values(protocol.modes, field), flips)
        return StabilityInterval(field, value, state, categories=flips, nominal=True, room=room)
    first, second = (None if flip is None else Flip(*flip) for flip in (below, above))
    own = next((each for each in protocol.modes.ranges if each.field == field), None)
    room = 1.0 if own is None or low is None else measure_room(own, low, high)
    nominal = own is None and next(each for each in protocol.fields if each.name == field).kind == "nominal"
    return StabilityInterval(field, value, state, low, high, first, second, nominal=nominal, room=room)


# --- table --------------------------------------------------------------------------------------------------


def columns_of() -> list[Column]:
    """Return the columns of the block."""
    hashed = {name: position_in(STATES) if content is None else TEXT for name, content in CONTENT.items()}
    return [Column(f"interval_{name}", list_of(pa.string()), how) for name, how in hashed.items()]


def write_columns(claims: IntervalsClaims) -> dict[str, Any]:
    """Return the arrays as the columns of the block."""
    lengths = np.full(len(claims), len(claims.fields))
    return {
        f"interval_{name}": lists_of(pa.array(texts.ravel(), type=pa.string()), lengths)
        for name, texts in claims.texts().items()
    }


def intervals_claims_of(table: pa.Table, declaration: IntervalsDeclaration) -> IntervalsClaims:
    """Return the block of a table of rows that all have one; refuses texts that no block can hold."""
    read = {name: _read_texts(table, name, len(declaration.fields)) for name in CONTENT}
    ids = tuple(whole_column(table, "id").to_pylist())
    return IntervalsClaims(ids, tuple(declaration.fields), **read)


def _read_texts(table: pa.Table, name: str, width: int) -> Texts:
    """Return the entries (n, width) of a column of lists; refuse text that is not the one JSON text of its content."""
    column = whole_column(table, f"interval_{name}")
    if len(column) and not pc.all(pc.equal(pc.list_value_length(column), width)).as_py():
        raise CertificateError(f"column 'interval_{name}' must hold {width} texts per row, one for each field declared")
    entries = column.flatten().dictionary_encode()
    known = entries.dictionary.to_pylist()
    wanted = CONTENT[name]
    for text in known:
        holds = text in STATES if wanted is None else _is_json_of(wanted, text)
        if not holds:
            told = f"one of {', '.join(STATES)}" if wanted is None else f"the JSON text of {wanted}"
            raise CertificateError(f"column 'interval_{name}' must hold {told}, got {text!r:.80}")
    codes = pc.fill_null(entries.indices, len(known)).to_numpy(zero_copy_only=False)
    return np.asarray(np.array([*known, None], dtype=object)[codes].reshape(len(table), width))


def _is_json_of(wanted: str, text: str) -> bool:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return False
    flips = content if wanted == FLIPS else [content] if wanted == FLIP else []
    if not isinstance(flips, list) or (wanted == VALUE and not _is_scalar(content)):
        return False
    pairs = all(isinstance(flip, list) and len(flip) == 2 and all(map(_is_scalar, flip)) for flip in flips)
    return pairs and write_json(content) == text


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, bool, int, float))


# --- what can be checked without the model ------------------------------------------------------------------


def check_intervals_declaration(declared: IntervalsDeclaration, protocol: Protocol) -> None:
    """Refuse a declaration that does not fit the protocol."""
    known = [field.name for field in protocol.fields]
    if not declared.fields or declared.fields != [field for field in known if field in declared.fields]:
        raise CertificateError(
            "blocks.intervals.fields in the manifest must name fields of the protocol in their order, got "
            f"{declared.fields!r:.80}"
        )
    check_narrow("intervals", declared.narrow, [field for field in protocol.fields if field.name in declared.fields])


def check_narrow(block: str, narrow: Mapping[str, str], fields: Sequence[Field]) -> None:
    """Refuse types of narrow decimals that are none, or of fields of a block that hold no decimals."""
    decimals = [field.name for field in fields if field.kind == "numeric" and field.type != "integer"]
    where = f"blocks.{block}.narrow in the manifest"
    if unknown := [name for name in narrow if name not in decimals]:
        raise CertificateError(f"{where} must name decimal fields of the block, got {unknown[0]!r:.80}")
    if wrong := [own for own in narrow.values() if own not in NARROW]:
        raise CertificateError(f"{where} must say {' or '.join(NARROW)} of a field, got {wrong[0]!r:.80}")


def intervals_contradictions(
    block: IntervalsClaims, claims: Claims, protocol: Protocol, classes: Sequence[ClassLabel]
) -> list[tuple[int, str]]:
    """Return (position, claim) wherever the block contradicts itself or the predicted class of its row."""
    found, ranges = list[tuple[int, str]](), {own.field: own for own in protocol.modes.ranges}
    by_name = {field.name: field for field in protocol.fields}
    others = [[label for label in classes if label is not classes[own]] for own in range(len(classes))]
    for place, name in enumerate(block.fields):
        known = {column: texts[:, place].tolist() for column, texts in block.texts().items()}
        is_ordered, listed = name in ranges or by_name[name].kind == "numeric", list(weigh_values(protocol.modes, name))
        find = partial(_ordered_fault, ranges.get(name), by_name[name]) if is_ordered else _nominal_fault
        has_values = name in ranges if is_ordered else bool(listed)
        for row, texts in enumerate(zip(*known.values(), strict=True)):
            one = OneField(*texts)
            fault = "state" if (one.state == UNLISTED) == has_values else find(one, others[claims.predicted[row]])
            if fault is None and one.categories is not None:
                names = [value for value, _ in json.loads(one.categories)]
                fault = None if names == [value for value in listed if value in names] else "categories"
            if fault is not None:
                found.append((row, f"interval_{fault}"))
    return found


class OneField(NamedTuple):
    """The texts of one field of one row."""

    state: str
    value: str | None
    low: str | None
    high: str | None
    below: str | None
    above: str | None
    categories: str | None


def _ordered_fault(own: Range | None, field: Field, one: OneField, others: Sequence[ClassLabel]) -> str | None:
    """Return the entry of an ordered field that contradicts another; others: the classes that are not predicted."""
    if own is None or one.state not in (EXACT, BRACKETED):
        return _find_entry(one, ("value", "low", "high", "below", "above", "categories"))
    if one.value is None or one.low is None or one.high is None:
        return next(name for name in ("value", "low", "high") if getattr(one, name) is None)
    ends = {name: json.loads(getattr(one, name)) for name in ("value", "low", "high")}
    flips = {name: json.loads(text) for name, text in (("below", one.below), ("above", one.above)) if text is not None}
    for name, content in {**ends, **{name: flip for name, (flip, _) in flips.items()}}.items():
        if not _can_hold(own, field, content):
            return name
    value, low, high = map(to_number, ends.values())
    if one.categories is not None or not low <= value <= high:
        return "categories" if one.categories is not None else "low" if low > value else "high"
    for name, end, way in (("below", low, -1), ("above", high, 1)):
        if name in flips and (way * (to_number(flips[name][0]) - end) < 0 or not _is_one_of(flips[name][1], others)):
            return name
    return None


def _can_hold(own: Range, field: Field, value: Any) -> bool:
    """Return whether a field with this training range can hold a value."""
    if isinstance(own.low, str):
        return read_date(value) is not None
    if field.type == "integer":
        return type(value) is int
    return type(value) is float and math.isfinite(value) and (value.is_integer() or not own.whole)


def _nominal_fault(one: OneField, others: Sequence[ClassLabel]) -> str | None:
    """Return the same of a nominal field."""
    if one.state in (BRACKETED, NOT_WHOLE):
        return "state"
    if one.state != EXACT:
        return _find_entry(one, ("low", "high", "below", "above", "categories"))
    if one.value is None or one.categories is None:
        return "value" if one.value is None else "categories"
    if not all(_is_one_of(label, others) for _, label in json.loads(one.categories)):
        return "categories"
    return _find_entry(one, ("low", "high", "below", "above"))


def _find_entry(one: OneField, names: Sequence[str]) -> str | None:
    """Return the first of some entries that is there, though it must not be."""
    return next((name for name in names if getattr(one, name) is not None), None)


def _is_one_of(label: Any, classes: Sequence[ClassLabel]) -> bool:
    return any(type(label) is type(known) and label == known for known in classes)

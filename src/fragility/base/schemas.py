"""Documents: JSON and TOML read into frozen dataclasses by one strict reader, whose refusals are one sentence each.

A document's schema is a dataclass: its fields are the document's fields, their types what each may hold. Nothing else
is read: a field that is unknown, missing or of another type is refused, by its path (``rules.0.threshold``), with what
was expected and what came. Text, whole numbers and truth values are never taken for one another; a whole number may
stand where a decimal is expected, since JSON writes 1.0 either way, and is read as a float, so that it has one digest.

    Annotated[float, between(0, 1)]     a field with a range; ``Must`` states any other condition of one value
    field(metadata=named("class"))      a field that is called otherwise in the document
    field(..., metadata=OPTIONAL)       a field that is left out where it has its default
    field(metadata=KEY)                 a list of such entries is an object in the document, by this field
    __post_init__                       what several fields must fulfil together, checked after each one by itself

pydantic does the reading; it is imported with the first document, and the reader of each schema is made once.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

from fragility.base.errors import FragilityError, reason_of
from fragility.base.files import JSON_LIMIT, parse_json, read_bounded

if TYPE_CHECKING:
    import os

    from pydantic_core import SchemaValidator

T = TypeVar("T")
SHOWN = 80  # characters of a value in a message
LISTED = 300  # characters of a list of names in a message
NOTHING: Mapping[str, type | str] = types.MappingProxyType({})
LARGEST_COUNT = 2**53 - 1  # beyond it, JSON numbers mean different things to different readers
INFINITE = "inf"
NAMED, OPTIONAL, KEY = "named", {"optional": True}, {"key": True}  # metadata of fields
STRICT = ("int", "float", "str", "bool")  # kinds of value that are not converted
WORDS: dict[Any, str] = {
    None: "null",
    type(None): "null",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Must:
    """What a single value must fulfil beside its type: the expectation in words, and the test."""

    words: str
    holds: Callable[[Any], bool]

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        def check(value: Any) -> Any:
            if not self.holds(value):
                raise AssertionError(self.words)
            return value

        function = {"type": "no-info", "function": check}
        return {"type": "function-after", "function": function, "schema": handler(source)}


def between(low: float, high: float) -> Must:
    """Return the condition of a number from ``low`` to ``high``, both included."""
    return Must(f"a number from {low:g} to {high:g}", lambda value: low <= value <= high)


def whole_between(low: int, high: int = LARGEST_COUNT) -> Must:
    """Return the condition of a whole number from ``low`` on, up to ``high`` where that is given."""
    upper = "" if high == LARGEST_COUNT else f" to {high}"
    return Must(f"a whole number from {low}{upper}", lambda value: low <= value <= high)


def one_of(names: Iterable[str]) -> Must:
    """Return the condition of a name among several."""
    known = tuple(names)
    return Must(f"one of {', '.join(known)}", lambda value: value in known)


def matching(pattern: str, words: str) -> Must:
    """Return the condition of text that a pattern describes as a whole."""
    compiled = re.compile(pattern)
    return Must(words, lambda value: compiled.fullmatch(value) is not None)


@dataclasses.dataclass(frozen=True, slots=True)
class Unbounded:
    """A number that may be infinite, which JSON cannot write: the text ``inf`` stands for it."""

    words: str = "a number or 'inf'"

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        def read(value: Any, validate: Callable[[Any], Any]) -> Any:
            return math.inf if value in (INFINITE, math.inf) else validate(value)

        function = {"type": "no-info", "function": read}
        return {"type": "function-wrap", "function": function, "schema": handler(source)}


AtLeastZero: TypeAlias = Annotated[float, Must("a number from 0", lambda value: value >= 0)]
_READING: ContextVar[bool] = ContextVar("reading", default=False)  # while a document is made into its dataclass
Share: TypeAlias = Annotated[float, between(0, 1)]
Level: TypeAlias = Annotated[float, Must("a number of at least 0 and below 1", lambda value: 0 <= value < 1)]
Count: TypeAlias = Annotated[int, whole_between(0)]
Positive: TypeAlias = Annotated[int, whole_between(1)]
A_DIGEST = matching("sha256:[0-9a-f]{64}", "a digest, sha256: and 64 hexadecimal digits")
Digest: TypeAlias = Annotated[str, A_DIGEST]
Limit: TypeAlias = Annotated[float, Unbounded()]
FilledText: TypeAlias = Annotated[str, Must("text that is not empty", bool)]


# --- reading --------------------------------------------------------------------------------------------------


def is_digest(value: Any) -> bool:
    """Whether a value is ``sha256:`` and 64 hexadecimal digits."""
    return isinstance(value, str) and A_DIGEST.holds(value)


def load_json(path: str | os.PathLike[str], what: str, error: type[FragilityError]) -> Any:
    """Return the plain values of a JSON file; ``what`` names it in refusals, such as "the review policy"."""
    try:
        data = read_bounded(path, JSON_LIMIT)
    except (OSError, ValueError) as cause:
        raise error(f"cannot read {what} {path}: {reason_of(cause)}") from cause
    return parse_text(data, f"{what} {path}", error)


def parse_text(data: bytes | str, what: str, error: type[FragilityError]) -> Any:
    """Return the plain values of a JSON text, or refuse it in a sentence."""
    try:
        return parse_json(data if isinstance(data, str) else data.decode("utf-8"))
    except ValueError as cause:
        raise error(f"{what} is not valid JSON: {cause}") from cause


def read_document(
    document: Any,
    schema: type[T],
    what: str,
    error: type[FragilityError],
    *,
    format: str | None = None,
    beside: Mapping[str, type | str] = NOTHING,
    at: str = "",
    defaults: bool = False,
    ordered: bool = False,
) -> T:
    """Return plain values as a dataclass; refuse anything that does not match its fields exactly.

    Parameters
    ----------
    document : mapping
        Plain values, as JSON or TOML holds them.
    schema : dataclass
        What is expected.
    what : str
        The document in words, for messages: "the review policy".
    error : class
        What is raised.
    format : str, optional
        What the document's field ``format`` must be; another one is another version.
    beside : mapping of str to type or str
        Fields that the schema has not, since they follow from the rest or are known: their type, or their one value.
    at : str
        Where the document stands in a larger one: the path of its fields begins there.
    defaults : bool
        Whether fields that have a default may be left out, as in what people write by hand.
    ordered : bool
        Refuse fields in another order than the schema's.

    Returns
    -------
    dataclass
        An instance of the schema.
    """
    from pydantic_core import ValidationError

    plain = dict(document) if isinstance(document, Mapping) else document
    if format is not None:
        check_format(plain, format, what, error)
    known = _list_fields(typing.cast(Any, schema))
    more = {**({} if format is None or "format" in known else {"format": format}), **beside}
    if isinstance(plain, dict):
        for name, kind in more.items():
            if name not in plain:
                raise error(f"{what} lacks the field {_join([at, name])!r}")
            value = plain.pop(name)
            if value != kind if isinstance(kind, str) else type(value) is not kind:
                expected = repr(kind) if isinstance(kind, str) else WORDS[kind]
                raise error(f"{_join([at, name])} in {what} must be {expected}, got {show_value(value)}")
    token = _READING.set(True)
    try:
        (read,) = _make_reader(typing.cast(Any, schema), defaults).validate_python((plain,))
    except ValidationError as cause:
        raise _refuse(cause, plain, schema, what, error, at, defaults, tuple(more)) from _find_origin(cause)
    finally:
        _READING.reset(token)
    if ordered and (place := _find_disorder(read, plain, at)) is not None:
        inside = f"{place} in {what}" if place else what
        raise error(f"the fields of {inside} are not in the order of the format; write them in that order")
    return typing.cast(T, read)


def check_format(document: Any, format: str, what: str, error: type[FragilityError]) -> None:
    """Refuse a document of another format, and what is no document at all."""
    if not isinstance(document, Mapping):
        raise error(f"{what} must be an object, got {show_value(document)}")
    if "format" not in document:
        raise error(f"{what} lacks the field 'format'; this version reads {format!r}")
    if document["format"] != format:
        stated = show_value(document["format"])
        raise error(f"{what} has format {stated}, this version reads {format!r}; use another fragility")


def check_fields(instance: Any, what: str, error: type[FragilityError]) -> None:
    """Refuse a dataclass whose fields do not hold what its annotations say: for ``__post_init__``.

    what: whose fields they are, in words; empty if their names say enough.
    """
    from pydantic_core import ValidationError

    if _READING.get():  # the reader has checked them
        return
    fields = dataclasses.fields(instance)
    values = {field.name: _to_plain(getattr(instance, field.name)) for field in fields if field.init}
    try:
        _make_checker(typing.cast(Any, type(instance))).validate_python(values)
    except ValidationError as cause:
        raise _refuse(cause, values, type(instance), what, error, "", True, of="of") from _find_origin(cause)


def write_document(value: Any) -> Any:
    """Return a dataclass as plain values, in the order of its fields; ``read_document`` reads them."""
    if dataclasses.is_dataclass(value):
        written = {}
        for field in dataclasses.fields(value):
            held = getattr(value, field.name)
            if field.metadata.get("optional") and held == field.default:
                continue
            key = _find_key(_list_fields(typing.cast(Any, type(value))).get(name_field(field)))
            plain = write_document(held)
            written[name_field(field)] = plain if key is None else {entry.pop(key): entry for entry in plain}
        return written
    if isinstance(value, Mapping):
        return {name: write_document(entry) for name, entry in value.items()}
    if isinstance(value, float) and math.isinf(value):
        return INFINITE
    return [write_document(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def named(name: str) -> dict[str, str]:
    """Return the metadata of a field that has another name in the document."""
    return {NAMED: name}


def name_field(field: dataclasses.Field[Any]) -> str:
    """Return the name of a dataclass's field in the document."""
    return str(field.metadata.get(NAMED, field.name))


def show_value(value: Any) -> str:
    """Return a value as messages show it: cut, and in the words of JSON where Python has others."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    try:
        return f"{value!r:.{SHOWN}}"
    except ValueError:  # Python writes no number of thousands of digits
        return "a number of thousands of digits"


# --- readers --------------------------------------------------------------------------------------------------


@cache
def _make_reader(schema: type, defaults: bool) -> SchemaValidator:
    """Return what reads a tuple of one document: pydantic takes no settings for a dataclass by itself."""
    from pydantic_core import SchemaValidator

    return SchemaValidator(_make_core_schema(schema, defaults))


@cache
def _make_checker(schema: type) -> SchemaValidator:
    """Return what checks the fields of a dataclass without making one."""
    from pydantic_core import SchemaValidator

    whole = _make_core_schema(schema, True, "always")  # also what stands in the fields
    inside = whole["schema"] if whole["type"] == "definitions" else whole
    (node,) = inside["items_schema"]
    definitions = whole.get("definitions", [])
    if node["type"] == "definition-ref":
        node = next(definition for definition in definitions if definition["ref"] == node["schema_ref"])
    fields: Any = node["schema"]
    return SchemaValidator({"type": "definitions", "schema": fields, "definitions": definitions}, node.get("config"))


@cache
def _make_core_schema(schema: type, defaults: bool, revalidate: Literal["always", "never"] = "never") -> Any:
    from pydantic import ConfigDict, TypeAdapter

    config = ConfigDict(
        extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True, revalidate_instances=revalidate
    )
    core: Any = TypeAdapter(tuple[schema], config=config).core_schema  # type: ignore[valid-type]
    _make_strict(core, defaults, revalidate == "always")
    return core


def _make_strict(node: Any, defaults: bool, made: bool) -> None:
    """Let values be of their types alone, a list end at its first fault, and fields be as their metadata say.

    made: for what was made in Python, whose fields have their own names.
    """
    if isinstance(node, (list, tuple)):
        for inside in node:
            _make_strict(inside, defaults, made)
    if not isinstance(node, dict):
        return
    for inside in node.values():
        _make_strict(inside, defaults, made)
    kind = node.get("type")
    if kind in STRICT:
        node["strict"] = True
    elif kind == "dataclass":
        fields = {field.name: field for field in dataclasses.fields(node["cls"])}
        for entry in node["schema"]["fields"]:
            field = fields[entry["name"]]
            if not made:
                entry["validation_alias"] = name_field(field)
            if entry["schema"]["type"] == "default" and not (defaults or field.metadata.get("optional")):
                entry["schema"] = entry["schema"]["schema"]
    elif kind == "list":
        node |= {"fail_fast": True, "strict": not made}
    elif kind == "tuple":
        node["fail_fast"] = True
        if node.get("variadic_item_index") == 0 and (key := _find_key_of(node["items_schema"][0].get("cls"))):
            listed = dict(node)
            node.clear()
            node |= {"type": "function-before", "schema": listed}
            node["function"] = {"type": "no-info", "function": partial(_list_entries, key)}


def _list_entries(key: str, value: Any) -> Any:
    """Return the entries of an object as a list, their names among their fields."""
    if isinstance(value, tuple):  # as it is in Python
        return value
    if not isinstance(value, Mapping):
        raise AssertionError("not an object")
    if twice := [name for name, entry in value.items() if isinstance(entry, Mapping) and key in entry]:
        raise ValueError(f"{twice[0]!r} has the unknown field {key!r}")
    return [{key: name, **entry} if isinstance(entry, Mapping) else entry for name, entry in value.items()]


@cache
def _list_fields(schema: Any) -> dict[str, Any]:
    """Return the type of each field of a dataclass, by its name in the document."""
    hints = typing.get_type_hints(schema, include_extras=True)
    fields = [field for field in dataclasses.fields(schema) if field.init and not field.metadata.get("key")]
    return {name_field(field): hints[field.name] for field in fields}


@cache
def _list_hints(schema: Any) -> dict[str, Any]:
    """Return the type of each field of a dataclass, by its name in Python and by that in the document."""
    return typing.get_type_hints(schema, include_extras=True) | _list_fields(schema)


def _find_key(hint: Any) -> str | None:
    """Return the field whose value names the entries of a list, if the list is an object in the document."""
    inside = typing.get_args(_strip(hint))
    return _find_key_of(inside[0]) if typing.get_origin(_strip(hint)) is tuple and inside[-1] is Ellipsis else None


def _find_key_of(schema: Any) -> str | None:
    fields = dataclasses.fields(schema) if dataclasses.is_dataclass(schema) else ()
    return next((field.name for field in fields if field.metadata.get("key")), None)


def _to_plain(value: Any) -> Any:
    """Return a numpy scalar as the Python value that it holds."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


# --- refusals -------------------------------------------------------------------------------------------------


def _find_origin(cause: Any) -> BaseException | None:
    """Return our own error behind one of pydantic's, so that no traceback shows pydantic's words."""
    origin = (cause.errors(include_url=False)[0].get("ctx") or {}).get("error")
    return origin if isinstance(origin, FragilityError) else None


def _refuse(
    cause: Any,
    document: Any,
    schema: Any,
    what: str,
    error: type[FragilityError],
    at: str,
    defaults: bool,
    more: tuple[str, ...] = (),
    of: str = "in",
) -> FragilityError:
    """Return our error for the first fault that pydantic names.

    more: fields that the document has beside those of its schema; of: the word between a field and what has it.
    """
    fault = cause.errors(include_url=False)[0]
    loc = fault["loc"][1:] if fault["loc"][:1] == (0,) else fault["loc"]  # a reader takes a tuple of one document
    hint, value, steps, rest = _follow(schema, document, loc)
    path, origin = _join([at, *steps]), (fault.get("ctx") or {}).get("error")
    inside = f"{path} {of} {what}" if path and what else path or what
    if fault["type"] == "missing" and isinstance(rest, str):
        return error(f"{what} lacks the field {_join([path, rest])!r}")
    if fault["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        names = _shorten(", ".join([*(() if steps else more), *_list_fields(_strip(hint))]))
        whose = f"the fields of {path} are" if path else "its fields are"
        return error(f"{what} has the unknown field {_join([path, rest])!r:.200}; {whose} {names}")
    if isinstance(origin, ValueError):  # several fields do not fit together: said by their owner
        refusal = origin if isinstance(origin, FragilityError) else error(str(origin))
        return error(f"{inside}: ", refusal) if path else refusal
    if rest == "[key]":
        return error(f"the names in {inside} must be text, got {show_value(fault['input'])}")
    return error(f"{inside} must be {describe_type(hint, null=not defaults)}, got {show_value(value)}")


def _follow(hint: Any, value: Any, loc: tuple[int | str, ...]) -> tuple[Any, Any, list[int | str], int | str | None]:
    """Return type and value where a path leads as far as both are known, the steps taken, and the step after them."""
    steps: list[int | str] = []
    for place, step in enumerate(loc):
        kind = _strip(hint)
        origin, inside = typing.get_origin(kind), typing.get_args(kind)
        if _find_key(hint) is not None and isinstance(value, Mapping) and isinstance(step, int):
            step = list(value)[step]
        if loc[place + 1 : place + 2] == ("[key]",):
            return hint, value, steps, "[key]"
        if dataclasses.is_dataclass(kind) and step in (known := _list_hints(typing.cast(Any, kind))):
            child = known[str(step)]
        elif origin is list and isinstance(step, int):
            child = inside[0]
        elif origin is tuple and (isinstance(step, int) or isinstance(value, Mapping)):
            child = inside[0] if inside[-1] is Ellipsis else inside[min(int(step), len(inside) - 1)]
        elif origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
            child = inside[1]
        else:
            return hint, value, steps, step
        try:
            value = getattr(value, str(step)) if dataclasses.is_dataclass(value) else value[step]
        except (LookupError, TypeError):  # it is not there
            return hint, value, steps, step
        hint = child
        steps.append(step)
    return hint, value, steps, None


def _strip(hint: Any) -> Any:
    """Return a type without its conditions, and without null where that is the only other one."""
    if typing.get_origin(hint) is Annotated:
        return _strip(typing.get_args(hint)[0])
    kinds = [kind for kind in _list_kinds(hint) if kind is not type(None)]
    return _strip(kinds[0]) if len(kinds) == 1 and kinds[0] is not hint else hint


def _list_kinds(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def describe_type(hint: Any, *, null: bool = True) -> str:
    """Return in words what a field of a type holds; null: mention it, where the field may be null."""
    if typing.get_origin(hint) is Annotated:
        inside, *conditions = typing.get_args(hint)
        words = [condition.words for condition in conditions if isinstance(condition, (Must, Unbounded))]
        return words[0] if words else describe_type(inside)
    kinds = _list_kinds(hint)
    if len(kinds) > 1:
        named = [kind for kind in kinds if null or kind is not type(None)]
        return _join_choices(list(dict.fromkeys(describe_type(kind) for kind in named)))
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, inside))}" if len(inside) > 1 else repr(inside[0])
    if origin is list or (origin is tuple and _find_key(hint) is None):
        return "a list" if origin is list or inside[-1] is Ellipsis else f"a list of {len(inside)}"
    if hint in WORDS:
        return WORDS[hint]
    is_plain = isinstance(hint, type) and not dataclasses.is_dataclass(hint) and origin is None and hint is not dict
    return f"of type {hint.__name__}" if is_plain else "an object"


def _join_choices(choices: Iterable[str]) -> str:
    *first, last = choices
    return f"{', '.join(first)} or {last}" if first else last


def _join(steps: Iterable[Any]) -> str:
    return ".".join(str(step) for step in steps if step != "" and step is not None)


def _shorten(text: str) -> str:
    return text if len(text) <= LISTED else f"{text[:LISTED]}..."


def _find_disorder(read: Any, plain: Any, at: str) -> str | None:
    """Return the path of the first object whose fields are not in the order of its dataclass; None if all are."""
    if dataclasses.is_dataclass(read) and isinstance(plain, Mapping):
        names = {name_field(field): field.name for field in dataclasses.fields(read)}
        if list(plain) != [name for name in names if name in plain]:
            return at
        pairs: Iterable[tuple[Any, Any]] = ((name, getattr(read, names[name])) for name in plain)
    elif isinstance(read, Mapping):
        pairs = read.items()
    elif isinstance(read, (tuple, list)):
        pairs = enumerate(read)
    else:
        return None
    places = (_find_disorder(value, plain[name], _join([at, name])) for name, value in pairs)
    return next((place for place in places if place is not None), None)

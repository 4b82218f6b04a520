"""Rows from a feature server: which values arrived, which are missing, and which are older than they should be.

Feast is read without importing it, in the shapes in which its online features reach a service: the JSON of its feature
server, with a status and an event timestamp for each value, and ``OnlineResponse.to_dict()``, with values alone or with
``NAME__ts`` beside them.

    PRESENT           the value; stale if its event timestamp is older than the declared maximum age
    OUTSIDE_MAX_AGE   the value, stale; missing if there is none
    NULL_VALUE, NOT_FOUND, INVALID    missing
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from fragility.base.arrays import is_number
from fragility.base.canonical import is_missing
from fragility.base.errors import DataError
from fragility.evidence.rows import list_names

PRESENT, OUTSIDE_MAX_AGE = "PRESENT", "OUTSIDE_MAX_AGE"
STATUSES = ("INVALID", PRESENT, "NULL_VALUE", "NOT_FOUND", OUTSIDE_MAX_AGE)  # in the order of Feast's numbers
TIMESTAMP = "__ts"
MOST_SECONDS = 1e13  # that a timedelta holds: 300,000 years
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Age: TypeAlias = float | dt.timedelta


class ServedRows(NamedTuple):
    """Rows as a feature server gave them, ready for ``guard.check_rows(*served)``.

    Attributes
    ----------
    rows : list of dict
        The values of each row by field; None where a field is missing.
    missing : list of tuple of str
        The missing fields of each row.
    stale : list of tuple of str
        The fields of each row whose values are too old.
    """

    rows: list[dict[str, Any]]
    missing: list[tuple[str, ...]]
    stale: list[tuple[str, ...]]


class _Cell(NamedTuple):
    value: Any
    status: str
    time: dt.datetime | None  # of the event; None: not known


def read_feature_response(
    response: Mapping[str, Any],
    fields: Sequence[str],
    *,
    now: dt.datetime,
    max_age: Age | Mapping[str, Age] | None = None,
    names: Mapping[str, str] | None = None,
    known: Sequence[Mapping[str, Any]] | None = None,
) -> ServedRows:
    """Read the response of a Feast feature server: values, and which of them are missing or stale.

    Parameters
    ----------
    response : mapping
        The JSON of ``/get-online-features``, or what ``OnlineResponse.to_dict()`` returned.
    fields : sequence of str
        The raw fields of the model. Other features, such as entity keys, are left out.
    now : datetime
        The time of the decision, with a time zone.
    max_age : float, timedelta or mapping, optional
        How old a value may be, in seconds or as a timedelta: for all fields, or by field. A value without an event
        timestamp, for which Feast gives 1970-01-01, has no age. By default only the statuses are read.
    names : mapping of str to str, optional
        The field that each feature is, where their names differ, as with ``view__feature``.
    known : sequence of mappings, optional
        Values of each row that do not come from the server, such as those of the request.

    Returns
    -------
    ServedRows
        Rows, missing and stale fields; a field that neither the server nor ``known`` gives is missing.

    Raises
    ------
    DataError
        The response has another shape, or a status, a timestamp or an age cannot be read.

    See Also
    --------
    Guard.check_rows : Takes what this returns.

    Examples
    --------
    >>> import datetime as dt
    >>> from fragility.deciding import read_feature_response
    >>> response = {
    ...     "metadata": {"feature_names": ["income", "age"]},
    ...     "results": [
    ...         {"values": [52000], "statuses": ["PRESENT"], "event_timestamps": ["2026-01-02T03:00:00Z"]},
    ...         {"values": [None], "statuses": ["NOT_FOUND"], "event_timestamps": ["1970-01-01T00:00:00Z"]},
    ...     ],
    ... }
    >>> now = dt.datetime(2026, 1, 2, 4, tzinfo=dt.timezone.utc)
    >>> read_feature_response(response, ["income", "age"], now=now, max_age=600)
    ServedRows(rows=[{'income': 52000, 'age': None}], missing=[('age',)], stale=[('income',)])
    """
    if not isinstance(now, dt.datetime) or now.tzinfo is None:
        raise DataError(f"now must be a datetime with a time zone, got {now!r}")
    ages = _read_ages(max_age, fields)
    columns = _name_fields(_read_columns(response), fields, names)
    n = len(next(iter(columns.values())))
    if known is not None:
        _check_known(known, n)
    served = ServedRows([], [], [])
    for i in range(n):
        row, missing, stale = dict[str, Any](), [], []
        for field in fields:
            if field not in columns:
                row[field] = None if known is None else known[i].get(field)
            else:
                value, status, time = columns[field][i]
                row[field] = value if status in (PRESENT, OUTSIDE_MAX_AGE) else None
                old = time is not None and field in ages and now - time > ages[field]
                if (status == OUTSIDE_MAX_AGE or old) and not is_missing(row[field]):
                    stale.append(field)
            if is_missing(row[field]):
                missing.append(field)
        served.rows.append(row)
        served.missing.append(tuple(missing))
        served.stale.append(tuple(stale))
    return served


def _name_fields(
    columns: Mapping[str, list[_Cell]], fields: Sequence[str], names: Mapping[str, str] | None
) -> dict[str, list[_Cell]]:
    """Return the cells by field; a field that no feature gives by a slip of a name would count as missing."""
    if names is not None and not isinstance(names, Mapping):
        raise DataError(f"names must be a mapping from features to fields, got {type(names).__name__}")
    given = dict(names or {})
    if unknown := [str(name) for name in given if name not in columns]:
        raise DataError(f"names has {list_names(unknown)}, which the response lacks; it has {', '.join(columns)}")
    if unknown := [str(field) for field in given.values() if field not in fields]:
        raise DataError(f"names gives {list_names(unknown)}, which is not among the fields {', '.join(fields)}")
    renamed: dict[str, list[_Cell]] = {}
    for name, cells in columns.items():
        field = given.get(name, name)
        if field in renamed:
            raise DataError(f"two features of the response are the field {field!r}; name another one, or ask for one")
        renamed[field] = cells
    if not any(field in renamed for field in fields):
        raise DataError(
            f"the response has none of the fields {list_names(fields)}, only {list_names(list(columns))}; say by names "
            "which field each feature is"
        )
    return renamed


def _check_known(known: Any, n: int) -> None:
    if not isinstance(known, Sequence) or not all(isinstance(row, Mapping) for row in known):
        raise DataError(f"known must be a list with one mapping per row, got {known!r:.60}")
    if len(known) != n:
        raise DataError(f"known must have one mapping per row: the response has {n} rows, known {len(known)}")


def _read_ages(given: Age | Mapping[str, Age] | None, fields: Sequence[str]) -> dict[str, dt.timedelta]:
    if given is None:
        return {}
    by_field = given if isinstance(given, Mapping) else dict.fromkeys(fields, given)
    if unknown := [str(name) for name in by_field if name not in fields]:
        raise DataError(f"max_age names {list_names(unknown)}, which is not among the fields {', '.join(fields)}")
    ages = {}
    for name, age in by_field.items():
        span: Any = age
        if not isinstance(age, dt.timedelta) and is_number(age) and age <= MOST_SECONDS:
            span = dt.timedelta(seconds=float(age))
        if not isinstance(span, dt.timedelta) or span < dt.timedelta(0):
            raise DataError(
                f"max_age of {name!r} must be a timedelta or seconds from 0 to {MOST_SECONDS:.0e}, got {age!r}"
            )
        ages[name] = span
    return ages


def _read_columns(response: Any) -> dict[str, list[_Cell]]:
    """Return the cells of each feature, one per row."""
    if not isinstance(response, Mapping) or not response:
        raise DataError(
            "a feature server's response must be an object with 'metadata' and 'results', or lists of values by "
            f"feature, got {type(response).__name__}"
        )
    columns = _read_results(response) if "results" in response else _read_lists(response)
    lengths = {len(cells) for cells in columns.values()}
    if not columns or len(lengths) != 1 or 0 in lengths:
        found = ", ".join(f"{name} {len(cells)}" for name, cells in list(columns.items())[:5]) or "no feature"
        raise DataError(f"the response must have as many values, at least one, of every feature, got {found}")
    return columns


def _read_results(response: Mapping[str, Any]) -> dict[str, list[_Cell]]:
    metadata = response.get("metadata")
    names = _unwrap(_get(metadata, "feature_names", "featureNames"))
    results = response["results"]
    if not isinstance(names, list) or not isinstance(results, list) or len(names) != len(results):
        raise DataError(
            "the response must have one entry of 'results' for each of metadata.feature_names, got "
            f"{len(names) if isinstance(names, list) else 'no'} names and "
            f"{len(results) if isinstance(results, list) else 'no'} results"
        )
    if len(set(map(str, names))) < len(names):
        raise DataError("metadata.feature_names must be distinct; ask the server for each feature once")
    columns = {}
    for name, result in zip(map(str, names), results, strict=True):
        values = _unwrap(_get(result, "values"))
        statuses, times = _get(result, "statuses"), _get(result, "event_timestamps", "eventTimestamps")
        if not isinstance(values, list) or not isinstance(statuses, list) or len(values) != len(statuses):
            raise DataError(f"the feature {name!r} must have a status for each of its values")
        if times is not None and (not isinstance(times, list) or len(times) != len(values)):
            raise DataError(f"the feature {name!r} must have an event timestamp for each of its values, or none")
        own_times = [None] * len(values) if times is None else times
        columns[name] = [
            _Cell(_read_value(value, name), _read_status(status, name), _read_time(time, name))
            for value, status, time in zip(values, statuses, own_times, strict=True)
        ]
    return columns


def _read_lists(response: Mapping[str, Any]) -> dict[str, list[_Cell]]:
    """Return the cells of lists by feature, as ``OnlineResponse.to_dict`` gives them."""
    columns = {}
    for key, values in response.items():
        name = str(key)
        if not isinstance(values, list):
            raise DataError(f"the feature {name!r} must be a list with one value per row, got {type(values).__name__}")
        if name.endswith(TIMESTAMP) and name.removesuffix(TIMESTAMP) in response:
            continue
        times = response.get(name + TIMESTAMP, [None] * len(values))
        if not isinstance(times, list) or len(times) != len(values):
            raise DataError(f"the feature {name!r} must have an event timestamp for each of its values, or none")
        columns[name] = [_Cell(v, PRESENT, _read_time(t, name)) for v, t in zip(values, times, strict=True)]
    return columns


def _get(document: Any, *names: str) -> Any:
    return next((document[name] for name in names if name in document), None) if isinstance(document, Mapping) else None


def _unwrap(value: Any) -> Any:
    """Return the list inside protobuf's ``{"val": [...]}``."""
    return value["val"] if isinstance(value, Mapping) and set(value) == {"val"} else value


def _read_value(value: Any, feature: str) -> Any:
    """Return a plain value; protobuf's JSON names its type, and writes 64-bit whole numbers and NaN as text."""
    if not isinstance(value, Mapping):
        return value
    if not value:
        return None
    key, own = next(iter(value.items()))
    kind = str(key).replace("_", "").lower()
    if kind == "nullval":
        return None
    try:
        if len(value) != 1 or not kind.endswith("val"):
            raise ValueError
        written = kind.startswith(("int", "double", "float")) and isinstance(own, str)
        return (int if kind.startswith("int") else float)(own) if written else own
    except ValueError as error:
        raise DataError(
            f"a value of the feature {feature!r} must be plain, or one such as {{'int64_val': '3'}}, got {value!r:.80}"
        ) from error


def _read_status(status: Any, feature: str) -> str:
    if isinstance(status, int) and not isinstance(status, bool) and 0 <= status < len(STATUSES):
        return STATUSES[status]
    if status not in STATUSES:
        raise DataError(f"a status of the feature {feature!r} must be one of {', '.join(STATUSES)}, got {status!r}")
    return str(status)


def _read_time(time: Any, feature: str) -> dt.datetime | None:
    """Return the time of an event: ISO text, seconds since 1970, or ``{"seconds": ...}``; None where there is none."""
    if time is None:
        return None
    try:
        if isinstance(time, Mapping):
            found = EPOCH + dt.timedelta(seconds=float(time.get("seconds", 0)) + float(time.get("nanos", 0)) / 1e9)
        elif isinstance(time, str):
            found = dt.datetime.fromisoformat(time)
        elif isinstance(time, dt.datetime):
            found = time
        else:
            found = EPOCH + dt.timedelta(seconds=float(time))
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"an event timestamp of the feature {feature!r} must be ISO text or seconds since 1970, got {time!r}"
        ) from error
    aware = found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
    return None if aware <= EPOCH else aware

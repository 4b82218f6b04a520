"""The comparison of two models, state by state and row by row, straight from the definitions.

A model is a function from one row (a dict) to its probabilities; it raises where it refuses. A protocol is the plain
form of one in the raw space, with one field per group.
"""

import math

STEPS = (-1.0, -0.5, 0.5, 1.0)


def margin(p, label):
    z = [math.log(max(each, 1e-12)) for each in p]
    return z[label] - max(each for c, each in enumerate(z) if c != label)


def ask(model, row):
    try:
        return list(model(row))
    except Exception:
        return None


def same(one, other):
    return one == other or (isinstance(one, float) and isinstance(other, float) and one != one and other != other)


def judge(a, b, row, tolerance):
    """Return a dict of flags and the gap of one state."""
    p, q = ask(a, row), ask(b, row)
    out = dict.fromkeys(("differing", "labels", "ties", "only_a", "only_b", "neither"), False) | {"gap": 0.0}
    if p is None or q is None:
        name = "neither" if p is None and q is None else "only_b" if p is None else "only_a"
        return out | {name: True, "p": p, "q": q}
    gap = max(abs(x - y) for x, y in zip(p, q, strict=True))
    other = p.index(max(p)) != q.index(max(q))
    near = min(abs(p[1] - 0.5), abs(q[1] - 0.5)) <= tolerance
    tie = other and gap <= tolerance and near
    return out | {
        "gap": gap, "p": p, "q": q, "ties": tie, "labels": other and not tie,
        "differing": gap > tolerance or (other and not tie),
    }  # fmt: skip


def order(clean, lost, names, resolution):
    """Return the groups by descending drop of the margin; None if a state was refused."""
    if clean is None or any(p is None for p in lost.values()):
        return None
    label = clean.index(max(clean))
    drops = {name: margin(clean, label) - margin(lost[name], label) for name in names}
    return sorted(names, key=lambda name: (-round(drops[name] / resolution), names.index(name)))


def fade(row, fields, baseline, kinds, severity, whole):
    out = dict(row)
    for name in fields:
        x, bar = row[name], baseline[name]
        if severity >= 1.0:
            out[name] = bar
        elif kinds[name] == "nominal" or (isinstance(x, float) and math.isnan(x)):
            out[name] = bar if severity >= 0.5 else x
        else:
            moved = x + severity * (bar - x)
            out[name] = float(round(moved)) if name in whole else moved
    return out


def list_states(a, b, row, protocol):
    """Yield (kind, unit, value, state) of one row; equal states of both models' paths once."""
    columns = {c["name"]: c for c in protocol["columns"]}
    baseline = {name: c["baseline"] for name, c in columns.items()}
    kinds = {name: c["kind"] for name, c in columns.items()}
    modes, names = protocol["modes"], [group["name"] for group in protocol["groups"]]
    whole = [f["name"] for f in protocol["fields"] if f["type"] == "integer"]
    for name in names:
        yield "lost", name, None, row | {name: baseline[name]}
        yield "missing", name, None, row | {name: math.nan if kinds[name] == "numeric" else None}
    for entry in modes["catalogue"]:
        for value in entry["values"]:
            yield "wrong", entry["group"], value[0], row | {entry["fields"][0]: value[0]}
    for name in names:
        if kinds[name] == "numeric" and columns[name]["spread"]:
            for step in STEPS:
                moved = row[name] + step * modes["noise"] * columns[name]["spread"]
                yield "noisy", name, step, row | {name: float(round(moved)) if name in modes["whole"] else moved}
    lost = [{name: ask(m, row | {name: baseline[name]}) for name in names} for m in (a, b)]
    orders = [order(ask(m, row), each, names, protocol["resolution"]) for m, each in zip((a, b), lost, strict=True)]
    for k in range(2, protocol["depth"] + 1):
        for first in distinct(orders, k, names):
            yield "path", "the path", k, row | {name: baseline[name] for name in first}
    for operator in protocol["operators"]:
        width = len(names) if operator == "attenuate_all" else int(operator.removeprefix("attenuate_top"))
        for first in distinct(orders, width, names):
            for severity in protocol["severities"]:
                yield "faded", operator, severity, fade(row, first, baseline, kinds, severity, whole)


def distinct(orders, k, names):
    if k == len(names):
        return [names]
    sets = []
    for each in orders:
        if each is not None and set(each[:k]) not in sets:
            sets.append(set(each[:k]))
    return sets


def compare(a, b, rows, protocol, tolerance):
    """Return ({kind: counts}, {(kind, unit, value): counts of rows that agree as they are})."""
    found, revealed = {}, {}
    for row in rows:
        clean = judge(a, b, row, tolerance)
        agrees = not (clean["differing"] or clean["only_a"] or clean["only_b"])
        add(found, "clean", clean)
        for kind, unit, value, state in list_states(a, b, row, protocol):
            if all(same(state[name], row[name]) for name in row):
                continue
            judged = judge(a, b, state, tolerance)
            add(found, (kind, unit), judged)
            if agrees:
                add(revealed, (kind, unit, value), judged)
    by_kind = {}
    for place, counts in found.items():
        kind, unit = place if isinstance(place, tuple) else (place, None)
        own = by_kind.setdefault(kind, {"outside": 0})
        if unit is not None and counts["only_b"] + counts["neither"] == counts["states"]:  # no input of the first model
            counts |= {"only_b": 0, "neither": 0, "outside": counts["states"]}
            for change in [c for c in revealed if c[:2] == (kind, unit)]:
                del revealed[change]
        for name, count in counts.items():
            own[name] = max(own.get(name, 0.0), count) if name == "gap" else own.get(name, 0) + count
    return by_kind, revealed


def add(into, place, judged):
    counts = into.setdefault(place, {"states": 0, "gap": 0.0})
    counts["states"] += 1
    counts["gap"] = max(counts["gap"], judged["gap"])
    for name in ("differing", "labels", "ties", "only_a", "only_b", "neither"):
        counts[name] = counts.get(name, 0) + judged[name]

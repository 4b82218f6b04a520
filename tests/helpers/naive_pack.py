"""Slow twin of a pack's figures: row by row, from the source that each one states."""

import json
import math


def flips_by(row, groups):
    """The fewest groups known to flip a prediction, and how many are proved not to; read by hand from the claims."""
    known = [row["flip_budget"]] if row["flipped"] else []
    state, size = row.get("smallest_state"), row.get("smallest_size")
    found = size is not None and not math.isnan(size)
    fewest = min([*known, *([size] if found else []), groups + 1])
    if state == "none at all, proved":
        return fewest, groups
    if state == "minimum":
        return fewest, size - 1
    if state is not None and state.startswith("none up to"):
        return fewest, int(state.split()[3].rstrip(","))
    return fewest, 0 if row["flipped"] and row["flip_budget"] == 1 else 1


def holds(row, condition):
    column, sign, value = condition
    fewest, proved = flips_by(row, len(row["one_step_drop"]))
    cell = {"fewest_groups": fewest, "proved_groups": proved}.get(column, row.get(column))
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return False
    if sign in ("==", "!="):
        return (cell == value) == (sign == "==")
    return {"<": cell < value, "<=": cell <= value, ">=": cell >= value, ">": cell > value}[sign]


def compute(source, rows, folder):
    """The value of a figure; rows are those of the certificates, as dictionaries."""
    if "pointer" in source:
        value = json.loads((folder / source["file"]).read_text())
        for name in source["pointer"].split("/")[1:]:
            value = value[int(name)] if isinstance(value, list) else value[name]
        return value
    chosen = [row for row in rows if all(holds(row, condition) for condition in source["where"])]
    if source["aggregate"] == "count":
        return len(chosen)
    if source["aggregate"] == "sum":
        return math.fsum(row[source["column"]] for row in chosen)
    if not chosen:
        return None
    if source["aggregate"] == "share":
        return sum(holds(row, source["holds"]) for row in chosen) / len(chosen)
    truth = {str(own_id): label for own_id, label in json.loads((folder / source["labels"]).read_text())}
    return sum(truth[str(row["id"])] == str(row["predicted"]) for row in chosen) / len(chosen)

"""Slow twin of a pack's figures: row by row, from the source that each one states."""

import json
import math


def holds(row, condition):
    column, sign, value = condition
    cell = row[column]
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return False
    return {"<=": cell <= value, ">=": cell >= value, ">": cell > value} [sign] if sign in ("<=", ">=", ">") else (
        (cell == value) == (sign == "==")
    )  # fmt: skip


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

"""Slow twin of a pack's figures: row by row, from the definition of each measure in the guide and format.md."""

import json
import math


def flips_by(row):
    """The fewest groups known to flip a prediction, and how many are proved not to; read by hand from the claims."""
    groups = len(row["one_step_drop"])
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


def holds(row, name, truth):
    """Whether a row has what the measure counts; None if the measure does not apply to it."""
    fewest, proved = flips_by(row)
    if name.startswith("exposed"):
        exposure = row.get("exposure" + name.removeprefix("exposed"))
        return None if exposure is None or math.isnan(exposure) else exposure > 0.5
    if name in ("accuracy", "confident_accuracy"):
        return truth[str(row["id"])] == str(row["predicted"])
    if name == "proved" and row["smallest_state"] == "not searched":
        return None
    return {
        "confident": lambda: True,
        "flips_after_one": lambda: fewest <= 1,
        "flips_early": lambda: fewest <= 2,
        "early_on_path": lambda: row["flipped"] and row["flip_budget"] <= 2,
        "holds": lambda: proved >= len(row["one_step_drop"]),
        "never_flips": lambda: not row["flipped"],
        "searched": lambda: row["smallest_state"] != "not searched",
        "proved": lambda: row["smallest_state"] == "none at all, proved",
    }[name]()


OF_ALL = ("never_flips", "searched", "proved", "accuracy", "lost")


def compute(source, rows, folder):
    """The value of a figure; rows are those of the certificates, as dictionaries."""
    if "pointer" in source:
        value = json.loads((folder / source["file"]).read_text())
        for name in source["pointer"].split("/")[1:]:
            value = value[int(name)] if isinstance(value, list) else value[name]
        return value
    name, chosen = source["measure"], rows
    if name not in OF_ALL:
        chosen = [row for row in rows if row["confidence"] >= source["min_confidence"]]
    if source["value"] == "unsettled":
        assert name == "flips_early"
        return sum(fewest > 2 and proved < 2 for fewest, proved in map(flips_by, chosen))
    if source["value"] == "total":
        return math.fsum(row["failure_probability"] for row in chosen)
    truth = {str(own_id): label for own_id, label in json.loads((folder / "labels.json").read_text())}
    held = [answer for row in chosen if (answer := holds(row, name, truth)) is not None]
    if source["value"] == "count":
        return sum(held)
    return sum(held) / len(held) if held else None

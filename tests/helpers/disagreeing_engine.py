"""Engines that are wrong in one observation, for the test of the check that every native engine must pass."""

from dataclasses import replace

import numpy as np

from fragility.engines.blackbox import trace_blackbox

ERROR = 0.25
FAULT = "one_step_margin"  # a test sets another
ROWS = None  # (k, d) rows that it gets wrong, where a test names some; else as ``_wrong`` says


def refusal(rows):
    return None


never_reads = refusal
state_answers = value_answers = refusal


def doubts(rows):
    return lambda cells: np.zeros(len(cells), dtype=bool)


def trace(rows, protocol, progress=None):
    right = trace_blackbox(rows, protocol)
    if ROWS is not None:
        wrong = (rows.dense()[:, None] == ROWS).all(axis=2).any(axis=1)
        names = ("path_margin", "fade_margin") if FAULT == "states" else (FAULT,)
        changed = {name: getattr(right, name).copy() for name in names}
        for values in changed.values():
            values[wrong] += ERROR
        return replace(right, **changed, engine="disagreeing")
    return replace(right, **{FAULT: _wrong(FAULT, getattr(right, FAULT), rows)}, engine="disagreeing")


def tracer(rows, protocol):
    return lambda others, progress=None: trace(others, protocol, progress)


def _wrong(fault, values, rows):
    """The black box's own observation, falsified in one row as a real error of an engine would."""
    values = values.copy()
    match fault:
        case "one_step_margin" | "confidence" | "one_step_confidence":
            return values + ERROR
        case "path_margin":
            values[0, -1] += ERROR
        case "path_predicted":
            values[0, -1] = 1 - values[0, -1]
        case "predicted":
            values[0] = 1 - values[0]
        case "order":
            values[0, :2] = values[0, 1::-1]
        case "threshold":
            values[0, 0] = 0.1 if np.isinf(values[0, 0]) else np.inf
    return values


def predictor(rows):
    return lambda matrix: rows.predict(matrix) + ERROR

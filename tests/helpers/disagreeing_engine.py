"""Engines that are wrong in one observation, for the test of the check that every native engine must pass."""

from dataclasses import replace

import numpy as np

from fragility.engines.blackbox import trace_blackbox
from fragility.engines.engine import Engine
from fragility.engines.oracle import ModelOracle

ERROR = 0.25
FAULT = "one_step_margin"  # a test sets another
ROWS = None  # (k, d) rows that it gets wrong, where a test names some; else as ``_wrong`` says


class DisagreeingEngine(Engine):
    """Knows every model, and predicts every row wrongly."""

    name = "disagreeing"

    @classmethod
    def never_reads(cls, rows):
        return None

    refusal = never_reads

    def doubts(self, cells):
        return np.zeros(len(cells), dtype=bool)

    def tracer(self, protocol):
        return lambda rows, progress=None: trace(rows, protocol)

    def predict(self, matrix):
        return self.form.predict(matrix) + ERROR

    def answer_states(self, x, states):
        return None

    def answer_values(self, x, asked):
        return ModelOracle(self.form).answer_values(x, asked)


def trace(rows, protocol):
    right = trace_blackbox(rows, protocol)
    if ROWS is not None:
        wrong = (rows.dense()[:, None] == ROWS).all(axis=2).any(axis=1)
        names = ("path_margin", "fade_margin", "bare_margin") if FAULT == "states" else (FAULT,)
        changed = {name: getattr(right, name).copy() for name in names}
        for values in changed.values():
            values[wrong] += ERROR
        return replace(right, **changed, engine="disagreeing")
    return replace(right, **{FAULT: _wrong(FAULT, getattr(right, FAULT), rows)}, engine="disagreeing")


def _wrong(fault, values, rows):
    """The black box's own observation, falsified in one row as a real error of an engine would."""
    values = values.copy()
    match fault:
        case "one_step_margin" | "bare_margin" | "confidence" | "one_step_confidence":
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

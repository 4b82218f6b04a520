"""An engine that is wrong by a known amount, for the test of the check that every native engine must pass."""

from dataclasses import replace

from fragility.engines.blackbox import trace_blackbox

ERROR = 0.25


def refusal(rows):
    return None


def trace(rows, protocol, progress=None):
    right = trace_blackbox(rows, protocol)
    return replace(right, one_step_margin=right.one_step_margin + ERROR, engine="disagreeing")


def predictor(rows):
    return lambda matrix: rows.predict(matrix) + ERROR

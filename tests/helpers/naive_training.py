"""Slow twins of the residual network and its loss: one row, one class, one unit at a time, from the definitions.

SPEC section 9: loss = CE(x) + alpha * ( KL(p||p~) + KL(p~||p) + beta * L_margin ).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

Weights = Mapping[str, np.ndarray]


def linear(h: list[float], weight: np.ndarray, bias: np.ndarray) -> list[float]:
    return [sum(weight[o][i] * h[i] for i in range(len(h))) + bias[o] for o in range(len(bias))]


def layer_norm(h: list[float], gain: np.ndarray, shift: np.ndarray) -> list[float]:
    mean = sum(h) / len(h)
    variance = sum((value - mean) ** 2 for value in h) / len(h)
    return [gain[i] * (h[i] - mean) / np.sqrt(variance + 1e-5) + shift[i] for i in range(len(h))]


def forward(weights: Weights, row: np.ndarray, blocks: int) -> list[float]:
    """Logits of one row, without dropout."""
    h = linear(list(row), weights["stem.weight"], weights["stem.bias"])
    for b in range(blocks):
        inside = layer_norm(h, weights[f"blocks.{b}.norm.weight"], weights[f"blocks.{b}.norm.bias"])
        inside = linear(inside, weights[f"blocks.{b}.inner.weight"], weights[f"blocks.{b}.inner.bias"])
        inside = [max(value, 0.0) for value in inside]
        inside = linear(inside, weights[f"blocks.{b}.outer.weight"], weights[f"blocks.{b}.outer.bias"])
        h = [h[i] + inside[i] for i in range(len(h))]
    h = layer_norm(h, weights["norm.weight"], weights["norm.bias"])
    return linear(h, weights["head.weight"], weights["head.bias"])


def softmax(z: list[float]) -> list[float]:
    total = sum(np.exp(value) for value in z)
    return [float(np.exp(value) / total) for value in z]


def divergence(p: list[float], q: list[float]) -> float:
    """KL(p || q)."""
    return sum(p[c] * np.log(p[c] / q[c]) for c in range(len(p)))


def margin(z: list[float], leader: int) -> float:
    return z[leader] - max(z[c] for c in range(len(z)) if c != leader)


def row_loss(
    z: list[float], twin: list[float], y: int, alpha: float, beta: float, floor: float, size: float | None = None
) -> float:
    """Loss of one row; ``size`` replaces |m(x)| in the normaliser, which the gradient must see as a constant."""
    p, q = softmax(z), softmax(twin)
    leader = max(range(len(z)), key=lambda c: z[c])
    lost = max(margin(z, leader) - margin(twin, leader), 0.0)
    collapse = lost / ((abs(margin(z, leader)) if size is None else size) + floor)
    return -np.log(p[y]) + alpha * (divergence(p, q) + divergence(q, p) + beta * collapse)


def mean_loss(
    logits: np.ndarray,
    twins: np.ndarray,
    codes: np.ndarray,
    alpha: float,
    beta: float,
    floor: float = 1e-8,
    weights: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
) -> float:
    total = 0.0
    for i in range(len(codes)):
        size = None if sizes is None else float(sizes[i])
        loss = row_loss(list(logits[i]), list(twins[i]), int(codes[i]), alpha, beta, floor, size)
        total += loss * (1.0 if weights is None else weights[i])
    return total / len(codes)


def finite_differences(f: Callable[[], float], array: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of f with respect to every entry of ``array``, which f reads."""
    slope = np.empty_like(array)
    for index in np.ndindex(array.shape):
        kept = array[index]
        array[index] = kept + step
        above = f()
        array[index] = kept - step
        below = f()
        array[index] = kept
        slope[index] = (above - below) / (2 * step)
    return slope

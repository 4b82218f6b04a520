"""Links as the libraries of boosted trees compute them, to the last bit.

LightGBM, XGBoost and CatBoost take the exponential and the logarithm of the C library, one number at a time, and so
does code compiled here; numpy's own, which take several at once, differ from them in the last bit.

    sigmoid  1 / (1 + exp(-s))
    softmax  exp(s_c - max s) / sum_c exp(s_c - max s)    summed in double precision
    logit    -log(1 / p - 1)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fragility.engines.kernels.compiling import entry


@entry
def fill_logits(p: Any, one: Any, out: Any) -> None:
    """Fill out (n,) with the logits of p (n,), in its precision; one: (1,) the number 1 in that precision."""
    for i in range(len(p)):
        out[i] = -np.log(one[0] / p[i] - one[0])


@entry
def fill_sigmoid(scores: Any, constants: Any, out: Any) -> None:
    """Fill out (n,) with the sigmoid of scores (n,); constants: 1, and the largest -s, of the scores' precision."""
    one, most = constants[0], constants[1]
    for i in range(len(scores)):
        out[i] = one / (one + np.exp(min(-scores[i], most)))


@entry
def fill_softmax(scores: Any, out: Any) -> None:
    """Fill out (n, C) with the softmax of scores (n, C), of the same precision."""
    divisor = np.empty(1, dtype=out.dtype)
    for i in range(len(scores)):
        highest = scores[i, 0]
        for c in range(1, scores.shape[1]):
            highest = max(highest, scores[i, c])
        total = 0.0
        for c in range(scores.shape[1]):
            out[i, c] = np.exp(scores[i, c] - highest)
            total += np.float64(out[i, c])
        divisor[0] = total
        for c in range(scores.shape[1]):
            out[i, c] /= divisor[0]

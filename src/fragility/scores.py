r"""The certificate's formulas as pure functions on arrays (SPEC: score conversion, certificate).

Letters are the paper's: n rows, C classes, G evidence groups, K audit depth, P operators.

    p~  = max(p, 1e-12), renormalised                 clipped probabilities
    z~_c = log p~_c - mean_j log p~_j                 centred pseudo-logits
    m(x)                                              a margin (two readings, below)
    delta_g = m(x) - m(R(x, {g}))                     one-step drop of group g
    c_k = [m(x) - m(x^(k))]_+ / (|m(x)| + 1e-8)       collapse after k removals (clipped as the reading says)
    RCMA = sum_{k=0..K} c_k / (K + 1)
    u = w1 RCMA + w2 / k* + w3 mean_P 1[lambda*_P < inf] / (lambda*_P + 1e-8),   FDS = 1 - exp(-u)

Exposure is ours, not the paper's: evidence fails in several ways, and the states of the certificate hold them all.

    T = RCMA                                          targeted: the groups that matter most go first
    I = sum_g [delta_g]_+ / (|m(x)| + 1e-8)           independent: each group fails on its own
    a_lambda = 1 for lambda >= lambda*_all, else [m(x) - m(x at lambda)] / (|m(x)| + 1e-8) clipped to [0, 1]
    A = mean_{lambda in Lambda} a_lambda              common mode: everything fades together (attenuate_all)
    D = sum_g delta_g (signed),   m_0 = margin of the same class with all evidence lost
    q_r = clip((r (1 - r) D + r^2 (m(x) - m_0)) / (|m(x)| + 1e-8), 0, 1)
    Q = mean_{r in {0.1, 0.3, 0.5}} q_r               random loss: every group is lost independently with rate r
    E = 1 - exp(-(v1 T + v2 I + v3 A + v4 Q))

q_r is the expected collapse at rate r by the quadratic in r that has the right value and slope at r = 0 and the right
value at r = 1.

Where the protocol declares a decision threshold, ``offset`` (C,) is added to the log-probabilities before classes are
compared (see ``fragility.decision``); without one the class with the largest probability is predicted.

Where the protocol declares a ``smoothing`` a > 0, margins are those of smoothed probabilities, (p_c + a) / (1 + C a). A
threshold t moves with them, to (t + a) / (1 + 2 a), so that a smoothed margin has the sign of the unsmoothed one.
Predicted classes and flips never use smoothed probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fragility.base.arrays import Booleans, Floats, Integers

Reading = Literal["support", "current", "support_unbounded"]

CLIP = 1e-12  # smallest probability a score sees
CONFIDENT = 0.9  # a prediction is confident from this probability on, unless a caller says otherwise
REHEARSAL = "rehearsal"  # the score of a rehearsed stress, its column, and the stream of its draws
EARLY = 2  # a prediction flips early if losing so many groups, strongest first, flips it
EPSILON = 1e-8  # keeps normalisers and 1 / lambda* finite
READINGS: tuple[Reading, ...] = ("support", "current", "support_unbounded")
LOSS_RATES = (0.1, 0.3, 0.5)  # at which the random loss takes every group away


def flips_within(groups: int, flip_budget: Any, depth: int) -> Any:
    """Return whether a prediction flips when so many groups are lost; a k* of depth + 1 means that it never flips."""
    return flip_budget <= min(groups, depth)


def flips_early(flip_budget: Any, depth: int) -> Any:
    """Return whether a prediction flips within two groups."""
    return flips_within(EARLY, flip_budget, depth)


def clipped_probabilities(p: npt.ArrayLike) -> Floats:
    """Return p~ = max(p, 1e-12) / sum_j max(p_j, 1e-12); shape (..., C)."""
    clipped = np.maximum(np.asarray(p, dtype=np.float64), CLIP)
    return np.asarray(clipped / clipped.sum(axis=-1, keepdims=True))


def pseudo_logits(p: npt.ArrayLike) -> Floats:
    """Return z~_c = log p~_c - mean_j log p~_j; shape (..., C). Each row sums to 0."""
    log_p = np.log(clipped_probabilities(p))
    return np.asarray(log_p - log_p.mean(axis=-1, keepdims=True))


def _log_clipped(p: npt.ArrayLike, offset: Floats | None) -> Floats:
    # Centring and renormalising add one constant to every class, which every difference of classes cancels.
    z = np.log(np.maximum(np.asarray(p, dtype=np.float64), CLIP))
    return np.asarray(z if offset is None else z + offset)


def smoothed_probabilities(p: npt.ArrayLike, smoothing: float) -> Floats:
    """Return (p_c + a) / (1 + C a) for a smoothing a; shape (..., C)."""
    p = np.asarray(p, dtype=np.float64)
    return np.asarray((p + smoothing) / (1.0 + p.shape[-1] * smoothing))


def smoothed_offset(offset: Floats | None, smoothing: float) -> Floats | None:
    """Return the offset of a decision for the logarithms of smoothed probabilities; (C,) -> (C,).

    All classes tie at p_c = exp(-offset_c) / sum_j exp(-offset_j), and must tie there after smoothing too. For a
    threshold t that is p = t and 1 - t.
    """
    if offset is None or smoothing == 0.0:
        return offset
    return np.asarray(-np.log(smoothed_probabilities(softmax_probabilities(-offset), smoothing)))


def predicted_class(p: npt.ArrayLike, resolution: float, offset: Floats | None = None) -> Integers:
    """Return the first class (in declared order) whose pseudo-logit is within ``resolution`` of the largest.

    Two classes that differ by rounding noise only are a tie, and a tie goes to the class declared first:
    otherwise two engines that add the same numbers in another order would predict differently.
    """
    z = _log_clipped(p, offset)
    near = z >= z.max(axis=-1, keepdims=True) - resolution
    return np.asarray(np.argmax(near, axis=-1))


def support_margin(p: npt.ArrayLike, original: npt.ArrayLike, offset: Floats | None = None) -> Floats:
    """Return z~ of the ORIGINAL class minus its best competitor: negative once the decision is lost.

    p has shape (..., C), ``original`` shape (...) (broadcast against p's leading axes).
    """
    z = _log_clipped(p, offset)
    if z.shape[-1] == 2:  # the only competitor is the other class
        difference = z[..., 1] - z[..., 0]
        return np.asarray(np.where(np.asarray(original) == 1, difference, -difference))
    index = np.broadcast_to(np.asarray(original), z.shape[:-1])[..., None]
    own = np.take_along_axis(z, index, axis=-1)[..., 0]
    rivals = z.copy()
    np.put_along_axis(rivals, index, -np.inf, axis=-1)
    return np.asarray(own - rivals.max(axis=-1))


def current_margin(p: npt.ArrayLike, offset: Floats | None = None) -> Floats:
    """Return the largest minus the second-largest pseudo-logit, whichever class leads; never negative."""
    z = np.sort(_log_clipped(p, offset), axis=-1)
    return np.asarray(z[..., -1] - z[..., -2])


def reading_margin(
    p: npt.ArrayLike, original: npt.ArrayLike, reading: Reading, offset: Floats | None, smoothing: float
) -> Floats:
    """Return the margin that ``reading`` takes at a state of probabilities p, smoothed as the protocol declares."""
    if smoothing > 0.0:
        p, offset = smoothed_probabilities(p, smoothing), smoothed_offset(offset, smoothing)
    return current_margin(p, offset) if reading == "current" else support_margin(p, original, offset)


def state_prediction(
    p: npt.ArrayLike, original: npt.ArrayLike, resolution: float, offset: Floats | None = None
) -> Integers:
    """Return the class predicted at a stressed state.

    It stays the original class unless another beats it by more than ``resolution``: a tie is not a flip.
    """
    kept = support_margin(p, original, offset) >= -resolution
    return np.asarray(np.where(kept, original, predicted_class(p, resolution, offset)))


@dataclass(frozen=True, slots=True, eq=False)
class DecisionRule:
    """What is decided at a state, by how much, and whether a stressed state has lost the decision made at x.

    Every question about a decision is put to one of these: by traces, labels, searches, failure modes, stability
    intervals, decisions with missing evidence, and comparisons of models. Probabilities p have shape (..., C);
    originals are the classes at x, broadcast against p's leading axes.
    """

    resolution: float
    offset: Floats | None = None  # (C,) of a declared threshold
    reading: Reading = "support"
    smoothing: float = 0.0

    def predict(self, p: npt.ArrayLike) -> Integers:
        """Return the class decided, where nothing was decided before."""
        return predicted_class(p, self.resolution, self.offset)

    def settle(self, p: npt.ArrayLike, original: npt.ArrayLike) -> Integers:
        """Return the class decided at a stressed state: the original one unless the state flips."""
        return state_prediction(p, original, self.resolution, self.offset)

    def support(self, p: npt.ArrayLike, original: npt.ArrayLike) -> Floats:
        """Return how far the original class is ahead of its best competitor."""
        return support_margin(p, original, self.offset)

    def flips(self, p: npt.ArrayLike, original: npt.ArrayLike) -> Booleans:
        """Return whether another class is ahead of the original one by more than the resolution."""
        return np.asarray(self.support(p, original) < -self.resolution)

    def margin(self, p: npt.ArrayLike, original: npt.ArrayLike) -> Floats:
        """Return the margin of the declared reading, smoothed as declared."""
        return reading_margin(p, original, self.reading, self.offset, self.smoothing)


def removal_order(drops: Floats, resolution: float, last: Booleans | None = None) -> Integers:
    """Return group indices by descending one-step drop, rounded to ``resolution``; ties by declared order.

    drops: (n, G) -> (n, G). last: (n, G) groups that come after all others whatever their drop, as absent ones do.
    """
    rounded = np.rint(drops / resolution) if resolution > 0 else drops
    if last is not None:
        rounded = np.where(last, -np.inf, rounded)
    return np.asarray(np.argsort(-rounded, axis=1, kind="stable"))


def collapse(margin: Floats, path_margin: Floats, reading: Reading) -> Floats:
    """Return c_k for k = 0..K; margin (n,), path_margin (n, K+1) -> (n, K+1), c_0 = 0.

    ``support`` is clipped to [0, 1] (a lost decision is fully collapsed), the other readings at 0 only;
    ``current`` is at most 1 by construction.
    """
    loss = (margin[:, None] - path_margin) / (np.abs(margin)[:, None] + EPSILON)
    c = np.clip(loss, 0.0, 1.0 if reading == "support" else None)
    c[:, 0] = 0.0
    return np.asarray(c)


def rcma(c: Floats) -> Floats:
    """Return RCMA = sum_{k=0..K} c_k / (K + 1); c (n, K+1) -> (n,)."""
    return np.asarray(_sum_rows(c) / c.shape[1])


def flip_budget(path_flipped: Booleans) -> Integers:
    """Return k* = first k >= 1 that flips, else K + 1; path_flipped (n, K+1) -> (n,)."""
    never = path_flipped.shape[1]
    holds = np.ones(len(path_flipped), dtype=bool)
    steps: Integers = np.zeros(len(path_flipped), dtype=np.int8 if never <= np.iinfo(np.int8).max else np.int64)
    for flips in path_flipped.T[1:]:  # one state of all rows at a time: several times faster than row by row
        holds &= ~flips
        steps += holds.view(np.int8)
    return np.asarray(steps.astype(np.int64) + 1)


def flip_threshold(severities: Floats, flips: Booleans) -> Floats:
    """Return lambda* = smallest grid severity that flips, else infinity; flips (n, |Lambda|) -> (n,)."""
    first = np.argmax(flips, axis=1)
    return np.asarray(np.where(flips.any(axis=1), severities[first], np.inf))


def fds(area: Floats, budget: Integers, thresholds: Floats, weights: tuple[float, float, float]) -> Floats:
    """Return FDS = 1 - exp(-u); area and budget (n,), thresholds (n, P) with inf for no flip -> (n,)."""
    w1, w2, w3 = weights
    u = w1 * area + w2 / budget + w3 * degradation_risk(thresholds)
    return np.asarray(-np.expm1(-u))


def degradation_risk(thresholds: Floats) -> Floats:
    """Return mean_P 1[lambda*_P < inf] / (lambda*_P + 1e-8); thresholds (n, P) -> (n,); 0 without operators."""
    if thresholds.shape[1] == 0:
        return np.zeros(len(thresholds))
    return np.asarray(_sum_rows(1.0 / (thresholds + EPSILON)) / thresholds.shape[1])


def independent_loss(margin: Floats, drops: Floats, weight: float = 1.0) -> Floats:
    """Return I = w sum_g [delta_g]_+ / (|m(x)| + 1e-8); margin (n,), drops (n, G) -> (n,). Unbounded above."""
    return np.asarray(weight * _sum_rows(np.maximum(drops, 0.0)) / (np.abs(margin) + EPSILON))


def common_loss(margin: Floats, fade_margin: Floats, threshold: Floats, severities: Floats) -> Floats:
    """Return A, the mean of a_lambda over the grid; NaN without the operator attenuate_all.

    margin and threshold (n,), fade_margin (n, |Lambda|), not read from lambda* on -> (n,).
    """
    if fade_margin.shape[1] == 0:
        return np.full(len(margin), np.nan)
    lost = margin - fade_margin.T
    lost /= np.abs(margin) + EPSILON
    np.clip(lost, 0.0, 1.0, out=lost)
    return np.asarray(_sum_rows(np.where(severities[:, None] >= threshold, 1.0, lost).T) / len(severities))


def random_loss(margin: Floats, drops: Floats, bare: Floats) -> Floats:
    """Return Q, the mean of q_r over the rates; margin and bare, which is m_0, (n,), drops (n, G) -> (n,)."""
    scale, slope = np.abs(margin) + EPSILON, _sum_rows(drops)
    total = np.zeros(len(margin))
    for r in LOSS_RATES:
        total += np.clip((r * (1.0 - r) * slope + r * r * (margin - bare)) / scale, 0.0, 1.0)
    return np.asarray(total / len(LOSS_RATES))


def exposure(
    area: Floats,
    independent: Floats,
    common: Floats,
    random: Floats,
    weights: tuple[float, float, float, float],
) -> Floats:
    """Return E = 1 - exp(-(v1 T + v2 I + v3 A + v4 Q)); all (n,). Where A is NaN, its weight goes to T and I."""
    v1, v2, v3, v4 = weights
    rest = (v1 * area + v2 * independent) * ((v1 + v2 + v3) / (v1 + v2) if v1 + v2 > 0 else 0.0)
    u = np.where(np.isnan(common), rest, v1 * area + v2 * independent + v3 * common)
    return np.asarray(-np.expm1(-(u + v4 * random)))


def _sum_rows(terms: Floats) -> Floats:
    """Return the sum of each row's terms from left to right; (n, T) -> (n,).

    The order of numpy's own sums depends on the number of rows and on the memory layout; a score must not.
    """
    total = np.zeros(len(terms))
    for term in terms.T:
        total += term
    return total


def sigmoid_probabilities(score: npt.ArrayLike) -> Floats:
    """Return (n, 2) probabilities of a binary logistic score; each side computed for itself.

    1 - p would leave no digits for the losing class of a confident row; sigmoid(-s) keeps them.
    """
    s = np.asarray(score, dtype=np.float64)
    with np.errstate(over="ignore"):
        return np.stack([1.0 / (1.0 + np.exp(s)), 1.0 / (1.0 + np.exp(-s))], axis=-1)


def softmax_probabilities(scores: npt.ArrayLike) -> Floats:
    """Return softmax over the last axis in double precision."""
    s = np.asarray(scores, dtype=np.float64)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))

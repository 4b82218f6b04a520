"""Confidence sequences: they match their definitions, cover the truth at all times, and raise few false alarms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_watching import evidence, find_spread, likeliest_start, mean_interval, share_covers, spend

from fragility.apps.watching.events import EventBatch, EventLayout, cut_by_day
from fragility.apps.watching.following import LOOK_ROWS, Follower, FollowSettings
from fragility.apps.watching.sequences import (
    BETS,
    SHARES,
    Detector,
    MeanSequence,
    bet_on_values,
    bound_shares,
    weigh_start,
)


def bet_on_counts(n, k, bounds):
    """(m, J) the log gain of each bet on n rows, k of which have the property; n, k and bounds are (m,)."""
    gain = np.log1p(SHARES * (1.0 / bounds[:, None] - 1.0))
    return k[:, None] * gain + (n - k)[:, None] * np.log1p(-SHARES)


@pytest.mark.parametrize(("n", "k"), [(10, 0), (10, 10), (40, 3), (200, 117)])
def test_the_interval_of_a_share_is_what_the_mixture_leaves(n, k):
    low, high = (float(end) for end in bound_shares(np.array(float(n)), np.array(float(k)), 0.05))
    assert low <= k / n <= high
    for m in np.linspace(0.004, 0.996, 63):
        if min(abs(m - low), abs(m - high)) > 1e-3:
            assert share_covers(n, k, m, 0.05) == (low < m < high)
    assert bound_shares(np.zeros(1), np.zeros(1), 0.05) == (0.0, 1.0)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0.001, 0.5), st.integers(0, 40))
def test_the_interval_of_a_mean_matches_its_twin_however_it_is_fed(values, alpha, cut):
    whole, pieces = MeanSequence(alpha), MeanSequence(alpha)
    whole.add(np.array(values))
    pieces.add(np.array(values[:cut]))
    pieces.add(np.array(values[cut:]))
    assert whole.interval() == pytest.approx(mean_interval(values, alpha), abs=1e-9)
    assert pieces.interval() == pytest.approx(whole.interval(), abs=1e-9)
    assert MeanSequence(alpha).interval() == (0.0, 1.0)


@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=1, max_size=7),
    st.floats(0.01, 0.9),
    st.integers(1, 5),
)
def test_the_evidence_is_the_money_of_all_gamblers(blocks, bound, looks):
    weights = spend(-(-len(blocks) // looks), looks, 365)[: len(blocks)]
    counts, values = Detector(np.array([bound]), 0.05), Detector(np.array([bound]), 0.05)
    for place, (block, weight) in enumerate(zip(blocks, weights, strict=True)):
        n, k = float(len(block)), float(sum(block))
        seen = np.array([[n, k]])
        counts.look(bet_on_counts(np.array([n]), np.array([k]), counts.bounds), weight, place, seen)
        gains = bet_on_values(np.array(block, dtype=float), bound).sum(axis=0)[None]
        values.look(gains, weight, place, seen)
    expected = math.log(evidence(blocks, bound, weights)[-1])
    assert float(counts.evidence()[0]) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert float(values.evidence()[0]) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    start, since = counts.explain(0)
    found, best = likeliest_start(blocks, bound, weights), float(counts.best.max())
    assert since[0] == sum(len(block) for block in blocks[int(start) :])
    if start != found:  # two gamblers may be equally rich
        bets = bet_on_counts(
            np.array([float(sum(map(len, blocks[found:])))]),
            np.array([float(sum(map(sum, blocks[found:])))]),
            counts.bounds,
        )
        assert best == pytest.approx(float(bets.max()) + math.log(weights[found]), abs=1e-9)


def test_weights_of_all_starts_are_at_most_one():
    days, looks = 365, 400
    total = sum(weigh_start(look, days) for look in range(1, looks + 1)) * days
    assert 0.99 < total <= 1.0 and spend(1, 3, days) == [weigh_start(look, days) for look in (1, 2, 3)]


def raise_alarms(rng, bound, rates, alpha, runs, looks=20, block=25):
    """The look at which each of many runs first raises an alarm, counted from 1; rates: of each look."""
    detector, first = Detector(np.full(runs, bound), alpha), np.full(runs, np.inf)
    n = np.full(runs, float(block))
    for place, rate in enumerate(rates):
        k = rng.binomial(block, rate, runs).astype(float)
        gains = bet_on_counts(n, k, detector.bounds)
        reached = detector.look(gains, weigh_start(place % looks + 1, 365), place, np.stack([n, k], axis=1))
        first[reached & np.isinf(first)] = place + 1
    return first


@pytest.mark.parametrize("rate", [0.002, 0.05, 0.5])
def test_quiet_streams_rarely_raise_an_alarm(rate):
    first = raise_alarms(np.random.default_rng(7), rate, [rate] * 400, 0.2, 300)
    assert np.isfinite(first).mean() <= 0.2


def test_intervals_cover_the_truth_at_all_times():
    rng, runs, missed_shares, missed_means = np.random.default_rng(3), 150, 0, 0
    for _ in range(runs):
        draws = rng.random(600) < 0.1
        n = np.arange(1.0, 601.0)
        low, high = bound_shares(n, np.cumsum(draws).astype(float), 0.1)
        missed_shares += bool(((low > 0.1) | (high < 0.1)).any())
        sequence, missed = MeanSequence(0.1), False
        for values in rng.beta(2, 6, (40, 15)):
            sequence.add(values)
            low, high = sequence.interval()
            missed |= not low <= 0.25 <= high
        missed_means += missed
    assert missed_shares <= 0.1 * runs and missed_means <= 0.1 * runs


def test_a_late_change_is_found_about_as_soon_as_an_early_one():
    def rows_until(quiet_days):
        quiet = quiet_days * 20
        first = raise_alarms(np.random.default_rng(1), 0.01, [0.008] * quiet + [0.06] * 60, 0.001, 100)
        return 25 * (float(np.median(first)) - quiet)

    early, late = rows_until(1), rows_until(100)
    assert 0 < early <= 600 and late <= 1.3 * early


def test_a_restart_forgets_what_was_gained():
    detector = Detector(np.array([0.01, 0.01]), 0.05)
    n, k = np.array([25.0, 25.0]), np.array([20.0, 20.0])
    assert detector.look(bet_on_counts(n, k, detector.bounds), 0.001, 0, np.stack([n, k], axis=1)).all()
    detector.restart(np.array([True, False]))
    assert np.isneginf(detector.evidence()[0]) and detector.evidence()[1] > 3
    assert detector.since.shape == (2, BETS, 2)


def test_quiet_streams_of_many_fields_rarely_raise_an_alarm_together():
    """References are estimated, streams are many, and every look counts."""
    rng, alpha, replays = np.random.default_rng(11), 0.2, 40
    layout = EventLayout(("a", "b"), ("a",), ("no", "yes"), ("exposure",), (("a", (0,)), ("b", (1,))))
    alarms = 0
    for _ in range(replays):
        days, rows = 16, 150
        n = days * rows
        shares = rng.random((n, len(layout.columns) - 1)) < np.array([0.01, 0.1, 0.0, 0.02, 0.05, 0.3, 0.4, 0.2, 0.5])
        shares[::2, 5:7] = False  # repeated values are counted in pairs
        batch = EventBatch(
            day=np.repeat(np.arange(days), rows),
            shares=shares,
            confident=np.ones(n, dtype=bool),
            paired=np.arange(n) % 2 == 1,
            means=rng.beta(2, 5, (n, 1)),
            without=shares[:, :2],
            p_change=np.full(n, np.nan),
        )
        follower = Follower(layout, FollowSettings(alpha, 365, 7, 0.0))
        for piece in cut_by_day([batch], LOOK_ROWS):
            follower.follow(piece)
        alarms += bool(follower.episodes)
    assert alarms <= alpha * replays


# --- shares that vary from day to day ---------------------------------------------------------------------------

FIELDS = tuple("abcde")
LAYOUT = EventLayout(FIELDS, (), ("no", "yes"), ("exposure",), ())
DAYS, PER_DAY = 20, 300


def varying_days(seed, draw, lost=0.0, days=DAYS):
    """Decisions of some days, whose first field is missing at a rate drawn for each day; ``lost``: also from day 12."""
    rng, n = np.random.default_rng(seed), days * PER_DAY
    shares = np.zeros((n, len(LAYOUT.columns) - 1), dtype=bool)
    rates = np.repeat([draw(rng) for _ in range(days)], PER_DAY) + lost * (np.arange(n) >= 12 * PER_DAY)
    shares[:, 0] = rng.random(n) < rates
    shares[:, -1] = rng.random(n) < 0.3
    day, none = np.repeat(np.arange(days), PER_DAY), np.zeros((n, 0), dtype=bool)
    confident, paired = rng.random(n) < 0.5, np.arange(n) % 2 == 1
    return EventBatch(day, shares, confident, paired, rng.beta(2, 5, (n, 1)), none, np.full(n, np.nan))


def follow_days(batch, size=None):
    follower = Follower(LAYOUT, FollowSettings(0.05, 365, 7, 0.0))
    pieces = (
        [batch] if size is None else [batch.slice(i, min(i + size, len(batch))) for i in range(0, len(batch), size)]
    )
    for piece in cut_by_day(pieces, LOOK_ROWS):
        follower.follow(piece)
    return follower


def test_the_spread_is_what_its_definition_says():
    batch = varying_days(1, lambda rng: rng.beta(0.95, 30.0), days=9)
    follower = follow_days(batch)
    k = batch.shares[: 7 * PER_DAY, 0].reshape(7, PER_DAY).sum(axis=1).tolist()
    assert follower.sums.spread[0] == pytest.approx(find_spread([PER_DAY] * 7, k)) and follower.sums.spread[0] > 0.0
    counted = np.flatnonzero(follower.sums.spread)
    assert counted[0] == 0 and len(counted) <= 2  # the others are steady


@pytest.mark.parametrize("true", [0.1, 0.05, 0.0])
def test_bets_on_a_day_gain_nothing_for_any_spread_up_to_the_learned_one(true):
    """Over all sequences of a day of the Beta distribution, the expected gain of each bet is at most 1."""
    mean, spread, n = 0.2, 0.1, 8
    strength, own = 1.0 / spread - 1.0, 1e12 if true == 0.0 else 1.0 / true - 1.0
    total = np.zeros(BETS)
    for bits in range(1 << n):
        seen, likely, gain = 0, 1.0, np.ones(BETS)
        for i in range(n):
            value, chance = bits >> i & 1, (mean * own + seen) / (own + i)
            expected = max((mean * strength + seen) / (strength + i), mean)
            likely *= chance if value else 1.0 - chance
            gain *= 1.0 + SHARES * (value / expected - 1.0)
            seen += value
        total += likely * gain
    assert (total <= 1.0 + 1e-9).all()


def test_bets_on_days_are_those_of_single_decisions():
    batch = varying_days(3, lambda rng: rng.beta(0.95, 30.0))
    follower = follow_days(batch.slice(0, 8 * PER_DAY))
    detector = follower._detector
    follower._begin_day(8)
    piece = batch.slice(8 * PER_DAY, 8 * PER_DAY + 60)
    starts = np.arange(0, 60, LOOK_ROWS)
    n, k, changes = follower._count(piece, starts)
    follower._tally(piece, n, k, changes[:, :, 0])
    gains, at = follower._bet_on_days(detector, piece, starts), list(follower._varying).index(0)
    strength, seen, expected = 1.0 / follower.sums.spread[0] - 1.0, 0, np.zeros((len(starts), BETS))
    for i, value in enumerate(piece.shares[:, 0].tolist()):
        likely = max((detector.bounds[0] * strength + seen) / (strength + i), detector.bounds[0])
        expected[i // LOOK_ROWS] += np.log1p(SHARES * (value / likely - 1.0))
        seen += value
    assert gains[:, at] == pytest.approx(expected)


def test_shares_that_merely_vary_raise_no_alarm_and_outages_still_do():
    """Mean 3%, standard deviation 3 points: without the spread, more than half of these replays raise one."""
    varies, steady = (lambda rng: rng.beta(0.95, 30.0)), (lambda rng: 0.03)
    assert sum(bool(follow_days(varying_days(seed, varies)).episodes) for seed in range(20)) <= 1
    assert not any(follow_days(varying_days(seed, steady)).episodes for seed in range(10))
    for draw, lost in ((steady, 0.1), (varies, 0.9)):
        follower = follow_days(varying_days(5, draw, lost))
        assert follower.episodes and follower.episodes[0].raised >= 12
        assert follower.episodes[0].stream.column.name == "a"


def test_batches_change_nothing_where_shares_vary():
    batch = varying_days(7, lambda rng: rng.beta(0.95, 30.0), lost=0.9)
    once = [(episode.raised_at, episode.k, episode.closed) for episode in follow_days(batch).episodes]
    for size in (40, 1000):
        assert [(each.raised_at, each.k, each.closed) for each in follow_days(batch, size).episodes] == once

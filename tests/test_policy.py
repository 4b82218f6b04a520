"""Review policies: the rule equals its slow twin, keeps its promise, and travels as a file."""

import json
import math
from dataclasses import replace

import naive_policy
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.naive_bayes import GaussianNB

import fragility as fg
from fragility.analysis.policy import ReviewPolicy, fit_rule, upper_limit

LEVEL = 1 - 0.05 / 5


def rows_with_rising_risk(n, seed, low=0.004):
    """Scores and labels whose brittle rate rises with the score, and the rate below any threshold."""
    rng = np.random.default_rng(seed)
    scores = rng.random(n)
    rate = np.where(scores < 0.5, low, low + (scores - 0.5))
    return scores, rng.random(n) < rate


def true_rate_below(threshold, low=0.004):
    x = np.linspace(0, min(threshold, 1.0), 4001)
    return float(np.where(x < 0.5, low, low + (x - 0.5)).mean())


@given(
    n=st.integers(20, 400),
    seed=st.integers(0, 10_000),
    risk=st.sampled_from([0.02, 0.05, 0.2]),
    digits=st.sampled_from([1, 2, 6]),
)
@settings(max_examples=40, deadline=None)
def test_the_rule_equals_its_slow_twin(n, seed, risk, digits):
    scores, brittle = rows_with_rising_risk(n, seed)
    scores = scores.round(digits)  # ties
    rule, _ = fit_rule(None, scores, brittle, risk, LEVEL)
    expected = naive_policy.policy(scores.tolist(), brittle.tolist(), risk, 0.95)
    if expected is None:
        assert rule.state == "not attainable" and rule.threshold is None and rule.review_share == 1.0
    else:
        assert rule.threshold == expected[0]
        assert rule.bound == pytest.approx(expected[1], abs=1e-9)
        assert rule.bound <= risk


def test_the_upper_limit_is_the_rate_at_which_so_few_are_rare():
    for k, n in [(0, 10), (3, 50), (7, 7), (0, 0)]:
        assert upper_limit(k, n, LEVEL) == pytest.approx(naive_policy.upper_limit(k, n, LEVEL), abs=1e-9)


@pytest.mark.parametrize("risk", [0.02, 0.05])
def test_the_promise_is_kept(risk):
    broken = 0
    for seed in range(400):
        rule, _ = fit_rule(None, *rows_with_rising_risk(800, seed), risk, LEVEL)
        broken += rule.threshold is not None and true_rate_below(rule.threshold) > risk
    assert broken <= 400 * 0.05  # far fewer in practice: five starts are tested at a fifth of the level each


def test_what_is_not_attainable_says_how_many_rows_would_do():
    rule, _ = fit_rule(None, *rows_with_rising_risk(100, 1, low=0.0), 0.02, LEVEL)
    assert rule.state == "not attainable" and rule.review_share == 1.0
    assert rule.rows_needed is not None and rule.rows_needed > 100
    hopeless, _ = fit_rule(None, np.linspace(0, 1, 100), np.ones(100, dtype=bool), 0.02, LEVEL)
    assert hopeless.rows_needed is None


@pytest.mark.parametrize(
    ("brittle", "share", "rate"),
    [
        (lambda i: i < 0, 1.0, 0.0),  # none: all rows lie below the laxest threshold
        (lambda i: i >= 50, 0.5, 0.0),  # the laxest of the thresholds without a brittle row has half below it
        (lambda i: i % 20 == 10, 0.1, 0.0),
        (lambda i: (i == 0) | (i >= 61), 0.61, 1 / 61),  # the lowest rate is that of the first 61
    ],
)
def test_the_rows_needed_are_as_many_as_the_bound_takes_at_the_lowest_rate(brittle, share, rate):
    rows = np.arange(100)
    rule, _ = fit_rule(None, rows.astype(float), brittle(rows), 0.02, LEVEL)

    def passes(n):
        return naive_policy.upper_limit(math.ceil(rate * n), n, LEVEL) <= 0.02

    fewest = next(n for n in range(1, 10**6) if passes(n)) if rate == 0.0 else round(rule.rows_needed * share)
    assert passes(fewest) and not passes(fewest - 1)
    assert rule.rows_needed == math.ceil(fewest / share)


@pytest.fixture(scope="module")
def labelled():
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = fg.load_credit_g()
    X = X.select_dtypes("number")
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[:300], y[:300])
    protocol = fg.Protocol.fit(model, X[:300])
    stress = fg.Stress(tau_confidence=0.6)
    return model, X, fg.audit(model, X[300:], protocol), fg.label_brittle(model, X[300:], protocol, stress)


def test_it_selects_the_confident_rows_above_the_threshold(labelled):
    _, _, certs, labels = labelled
    policy = ReviewPolicy.fit(certs, labels, risk=0.03)
    assert policy.state == "attained" and policy.threshold in certs.claims.exposure  # whose row is reviewed
    table = certs.to_pandas()
    wanted = table[(table["confidence"] >= 0.6) & (table["exposure"] >= policy.threshold)]
    chosen = policy.select(certs).to_pandas()
    assert set(chosen["id"]) == set(wanted["id"]) and chosen["exposure"].is_monotonic_decreasing
    confident = int((table["confidence"] >= 0.6).sum())
    assert policy.review_share == policy.rule.review_share == pytest.approx(len(chosen) / confident)
    assert "Holds for rows drawn like the labelled ones" in str(policy)


@pytest.mark.samples
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_every_walk_is_tested_at_its_own_level(labelled, parts, confidence):
    """1 - confidence is split over the five starts, and over segments: threshold and bound are those of that level."""
    _, _, certs, labels = labelled
    part = np.array([f"part {own_id % parts}" for own_id in certs.claims.ids])
    segments = dict(zip(certs.claims.ids, part, strict=True)) if parts > 1 else None
    policy = ReviewPolicy.fit(certs, labels, risk=0.05, confidence=confidence, segments=segments)
    assert len(policy.rules) == parts and policy.state == "attained"
    for rule in policy.rules:
        mine = labels.high_confidence & ((part == rule.segment) | (rule.segment is None))
        scores, brittle = certs.claims.exposure[mine], labels.brittle[mine]
        expected = naive_policy.policy(scores.tolist(), brittle.tolist(), 0.05, confidence, parts)
        assert (rule.threshold, rule.bound) == pytest.approx(expected, abs=1e-9)
        below = scores < rule.threshold
        assert (rule.unreviewed, rule.unreviewed_brittle) == (below.sum(), brittle[below].sum())
        assert rule.review_share == pytest.approx(1 - below.mean())
    unreviewed = sum(rule.unreviewed for rule in policy.rules)
    assert policy.review_share == pytest.approx(1 - unreviewed / labels.high_confidence.sum())


@given(n=st.integers(1, 200), seed=st.integers(0, 10_000), digits=st.sampled_from([1, 6]))
@settings(max_examples=20, deadline=None)
def test_a_curve_says_what_each_threshold_would_do(n, seed, digits):
    scores, brittle = rows_with_rising_risk(n, seed)
    scores = scores.round(digits)
    _, curve = fit_rule(None, scores, brittle, 0.05, LEVEL)
    assert list(curve.threshold) == naive_policy.thresholds(scores.tolist())
    for t, share, rate, bound in zip(*(getattr(curve, name) for name in curve.__dataclass_fields__), strict=True):
        below = [b for s, b in zip(scores, brittle, strict=True) if s < t]
        assert share == pytest.approx(1 - len(below) / n)
        assert rate == pytest.approx(sum(below) / len(below) if below else 0.0)
        assert bound == pytest.approx(naive_policy.upper_limit(sum(below), len(below), LEVEL), abs=1e-9)


def test_a_policy_that_cannot_be_had_names_the_scores_by_which_one_can(labelled):
    _, _, certs, labels = labelled
    table = labels.to_arrow()
    sure = table.column("confidence").to_numpy() >= 0.7
    table = table.set_column(table.column_names.index("brittle"), "brittle", [~sure])  # confidence tells them apart
    policy = ReviewPolicy.fit(certs, table, risk=0.05, min_confidence=0.6, by="independent_loss")
    assert policy.state == "not attainable"
    name, share = policy.attained_by[0]
    assert name == "confidence" and "It is attainable by another score: confidence (review" in str(policy)
    other = ReviewPolicy.fit(certs, table, risk=0.05, min_confidence=0.6, by="confidence")
    assert other.state == "attained" and other.review_share <= share + 1e-12 and other.attained_by == ()
    chosen = other.select(certs)
    assert (np.diff(chosen.claims.confidence) >= 0).all() and 0 < len(chosen) < len(certs)
    assert ReviewPolicy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy


def test_a_policy_that_cannot_be_had_reviews_everything(labelled):
    _, _, certs, labels = labelled
    policy = ReviewPolicy.fit(certs, labels, risk=0.0001)
    assert policy.state == "not attainable" and policy.threshold is None
    assert len(policy.select(certs)) == int((certs.claims.confidence >= 0.6).sum())
    assert "ranked by exposure, a rate of" in str(policy) and "not attainable" in str(policy)
    assert policy.attained_by == () and "Nor is it by any other score that was tried: confidence, fds" in str(policy)


def test_rules_within_classes_hold_at_once(labelled):
    _, _, certs, labels = labelled
    policy = ReviewPolicy.fit(certs, labels, risk=0.3, segments="predicted")
    assert {rule.segment for rule in policy.rules} <= {"good", "bad"}
    scores = certs.to_pandas()
    for rule in policy.rules:
        mine = (scores["predicted"] == rule.segment) & (scores["confidence"] >= 0.6)
        brittle = labels.brittle[mine.to_numpy()]
        own = scores["exposure"][mine].to_numpy()
        expected = naive_policy.policy(own.tolist(), brittle.tolist(), 0.3, 0.95, len(policy.rules))
        assert rule.threshold == (None if expected is None else expected[0])
    mapping = dict(zip(certs.claims.ids, scores["predicted"], strict=True))
    declared = ReviewPolicy.fit(certs, labels, risk=0.3, segments=mapping)
    assert [rule.threshold for rule in declared.rules] == [rule.threshold for rule in policy.rules]
    assert declared.select(certs, segments=mapping).claims.ids == policy.select(certs).claims.ids
    with pytest.raises(fg.DataError, match="declared segments"):
        declared.select(certs)


def test_it_is_the_same_after_a_file(labelled, tmp_path):
    _, _, certs, labels = labelled
    for risk in (0.3, 0.0001):
        policy = ReviewPolicy.fit(certs, labels, risk=risk)
        assert ReviewPolicy.load(policy.save(tmp_path / "policy.json")) == policy


def test_another_model_or_protocol_is_refused(labelled):
    model, X, certs, labels = labelled
    policy = ReviewPolicy.fit(certs, labels, risk=0.3)
    other = fg.audit(model, X[300:], fg.Protocol.fit(model, X[:300], depth=3))
    with pytest.raises(fg.DataError, match="another protocol"):
        policy.select(other)


def test_labels_without_a_confident_row_are_refused_by_what_to_change(labelled):
    model, X, certs, _ = labelled
    sure = fg.label_brittle(model, X[300:], certs.protocol, fg.Stress(tau_confidence=0.9999, draws=2))
    with pytest.raises(fg.DataError, match=r"no labelled row is 100% confident.*; label them with a lower Stress\("):
        ReviewPolicy.fit(certs, sure)


def test_labels_of_another_protocol_are_refused_by_what_differs(labelled, tmp_path):
    """A baseline that the certificates did not use breaks other rows; depth and reading do not."""
    model, X, certs, _ = labelled
    stress = fg.Stress(tau_confidence=0.6, draws=2)
    other = fg.label_brittle(model, X[300:], fg.Protocol.fit(model, X[:300], baseline="zero"), stress)
    other.save(tmp_path / "labels.parquet")
    for labels in (other, pq.read_table(tmp_path / "labels.parquet")):
        with pytest.raises(fg.DataError, match=r"different protocols: baseline \(\w+ against zero\)"):
            ReviewPolicy.fit(certs, labels)
        with pytest.raises(fg.DataError, match=r"different protocols: baseline"):
            fg.Report.of(certs, brittle=labels)
    alike = fg.Protocol.fit(model, X[:300], depth=2, reading="current")
    ReviewPolicy.fit(certs, fg.label_brittle(model, X[300:], alike, stress), risk=0.3)
    damaged = other.to_arrow().replace_schema_metadata({"fragility.protocol": "{}"})
    with pytest.raises(fg.DataError, match=r"'fragility\.protocol' is damaged"):
        ReviewPolicy.fit(certs, damaged)


@pytest.mark.parametrize(
    "wrong", [{"risk": 0}, {"risk": 2}, {"confidence": 1.0}, {"by": "beauty"}, {"segments": "region"}]
)
def test_wrong_settings_are_named(labelled, wrong):
    _, _, certs, labels = labelled
    with pytest.raises(fg.FragilityError, match=next(iter(wrong)) if "by" not in wrong else "ranked by"):
        ReviewPolicy.fit(certs, labels, **wrong)


def test_an_infinite_threshold_is_text_in_the_file(labelled, tmp_path):
    _, _, certs, labels = labelled
    policy = ReviewPolicy.fit(certs, labels, risk=0.99)
    assert math.isinf(policy.threshold) and len(policy.select(certs)) == 0
    assert json.loads(policy.save(tmp_path / "p.json").read_text())["rules"][0]["threshold"] == "inf"


# --- by a failure mode --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_mode(labelled):
    """Certificates with a modes block of every row and of 100 confident rows, and labels of wrong values."""
    X, y = labelled[1], fg.load_credit_g()[1]
    model = GaussianNB().fit(X[:500], y[:500])  # confident of many rows
    rows, protocol = X[300:], fg.Protocol.fit(model, X[:500])
    stress = fg.Stress((fg.Donor(),), tau_collapse=0.4)
    labels = fg.label_brittle(model, rows, protocol, stress, donors=X[:500])
    every, some = (fg.audit(model, rows, protocol, lattice=False, modes=modes) for modes in (True, 100))
    return every, some, labels


def scores_of(certs, mode):
    """The exposure to a mode by row, None where a row has none."""
    known = dict(zip(certs.modes.ids, certs.modes[mode].exposure.tolist(), strict=True))
    return [known.get(own_id) for own_id in certs.claims.ids]


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("mode", ["wrong", "noisy", "lost"])
def test_a_failure_mode_orders_rows_like_any_score(by_mode, tmp_path, mode, partial):
    certs, labels = by_mode[partial], by_mode[2]
    policy = ReviewPolicy.fit(certs, labels, risk=0.3, by=mode)
    scores, sure = scores_of(certs, mode), labels.high_confidence.tolist()
    known = [(s, b) for s, b, c in zip(scores, labels.brittle.tolist(), sure, strict=True) if c]
    expected = naive_policy.policy(*zip(*known, strict=True), 0.3, 0.95)
    assert policy.state == "attained" and policy.unscored == (sum(sure) - 100 if partial else 0)
    assert (policy.threshold, policy.bound) == pytest.approx(expected, abs=1e-9)
    chosen = policy.select(certs)
    wanted = naive_policy.reviewed(scores, sure, policy.threshold)
    assert set(chosen.claims.ids) == {own for own, review in zip(certs.claims.ids, wanted, strict=True) if review}
    listed = chosen.score(mode, partial=True)
    assert np.isnan(listed).sum() == policy.unscored and not np.isnan(listed[: len(listed) - policy.unscored]).any()
    assert (np.diff(listed[~np.isnan(listed)]) <= 0).all()
    assert ReviewPolicy.load(policy.save(tmp_path / "policy.json")) == policy
    assert "for the declared stress (donor(0.3))" in str(policy)
    lacking = f"{policy.unscored} labelled confident predictions had none and did not take part"
    assert (lacking in str(policy)) == partial


@given(order=st.randoms(use_true_random=False), cut=st.integers(0, 700))
@settings(max_examples=10, deadline=None)
def test_what_is_reviewed_depends_on_no_other_row(by_mode, order, cut):
    _, some, labels = by_mode
    policy = ReviewPolicy.fit(some, labels, risk=0.3, by="wrong")
    places = list(range(len(some)))
    order.shuffle(places)
    shuffled = some.take(places)
    assert ReviewPolicy.fit(shuffled, labels, risk=0.3, by="wrong") == policy
    parts = [policy.select(part).claims.ids for part in (shuffled[:cut], shuffled[cut:])]
    assert {own for part in parts for own in part} == set(policy.select(some).claims.ids)


def test_rows_without_the_mode_are_refused_where_they_would_mislead(labelled, by_mode):
    _, _, certs, labels = labelled
    _, some, wrong = by_mode
    with pytest.raises(fg.FragilityError, match="what the failure mode 'wrong' costs: audit with modes=True"):
        ReviewPolicy.fit(certs, labels, by="wrong")
    with pytest.raises(fg.DataError, match="no random part of them: only rows of at least 90% confidence"):
        ReviewPolicy.fit(some, wrong.relabel(tau_confidence=0.6), by="wrong")
    others = some.take([i for i, score in enumerate(scores_of(some, "wrong")) if score is None])
    with pytest.raises(
        fg.DataError, match=r"none of the \d+ labelled confident rows has a figure for exposure to wrong"
    ):
        ReviewPolicy.fit(others, wrong, by="wrong")
    plain = replace(ReviewPolicy.fit(certs, labels, risk=0.3), by="wrong")
    with pytest.raises(fg.FragilityError, match="what the failure mode 'wrong' costs"):
        plain.select(certs)


def test_an_opened_folder_is_read_as_certificates_are(labelled, tmp_path):
    _, _, certs, labels = labelled
    stored = fg.open_audit(certs.save(tmp_path / "audit"))
    for by in ("exposure", "confidence"):
        ours = ReviewPolicy.fit(certs, labels, risk=0.03, by=by, segments="predicted")
        assert ReviewPolicy.fit(stored, labels, risk=0.03, by=by, segments="predicted") == ours
        assert ours.select(stored).table == ours.select(certs).table


# --- by rehearsal, and among several scores -----------------------------------------------------------------


def test_a_policy_chooses_among_scores_with_the_level_divided_among_them(labelled, tmp_path):
    _, _, certs, labels = labelled
    names = ("exposure", "rehearsal", "confidence")
    policy = ReviewPolicy.fit(certs, labels, risk=0.3, by=names)
    sure = labels.high_confidence
    shares = {}
    for name in names:
        score, brittle = certs.score(name, labels=labels)[sure], labels.brittle[sure]
        found = naive_policy.policy(score.tolist(), brittle.tolist(), 0.3, 0.95, segments=len(names))
        if found is not None:
            shares[name] = float((score >= found[0]).mean()), found
    best = min(shares, key=lambda name: shares[name][0])
    assert policy.by == best and policy.tried == names
    assert policy.review_share == pytest.approx(shares[best][0])
    assert (policy.threshold, policy.bound) == (shares[best][1][0], pytest.approx(shares[best][1][1]))
    assert f"Ranked by {best}, which of exposure, rehearsal and confidence needs the least review" in str(policy)
    assert ReviewPolicy.load(policy.save(tmp_path / "policy.json")) == policy
    marked = policy.select(certs, labels=labels)
    assert len(marked) == round(policy.review_share * sure.sum())


def test_a_policy_by_rehearsal_asks_for_labels_of_its_stress(labelled):
    model, X, certs, labels = labelled
    policy = ReviewPolicy.fit(certs, labels, risk=0.3, by="rehearsal")
    assert policy.by == "rehearsal" and policy.tried == ("rehearsal",)
    score = certs.score("rehearsal", labels=labels)
    assert len(policy.select(certs, labels=labels)) == int((labels.high_confidence & (score >= policy.threshold)).sum())
    with pytest.raises(fg.FragilityError, match="no part of certificates"):
        policy.select(certs)
    other = fg.label_brittle(model, X[300:], certs.protocol, fg.Stress.at(0.1))
    with pytest.raises(fg.DataError, match="rehearsal is of another stress"):
        policy.select(certs, labels=other)
    guard = fg.Guard(model, certs.protocol, policy=policy)
    marked = [check.review for check in guard.check_rows(X[300:340], ids=list(certs.claims.ids[:40]))]
    chosen = set(policy.select(certs, labels=labels).claims.ids)
    assert marked == [own in chosen for own in certs.claims.ids[:40]]


def test_a_rehearsal_that_is_not_known_to_be_the_policys_own_is_refused(labelled, tmp_path):
    model, X, certs, labels = labelled
    policy = ReviewPolicy.fit(certs, labels, risk=0.3, by="rehearsal")
    table = labels.to_arrow().replace_schema_metadata(None)  # as a .csv file holds them
    with pytest.raises(fg.DataError, match="labels do not say by which stress they were made"):
        policy.select(certs, labels=table)
    with pytest.raises(fg.DataError, match="labels do not say by which stress they were made"):
        ReviewPolicy.fit(certs, table, risk=0.3, by="rehearsal", min_confidence=labels.min_confidence)
    groups = {name: f"g{place // 2}" for place, name in enumerate(certs.protocol.group_names)}
    merged = fg.Protocol.fit(model, X[:300], groups=groups)
    with pytest.raises(fg.DataError, match="made under different protocols"):
        policy.select(certs, labels=fg.label_brittle(model, X[300:], merged))
    others = fg.label_brittle(model, X[: len(certs)], certs.protocol, ids=list(certs.claims.ids))
    with pytest.raises(fg.DataError, match="the ids are those of other rows"):
        policy.select(certs, labels=others)
    stress = fg.Stress(rule="any", tau_collapse=0.4)
    one = fg.label_brittle(model, X[300:], certs.protocol, stress)
    by_any = ReviewPolicy.fit(certs, one, risk=0.9, by="rehearsal")
    assert len(by_any.select(certs, labels=one)) <= len(certs)
    with pytest.raises(fg.DataError, match="rehearsal is of another stress"):
        by_any.select(certs, labels=one.relabel(tau_collapse=0.9))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"by": "fds"}, "is by 'fds', but was chosen among"),
        ({"tried": ["exposure", "exposure"]}, "but was chosen among"),
        ({"tried": ["exposure", "nonsense"]}, "names 'nonsense', which is no score"),
        ({"by": "nonsense", "tried": []}, "names 'nonsense', which is no score"),
    ],
)
def test_policy_files_with_scores_that_no_fit_gives_are_refused(labelled, change, sentence):
    _, _, certs, labels = labelled
    document = ReviewPolicy.fit(certs, labels, risk=0.3, by=("exposure", "confidence")).to_dict()
    document |= {"by": "exposure"} | change
    with pytest.raises(fg.DataError, match=sentence):
        ReviewPolicy.from_dict(document)


@pytest.mark.parametrize("names", [(), ("fds", "fds"), ("exposure", "fds", "rcma", "confidence", "rehearsal")])
def test_one_to_four_different_scores_are_tried(labelled, names):
    _, _, certs, labels = labelled
    with pytest.raises(fg.DataError, match="among 1 to 4 different scores"):
        ReviewPolicy.fit(certs, labels, by=names)

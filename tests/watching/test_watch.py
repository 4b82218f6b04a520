"""Watch: logs, dated audits and replayed tables give the figures they hold, and alarms where something failed."""

import datetime as dt
import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from naive_watching import expected_loss, loss_by_sets
from sklearn.linear_model import LogisticRegression
from small_audits import small_audit, whole_numbers
from watched_logs import START, day_rows, served_model, write_log

import fragility as fg
from fragility.apps.serving.log import read_events
from fragility.apps.watching.events import (
    EventBatch,
    code_classes,
    cut_by_day,
    days_of,
    find_repeats,
    group_fields,
    spread_lists,
)
from fragility.apps.watching.findings import LossTable, count_single_losses, tabulate_losses
from fragility.apps.watching.following import LOOK_ROWS
from fragility.base.errors import CertificateError


def figures(found, measure, name=None):
    return next(each for each in found.watched if (each.measure, each.name) == (measure, name))


# --- the log ------------------------------------------------------------------------------------------------


def test_the_figures_are_those_of_the_events(broken_log):
    found = fg.watch(broken_log)
    events = pd.concat([batch.to_pandas() for batch in read_events(broken_log)])
    events["day"] = events["time"].dt.date
    assert found.days == tuple(START.date() + dt.timedelta(days=day) for day in range(14))
    assert found.decisions == tuple(events.groupby("day").size()) and sum(found.decisions) == 2800
    by_day = events.groupby("day")
    expected = by_day["exposure"].mean().to_numpy()
    assert [each.value for each in figures(found, "exposure").days] == pytest.approx(expected)
    gone = events["missing"].map(lambda names: "income" in names)
    shares = gone.groupby(events["day"]).mean().to_numpy()
    assert [each.value for each in figures(found, "missing", "income").days] == pytest.approx(shares)
    confident = events[events["confidence"] >= 0.9]
    early = (confident["flip_budget"] <= 2).groupby(confident["day"]).mean().to_numpy()
    assert [each.value for each in figures(found, "flips_early").days] == pytest.approx(early)
    told = figures(found, "decision", "repaid").days
    assert [each.value for each in told] == pytest.approx(
        (events["decision"] == "repaid").groupby(events["day"]).mean().to_numpy()
    )
    odd = events["missing"].map(len) + events["stale"].map(len) > 0
    assert found.without == tuple(odd.groupby(events["day"]).sum())
    assert sum(found.changed) == pytest.approx(events["p_change"].sum())
    for each in found.watched:
        for figure in (*each.days, each.recent):
            assert figure.lower <= figure.value <= figure.upper


def test_an_outage_raises_an_alarm_that_names_field_day_and_decisions(broken_log):
    found = fg.watch(broken_log)
    assert not found and len(found.open_alarms) == 1
    (alarm,) = found.open_alarms
    assert (alarm.measure, alarm.name, alarm.direction) == ("missing", "income", "up")
    first = START.date() + dt.timedelta(days=9)
    assert first <= alarm.day <= first + dt.timedelta(days=1) and alarm.since >= first - dt.timedelta(days=1)
    assert 1800 < alarm.decision_number <= 2200
    events = pd.concat([batch.to_pandas() for batch in read_events(broken_log)])
    gone = int(events["missing"].map(len).sum())
    assert gone - 3 <= alarm.affected <= gone and alarm.changed == pytest.approx(0.25 * alarm.affected)
    assert f"income is missing: raised on {alarm.day}" in alarm.sentence()
    assert f"{alarm.affected} decisions made without it, about " in alarm.sentence()


def test_an_alarm_ends_when_the_values_are_back(broken_log):
    found = fg.watch(broken_log)
    (stale,) = [alarm for alarm in found.alarms if alarm.measure == "stale"]
    assert stale.name == "debt" and not stale.is_open
    assert START.date() + dt.timedelta(days=9) <= stale.closed <= START.date() + dt.timedelta(days=11)
    assert stale.changed == pytest.approx(0.25 * stale.affected)
    assert "1 earlier alarm ended by now" in found.to_text()
    assert f"{stale.decision_number:,}" in found.to_text(replay=True) and str(stale.closed) in found.to_text(
        replay=True
    )


def test_without_p_change_the_importance_says_how_many_would_change(tmp_path):
    log = write_log(tmp_path / "log", days=10, outage=("debt", 8, 0.2, 99), chance=None)
    (alarm,) = fg.watch(log).alarms
    table = count_single_losses(fg.open_audit(sorted((log / "audits").iterdir())[0]))
    assert alarm.changed == pytest.approx(alarm.affected * table.importance[table.groups.index("debt")])


def test_a_quiet_log_raises_none(quiet_log):
    found = fg.watch(quiet_log)
    assert found and found.alarms == () and "no open alarm" in found.to_text()
    assert found.loss.per_day == 0.0 and set(found.rates.values()) == {0.0}


def test_parts_and_batches_change_nothing(broken_log, tmp_path, monkeypatch):
    whole = fg.watch(broken_log).to_dict()
    monkeypatch.setattr("fragility.apps.watching.sources.BATCH_VALUES", 170 * 27)
    again = fg.watch(broken_log).to_dict()
    assert again["alarms"] == whole["alarms"] and again["days"] == whole["days"]
    for one, other in zip(whole["watched"], again["watched"], strict=True):
        for a, b in zip(one["days"], other["days"], strict=True):
            assert a == pytest.approx(b, rel=1e-9)


def test_the_reference_is_not_complete_at_first(quiet_log):
    found = fg.watch(quiet_log, reference_days=20)
    assert found and not found.is_watching
    assert "the reference is not complete (day 14 of 20), no alarm can be raised yet" in found.to_text()
    assert found.to_dict()["watched"][0]["reference"] is None and "<html" in found.to_html()


def test_declared_rates_and_an_allowance_move_the_bound(broken_log):
    tolerated = fg.watch(broken_log, rates={"income": 0.12})
    assert not [alarm for alarm in tolerated.alarms if alarm.name == "income"]
    assert figures(tolerated, "missing", "income").reference == 0.12
    assert not fg.watch(broken_log, allowance=0.3).alarms
    everything = fg.watch(broken_log, rates=0.0)
    assert {alarm.name for alarm in everything.alarms if alarm.measure == "missing"} == {"income"}


def test_a_released_audit_is_the_reference_of_certificates(quiet_log):
    model, protocol, names = served_model()
    same = fg.audit(model, day_rows(99, 2000, names), protocol, progress=False, lattice=False)
    found = fg.watch(quiet_log, released=same)
    assert figures(found, "exposure").reference == pytest.approx(float(same.claims.exposure.mean()))
    assert figures(found, "missing", "income").reference == 0.0 and found
    solid = same.take(np.argsort(same.claims.exposure)[:800].tolist())
    worse = fg.watch(quiet_log, released=solid)
    assert any((alarm.measure, alarm.direction) == ("exposure", "up") for alarm in worse.open_alarms)
    told = next(alarm for alarm in worse.alarms if alarm.measure == "exposure").sentence()
    assert told.startswith("mean exposure: raised on 2026-03-") and "decisions made since" in told
    _, other, _ = served_model({"income": "salary"})
    with pytest.raises(fg.DataError, match="the released audit was made under another protocol"):
        renamed, protocol, names = served_model({"income": "salary"})
        fg.watch(quiet_log, released=fg.audit(renamed, day_rows(0, 5, names), other, progress=False, lattice=False))


def test_values_outside_the_training_range_are_counted(tmp_path):
    model, protocol, names = served_model()
    rows = pd.concat([day_rows(day, 200, names) for day in range(12)], ignore_index=True)
    rows["at"] = np.repeat(pd.date_range("2026-05-01", periods=12), 200)
    late = rows["at"] >= "2026-05-09"
    struck = late & (np.random.default_rng(0).random(len(rows)) < 0.1)
    rows.loc[struck, "age"] = -999.0
    found = fg.watch(rows, time="at", model=model, protocol=protocol)
    alarm = next(alarm for alarm in found.alarms if alarm.measure == "out_of_range")
    assert alarm.name == "age" and alarm.day == dt.date(2026, 5, 9) and alarm.changed is None
    assert "decisions made on such a value" in alarm.sentence()


def test_a_frozen_field_repeats_its_value():
    model, protocol, names = served_model()
    rows = pd.concat([day_rows(day, 150, names) for day in range(10)], ignore_index=True)
    rows["at"] = np.repeat(pd.date_range("2026-05-01", periods=10), 150)
    rows.loc[8 * 150 :, "tenure"] = rows["tenure"].iloc[8 * 150 - 1]
    found = fg.watch(rows, time="at", model=model, protocol=protocol)
    alarm = next(alarm for alarm in found.alarms if alarm.measure == "repeated")
    assert (alarm.name, alarm.day, alarm.value) == ("tenure", dt.date(2026, 5, 9), 1.0)
    assert alarm.decisions >= 300 - 2 * LOOK_ROWS and alarm.affected == round(alarm.decisions * (1 - alarm.reference))
    assert "tenure repeats the value before: raised on 2026-05-09; 100% since" in alarm.sentence()
    assert f"{alarm.affected} decisions more than in the reference hold the value before them" in alarm.sentence()
    values = rows["debt"].to_numpy()[: 7 * 150]
    assert figures(found, "repeated", "debt").reference == pytest.approx((values[1::2] == values[::2]).mean())


def test_only_pairs_that_do_not_overlap_and_are_there_count_as_repeated():
    codes = [np.array([1, 1, 1, 1, -1, -1, 2, 3, 3]), np.array([0, 0, 0, 0, 0, 0, 0, 0, 0])]
    missing = np.zeros((9, 2), dtype=bool)
    missing[3, 1] = True
    found = find_repeats(codes, missing)
    assert np.flatnonzero(found[:, 0]).tolist() == [1, 3] and np.flatnonzero(found[:, 1]).tolist() == [1, 5, 7]


def test_earlier_protocols_of_a_log_are_left_out_and_said(tmp_path):
    folder = write_log(tmp_path / "log", days=2, rows=60)
    write_log(folder, days=9, rows=60, rename={"income": "salary"})
    found = fg.watch(folder)
    assert sum(found.decisions) == 540 and "left out" in found.notes[0] and found.notes[0] in found.to_text()
    assert figures(found, "missing", "salary") and len(found.models) == 1


# --- expected losses ----------------------------------------------------------------------------------------


def test_losses_match_their_twin_and_are_exact_for_one_rate():
    importance, r0 = np.array([0.2, 0.05, 0.4]), np.array([0.1, 0.0, 0.02])
    table = LossTable(("a", "b", "c"), r0, 0.03, importance, 10, "")
    for rates in ([0.1, 0.0, 0.02], [0.5, 0.1, 0.0], [1.0, 1.0, 1.0]):
        twin = expected_loss(rates, r0, 0.03, importance)
        assert table.expect(np.array(rates)) == pytest.approx(twin)
    flips = [0, 1, 0, 1, 0, 1, 1, 1]  # by set: {a} flips, {b, c} flips
    base = [0.1, 0.2, 0.3]
    exact = loss_by_sets(base, flips)
    slopes = [
        loss_by_sets([1.0 if g == h else r for h, r in enumerate(base)], flips)
        - loss_by_sets([0.0 if g == h else r for h, r in enumerate(base)], flips)
        for g in range(3)
    ]
    table = LossTable(("a", "b", "c"), np.array(base), exact, np.array(slopes), 1, "")
    for g in range(3):
        rates = np.array(base)
        rates[g] = 0.77
        assert table.expect(rates) == pytest.approx(loss_by_sets(rates, flips))


def test_losses_come_from_a_reliability_table_or_from_certificates(broken_log, tmp_path):
    model, protocol, names = served_model()
    rows = day_rows(50, 400, names)
    reliability = fg.assess_reliability(model, rows, protocol, 0.01, progress=False)
    reliability.save(tmp_path / "lost.json")
    given = fg.watch(broken_log, reliability=reliability)
    read = fg.watch(broken_log, reliability=tmp_path / "lost.json")
    assert given.loss.per_day == pytest.approx(read.loss.per_day) and given.loss.source == "a reliability table"
    rates = given.rates
    assert rates["income"] == pytest.approx(figures(given, "missing", "income").recent.value, abs=1e-9)
    exact = fg.assess_reliability(model, rows, protocol, rates, progress=False).lost / len(rows)
    assert given.loss.share == pytest.approx(exact, rel=0.1)
    plain = fg.watch(broken_log).loss
    assert [each.group for each in plain.groups[:2]] == ["debt", "income"] and plain.source.startswith(
        "the certificates"
    )
    twin = expected_loss([each.rate for each in plain.groups], [0] * 6, 0, [each.importance for each in plain.groups])
    assert plain.share == pytest.approx(twin) and plain.per_day == pytest.approx(200 * twin)
    assert plain.by_day[0] == 0.0 < plain.by_day[-1]


def test_one_group_flips_what_the_certificates_say():
    certs = small_audit(300)
    table = count_single_losses(certs)
    first = certs.claims.path[:, 0]
    flips = certs.claims.path_predicted[:, 1] != certs.claims.predicted
    for g in range(len(table.groups)):
        # whoever is lost first flips at the first step of the path
        assert table.importance[g] >= flips[first == g].sum() / len(certs) - 1e-12
    drops = certs.claims.margin[:, None] - certs.claims.one_step_drop
    assert table.importance == pytest.approx((drops < -certs.protocol.resolution).mean(axis=0))
    assert count_single_losses(small_audit(20, reading="current")) is None


def test_reliability_of_something_else_is_refused(broken_log, tmp_path):
    model, protocol, names = served_model()
    rows = day_rows(50, 40, names)
    outages = fg.Outages.from_events([["income"], ["debt"]])
    of_events = fg.assess_reliability(model, rows, protocol, outages, progress=False)
    with pytest.raises(fg.DataError, match="recorded outages, which have no importance per group"):
        fg.watch(broken_log, reliability=of_events)
    renamed, other, names = served_model({"income": "salary"})
    foreign = fg.assess_reliability(renamed, day_rows(50, 40, names), other, 0.01, progress=False)
    with pytest.raises(fg.DataError, match="of other evidence groups than the watched decisions"):
        fg.watch(broken_log, reliability=foreign)
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(fg.DataError, match="expected a reliability analysis of format"):
        fg.watch(broken_log, reliability=tmp_path / "other.json")
    with pytest.raises(fg.DataError, match="cannot read the reliability analysis"):
        fg.watch(broken_log, reliability=tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(fg.DataError, match="is not valid JSON"):
        fg.watch(broken_log, reliability=tmp_path / "bad.json")
    found = fg.assess_reliability(model, rows, protocol, 0.01, progress=False)
    silent = replace(found, importance=np.full_like(found.importance, np.nan))
    with pytest.raises(fg.DataError, match="says nothing of 'income', which never fails in it"):
        tabulate_losses(silent, protocol.group_names)


# --- dated audits -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def months():
    """Four audits of 600 rows; the last model was trained on few rows."""
    rows, rng = whole_numbers(1000, 3), np.random.default_rng(0)
    truth = (rows @ np.array([0.5, -0.75, 0.25, 0.125, 0.0625, 0.0]) + rng.normal(0, 1, 1000) > 0).astype(int)
    first = LogisticRegression().fit(rows, truth)
    protocol = fg.Protocol.fit(first, rows)
    narrow = LogisticRegression(C=50.0).fit(rows[["income"]].reindex(columns=rows.columns, fill_value=0.0), truth)
    audits = [
        fg.audit(model, whole_numbers(600, 10 + month), protocol, progress=False, lattice=False)
        for month, model in enumerate([first, first, first, narrow])
    ]
    return audits


def test_dated_audits_are_watched_by_their_certificates(months, tmp_path):
    folders = [tmp_path / f"audit-2026-0{month}-28" for month in (1, 2, 3, 4)]
    for audit, folder in zip(months, folders, strict=True):
        audit.save(folder)
    found = fg.watch(list(reversed(folders)))
    assert found.days == tuple(dt.date(2026, month, 28) for month in (1, 2, 3, 4))
    assert found.decisions == (600,) * 4 and found.loss is None and len(found.models) == 2
    assert {alarm.day for alarm in found.alarms} == {dt.date(2026, 4, 28)} and not found
    assert {each.measure for each in found.watched} == {"exposure", "flips_early", "decision"}
    same = fg.watch(months, dates=["2026-01-28", "2026-02-28", "2026-03-28", "2026-04-28"])
    assert same.to_dict() == found.to_dict()
    assert fg.watch(months[:3], dates=[dt.date(2026, 1, day) for day in (3, 2, 1)])
    quiet = fg.watch(folders[0])
    assert quiet and not quiet.is_watching


def test_audits_with_rates_are_watched_by_what_they_lose():
    rows = whole_numbers(300, 3)
    model, protocol, names = served_model()
    audits = [
        fg.audit(model, whole_numbers(150, 20 + i).set_axis(names, axis=1), protocol, rates=0.1, progress=False)
        for i in range(2)
    ]
    found = fg.watch(audits, dates=["2026-01-01", "2026-02-01"])
    expected = float(audits[1].to_pandas()["failure_probability"].mean())
    assert figures(found, "lost").days[1].value == pytest.approx(expected) and len(rows) == 300


# --- replay -------------------------------------------------------------------------------------------------


def test_a_replayed_table_is_what_its_log_would_say():
    model, protocol, names = served_model()
    rows = pd.concat([day_rows(day, 150, names) for day in range(12)], ignore_index=True)
    rows["at"] = np.repeat(pd.date_range("2026-05-01 23:00", periods=12, tz="UTC"), 150)
    gone = (rows.index >= 9 * 150) & (np.random.default_rng(1).random(len(rows)) < 0.12)
    rows.loc[gone, "debt"] = np.nan
    shuffled = rows.sample(frac=1, random_state=0)
    found = fg.watch(shuffled, time="at", model=model, protocol=protocol)
    assert found.days[0] == dt.date(2026, 5, 1) and found.decisions == (150,) * 12
    alarm = next(alarm for alarm in found.alarms if alarm.measure == "missing")
    assert (alarm.name, alarm.day) == ("debt", dt.date(2026, 5, 10))
    checks = fg.Guard(model, protocol).check_rows(rows.loc[gone, names].reset_index(drop=True))
    assert sum(found.changed) == pytest.approx(sum(check.p_change for check in checks))
    as_text = rows.assign(at=rows["at"].dt.strftime("%Y-%m-%dT%H:%M:%S+02:00"))
    assert fg.watch(as_text, time="at", model=model, protocol=protocol).days[0] == dt.date(2026, 5, 1)


# --- refusals -----------------------------------------------------------------------------------------------


def test_what_cannot_be_watched_is_refused_in_a_sentence(quiet_log, months, tmp_path):
    model, protocol, names = served_model()
    rows = day_rows(0, 5, names).assign(at=pd.Timestamp("2026-01-01"), n=1, gap=[None, *["2026-01-01"] * 4])
    rows["odd"] = "soon"
    months[0].save(tmp_path / "audit")
    months[0].save(tmp_path / "2026-13-45")
    months[0].save(tmp_path / "a-2026-01-01")
    months[1].save(tmp_path / "b-20260101")
    (tmp_path / "empty").mkdir()
    other = small_audit(30, classes=3)
    replay = {"model": model, "protocol": protocol}
    refusals = [
        ([], {}, "at least one audit folder or log was expected, got none"),
        (
            3,
            {},
            "an audit, its folder or a log was expected, got int; for rows to replay, name their time column with time",
        ),
        (tmp_path / "empty", {}, "is neither an audit folder nor a log of `fragility serve`"),
        (tmp_path / "audit", {}, "has no date such as 2026-11-18 in its name; give the dates with dates"),
        (tmp_path / "2026-13-45", {}, "has no date such as 2026-11-18 in its name"),
        (months[0], {}, "an audit in memory has no date"),
        (months, {"dates": ["2026-01-01"]}, "one date per audit was expected: 4 audits, 1 dates"),
        (months[:1], {"dates": ["tomorrow"]}, "a date such as 2026-11-18 was expected, got 'tomorrow'"),
        ([tmp_path / "a-2026-01-01", tmp_path / "b-20260101"], {}, "two audits are dated 2026-01-01"),
        ([months[0], other], {"dates": ["2026-01-01", "2026-01-02"]}, "a model with other classes than the first one"),
        ([quiet_log, months[0]], {}, "is a log, which is watched by itself"),
        (quiet_log, {"dates": ["2026-01-01"]}, "a log knows the time of each decision; leave out dates"),
        (quiet_log, {"alpha": 0}, "alpha must lie between 0 and 1, got 0"),
        (quiet_log, {"horizon": 0}, "horizon must be a whole number of days, at least 1, got 0"),
        (quiet_log, {"reference_days": 1.5}, "reference_days must be a whole number of days, at least 1, got 1.5"),
        (quiet_log, {"allowance": -1}, "allowance must be at least 0 and below 1, got -1"),
        (quiet_log, {"rates": {"salary": 0.1}}, "rates name 'salary', which is no field; known are income"),
        (quiet_log, {"rates": {"income": 2}}, "the rate of 'income' must be a number from 0 to 1, got 2"),
        (quiet_log, {"model": model}, "a model and a protocol are for rows to replay"),
        (quiet_log, {"released": other}, "the released audit is of a model with other classes"),
        (
            months[:1],
            {"dates": ["2026-01-01"], "rates": 0.1},
            "rates are of missing fields, which audits do not record",
        ),
        (months[:1], {"dates": ["2026-01-01"], "reliability": {}}, "a reliability result is for the rates of missing"),
        (rows, {"time": "at"}, "rows are replayed as a model decides them; give model and protocol"),
        (rows, {"time": "when", **replay}, "the rows have no column 'when'; name the one that says when"),
        (rows.drop(columns="income"), {"time": "at", **replay}, "no column 'income', which is a field of the protocol"),
        (rows, {"time": "n", **replay}, "the column 'n' holds numbers; times, dates or texts"),
        (rows, {"time": "odd", **replay}, "the column 'odd' holds something that is no time"),
        (rows, {"time": "gap", **replay}, "row 0 has no time in the column 'gap'"),
        (rows[:0], {"time": "at", **replay}, "at least one"),
    ]
    for source, settings, sentence in refusals:
        with pytest.raises(fg.FragilityError) as error:
            fg.watch(source, **settings)
        assert sentence in str(error.value)


def test_damaged_logs_are_refused(tmp_path):
    folder = write_log(tmp_path / "log", days=2, rows=50)
    part = next((folder / "events").rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(fg.FragilityError, match="part"):
        fg.watch(folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "log.json").write_text((folder / "log.json").read_text())
    with pytest.raises(fg.DataError, match="has no sealed rows yet; watch it again later"):
        fg.watch(empty)
    (empty / "log.json").write_text('{"format": "other"}')
    with pytest.raises(CertificateError, match="has format 'other'"):
        fg.watch(empty)


def test_events_that_contradict_their_protocol_are_refused():
    with pytest.raises(
        fg.DataError, match="a decision is for 'maybe', which is no class of the model; known are no, y"
    ):
        code_classes(pa.array(["no", "maybe"]), ("no", "yes"))
    with pytest.raises(fg.DataError, match="the log calls 'salary' missing, which is no field of its protocol"):
        spread_lists(pa.array([["income"], ["salary"]]), ("income",), "missing")
    with pytest.raises(fg.DataError, match="the log has a decision without a time"):
        days_of(pa.array([dt.datetime(2026, 1, 1), None], pa.timestamp("us")))
    for labels in ([0, 1], [False, True], [0.5, 1.0], ["no", "yes"]):
        decided = [labels[1], labels[0], labels[1]]
        for given in (decided, pa.array(decided), pa.chunked_array([decided[:1], decided[1:]])):
            assert code_classes(given, tuple(map(str, labels))).tolist() == [1, 0, 1]
    lists = pa.array([["b"], None, [], ["a", "b"]])
    assert spread_lists(lists, ("a", "b"), "stale").tolist() == [[0, 1], [0, 0], [0, 0], [1, 1]]


def test_the_groups_of_fields_are_those_of_the_protocol():
    rows = whole_numbers(100, 0)
    model = LogisticRegression().fit(rows, rows["income"] > 0)
    groups = {"money": ["income", "debt"]}
    protocol = fg.Protocol.fit(model, rows, groups=groups, space="raw")
    assert group_fields(protocol)[0] == ("money", (0, 1)) and ("age", (2,)) in group_fields(protocol)
    past = whole_numbers(400, 1).assign(at=np.repeat(pd.date_range("2026-01-01", periods=8), 50))
    past.loc[380:, ["income", "debt"]] = np.nan
    found = fg.watch(past, time="at", model=model, protocol=protocol, reference_days=5, window=1)
    assert found.rates["money"] == pytest.approx(20 / 50) and found.without[-1] == 20


# --- looks --------------------------------------------------------------------------------------------------


def test_looks_do_not_depend_on_how_decisions_were_batched():
    rng = np.random.default_rng(2)
    days = np.sort(rng.integers(0, 6, 400))
    days[100] = 0  # recorded late: counts for the day of those before it
    n = len(days)
    whole = EventBatch(
        days,
        rng.random((n, 3)) < 0.5,
        np.ones(n, bool),
        np.ones(n, bool),
        rng.random((n, 1)),
        np.zeros((n, 0), bool),
        rng.random(n),
    )

    def blocks(batches):
        found = []
        for piece in cut_by_day(batches, LOOK_ROWS):
            assert len(set(piece.day.tolist())) == 1
            found += [
                (int(piece.day[0]), piece.means[i : i + LOOK_ROWS, 0].tolist()) for i in range(0, len(piece), LOOK_ROWS)
            ]
        return found

    once = blocks([whole])
    assert sum(len(values) for _, values in once) == n and [day for day, _ in once] == sorted(day for day, _ in once)
    for size in (1, 7, 25, 60, 399):
        assert blocks(whole.slice(i, min(i + size, n)) for i in range(0, n, size)) == once


def test_the_result_is_plain_data(broken_log, tmp_path):
    found = fg.watch(broken_log)
    for name in ("watch.json", "watch.html", "watch.prom", "watch.txt"):
        assert found.save(tmp_path / name) == tmp_path / name
    assert json.loads((tmp_path / "watch.json").read_text()) == found.to_dict()
    assert (tmp_path / "watch.txt").read_text() == found.to_text() + "\n"
    with pytest.raises(fg.DataError, match=r"must end in .html or .md or .json or .prom or .txt"):
        found.save(tmp_path / "watch.pdf")
    assert math.isclose(found.to_dict()["settings"]["alpha"], 0.05)

"""Watch under bad luck: damaged events, clocks that are set back, servers that write meanwhile, nothing confident."""

import datetime as dt
import itertools
import json
import math
import os
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_audits import declared_model, small_audit, whole_numbers
from watched_logs import START, day_rows, served_model, write_log

import fragility as fg
from fragility.apps.watching import sources
from fragility.apps.watching.events import EventBatch, EventLayout, cut_by_day, find_out_of_time
from fragility.apps.watching.following import LOOK_ROWS, Follower, FollowSettings
from fragility.audits.parts import short_digest
from fragility.base.errors import CertificateError


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("exposure", math.nan, "the log has a decision with no exposure; a number from 0 to 1 was expected"),
        ("exposure", None, "the log has a decision with no exposure"),
        ("exposure", 5.0, "the log has a decision with exposure 5; a number from 0 to 1 was expected, restore the log"),
        ("confidence", None, "the log has a decision with no confidence"),
        ("p_change", math.inf, "the log has a decision with p_change inf"),
        ("flip_budget", None, "the log has a decision with no flip_budget; restore the log"),
        ("decision", None, "the log has an event without a decision; restore the log"),
        ("time", -(10**18), "the log has a decision outside the years 1 to 9999"),
    ],
)
def test_events_that_hold_nonsense_are_refused(tmp_path, column, value, sentence):
    log = write_log(tmp_path / "log", days=9, rows=30, change=(column, value))
    with pytest.raises(fg.DataError) as refusal:
        fg.watch(log)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("kind", ["events", "rows"])
def test_parts_with_other_columns_are_refused(tmp_path, kind):
    log = write_log(tmp_path / "log", days=4, rows=100)
    part = min((log / kind).rglob("part-00000-*.parquet"))
    table = pq.read_table(part)
    name = "exposure" if kind == "events" else "income"
    as_text = table.set_column(table.schema.get_field_index(name), name, pa.array(["x"] * len(table)))
    for foreign in (pa.table({"a": [1]}), as_text):
        shutil.copytree(log, tmp_path / "copy")
        home = tmp_path / "copy" / part.parent.relative_to(log)
        (home / part.name).unlink()
        sink = pa.BufferOutputStream()
        pq.write_table(foreign, sink)
        data = bytes(sink.getvalue())
        (home / f"part-00000-{short_digest(data)}.parquet").write_bytes(data)
        with pytest.raises(CertificateError, match=r"part 0 of .* has other columns than those of a log; restore"):
            fg.watch(tmp_path / "copy")
        shutil.rmtree(tmp_path / "copy")


def test_a_clock_that_is_set_back_is_told(tmp_path):
    """By a day, as around midnight; a day that contradicts the others is set aside."""
    times = [START + dt.timedelta(days=day) for day in (0, 1, 400, 2, 1, 3)]
    found = fg.watch(write_log(tmp_path / "log", days=6, rows=40, times=times), reference_days=2)
    assert found.decisions == (40, 40, 80, 40) and found.days[-1] == START.date() + dt.timedelta(days=3)
    assert found.notes[:2] == (
        "Set aside, because their day contradicts the decisions around them: 40 decisions (40 of 2027-04-05). "
        "Was a clock wrong?",
        "Recorded after a decision of a later day, and counted for that day: 40 decisions.",
    )
    for note in found.notes:
        assert note in found.to_text() and note in found.to_html()


def test_one_wrong_clock_does_not_silence_all_that_follows(tmp_path):
    """One decision is dated 2031; the outage that begins after it is found as if it had not been there."""
    outage = ("income", 9, 0.2, 99)
    times = [START + dt.timedelta(days=day) for day in range(12)]
    plain = fg.watch(write_log(tmp_path / "plain", days=12, rows=150, times=times, outage=outage))
    wrong = [*times[:4], dt.datetime(2031, 5, 1, tzinfo=dt.UTC), *times[5:]]
    early = [*times[:4], dt.datetime(1970, 1, 2, tzinfo=dt.UTC), *times[5:]]
    assert [alarm.name for alarm in plain.open_alarms] == ["income"]
    for name, clock in (("2031-05-01", wrong), ("1970-01-02", early)):
        found = fg.watch(write_log(tmp_path / name, days=12, rows=150, times=clock, outage=outage))
        assert [(alarm.name, alarm.day) for alarm in found.open_alarms] == [("income", plain.alarms[0].day)]
        assert found.days == tuple(day for day in plain.days if day != times[4].date())
        assert f"150 decisions (150 of {name}). Was a clock wrong?" in found.notes[0]


def naive_kept(days, counts):
    """The heaviest choice of runs whose days do not fall, by trying them all."""
    best = (-1, ())
    for chosen in itertools.product([False, True], repeat=len(days)):
        kept = [day for day, own in zip(days, chosen, strict=True) if own]
        if kept == sorted(kept):
            best = max(best, (sum(c for c, own in zip(counts, chosen, strict=True) if own), chosen))
    return best[0]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=9))
def test_as_many_decisions_as_possible_are_kept_in_time(runs):
    days, counts = (np.array(each, dtype=np.int64) for each in zip(*runs, strict=True))
    out = find_out_of_time(days * 10, counts)  # no two days are neighbours
    kept = (days * 10)[~out]
    assert kept.tolist() == sorted(kept.tolist())
    assert counts[~out].sum() == naive_kept(days.tolist(), counts.tolist())
    near = find_out_of_time(days, counts)
    assert counts[~near].sum() >= counts[~out].sum()


def move_away(log, number):
    for kind in ("audits", "rows", "events"):
        (log / kind / number).rename(log.parent / f"{kind}-{number}")


def test_the_reference_stays_when_the_oldest_audit_folder_is_moved_away(tmp_path):
    """Else the days of an outage that are left would become what later days are compared with."""
    log = write_log(tmp_path / "log", days=14, rows=200, outage=("income", 5, 0.3, 99))
    before = fg.watch(log, reference_days=4)
    (alarm,) = before.open_alarms
    said = "Reference: 2026-03-01 to 2026-03-04, 800 decisions, kept in watch.json of the log."
    assert said in before.notes and said in before.to_html()
    again = fg.watch(log, reference_days=4)
    assert again.to_dict() == before.to_dict()
    move_away(log, "000001")
    found = fg.watch(log, reference_days=4)
    assert [(own.name, own.reference) for own in found.open_alarms] == [("income", alarm.reference)]
    assert found.days[0] > dt.date(2026, 3, 4) and found.is_watching and said in found.notes
    assert "2026-03-01 to 2026-03-04, 800 decisions" in found.to_html()


def test_without_a_kept_reference_a_log_that_lacks_its_beginning_is_refused(tmp_path):
    log = write_log(tmp_path / "log", days=14, rows=200, outage=("income", 5, 0.3, 99))
    move_away(log, "000001")
    with pytest.raises(
        fg.DataError, match=r"audit folders of .*log before 000002 were moved away, and no reference of their days is"
    ):
        fg.watch(log)
    found = fg.watch(log, reference_days=2)  # said so
    assert any("Reference: " in note for note in found.notes)


def test_references_of_other_kinds_are_kept_beside_each_other(tmp_path):
    log = write_log(tmp_path / "log", days=9, rows=40)
    for days in (2, 3):
        fg.watch(log, reference_days=days)
    assert len(json.loads((log / "watch.json").read_text())["references"]) == 2
    for text, told in (
        ("{", "cannot read the reference .*watch.json: .*; restore it, or remove it to set it anew"),
        ('{"format": "other/9"}', "it has format 'other/9', this version reads 'fragility-watch/1'"),
        ('{"format": "fragility-watch/1", "references": [{}]}', "a reference lacks what it is for"),
    ):
        (log / "watch.json").write_text(text)
        with pytest.raises(fg.DataError, match=told):
            fg.watch(log)


@pytest.mark.skipif(os.name != "posix", reason="there are no such permissions there")
def test_a_reference_that_cannot_be_kept_is_told(tmp_path, monkeypatch):
    def fail(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("fragility.apps.watching.following.write_text", fail)
    found = fg.watch(write_log(tmp_path / "log", days=4, rows=40), reference_days=2)
    assert "which cannot be kept in" in found.notes[-1] and "Permission denied" in found.notes[-1]


def test_an_audit_folder_that_is_begun_meanwhile_is_no_change_of_the_protocol(tmp_path, monkeypatch):
    log = write_log(tmp_path / "log", days=9, rows=200)
    listed, real = [], sources.list_audits

    def list_one_more(folder):
        listed.append(folder)
        return real(folder)[: len(listed)]

    monkeypatch.setattr(sources, "list_audits", list_one_more)
    assert len(real(log)) == 2 and fg.watch(log).notes == ()


def test_without_a_confident_decision_there_is_a_page(tmp_path):
    found = fg.watch(write_log(tmp_path / "log", days=9, rows=40), min_confidence=0.999999999)
    early = next(each for each in found.watched if each.measure == "flips_early")
    assert early.recent.decisions == 0 and math.isnan(early.reference)
    assert "mean exposure" in found.to_text() and "no decision is confident" in found.to_text()
    assert "of the decisions are confident" in found.to_html()
    assert "fragility_watch_flips_early_ratio NaN" in found.to_prometheus()
    one = fg.watch(write_log(tmp_path / "one", days=1, rows=1))
    assert one.decisions == (1,) and "<svg" in one.to_html()


def test_a_p_change_of_zero_is_known(tmp_path):
    log = write_log(tmp_path / "log", days=10, outage=("debt", 8, 0.2, 99), chance=0.0)
    (alarm,) = fg.watch(log).alarms
    assert (
        alarm.changed == 0.0
        and "about 0 would have been decided differently with the field present" in alarm.sentence()
    )


def follow_blocks(days, rate):
    """Follow a field with a declared rate; each day is a list of how many of 25 decisions were made without it."""
    layout = EventLayout(("a",), (), ("no", "yes"), ("exposure",), ())
    follower = Follower(layout, FollowSettings(0.05, 365, 1, 0.0, {"a": rate}))

    def batch(day, hits):
        n = LOOK_ROWS * len(hits)
        shares = np.zeros((n, 5), dtype=bool)
        for place, count in enumerate(hits):
            shares[LOOK_ROWS * place : LOOK_ROWS * place + count, 0] = True
        none = np.zeros((n, 0), dtype=bool)
        never = np.zeros(n, dtype=bool)
        return EventBatch(np.full(n, day), shares, never, never, np.full((n, 1), 0.5), none, np.full(n, np.nan))

    for piece in cut_by_day([batch(day, hits) for day, hits in enumerate(days)], LOOK_ROWS):
        follower.follow(piece)
    return [episode for episode in follower.episodes if episode.stream.column.measure == "missing"]


def test_an_alarm_ends_once_the_mean_since_the_change_is_admitted_again():
    """Values that come back to just below the bound may never speak for a return a hundred to one."""
    (episode,) = follow_blocks([[0] * 20, [8] * 16 + [5] * 2000 + [4] * 80], rate=0.2)
    assert episode.closed == 1 and episode.k / episode.n <= 0.2


def test_an_outage_that_becomes_much_smaller_raises_the_next_alarm():
    ended, still = follow_blocks([[0] * 20, [25] * 8, [1, 2] * 200], rate=0.02)  # all, then 6% where 2% is admitted
    assert ended.closed == still.raised == 2 and still.closed is None
    (episode,) = follow_blocks([[0] * 20, [25] * 8, [0] * 20], rate=0.02)
    assert episode.closed == 2


def test_wide_logs_are_taken_in_smaller_batches(tmp_path, monkeypatch):
    sizes = []
    real = sources.make_batch
    monkeypatch.setattr(sources, "make_batch", lambda *a, **k: sizes.append(len(k["day"])) or real(*a, **k))
    monkeypatch.setattr(sources, "BATCH_VALUES", 30 * 320)
    log = write_log(tmp_path / "log", days=8, rows=200)
    columns = len(fg.watch(log).watched)
    assert sum(sizes) == 1600 and max(sizes) <= 30 * 320 // columns + 400


# --- dated audits and tables --------------------------------------------------------------------------------


def test_audits_are_called_audits():
    audits = [small_audit(60, seed=seed) for seed in (1, 2)]
    found = fg.watch(audits, dates=["2026-01-31", "2026-02-28"])
    assert "over the last 2 audits: " in found.to_text()
    page = found.to_html()
    assert "decisions per audit" in page and ">Audit by audit<" in page and "within 365 audits" in page
    assert "decisions per day" not in page and "missing or stale field" not in page
    alone = fg.watch(audits[:1], dates=["2026-01-31"])
    assert alone.headline().endswith("the reference is complete, alarms can be raised from the next audit on")


def test_audits_with_other_rates_or_none_are_told():
    first = small_audit(30)
    rated = fg.audit(declared_model(), whole_numbers(30, 5).to_numpy(), first.protocol, rates=0.1, progress=False)
    audits = [first, rated]
    found = fg.watch(audits, dates=["2026-01-31", "2026-02-28"])
    assert found.notes == ("Decisions lost are not watched, since not all audits were made with the same rates.",)
    with pytest.raises(fg.DataError, match="the audit of 2026-01-31 has no certificates; leave it out"):
        fg.watch([audits[0].take([]), audits[0]], dates=["2026-01-31", "2026-02-28"])
    with pytest.raises(fg.DataError, match="released must be an audit or its folder, got int"):
        fg.watch(audits[:1], dates=["2026-01-31"], released=7)


def replayed(rows=600):
    model, protocol, names = served_model()
    table = pd.concat([day_rows(day, rows // 10, names) for day in range(10)])
    table["at"] = pd.date_range("2026-05-01", "2026-05-11", periods=rows + 1)[:rows]
    return table, {"time": "at", "model": model, "protocol": protocol}


def test_a_table_is_replayed_in_the_order_of_time():
    table, how = replayed()
    late = table["at"] >= "2026-05-09"
    table.loc[late.to_numpy(), "tenure"] = table["tenure"].iloc[0]
    found = fg.watch(table, **how)
    assert any(alarm.measure == "repeated" for alarm in found.alarms)
    assert fg.watch(table.sample(frac=1, random_state=3), **how).to_dict() == found.to_dict()


def test_a_table_put_together_from_months_may_repeat_its_index():
    table, how = replayed()
    assert table.index.has_duplicates and sum(fg.watch(table, **how).decisions) == 600
    with pytest.raises(fg.DataError, match="rows to replay have a time each; leave out dates"):
        fg.watch(table, dates=["2026-01-01"], **how)

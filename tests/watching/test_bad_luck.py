"""Watch under bad luck: damaged events, clocks that are set back, servers that write meanwhile, nothing confident."""

import datetime as dt
import math
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_audits import declared_model, small_audit, whole_numbers
from watched_logs import START, day_rows, served_model, write_log

import fragility as fg
from fragility.certificates.parts import short_digest
from fragility.watching import sources
from fragility.watching.events import EventBatch, EventLayout, cut_by_day
from fragility.watching.following import LOOK_ROWS, Follower, FollowSettings


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
        with pytest.raises(fg.CertificateError, match=r"part 0 of .* has other columns than those of a log; restore"):
            fg.watch(tmp_path / "copy")
        shutil.rmtree(tmp_path / "copy")


def test_a_clock_that_is_set_back_is_told(tmp_path):
    times = [START + dt.timedelta(days=day) for day in (0, 1, 400, 2, 3)]
    found = fg.watch(write_log(tmp_path / "log", days=5, rows=40, times=times), reference_days=2)
    assert found.decisions == (40, 40, 120)
    assert found.notes == (
        "Recorded after a decision of a later day, and counted for that day: 80 decisions. Was the clock set back?",
    )
    assert found.notes[0] in found.to_text() and found.notes[0] in found.to_html()


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
    assert alarm.changed == 0.0 and "of which about 0 would be others" in alarm.sentence()


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

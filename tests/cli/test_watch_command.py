"""`fragility watch`: exit codes, files, replay, and one sentence for what cannot be watched."""

import json

import numpy as np
import pandas as pd
import pytest
from command_line import refuse, run
from small_audits import small_audit
from watched_logs import day_rows, served_model, write_log

import fragility as fg


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watch")
    write_log(folder / "quiet", days=9, rows=120)
    write_log(folder / "log", days=10, rows=120, outage=("income", 8, 0.3, 99))
    for month in (1, 2):
        small_audit(200, seed=month).save(folder / f"audit-2026-0{month}-28")
    model, protocol, names = served_model()
    protocol.save(folder / "protocol.json")
    rows = pd.concat([day_rows(day, 100, names) for day in range(9)], ignore_index=True)
    rows["at"] = np.repeat(pd.date_range("2026-05-01", periods=9).astype(str), 100)
    rows.loc[rows.index[820:860], "debt"] = np.nan
    rows.to_parquet(folder / "past.parquet")
    rows.to_csv(folder / "past.csv", index=False)
    import joblib

    joblib.dump(model, folder / "model.joblib")
    return folder


def test_the_exit_code_says_whether_an_alarm_is_open(home):
    done = run("watch", home / "quiet")
    assert done.code == 0 and "no open alarm" in done.out
    done = run("watch", home / "log")
    assert done.code == 1 and "Alarm: income is missing: raised on 2026-03-09" in done.out
    done = run("watch", home / "log", "--replay")
    assert done.code == 0 and "income is missing (rise)  2026-03-09              985" in done.out
    assert run("watch", home / "log", "--rates", "0.6").code == 0
    assert run("watch", home / "log", "--allowance", "0.5").code == 0


def test_files_are_written_as_their_names_say(home, tmp_path):
    files = [tmp_path / f"watch{suffix}" for suffix in (".html", ".json", ".prom", ".txt")]
    done = run("watch", home / "log", *(word for file in files for word in ("--out", file)))
    assert done.code == 1 and all(file.exists() for file in files)
    assert json.loads(files[1].read_text())["alarms"][0]["name"] == "income"
    assert "fragility_watch_alarms_open 1.0" in files[2].read_text()


def test_audits_have_dates(home):
    folders = [home / "audit-2026-01-28", home / "audit-2026-02-28"]
    done = run("watch", *folders)
    assert done.code == 0 and done.out.startswith("400 decisions from 2026-01-28 to 2026-02-28: no open alarm")
    done = run("watch", *folders, "--dates", "2025-01-01, 2025-02-01")
    assert done.out.startswith("400 decisions from 2025-01-01 to 2025-02-01")


@pytest.mark.parametrize("table", ["past.parquet", "past.csv"])
def test_a_table_is_replayed(home, table):
    words = ["--time", "at", "--model", home / "model.joblib", "--trust", "--protocol", home / "protocol.json"]
    done = run("watch", home / table, "--replay", *words)
    assert done.code == 0 and "debt is missing (rise)  2026-05-09" in done.out


def test_what_cannot_be_watched_is_one_sentence(home, tmp_path):
    log, past = home / "log", home / "past.parquet"
    own = log / "log.json"
    assert f"--out and {own} both name {own}" in refuse("watch", log, "--out", own)
    model = ("--model", home / "model.joblib", "--trust", "--protocol", home / "protocol.json")
    assert "--time has no effect without --replay; give --replay too" in refuse("watch", log, "--time", "at")
    assert "--model has no effect without --time" in refuse("watch", log, "--replay", *model)
    assert "give --model and --protocol" in refuse("watch", past, "--replay", "--time", "at")
    assert "--replay takes one table, got 2" in refuse("watch", past, past, "--replay", "--time", "at", *model)
    assert "name the one that says when each was decided with --time" in refuse(
        "watch", past, "--replay", "--time", "when", *model
    )
    assert "must end in .html or .md or .json or .prom or .txt" in refuse("watch", log, "--out", tmp_path / "a.pdf")
    assert "name each kind once" in refuse("watch", log, "--out", tmp_path / "a.html", "--out", tmp_path / "b.html")
    assert "neither an audit folder nor a log" in refuse("watch", tmp_path)
    assert "give the dates with --dates" in refuse("watch", copy_audit(tmp_path / "undated"))
    assert "--rates names the file none.json, which does not exist" in refuse("watch", log, "--rates", "none.json")
    assert "rates must be a number" in refuse("watch", log, "--rates", "often")
    assert "leave out --dates" in refuse("watch", log, "--dates", "2026-01-01")
    assert not list(tmp_path.glob("*.html"))


def copy_audit(folder):
    fg.audit(*served_model()[:1], day_rows(0, 5, served_model()[2]), served_model()[1], progress=False).save(folder)
    return folder

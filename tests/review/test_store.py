"""Decisions: what stands, what is hidden, what is refused; and nothing acknowledged is lost."""

import os
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from fragility.apps.review.history import OPEN, Case, CaseState, blind_pairs, case_state, cohens_kappa, find_undos
from fragility.apps.review.store import ConflictError, DecisionRefusedError, Store, StoreError, check_name


def a_case(number: int = 0) -> Case:
    return Case(f"sha256:{number:064x}", "sha256:audit", number, f"L{number}")


def state_of(store: Store, digest: str) -> CaseState:
    return case_state(store.entries(digest))


@pytest.fixture
def store(tmp_path):
    opened = Store.open(tmp_path / "review.sqlite")
    yield opened
    opened.close()


def test_a_decision_stands_until_it_is_undone_and_the_history_keeps_both(store):
    first = store.write(a_case(), "Ana", "accept", note="fine")
    store.write(a_case(), "Ana", "reacquire", ["income", "age"], "old payslip")
    assert state_of(store, a_case().digest).status == "reacquire"
    latest = store.entries(a_case().digest)[-1]
    assert latest.groups == ("income", "age") and latest.note == "old payslip"
    undone = store.undo(latest.seq, "Ana")
    assert undone.undoes == latest.seq and state_of(store, a_case().digest).of("Ana") == first
    store.undo(first.seq, "Ana")
    assert state_of(store, a_case().digest).status == "open"
    assert [entry.action for entry in store.entries(a_case().digest)] == ["accept", "reacquire", "undo", "undo"]


@pytest.mark.skipif(os.name != "posix", reason="there are no such permissions there")
def test_only_the_owner_may_read_the_decisions(store):
    store.write(a_case(), "Ana", "accept", note="fine")
    files = [*store.path.parent.glob("review.sqlite*")]
    assert len(files) > 1 and {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_nobody_undoes_twice_or_for_another(store):
    entry = store.write(a_case(), "Ana", "accept")
    with pytest.raises(DecisionRefusedError, match="only Ana can undo"):
        store.undo(entry.seq, "Ben")
    undo = store.undo(entry.seq, "Ana")
    with pytest.raises(DecisionRefusedError, match="undone before"):
        store.undo(entry.seq, "Ana")
    with pytest.raises(DecisionRefusedError, match="nothing to undo"):
        store.undo(undo.seq, "Ana")


def test_two_who_differ_are_a_conflict_and_a_late_writer_is_warned(store):
    store.write(a_case(), "Ana", "accept", seen=0)
    with pytest.raises(ConflictError) as conflict:
        store.write(a_case(), "Ben", "escalate", seen=0)
    assert [entry.reviewer for entry in conflict.value.newer] == ["Ana"]
    assert len(store.entries(a_case().digest)) == 1
    store.write(a_case(), "Ben", "escalate", seen=conflict.value.newer[-1].seq)
    assert state_of(store, a_case().digest).status == "conflict"
    store.write(a_case(), "Ben", "accept")
    assert state_of(store, a_case().digest).status == "accept"


@pytest.mark.parametrize(
    ("action", "groups", "note", "sentence"),
    [
        ("approve", (), "", "one of accept, escalate, reacquire, park, comment"),
        ("undo", (), "", "one of accept"),
        ("reacquire", (), "", "choose at least one group"),
        ("accept", ("age",), "", "leave them out"),
        ("accept", (), "x" * 4001, "at most 4000 characters, this one has 4001"),
    ],
)
def test_what_is_no_decision_is_refused(store, action, groups, note, sentence):
    with pytest.raises(DecisionRefusedError, match=sentence):
        store.write(a_case(), "Ana", action, groups, note)
    assert store.last() == 0


@pytest.mark.parametrize("name", ["", "   ", "x" * 81, "Ana\x00", "Ana\u202eLima"])
def test_a_reviewer_has_a_name(name):
    with pytest.raises(DecisionRefusedError, match="reviewer's name"):
        check_name(name)


def test_names_are_written_one_way():
    assert check_name("  Ana \t Lima ") == "Ana Lima"
    assert check_name("Jose\u0301") == check_name("Jos\u00e9")


def test_the_file_itself_refuses_to_change_or_forget_an_entry(store):
    store.write(a_case(), "Ana", "accept")
    other = sqlite3.connect(store.path)
    for statement in ("UPDATE entries SET reviewer = 'Ben'", "DELETE FROM entries"):
        with pytest.raises(sqlite3.DatabaseError, match="append-only"):
            other.execute(statement)
    other.close()


def test_writes_are_forced_to_the_disk(store):
    read = store._connection.execute
    assert read("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert read("PRAGMA synchronous").fetchone()[0] == 2  # FULL


def test_other_files_are_not_taken_for_stores(tmp_path):
    text, foreign, newer = tmp_path / "notes.txt", tmp_path / "other.sqlite", tmp_path / "newer.sqlite"
    text.write_text("not a database, but long enough to be read as one " * 40)
    with pytest.raises(StoreError, match="choose another place with --store"):
        Store.open(text)
    made = sqlite3.connect(foreign)
    made.execute("CREATE TABLE mine (x)")
    made.close()
    with pytest.raises(StoreError, match="another program"):
        Store.open(foreign)
    Store.open(newer).close()
    made = sqlite3.connect(newer)
    made.execute("PRAGMA user_version = 9")
    made.close()
    with pytest.raises(StoreError, match="version 9"):
        Store.open(newer)
    with pytest.raises(StoreError, match="does not exist"):
        Store.open_to_read(tmp_path / "absent.sqlite")
    with pytest.raises(StoreError, match="cannot keep decisions"):
        Store.open(tmp_path / "no" / "such" / "folder.sqlite")


def damage(path) -> None:
    """Overwrite the middle of a database, as a bad disk would."""
    data = bytearray(path.read_bytes())
    assert len(data) > 16_384
    data[8192:12_288] = bytes(range(256)) * 16
    path.write_bytes(data)


def test_a_damaged_store_is_said_to_be_damaged(store, tmp_path):
    store.decide_all([(a_case(number), ()) for number in range(200)], "Ana", "accept")
    store.close()
    damage(store.path)
    for opened in (Store.open, Store.open_to_read):
        with pytest.raises(StoreError, match=r"is damaged \(.*\); restore a copy of it, or save what is left with"):
            opened(store.path)


def test_a_store_that_was_removed_or_replaced_acknowledges_nothing(store, tmp_path):
    """SQLite would go on writing to the file that is no longer there."""
    store.write(a_case(), "Ana", "accept")
    away = tmp_path / "away.sqlite"
    store.path.rename(away)
    for act in (
        lambda: store.write(a_case(1), "Ana", "accept"),
        lambda: store.decide_all([(a_case(1), ())], "Ana", "accept"),
        lambda: store.undo(1, "Ana"),
        lambda: store.claim([a_case(1)], "Ana"),
        store.last,
    ):
        with pytest.raises(StoreError, match="was removed or replaced while the workbench was running"):
            act()
    away.rename(store.path)
    store.write(a_case(2), "Ana", "accept")
    assert [entry.case for entry in store.everything()] == [a_case(), a_case(2)]
    store.path.unlink()
    Store.open(store.path).close()  # another one in its place
    with pytest.raises(StoreError, match="was removed or replaced"):
        store.write(a_case(1), "Ana", "accept")


def test_a_store_whose_log_was_removed_acknowledges_nothing(store):
    store.write(a_case(), "Ana", "accept")
    store.path.with_name(f"{store.path.name}-wal").unlink()
    with pytest.raises(StoreError, match="was removed or replaced"):
        store.write(a_case(1), "Ana", "accept")


def test_a_store_that_cannot_be_read_any_more_is_an_error(store):
    store._connection.execute("DROP TABLE claims")
    with pytest.raises(StoreError, match="cannot be read: no such table"):
        store.claimed_by("sha256:0")
    with pytest.raises(StoreError, match="was not saved: no such table"):
        store.write(a_case(), "Ana", "accept")
    assert store.last() == 0


READER = """
import os, sys
from pathlib import Path
from fragility.apps.review.store import Store
os.setuid(int(sys.argv[1]))
store = Store.open_to_read(Path(sys.argv[2]))
print(len(store.everything()))
store.close()
"""


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
@pytest.mark.parametrize("ended", [True, False], ids=["closed", "left by a kill"])
def test_a_store_in_a_read_only_folder_can_be_read(tmp_path, ended):
    """Also one whose last decisions are in the write-ahead log that a killed process left."""
    made = Store.open(tmp_path / "review.sqlite")
    made.write(a_case(), "Ana", "accept")
    made.write(a_case(1), "Ana", "accept")
    if ended:
        made.close()
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
    for each in tmp_path.glob("review.sqlite*"):
        if not each.name.endswith("-shm"):
            shutil.copy(each, folder / each.name)
            (folder / each.name).chmod(0o444)
    folder.chmod(0o555)
    nobody = str(65534 if os.geteuid() == 0 else os.geteuid())  # root may write everywhere
    # Another user cannot write down which lines ran.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    words = [sys.executable, "-c", READER, nobody, str(folder / "review.sqlite")]
    read = subprocess.run(words, capture_output=True, text=True, env=plain)
    left = sorted(each.name for each in folder.iterdir())
    folder.chmod(0o755)
    shutil.rmtree(folder)
    made.close()
    if "ModuleNotFoundError" in read.stderr or "Permission denied" in read.stderr:
        pytest.skip("another user cannot run this Python")
    assert (read.returncode, read.stdout, read.stderr) == (0, "2\n", "")
    assert left == (["review.sqlite"] if ended else ["review.sqlite", "review.sqlite-wal"])


# --- putting aside, and comments ------------------------------------------------------------------------------


def test_a_parked_case_is_given_to_nobody_but_who_asks_for_parked_ones(store):
    parked = store.write(a_case(), "Ana", "park", note="called them", reason="waiting")
    assert state_of(store, a_case().digest).status == "park" and parked.reason == "waiting"
    assert store.claim([a_case()], "Ana") is None and store.claim([a_case()], "Ben") is None
    assert store.claim([a_case()], "Ben", "park") == a_case() and store.claim([a_case()], "Ana", "park") is None
    decided = store.write(a_case(), "Ben", "accept", reason="confirmed")
    assert state_of(store, a_case().digest).status == "accept"
    store.undo(decided.seq, "Ben")
    assert state_of(store, a_case().digest).status == "park"
    store.undo(parked.seq, "Ana")
    assert state_of(store, a_case().digest).status == "open" and store.claim([a_case()], "Ben") == a_case()


def test_a_comment_decides_nothing(store):
    store.claim([a_case()], "Ana")
    store.write(a_case(), "Ana", "comment", note="odd income")
    assert state_of(store, a_case().digest) == OPEN and store.claimed_by(a_case().digest) == "Ana"
    with pytest.raises(DecisionRefusedError, match="a comment needs words"):
        store.write(a_case(), "Ana", "comment")
    with pytest.raises(ConflictError):
        store.write(a_case(), "Ben", "accept", seen=0)  # Ben has not read it
    store.release(a_case(), "Ben")
    assert store.claimed_by(a_case().digest) == "Ana" and store.claimed_by_others("Ben") == 1
    store.release(a_case(), "Ana")
    assert store.claimed_by(a_case().digest) is None


def test_a_comment_written_without_seeing_leaves_the_review_blind(store):
    store.write(a_case(), "Ben", "comment", note="before anyone had decided")
    store.write(a_case(), "Ana", "accept")
    store.ask_second([a_case()], "Ana")
    store.write(a_case(), "Ben", "comment", note="while it was hidden")
    assert store.write(a_case(), "Ben", "accept").blind
    store.write(a_case(1), "Ana", "accept")
    store.write(a_case(1), "Ben", "comment", note="I see that Ana accepted")
    store.ask_second([a_case(1)], "Ana")
    assert not store.write(a_case(1), "Ben", "accept").blind


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    acts=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["Ana", "Ben", "Cleo"]),
            st.sampled_from(["accept", "escalate", "park", "comment", "second", "undo"]),
        ),
        max_size=25,
    ),
    since=st.integers(0, 25),
)
def test_the_fast_ways_over_many_cases_say_what_case_state_says(tmp_path, acts, since):
    store = Store.open(tmp_path / f"{secrets.token_hex(8)}.sqlite")
    for number, reviewer, action in acts:
        case = a_case(number)
        if action == "second":
            store.ask_second([case], reviewer)
        elif action == "undo":
            entries = store.entries(case.digest)
            undone = {entry.undoes for entry in entries}
            for entry in [e for e in entries if e.reviewer == reviewer and e.action != "undo" and e.seq not in undone][
                :1
            ]:
                store.undo(entry.seq, reviewer)
        else:
            store.write(case, reviewer, action, note="words")
    states = {case: case_state(store.entries(case.digest)) for case in map(a_case, range(3))}
    tally = store.tally()
    counts = Counter((entry.reviewer, entry.action) for state in states.values() for entry in state.standing)
    assert {(reviewer, action): count for reviewer, action, count in tally.standing} == counts
    assert tally.waiting == sum(state.second for state in states.values())
    assert tally.eligible == sum(len(state.standing) == 1 and not state.second for state in states.values())
    found = store.changes(since)
    changed = {case.digest for case in states if any(e.seq > since for e in store.entries(case.digest))}
    assert {digest for digest, *_ in found.cases} == changed
    for case, state in states.items():
        own = sorted((row for row in found.standing if row[0] == case.digest), key=lambda row: row[3])
        wanted = [(e.case.digest, e.reviewer, e.action, e.seq) for e in state.standing]
        assert own == (wanted if case.digest in changed else [])
        entries = store.entries(case.digest)
        parked = [e for e in entries if e.action == "park" and e.seq not in find_undos(entries)]
        assert (case.digest in found.parked) == bool(parked)
    store.close()


# --- second reviews -----------------------------------------------------------------------------------------


def test_a_second_review_is_blind(store):
    store.write(a_case(), "Ana", "accept")
    assert store.ask_second([a_case(), a_case(1)], "Ana") == 1  # nobody decided about the other
    state = state_of(store, a_case().digest)
    assert state.second and state.hidden_from("Ben") and not state.hidden_from("Ana")
    entry = store.write(a_case(), "Ben", "escalate", seen=0)  # what Ben could not see is no conflict
    assert entry.blind
    state = state_of(store, a_case().digest)
    assert state.status == "conflict" and not state.second and not state.hidden_from("Ben")
    assert blind_pairs(store.blind_histories()) == [("accept", "escalate")]
    assert store.ask_second([a_case()], "Ana") == 0


def test_a_review_is_not_called_blind_where_the_reviewer_may_have_seen(store):
    store.write(a_case(), "Ana", "accept")
    store.ask_second([a_case()], "Ben")
    assert not store.write(a_case(), "Ben", "accept").blind  # Ben asked, so Ben saw
    store.write(a_case(1), "Ana", "accept")
    store.ask_second([a_case(1)], "Ana")
    second = store.write(a_case(1), "Ben", "accept")
    store.undo(second.seq, "Ben")
    assert second.blind and not store.write(a_case(1), "Ben", "escalate").blind  # Ben saw it in between


def test_agreement_counts_what_was_decided_blind_whatever_follows(store):
    """Two disagreeing pairs, each resolved the other way: the reviewers did not agree once."""
    for number in range(2):
        store.write(a_case(number), "Ana", "accept")
        store.ask_second([a_case(number)], "Ana")
        store.write(a_case(number), "Ben", "escalate")
    store.write(a_case(0), "Ana", "escalate")  # Ana follows Ben
    store.write(a_case(1), "Ben", "accept")  # Ben follows Ana
    assert [state_of(store, a_case(number).digest).status for number in range(2)] == ["escalate", "accept"]
    assert blind_pairs(store.blind_histories()) == [("accept", "escalate")] * 2
    store.undo(store.entries(a_case(0).digest)[2].seq, "Ben")  # nor does an undo
    assert blind_pairs(store.blind_histories()) == [("accept", "escalate")] * 2


def test_agreement_takes_the_decision_that_stood_when_the_blind_one_was_given(store):
    slip = store.write(a_case(), "Ana", "accept")
    store.undo(slip.seq, "Ana")
    store.write(a_case(), "Ana", "escalate")
    store.ask_second([a_case()], "Ana")
    store.write(a_case(), "Ben", "escalate")
    assert blind_pairs(store.blind_histories()) == [("escalate", "escalate")]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    acts=st.lists(
        st.tuples(st.sampled_from(["Ana", "Ben", "Cleo"]), st.sampled_from(["accept", "escalate", "second", "undo"])),
        max_size=14,
    )
)
def test_a_pair_that_was_counted_stays_as_it_was(tmp_path, acts):
    """Whatever is done next, the pairs so far are the first of the pairs after it."""
    store = Store.open(tmp_path / f"{secrets.token_hex(8)}.sqlite")
    before: list[tuple[str, str]] = []
    for reviewer, action in acts:
        if action == "second":
            store.ask_second([a_case()], reviewer)
        elif action == "undo":
            undone = {entry.undoes for entry in store.entries(a_case().digest)}
            own = [e for e in store.entries(a_case().digest) if e.reviewer == reviewer and e.action != "undo"]
            for entry in [e for e in own if e.seq not in undone][-1:]:
                store.undo(entry.seq, reviewer)
        else:
            store.write(a_case(), reviewer, action)
        after = blind_pairs(store.blind_histories())
        assert after[: len(before)] == before
        assert len(after) == sum(entry.blind for entry in store.entries(a_case().digest))
        before = after
    store.close()


def test_kappa_is_cohens():
    pairs = [("accept", "accept")] * 12 + [("accept", "escalate")] * 3 + [("escalate", "escalate")] * 5
    pairs += [("reacquire", "escalate")] * 2 + [("reacquire", "reacquire")] * 4
    expected = cohen_kappa_score([a for a, _ in pairs], [b for _, b in pairs])
    assert cohens_kappa(pairs) == pytest.approx(expected)
    assert cohens_kappa([("accept", "escalate"), ("escalate", "accept")]) == pytest.approx(-1.0)
    assert cohens_kappa([]) is None and cohens_kappa([("accept", "accept")]) is None


# --- many at once -------------------------------------------------------------------------------------------


def test_a_bulk_action_is_all_or_nothing_and_can_be_undone(store):
    cases = [a_case(i) for i in range(600)]
    decided = store.write(cases[3], "Ben", "escalate")
    with pytest.raises(ConflictError):
        store.decide_all([(case, ()) for case in cases], "Ana", "accept")
    assert store.last() == 1
    bulk = store.decide_all([(case, ()) for case in cases if case != cases[3]], "Ana", "accept", "all alike")
    assert store.standing_of(bulk, "Ana") == 599 and state_of(store, cases[3].digest).status == "escalate"
    assert [(each.first.bulk, each.count, each.standing) for each in store.bulks(9, "Ana")] == [(bulk, 599, 599)]
    store.undo(store.entries(cases[0].digest)[-1].seq, "Ana")
    assert [(each.count, each.standing) for each in store.bulks(9, "Ana")] == [(599, 598)]
    assert store.undo_all(bulk, "Ben") == 0 and decided.bulk is None
    assert store.undo_all(bulk, "Ana") == 598 and store.undo_all(bulk, "Ana") == 0
    assert state_of(store, cases[4].digest).status == "open"
    assert len({row[0] for row in store.changes().cases}) == 600 and store.changes(since=store.last()).cases == []


def test_two_who_ask_for_the_next_case_get_different_ones(tmp_path):
    cases = [a_case(i) for i in range(40)]
    stores = [Store.open(tmp_path / "review.sqlite") for _ in range(2)]
    given: dict[str, list[str]] = {"Ana": [], "Ben": []}

    def work(store: Store, name: str) -> None:
        while (case := store.claim(cases, name)) is not None:
            store.write(case, name, "accept")
            given[name].append(case.row_id)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(stores, given, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given["Ana"] + given["Ben"]) == sorted(case.row_id for case in cases)
    assert all(len(case_state(stores[0].entries(case.digest)).standing) == 1 for case in cases)
    for store in stores:
        store.close()


def test_a_case_given_out_is_given_again_after_a_while(store, monkeypatch):
    assert store.claim([a_case()], "Ana") == a_case() == store.claim([a_case()], "Ana")
    assert store.claim([a_case()], "Ben") is None and store.claimed_by(a_case().digest) == "Ana"
    monkeypatch.setattr("fragility.apps.review.store.time.time", lambda: 4e9)
    assert store.claimed_by(a_case().digest) is None and store.claim([a_case()], "Ben") == a_case()

"""Decisions: what stands, what is hidden, what is refused; and nothing acknowledged is lost."""

import secrets
import sqlite3
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from fragility.review.history import Case, blind_pairs, case_state, cohens_kappa
from fragility.review.store import ConflictError, RefusedError, Store, StoreError, reviewer_name


def a_case(number: int = 0) -> Case:
    return Case(f"sha256:{number:064x}", "sha256:audit", number, f"L{number}")


@pytest.fixture
def store(tmp_path):
    opened = Store.open(tmp_path / "review.sqlite")
    yield opened
    opened.close()


def test_a_decision_stands_until_it_is_undone_and_the_history_keeps_both(store):
    first = store.decide(a_case(), "Ana", "accept", note="fine")
    store.decide(a_case(), "Ana", "reacquire", ["income", "age"], "old payslip")
    assert store.state(a_case().digest).status == "reacquire"
    latest = store.entries(a_case().digest)[-1]
    assert latest.groups == ("income", "age") and latest.note == "old payslip"
    undone = store.undo(latest.seq, "Ana")
    assert undone.undoes == latest.seq and store.state(a_case().digest).of("Ana") == first
    store.undo(first.seq, "Ana")
    assert store.state(a_case().digest).status == "open"
    assert [entry.action for entry in store.entries(a_case().digest)] == ["accept", "reacquire", "undo", "undo"]


def test_nobody_undoes_twice_or_for_another(store):
    entry = store.decide(a_case(), "Ana", "accept")
    with pytest.raises(RefusedError, match="only Ana can undo"):
        store.undo(entry.seq, "Ben")
    undo = store.undo(entry.seq, "Ana")
    with pytest.raises(RefusedError, match="undone before"):
        store.undo(entry.seq, "Ana")
    with pytest.raises(RefusedError, match="nothing to undo"):
        store.undo(undo.seq, "Ana")


def test_two_who_differ_are_a_conflict_and_a_late_writer_is_warned(store):
    store.decide(a_case(), "Ana", "accept", seen=0)
    with pytest.raises(ConflictError) as conflict:
        store.decide(a_case(), "Ben", "escalate", seen=0)
    assert [entry.reviewer for entry in conflict.value.newer] == ["Ana"]
    assert len(store.entries(a_case().digest)) == 1
    store.decide(a_case(), "Ben", "escalate", seen=conflict.value.newer[-1].seq)
    assert store.state(a_case().digest).status == "conflict"
    store.decide(a_case(), "Ben", "accept")
    assert store.state(a_case().digest).status == "accept"


@pytest.mark.parametrize(
    ("action", "groups", "note", "sentence"),
    [
        ("approve", (), "", "one of accept, escalate, reacquire"),
        ("undo", (), "", "one of accept"),
        ("reacquire", (), "", "choose at least one group"),
        ("accept", ("age",), "", "leave them out"),
        ("accept", (), "x" * 4001, "at most 4000 characters, this one has 4001"),
    ],
)
def test_what_is_no_decision_is_refused(store, action, groups, note, sentence):
    with pytest.raises(RefusedError, match=sentence):
        store.decide(a_case(), "Ana", action, groups, note)
    assert store.last() == 0


@pytest.mark.parametrize("name", ["", "   ", "x" * 81, "Ana\x00", "Ana\u202eLima"])
def test_a_reviewer_has_a_name(name):
    with pytest.raises(RefusedError, match="reviewer's name"):
        reviewer_name(name)


def test_names_are_written_one_way():
    assert reviewer_name("  Ana \t Lima ") == "Ana Lima"
    assert reviewer_name("Jose\u0301") == reviewer_name("Jos\u00e9")


def test_the_file_itself_refuses_to_change_or_forget_an_entry(store):
    store.decide(a_case(), "Ana", "accept")
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
        Store.open(tmp_path / "absent.sqlite", new=False)
    with pytest.raises(StoreError, match="cannot keep decisions"):
        Store.open(tmp_path / "no" / "such" / "folder.sqlite")


# --- second reviews -----------------------------------------------------------------------------------------


def test_a_second_review_is_blind(store):
    store.decide(a_case(), "Ana", "accept")
    assert store.ask_second([a_case(), a_case(1)], "Ana") == 1  # nobody decided about the other
    state = store.state(a_case().digest)
    assert state.second and state.hidden_from("Ben") and not state.hidden_from("Ana")
    entry = store.decide(a_case(), "Ben", "escalate", seen=0)  # what Ben could not see is no conflict
    assert entry.blind
    state = store.state(a_case().digest)
    assert state.status == "conflict" and not state.second and not state.hidden_from("Ben")
    assert blind_pairs(store.blind_histories()) == [("accept", "escalate")]
    assert store.ask_second([a_case()], "Ana") == 0


def test_a_review_is_not_called_blind_where_the_reviewer_may_have_seen(store):
    store.decide(a_case(), "Ana", "accept")
    store.ask_second([a_case()], "Ben")
    assert not store.decide(a_case(), "Ben", "accept").blind  # Ben asked, so Ben saw
    store.decide(a_case(1), "Ana", "accept")
    store.ask_second([a_case(1)], "Ana")
    second = store.decide(a_case(1), "Ben", "accept")
    store.undo(second.seq, "Ben")
    assert second.blind and not store.decide(a_case(1), "Ben", "escalate").blind  # Ben saw it in between


def test_agreement_counts_what_was_decided_blind_whatever_follows(store):
    """Two disagreeing pairs, each resolved the other way: the reviewers did not agree once."""
    for number in range(2):
        store.decide(a_case(number), "Ana", "accept")
        store.ask_second([a_case(number)], "Ana")
        store.decide(a_case(number), "Ben", "escalate")
    store.decide(a_case(0), "Ana", "escalate")  # Ana follows Ben
    store.decide(a_case(1), "Ben", "accept")  # Ben follows Ana
    assert {state.status for state in store.states().values()} == {"escalate", "accept"}
    assert blind_pairs(store.blind_histories()) == [("accept", "escalate")] * 2
    store.undo(store.entries(a_case(0).digest)[2].seq, "Ben")  # nor does an undo
    assert blind_pairs(store.blind_histories()) == [("accept", "escalate")] * 2


def test_agreement_takes_the_decision_that_stood_when_the_blind_one_was_given(store):
    slip = store.decide(a_case(), "Ana", "accept")
    store.undo(slip.seq, "Ana")
    store.decide(a_case(), "Ana", "escalate")
    store.ask_second([a_case()], "Ana")
    store.decide(a_case(), "Ben", "escalate")
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
            store.decide(a_case(), reviewer, action)
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
    decided = store.decide(cases[3], "Ben", "escalate")
    with pytest.raises(ConflictError):
        store.decide_all([(case, ()) for case in cases], "Ana", "accept")
    assert store.last() == 1
    bulk = store.decide_all([(case, ()) for case in cases if case != cases[3]], "Ana", "accept", "all alike")
    assert store.standing_of(bulk, "Ana") == 599 and store.state(cases[3].digest).status == "escalate"
    assert [(each.first.bulk, each.count, each.standing) for each in store.bulks(9)] == [(bulk, 599, 599)]
    store.undo(store.entries(cases[0].digest)[-1].seq, "Ana")
    assert [(each.count, each.standing) for each in store.bulks(9)] == [(599, 598)]
    assert store.undo_all(bulk, "Ben") == 0 and decided.bulk is None
    assert store.undo_all(bulk, "Ana") == 598 and store.undo_all(bulk, "Ana") == 0
    assert store.state(cases[4].digest).status == "open"
    assert len(store.states()) == 600 and len(store.states(since=store.last())) == 0


def test_two_who_ask_for_the_next_case_get_different_ones(tmp_path):
    cases = [a_case(i) for i in range(40)]
    stores = [Store.open(tmp_path / "review.sqlite") for _ in range(2)]
    given: dict[str, list[str]] = {"Ana": [], "Ben": []}

    def work(store: Store, name: str) -> None:
        while (case := store.claim(cases, name)) is not None:
            store.decide(case, name, "accept")
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
    monkeypatch.setattr("fragility.review.store.time.time", lambda: 4e9)
    assert store.claimed_by(a_case().digest) is None and store.claim([a_case()], "Ben") == a_case()

"""What reviewers do, through the pages: look, decide, undo, disagree, and hand the decisions on."""

import html
import io
import re
from collections import Counter
from dataclasses import replace

import pandas as pd
import pyarrow.csv
import pyarrow.parquet
import pytest
from workbench import ADDRESS, HOST, PORT, keys, reviewer, saved_audit, stranger, workbench

import fragility as fg
from fragility.apps.guards import Sessions
from fragility.apps.review.app import open_workbench
from fragility.apps.review.history import escape_formulas
from fragility.apps.review.pages import STEPS, tell_story
from fragility.base.errors import CertificateError


def first_case(client, **words) -> str:
    return f"/case/{keys(client.get('/queue', params=words).text)[0]}"


def decide(client, case: str, action: str, **words):
    seen = re.search(r'name="seen" value="(\d+)"', client.get(case).text)[1]
    return client.post(f"{case}/decide", data={"action": action, "seen": seen, "view": "", **words})


def test_the_queue_lists_the_most_exposed_and_links_to_them(ana, audited):
    page = ana.get("/queue", params={"budget": "all"}).text
    wanted = [cert.id for cert in audited.certs.most_fragile(50)]
    assert re.findall(r"data-line><bdi>(\w+)<", page) == wanted
    assert "<title>Queue" in page and "Reviewing as" in page and "Ana Lima" in page


def test_a_case_shows_its_certificate(ana, audited):
    cert = audited.certs.most_fragile(1)[0]
    page = ana.get(first_case(ana)).text
    sentence = cert.sentence().replace("'", "&#39;")
    assert sentence in page and cert.digest in page
    assert f"{cert.exposure:.3f}" in page and f"{cert.confidence:.1%}" in page
    for group, margin in zip(cert.path, cert.path_margin[1:], strict=True):
        assert group.replace("_", "_<wbr>") in page and f"{margin:+.3f}" in page
    for name, value in audited.X.iloc[audited.certs.table.column("id").to_pylist().index(cert.id)].items():
        assert name.replace("_", "_<wbr>") in page and str(value).replace("<", "&lt;").replace(">", "&gt;") in page
    for _, told in cert.losses():
        assert told in page
    assert '<svg class="curve"' in page and "all groups together" in page and "attenuate" not in page
    assert ">margin</text>" in page and ">groups removed</text>" in page


def test_deciding_goes_on_to_the_next_case_and_can_be_undone(ana, bench):
    case = first_case(ana)
    done = decide(ana, case, "accept", note="looks fine", advance="1")
    assert done.status_code == 303 and done.headers["location"].startswith("/case/")
    assert case not in done.headers["location"]
    following = ana.get(done.headers["location"]).text
    assert "accepted." in following and "Undo" in following
    page = ana.get(case).text
    assert "looks fine" in page and '<span class="status accept">' in page
    entry = bench.store.last()
    undone = ana.post(f"{case}/undo", data={"entry": str(entry), "view": ""})
    assert undone.status_code == 303
    page = ana.get(case).text
    assert "(undone)" in page and '<span class="status open">' in page and "looks fine" in page


def test_a_draft_is_the_cases_and_the_reviewers_and_is_forgotten_when_it_was_saved(ana, ben, bench):
    """The browser keeps what is typed under a name; only a page that follows a saved entry tells it to forget."""
    queue = keys(ana.get("/queue?budget=all&confident=0").text)
    drafts = [
        re.search(r'data-draft="([0-9a-f]{64})"', someone.get(f"/case/{key}").text)[1]
        for someone, key in ((ana, queue[0]), (ana, queue[1]), (ben, queue[0]), (ana, queue[0]))
    ]
    assert len(set(drafts)) == 3 and drafts[0] == drafts[3]
    saved = ana.post(f"/case/{queue[0]}/decide", data={"action": "accept", "view": "", "advance": "1", "note": "x"})
    assert f'data-saved="{drafts[0]}"' in ana.get(saved.headers["location"]).text
    refused = ana.post(f"/case/{queue[1]}/decide", data={"action": "reacquire", "view": "", "note": "kept"})
    assert refused.status_code == 422 and "data-saved" not in refused.text and ">kept</textarea>" in refused.text
    assert f'data-instead="/case/{queue[1]}?' in refused.text


def test_staying_on_the_case(ana):
    case = first_case(ana)
    done = decide(ana, case, "escalate")
    assert done.headers["location"].startswith(f"{case}?") and "stay=1" in done.headers["location"]
    assert "checked> then go on" not in ana.get(done.headers["location"]).text


def test_evidence_to_reacquire_names_groups(ana, bench):
    case = first_case(ana)
    refused = decide(ana, case, "reacquire", note="kept while it is put right")
    assert refused.status_code == 422 and "choose at least one group" in refused.text
    assert "kept while it is put right" in refused.text
    assert decide(ana, case, "reacquire", group=["age", "purpose"]).status_code == 303
    assert bench.store.latest(1)[0].groups == ("age", "purpose")
    assert decide(ana, case, "reacquire", group="income").status_code == 422
    assert decide(ana, case, "accept", group=["age"]).status_code == 303  # the form sends its boxes along
    assert bench.store.latest(1)[0].groups == ()


def test_the_second_writer_is_warned_and_may_insist(ana, ben, bench):
    case = first_case(ana)
    late = {"action": "escalate", "seen": "0", "view": "", "note": "<income unclear>"}
    decide(ana, case, "accept")
    warned = ben.post(f"{case}/decide", data=late)
    assert warned.status_code == 409 and "Not saved. Ana Lima wrote about this case meanwhile: accepted." in warned.text
    assert "&lt;income unclear&gt;</textarea>" in warned.text and bench.store.last() == 1
    seen = re.search(r'name="seen" value="(\d+)"', warned.text)[1]
    assert ben.post(f"{case}/decide", data={**late, "seen": seen}).status_code == 303
    assert '<span class="status conflict">' in ana.get("/queue").text
    assert ana.get(f"{case}/state").json() == {"last": 2, "by": "Ben"}


def test_two_reviewers_are_given_different_cases(ana, ben):
    given = [client.post("/next", data={"view": ""}).headers["location"].split("?")[0] for client in (ana, ben)]
    assert len(set(given)) == 2
    assert "<bdi>Ana Lima</bdi> was given this case" in ben.get(given[0]).text
    assert "was given this case" not in ana.get(given[0]).text


def test_next_leads_to_the_queue_when_all_is_done(ana, bench):
    view = "budget=5"
    while (location := ana.post("/next", data={"view": view}).headers["location"]).startswith("/case/"):
        decide(ana, location.split("?")[0], "accept")
    assert location == "/queue?budget=5&none=1"
    page = ana.get(location).text
    assert "No open case is left in this view." in page
    number = bench.store.last()
    assert re.search(rf"<strong>{number}</strong> of <strong>{number}</strong> decided", page)


def test_a_blind_second_review_hides_the_first_until_it_is_given(ana, ben, bench):
    case = first_case(ana)
    decide(ana, case, "escalate", note="secret reason")
    assert ana.post(f"{case}/second", data={"view": ""}).status_code == 303
    assert ana.post(f"{case}/second", data={"view": ""}).status_code == 422
    hidden = [ben.get(path).text for path in (case, "/queue", "/team", "/queue?budget=all&confident=0")]
    assert all("secret reason" not in page and 'class="status escalate"' not in page for page in hidden)
    assert "What others decided is hidden" in hidden[0] and "Nobody has decided yet" not in hidden[0]
    assert "stays hidden until you have decided" in hidden[0] and ben.get(f"{case}/state").json()["last"] == 0
    assert ben.get("/queue", params={"status": "escalate"}).text.count("data-line") == 0
    given = ben.post("/next", data={"view": "status=second"}).headers["location"]
    assert given.startswith(case)
    assert decide(ben, case, "accept").status_code == 303
    assert "secret reason" in ben.get(case).text
    other = f"/case/{keys(ana.get('/queue').text)[1]}"
    decide(ana, other, "accept")
    ana.post("/team/second", data={"number": "5", "view": ""})
    decide(ben, other, "accept")
    team = ana.get("/team").text
    assert "<strong>0.00</strong>" in team and "<strong>1 of 2</strong>" in team  # escalate/accept and accept/accept
    decide(ben, case, "escalate")  # they settle it, which is no agreement
    assert "<strong>1 of 2</strong>" in ana.get("/team").text


def test_the_team_may_ask_for_few_or_many(ana):
    for number, status in (("0", 422), ("1001", 422), ("x", 400), ("-1", 400), ("", 400), ("9" * 5000, 400)):
        assert ana.post("/team/second", data={"number": number, "view": ""}).status_code == status


@pytest.mark.parametrize("digits", ["9" * 5000, "1e5000", "-1", "٣", ""])
def test_a_number_that_cannot_be_read_is_the_senders_mistake(ana, bench, digits):
    """Python refuses to read whole numbers of more than 4,300 digits."""
    case = first_case(ana)
    for path, form in (
        (f"{case}/decide", {"action": "accept", "seen": digits}),
        (f"{case}/undo", {"entry": digits}),
        ("/team/second", {"number": digits}),
    ):
        answer = ana.post(path, data={"view": "", **form})
        assert answer.status_code == 400 and "must be a whole number" in answer.text
    for query in (f"page={digits}", f"hours={digits}", f"confident={digits}", f"field=age&value={digits}"):
        assert ana.get(f"/queue?budget=all&{query}").status_code == (400 if digits else 200) or digits in ("-1", "٣")
    assert ana.get(f"/queue?done={digits}").status_code == 200 and ana.get(f"/case/{digits}-a").status_code == 404
    huge = ana.post(f"{case}/whatif", content=b'{"severities": {"age": ' + digits.encode() + b"}}")
    assert huge.status_code in (400, 415) and bench.store.last() == 0


# --- going on -----------------------------------------------------------------------------------------------


def opened(client, location: str) -> str:
    """The case that a redirect leads to."""
    return location.split("?")[0].removeprefix("/case/")


def test_after_a_decision_the_next_case_is_the_one_after_it(ana):
    order = keys(ana.get("/queue?budget=20").text)
    view = {"view": "budget=20", "advance": "1"}
    third = decide(ana, f"/case/{order[2]}", "accept", **view)
    assert opened(ana, third.headers["location"]) == order[3]
    last = decide(ana, f"/case/{order[-1]}", "accept", **view)
    assert opened(ana, last.headers["location"]) == order[0]  # then from the top
    by_id = keys(ana.get("/queue?budget=20&sort=id").text)
    after = decide(ana, f"/case/{by_id[1]}", "accept", view="budget=20&sort=id", advance="1")
    assert by_id.index(opened(ana, after.headers["location"])) >= 2


def test_a_case_can_be_skipped(ana, ben, bench):
    order = keys(ana.get("/queue?budget=20").text)
    first = opened(ana, ana.post("/next", data={"view": "budget=20"}).headers["location"])
    second = opened(ana, ana.post("/next", data={"view": "budget=20", "after": first}).headers["location"])
    assert [first, second] == order[:2] and bench.store.last() == 0
    assert opened(ben, ben.post("/next", data={"view": "budget=20"}).headers["location"]) == first  # it is free again
    for key in order[1:]:
        decide(ana, f"/case/{key}", "accept")
    only = ana.post("/next", data={"view": "budget=20", "after": order[0]}).headers["location"]
    assert only.endswith("none=skipped")  # Ben was given it, too
    assert "No other open case is left in this view than the one that you skipped." in ana.get(only).text
    decide(ana, f"/case/{order[0]}", "accept")
    assert "No open case is left in this view." in ana.get(only).text


def test_cases_that_others_were_given_are_not_said_to_be_done(ana, ben, bench):
    order = keys(ana.get("/queue?budget=5").text)
    ben.post("/next", data={"view": "budget=5"})
    for key in order[1:]:
        decide(ana, f"/case/{key}", "accept")
    view = {"view": "budget=5"}
    none = ana.post("/next", data=view).headers["location"]
    assert "No other open case is left in this view than 1 with other reviewers just now." in ana.get(none).text
    assert "No open case is left in this view." in ana.get("/queue?search=L0999x&none=1").text  # not in every view
    ben.post("/next", data={**view, "after": order[0]})  # Ben leaves it: it is free, and the notice is no longer true
    assert 'class="notice"' not in ana.get(none).text
    assert opened(ana, ana.post("/next", data=view).headers["location"]) == order[0]


def test_parked_cases_are_worked_through_one_after_the_other(ana, bench):
    order = keys(ana.get("/queue?budget=20").text)[:3]
    for key in order:
        decide(ana, f"/case/{key}", "park", note="called them")
    view = "budget=20&status=park"
    here = opened(ana, ana.post("/next", data={"view": view}).headers["location"])
    following = opened(ana, ana.post("/next", data={"view": view, "after": here}).headers["location"])
    assert [here, following] == order[:2]
    done = decide(ana, f"/case/{order[1]}", "accept", view=view, advance="1").headers["location"]
    assert opened(ana, done) == order[2]
    done = decide(ana, f"/case/{order[2]}", "accept", view=view, advance="1").headers["location"]
    assert opened(ana, done) == order[0]
    done = decide(ana, f"/case/{order[0]}", "accept", view=view, advance="1").headers["location"]
    assert "No parked case is left in this view." in ana.get(done).text


def test_a_parked_case_waits_and_is_found_again(ana, bench):
    order = keys(ana.get("/queue?budget=5").text)
    done = decide(ana, f"/case/{order[0]}", "park", view="budget=5", advance="1", note="called them", reason="waiting")
    assert opened(ana, done.headers["location"]) == order[1]
    assert "parked." in ana.get(done.headers["location"]).text
    assert keys(ana.get("/queue?budget=5&status=park").text) == [order[0]]
    for key in order[1:]:
        decide(ana, f"/case/{key}", "accept")
    none = ana.post("/next", data={"view": "budget=5"}).headers["location"]
    page = ana.get(none).text
    assert "No open case is left in this view (1 parked)." in page and "1 parked" in page
    assert f"<strong>{len(order) - 1}</strong> of <strong>{len(order)}</strong> decided" in page
    case = ana.get(f"/case/{order[0]}").text
    assert "called them" in case and "an answer is awaited" in case and 'value="park"' not in case
    decide(ana, f"/case/{order[0]}", "accept")
    assert keys(ana.get("/queue?budget=5&status=park").text) == []


def test_a_comment_without_a_decision(ana, bench):
    case = first_case(ana)
    done = decide(ana, case, "comment", note="ask about the second job", advance="1")
    assert done.headers["location"].startswith(f"{case}?")  # one stays
    page = ana.get(done.headers["location"]).text
    assert "ask about the second job" in page and '<span class="status open">' in page
    empty = decide(ana, case, "comment")
    assert empty.status_code == 422 and "a comment needs words" in empty.text
    assert "0</strong> of" in ana.get("/queue").text


def test_the_place_of_a_case_in_its_view(ana, bench):
    order = keys(ana.get("/queue?budget=20").text)
    for i in (0, 2, len(order) - 1):
        assert f"{i + 1} of {len(order)}</p>" in ana.get(f"/case/{order[i]}?budget=20").text
    elsewhere = next(key for key in keys(ana.get("/queue?budget=all").text) if key not in order)
    assert f"not among the {len(order)} of this view" in ana.get(f"/case/{elsewhere}?budget=20").text


def test_a_notice_is_about_the_last_entry_only(ana, bench):
    """After Back, a page must not offer to undo something older."""
    order = keys(ana.get("/queue").text)
    first = decide(ana, f"/case/{order[0]}", "accept", advance="1").headers["location"]
    assert "accepted." in ana.get(first).text
    second = decide(ana, f"/case/{order[1]}", "escalate", advance="1").headers["location"]
    assert 'class="notice"' not in ana.get(first).text and "escalated." in ana.get(second).text
    ana.post(f"/case/{order[1]}/undo", data={"entry": str(bench.store.last()), "view": ""})
    assert 'class="notice"' not in ana.get(second).text
    many = ana.post("/bulk", data={"view": "", "action": "accept", "case": order[3:6]}).headers["location"]
    assert "3 decisions saved." in ana.get(many).text
    decide(ana, f"/case/{order[6]}", "accept")
    assert 'class="notice"' not in ana.get(many).text  # its key would undo three decisions, and not the last one


def test_a_conflict_is_not_decided(ana, ben):
    order = keys(ana.get("/queue?budget=5").text)
    for key in order:
        decide(ana, f"/case/{key}", "accept")
    decide(ben, f"/case/{order[0]}", "escalate")
    page = ana.get("/queue?budget=5").text
    assert (
        f"<strong>{len(order) - 1}</strong> of <strong>{len(order)}</strong> decided" in page and "1 conflict" in page
    )


def test_reasons(ana, bench, audited, tmp_path):
    case = first_case(ana)
    assert "the decisive evidence was confirmed" in ana.get(case).text
    decide(ana, case, "accept", reason="confirmed")
    assert bench.store.latest(1)[0].reason == "confirmed"
    assert decide(ana, case, "accept", reason="whim").status_code == 422
    table = pyarrow.parquet.read_table(io.BytesIO(ana.get("/export/decisions.parquet").content))
    assert table["reason"].to_pylist() == ["confirmed"]
    with workbench(audited, tmp_path / "own.sqlite", data=False) as own:
        eva = reviewer(replace(own, reasons={"R1": "<b>our own</b>"}), "Eva")
        page = eva.get(first_case(eva)).text
        assert "R1: &lt;b&gt;our own&lt;/b&gt;" in page and "confirmed" not in page


def test_the_record_says_what_replaces_each_value(ana, audited, bench):
    cert = audited.certs.most_fragile(1)[0]
    page = ana.get(first_case(ana)).text
    fields = bench.rows.shown(audited.certs.table.column("id").to_pylist().index(cert.id))
    row = audited.X.iloc[audited.certs.table.column("id").to_pylist().index(cert.id)]
    assert [line.name for line in fields] == list(audited.X.columns)
    for line in fields:
        assert line.value == str(row[line.name])
        training = audited_training()[line.name]  # under the baseline mode, numbers become their mean
        numeric = pd.api.types.is_numeric_dtype(training)
        assert line.replacement == (f"{training.mean():.6g}" if numeric else str(training.mode()[0]))
        shown = f"<td><bdi>{html.escape(line.value)}</bdi></td>"
        arrow = f'<span class="quiet" aria-hidden="true">→&nbsp;</span><bdi>{html.escape(line.replacement)}</bdi>'
        assert shown in page and (arrow if line.changes else "the same") in page
    assert "When lost" in page


def audited_training():
    return fg.load_credit_g()[0][:700]


def test_without_the_model_the_record_does_not_guess(audited, tmp_path):
    from fragility.apps.review.rows import match_rows

    with workbench(audited, tmp_path / "review.sqlite", data=False) as bare:
        ids = audited.certs.table.column("id").to_pylist()
        rows = match_rows(audited.X, ids, bare.cases.names(), bare.cases.protocol, bare.cases.manifest)
        ana = reviewer(replace(bare, rows=rows), "Ana")
        page = ana.get(first_case(ana)).text
        assert "When lost" not in page and "--model</code> to see what replaces a lost value" in page


def test_a_store_that_is_gone_is_an_error_on_every_page(ana, bench):
    case = first_case(ana)
    bench.store.path.rename(bench.store.path.with_name("away"))
    for answer in (
        ana.post(f"{case}/decide", data={"action": "accept", "view": ""}),
        ana.get("/queue"),
        ana.get("/team"),
    ):
        assert answer.status_code == 503 and "was removed or replaced" in answer.text
    assert ana.get(f"{case}/state").status_code == 503


# --- many at once -------------------------------------------------------------------------------------------


def listed(page: str) -> list[str]:
    """The ids that the page of a decision about many cases lists."""
    return re.findall(r'<td><a href="/case/[^"]+"><bdi>([^<]+)</bdi>', page)


def boxes(page: str) -> list[str]:
    """The cases that are ticked on a page."""
    return re.findall(r'name="case" value="([^"]+)"[^>]* checked', page)


def test_a_decision_about_many_cases_records_exactly_what_is_listed(ana, bench, audited):
    """A search looks at all predictions, whatever the budget; the page says so, and lists what it will record."""
    page = ana.get("/bulk?search=7").text
    wanted = {cert.id for cert in audited.certs if "7" in str(cert.id)}
    assert set(listed(page)) == wanted and len(wanted) > 60
    assert f"Decide about {len(wanted)} open cases at once" in page
    assert "all 300 predictions" in page and "“7”" in page and "top 20%" not in page
    done = ana.post("/bulk", data={"view": "search=7", "action": "accept", "case": boxes(page)})
    assert f"{len(wanted)} decisions saved." in ana.get(done.headers["location"]).text
    assert {entry.case.row_id for entry in bench.store.everything()} == wanted


def test_the_scope_of_a_decision_about_many_cases_is_said_in_full(ana):
    page = ana.get("/bulk?budget=all&confident=0.65&label=good&k=2&group=age&field=duration&value=%3C12").text
    for words in ("all predictions at least 65% confident", "good", "without 2 groups", "age", "less than 12"):
        assert words in page
    assert "the top 10% by FDS of the predictions at least 90% confident" in ana.get("/bulk?budget=10&by=fds").text
    assert "the top 40 by exposure (2 h at 20 an hour)" in ana.get("/bulk?budget=time&hours=2").text
    close = ana.get("/bulk?budget=all&confident=0.9999995&field=credit_amount&value=%3E1234567").text
    assert "at least 99.99995% confident" in close and "more than 1234567" in close  # nothing is rounded
    assert "confident=0.9999995" in close


def test_ticked_rows_only(ana, bench):
    page = ana.get("/bulk?budget=20").text
    chosen = boxes(page)
    assert len(chosen) == len(listed(page)) > 5
    done = ana.post("/bulk", data={"view": "budget=20", "action": "escalate", "case": chosen[1:3], "note": "both"})
    assert done.status_code == 303 and bench.store.last() == 2
    nothing = ana.post("/bulk", data={"view": "budget=20", "action": "escalate", "note": "kept"})
    assert nothing.status_code == 422 and "no case is ticked" in nothing.text and ">kept</textarea>" in nothing.text
    assert bench.store.last() == 2
    from_queue = ana.get("/bulk", params={"budget": "20", "ticked": "1", "case": [chosen[0], chosen[1]]}).text
    assert boxes(from_queue) == [chosen[0]] and "1 case of this scope is not open" in from_queue
    assert "rows ticked in the queue" in from_queue and "top 20%" not in from_queue
    assert ana.get("/bulk?budget=20&ticked=1").status_code == 422  # not all of them
    words = (
        "budget=all&confident=0&by=fds&k=1&label=good&status=open&sort=id&up=1&stay=1&hours=2&rate=3&search=L&ticked=1"
    )
    words += "".join(f"&field=age&value={bound}" for bound in ("%3E1", "%3E2", "%3E3", "%3E4", "%3E5", "%3E6", "%3E7"))
    page = keys(ana.get("/queue?budget=all&confident=0").text)
    assert len(page) == 50  # a whole page, whatever the filters
    assert ana.get(f"/bulk?{words}{''.join(f'&case={key}' for key in page)}").status_code == 200
    assert ana.get("/bulk", params={"case": ["0-" + "0" * 16]}).status_code == 404


def test_what_was_decided_meanwhile_stops_a_decision_about_many(ana, ben, bench):
    chosen = boxes(ana.get("/bulk?budget=20").text)
    decide(ben, f"/case/{chosen[2]}", "escalate")
    form = {"view": "budget=20", "action": "accept", "case": chosen, "note": "low amounts"}
    stale = ana.post("/bulk", data=form)
    assert stale.status_code == 409 and "the open cases are others by now" in stale.text and bench.store.last() == 1
    assert boxes(stale.text) == [key for key in chosen if key != chosen[2]] and "low amounts" in stale.text
    assert ana.post("/bulk", data={**form, "case": boxes(stale.text)}).status_code == 303
    assert bench.store.last() == len(chosen)


def test_more_cases_than_can_be_ticked_are_named_all_at_once(ana, ben, bench, monkeypatch):
    monkeypatch.setattr("fragility.apps.review.desk.MOST_TICKED", 10)
    page = ana.get("/bulk?budget=all").text
    count = int(re.search(r"all (\d+) cases</button>", page)[1])
    assert count > 10 == len(listed(page)) and boxes(page) == [] and f"The first 10 of {count}" in page
    form = {"view": "budget=all", "action": "accept", "all": "1"}
    form["expected"] = re.search(r'name="expected" value="(\w+)"', page)[1]
    one = ben.get("/bulk?budget=all").text and keys(ben.get("/queue?budget=all").text)[0]
    decide(ben, f"/case/{one}", "escalate")
    assert ana.post("/bulk", data=form).status_code == 409 and bench.store.last() == 1
    bench.store.undo(1, "Ben")  # as many as before are not the same as before, but these are
    assert ana.post("/bulk", data=form).status_code == 303 and bench.store.last() == 2 + count


def test_each_case_has_groups_of_its_own(ana, bench, audited):
    flipping = boxes(ana.get("/bulk?budget=all&k=1").text) + boxes(ana.get("/bulk?budget=all&k=2").text)
    form = {"view": "budget=all", "action": "reacquire", "groups_of": "own", "case": flipping}
    assert ana.post("/bulk", data=form).status_code == 303
    for entry in bench.store.everything():
        assert entry.groups == tuple(audited.certs.by_id(entry.case.row_id).failing_groups)
    assert len({entry.groups for entry in bench.store.everything()}) > 1
    never = boxes(ana.get("/bulk?budget=all&k=none").text)
    page = ana.get("/bulk?budget=all&k=none").text
    assert f"{len(never)} of them never flip and have none" in page
    refused = ana.post("/bulk", data={**form, "case": never})
    assert refused.status_code == 422 and "never flip, so they have no groups of their own" in refused.text
    same = {**form, "case": never[:2], "groups_of": "same", "group": ["age", "purpose"]}
    assert ana.post("/bulk", data=same).status_code == 303
    assert bench.store.latest(1)[0].groups == ("age", "purpose")
    assert ana.post("/bulk", data={**same, "case": never[2:3], "group": []}).status_code == 422


def test_a_decision_about_many_cases_can_be_undone_from_team_at_any_time(ana, ben, bench):
    chosen = boxes(ana.get("/bulk?budget=20").text)
    ana.post("/bulk", data={"view": "budget=20", "action": "accept", "case": chosen, "note": "low amounts"})
    decide(ben, f"/case/{chosen[0]}", "escalate")
    decide(ana, f"/case/{keys(ana.get('/queue?budget=all&status=open').text)[0]}", "accept")
    team = ana.get("/team").text
    assert f"{len(chosen)} cases" in team and "low amounts" in team and f"Undo all {len(chosen)}" in team
    assert "Undo all" not in ben.get("/team").text
    bulk = re.search(r'name="bulk" value="(\w+)"', team)[1]
    ben.post("/bulk/undo", data={"bulk": bulk, "view": ""})  # nobody undoes for another
    assert bench.store.standing_of(bulk, "Ana Lima") == len(chosen)
    done = ana.post("/bulk/undo", data={"bulk": bulk, "view": "", "from": "team"})
    assert done.headers["location"].startswith("/team") and bench.store.standing_of(bulk, "Ana Lima") == 0
    assert "(undone)" in ana.get("/team").text and "Undo all" not in ana.get("/team").text


def test_team_lists_an_action_that_holds_however_many_followed(ana, ben, bench, monkeypatch):
    monkeypatch.setattr("fragility.apps.review.app.BULKS", 2)
    order = keys(ana.get("/queue?budget=all").text)
    for client, keyed in ((ana, order[:4]), *((ben, order[i : i + 2]) for i in range(4, 14, 2))):
        client.post("/bulk", data={"view": "", "action": "accept", "case": keyed})
    team = ana.get("/team").text
    assert team.count("with many") == 0 and "Undo all 4" in team and team.count(" 2 cases") == 2
    bulk = re.search(r'name="bulk" value="(\w+)"', team)[1]
    ana.post("/bulk/undo", data={"bulk": bulk, "view": "", "from": "team"})
    assert "4 cases" not in ana.get("/team").text and ben.get("/team").text.count("Undo all 2") == 5


# --- filters ------------------------------------------------------------------------------------------------


def test_a_filter_that_cannot_be_read_is_an_error_beside_the_filters(ana):
    for value in ("abc", "12..", "36-12", "twelve"):
        answer = ana.get("/queue", params={"budget": "all", "field": "duration", "value": value})
        assert answer.status_code == 400 and 'role="alert">This filter cannot be used:' in answer.text
        assert f'name="value" value="{value}"' in answer.text and "data-line" not in answer.text
    answer = ana.get("/queue", params={"field": "purpose", "value": "new cra"})
    assert answer.status_code == 400 and "no row has &#39;new cra&#39; in &#39;purpose&#39;; it has" in answer.text
    assert ana.get("/bulk", params={"field": "duration", "value": "abc"}).status_code == 400
    shown = ana.get("/queue", params={"budget": "all", "field": "duration", "value": "<12, 24-30"}).text
    assert "less than 12 or 24 to 30" in shown  # the page says how it read it


CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def test_names_with_spaces_and_control_characters_are_found_and_shown(strange, tmp_path):
    """The forms of the page are filled in as a browser would: with the values that its options have."""
    with workbench(strange, tmp_path / "review.sqlite") as bench:
        ana = reviewer(bench, "Ana")
        start = {"budget": "all", "confident": "0"}
        page = ana.get("/queue", params=start).text
        for name, column in (("label", "predicted"), ("group", None)):
            options = re.search(rf'<select id="f-{name}".*?</select>', page, re.S)[0]
            values = [html.unescape(value) for value in re.findall(r'<option value="([^"]+)"', options)]
            assert len(values) == (2 if name == "label" else 4) and not any(CONTROLS.search(value) for value in values)
            found = [ana.get("/queue", params={**start, name: value}).text for value in values]
            counts = [int(re.search(r"<p><strong>(\d+)</strong> case", page)[1]) for page in found]
            if column:
                expected = Counter(strange.certs.table.column(column).to_pylist())
                assert sorted(counts) == sorted(expected.values()) and sum(counts) == 100
            else:
                assert all(counts)
        purpose, value = "\u05de\u05d8\u05e8\u05d4", " new car"
        answer = ana.get("/queue", params={**start, "field": purpose, "value": value}).text
        expected = sum(strange.X[purpose] == value)
        assert expected and f"<p><strong>{expected}</strong> case" in answer
        case = f"/case/{keys(page)[0]}"
        group = re.findall(r'name="group" value="([^"]+)"', ana.get(case).text)
        for name in group:
            assert decide(ana, case, "reacquire", group=html.unescape(name)).status_code == 303
        assert {entry.groups[0] for entry in bench.store.everything()} == set(strange.X.columns)
        pages = [page, answer, ana.get(case).text, ana.get("/team").text, ana.get("/bulk", params=start).text]
        for shown in pages:
            assert not CONTROLS.search(shown.replace("\t", "").replace("\n", ""))
            assert "\\u202e" in shown  # control characters are written out
        assert re.search(r"data-line><bdi> \d+\\u202e\\x1b\[2J </bdi>", page)


def test_filters_are_offered_what_a_field_holds(ana, audited):
    found = ana.get("/values?field=purpose").json()
    assert set(found["values"]) == set(audited.X["purpose"]) and found["low"] is None
    found = ana.get("/values?field=age").json()
    assert (found["low"], found["high"], found["values"]) == (audited.X["age"].min(), audited.X["age"].max(), [])
    assert ana.get("/values?field=income").status_code == 400


def test_what_if_over_the_wire(ana, audited):
    cert = audited.certs.most_fragile(1)[0]
    case = first_case(ana)
    answer = ana.post(f"{case}/whatif", json={"severities": {group: 1 for group in cert.failing_groups}}).json()
    assert answer["predicted"] == cert.flips_to and answer["flipped"]
    assert answer["margin"] == pytest.approx(cert.path_margin[cert.flip_budget], abs=1e-9)
    for body in ([], {}, {"severities": 1}, {"severities": {"age": 7}}):
        refused = ana.post(f"{case}/whatif", json=body)
        assert refused.status_code == 400 and set(refused.json()["error"]) == {"code", "message"}
    broken = ana.post(f"{case}/whatif", content=b"{", headers={"content-type": "application/json"})
    assert broken.status_code == 400 and broken.json()["error"]["message"] == "JSON was expected"


def test_without_model_and_rows_the_rest_works(audited, tmp_path):
    with workbench(audited, tmp_path / "review.sqlite", data=False) as bench:
        ana = reviewer(bench, "Ana")
        case = first_case(ana)
        page = ana.get(case).text
        assert "--data" in page and 'id="whatif"' not in page and '<svg class="curve"' in page
        assert ana.post(f"{case}/whatif", json={"severities": {}}).status_code == 404
        assert ana.get("/queue?field=age&value=30").status_code == 400
        assert decide(ana, case, "accept").status_code == 303


def test_exports_are_keyed_by_digest(ana, ben, audited):
    case = first_case(ana)
    decide(ana, case, "accept", note="=HYPERLINK(1)")
    decide(ben, case, "reacquire", group=["age", "purpose"])
    found = pyarrow.parquet.read_table(io.BytesIO(ana.get("/export/decisions.parquet").content))
    digest = audited.certs.most_fragile(1)[0].digest
    assert found.column_names[0] == "digest" and found["digest"].to_pylist() == [digest] * 2
    assert found["note"].to_pylist() == ["=HYPERLINK(1)", ""] and found["groups"].to_pylist() == [
        [],
        ["age", "purpose"],
    ]
    assert found["status"].to_pylist() == ["conflict"] * 2
    text = ana.get("/export/decisions.csv").content
    read = pyarrow.csv.read_csv(io.BytesIO(text))
    assert read.equals(pyarrow.csv.read_csv(io.BytesIO(text))) and read.num_rows == 2
    assert read["note"].to_pylist()[0] == "'=HYPERLINK(1)"  # no spreadsheet runs it
    assert escape_formulas(found)["groups"].to_pylist()[1] == '["age", "purpose"]'
    ana.post(f"{case}/undo", data={"entry": "1", "view": ""})
    history = pyarrow.parquet.read_table(io.BytesIO(ana.get("/export/decisions.parquet?history=1").content))
    assert history["decision"].to_pylist() == ["accept", "reacquire", "undo"]
    assert history["stands"].to_pylist() == [False, True, False]


def test_an_audit_without_its_steps_or_without_a_search_is_still_read(bench, ana):
    queued = bench.cases.find(first_case(ana).removeprefix("/case/"))
    row = bench.cases.certificate_row(queued)
    fewer = {name: value for name, value in row.items() if name not in STEPS}
    story = tell_story(fewer, queued, bench.cases.protocol, bench.cases.manifest)
    assert story.curve is None and len(story.losses) == 4 and "it flips to" in story.sentence
    assert story.lattice == ()
    searched = {**fewer, "smallest_state": "minimum", "smallest_set": ["age", "purpose"], "lattice_digest": "sha256:0"}
    story = tell_story(searched, queued, bench.cases.protocol, bench.cases.manifest)
    (found,) = story.lattice
    assert found[0] == "smallest set that flips it" and found[1].startswith("age and purpose; no smaller set flips it")


def test_what_a_search_of_the_subsets_found_is_told_in_words(audited, tmp_path):
    """Each quantity stands with its meaning, and no name of a column is shown."""
    protocol = audited.certs.protocol
    rates = dict.fromkeys(protocol.group_names, 0.05)
    made = saved_audit(tmp_path / "audit", audited.model, audited.X[:40], protocol, rates=rates)
    with workbench(made, tmp_path / "review.sqlite") as bench:
        ana = reviewer(bench, "Ana")
        page = ana.get(first_case(ana, budget="all", confident="0")).text
        cert = made.certs.by_id(int(re.search(r"<h1>Case <bdi>(\d+)", page)[1]))
        for words in (cert.smallest(), cert.chance()):
            assert words is not None and html.escape(words) in page
        assert "smallest set that flips it" in page and "how likely it is lost" in page
        shown = set(protocol.group_names) | {"smallest_set"}
        for name in made.certs.table.column_names:
            if "_" in name and name not in shown:
                assert name not in page and name.replace("_", " ") not in page, name


def test_what_cannot_be_done_is_one_sentence(ana):
    for path, status in (("/case/7-0000", 404), ("/nowhere", 404), ("/queue?by=luck", 400)):
        answer = ana.get(path)
        assert answer.status_code == status and "<h1>Not possible</h1>" in answer.text
    assert ana.post(f"{first_case(ana)}/undo", data={"entry": "77", "view": ""}).status_code == 422
    assert ana.post("/who", data={"name": " "}).status_code == 422


def test_the_first_address_may_lead_to_the_case_of_a_row(audited, bench, tmp_path):
    """As the report's commands ask: fragility review DIR --row ID."""
    opened = open_workbench(audited.folder, store=tmp_path / "other.sqlite", policy=None, row="L0703")
    try:
        assert opened.first_page == f"/case/{opened.cases.find_row('L0703').key}"
        assert opened.cases.find(opened.first_page.rpartition("/")[2]).case.row_id == "L0703"
        sessions = Sessions(HOST, PORT)
        client = stranger(opened, sessions, origin=ADDRESS)
        address = sessions.new_address(opened.first_page)
        assert f"{opened.first_page}?token=" in address
        welcome = client.get(address)
        assert welcome.status_code == 200 and opened.first_page in welcome.text and "token" not in welcome.text
    finally:
        opened.store.close()
        opened.cases.close()
    with pytest.raises(CertificateError, match=r"this audit has no row 'L9'; ids run like \['L0700'"):
        open_workbench(audited.folder, store=tmp_path / "third.sqlite", policy=None, row="L9")
    assert not (tmp_path / "third.sqlite").exists()

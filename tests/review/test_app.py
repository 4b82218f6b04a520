"""What reviewers do, through the pages: look, decide, undo, disagree, and hand the decisions on."""

import io
import re

import pyarrow.csv
import pyarrow.parquet
import pytest
from workbench import keys, reviewer, workbench

from fragility.review.exporting import for_spreadsheets
from fragility.review.pages import render, story_of


def first_case(client, **words) -> str:
    return f"/case/{keys(client.get('/queue', params=words).text)[0]}"


def decide(client, case: str, action: str, **words):
    seen = re.search(r'name="seen" value="(\d+)"', client.get(case).text)[1]
    return client.post(f"{case}/decide", data={"action": action, "seen": seen, "view": "", **words})


def test_the_queue_lists_the_most_exposed_and_links_to_them(ana, audited):
    page = ana.get("/queue", params={"budget": "all"}).text
    wanted = [cert.id for cert in audited.certs.most_fragile(50)]
    assert re.findall(r"data-line>(\w+)<", page) == wanted
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
    assert '<svg class="curve"' in page and "attenuate_all" in page


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
    assert "Ana Lima was given this case" in ben.get(given[0]).text
    assert "was given this case" not in ana.get(given[0]).text


def test_next_leads_to_the_queue_when_all_is_done(ana, bench):
    view = "budget=5"
    while (location := ana.post("/next", data={"view": view}).headers["location"]).startswith("/case/"):
        decide(ana, location.split("?")[0], "accept")
    assert location == "/queue?budget=5"
    page = ana.get(location).text
    number = bench.store.last()
    assert re.search(rf"<strong>{number}</strong> of <strong>{number}</strong> decided", page)


def test_a_blind_second_review_hides_the_first_until_it_is_given(ana, ben, bench):
    case = first_case(ana)
    decide(ana, case, "escalate", note="secret reason")
    assert ana.post(f"{case}/second", data={"view": ""}).status_code == 303
    assert ana.post(f"{case}/second", data={"view": ""}).status_code == 422
    hidden = [ben.get(path).text for path in (case, "/queue", "/team", "/queue?budget=all&confident=0")]
    assert all("secret reason" not in page and 'class="status escalate"' not in page for page in hidden)
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
    for number in ("0", "1001", "x", "-1", ""):
        assert ana.post("/team/second", data={"number": number, "view": ""}).status_code == 422


def test_a_whole_filter_at_once_says_how_many(ana, ben, bench):
    view = "budget=20&label=good"
    page = ana.get(f"/bulk?{view}").text
    count = int(re.search(r'name="expected" value="(\d+)"', page)[1])
    assert count > 2 and f"Record this for {count} cases" in page
    form = {"view": view, "action": "accept", "note": "low amounts", "expected": str(count)}
    decide(ben, first_case(ana, budget="20", label="good"), "escalate")
    stale = ana.post("/bulk", data=form)
    assert stale.status_code == 409 and f"there are {count - 1} open cases by now" in stale.text
    assert bench.store.last() == 1
    done = ana.post("/bulk", data={**form, "expected": str(count - 1)})
    page = ana.get(done.headers["location"]).text
    assert f"{count - 1} decisions saved." in page
    bulk = re.search(r'name="bulk" value="(\w+)"', page)[1]
    assert ben.post("/bulk/undo", data={"bulk": bulk, "view": view}).status_code == 303
    assert bench.store.standing_of(bulk, "Ana Lima") == count - 1
    ana.post("/bulk/undo", data={"bulk": bulk, "view": view})
    assert bench.store.standing_of(bulk, "Ana Lima") == 0
    assert ana.post("/bulk", data={**form, "action": "reacquire", "expected": str(count - 1)}).status_code == 422


def test_what_if_over_the_wire(ana, audited):
    cert = audited.certs.most_fragile(1)[0]
    case = first_case(ana)
    answer = ana.post(f"{case}/whatif", json={"severities": {group: 1 for group in cert.failing_groups}}).json()
    assert answer["predicted"] == cert.flips_to and answer["flipped"]
    assert answer["margin"] == pytest.approx(cert.path_margin[cert.flip_budget], abs=1e-9)
    for body in ([], {}, {"severities": 1}, {"severities": {"age": 7}}):
        refused = ana.post(f"{case}/whatif", json=body)
        assert refused.status_code == 400 and set(refused.json()) == {"error"}
    broken = ana.post(f"{case}/whatif", content=b"{", headers={"content-type": "application/json"})
    assert broken.status_code == 400 and broken.json() == {"error": "JSON was expected"}


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
    assert for_spreadsheets(found)["groups"].to_pylist()[1] == '["age", "purpose"]'
    ana.post(f"{case}/undo", data={"entry": "1", "view": ""})
    history = pyarrow.parquet.read_table(io.BytesIO(ana.get("/export/decisions.parquet?history=1").content))
    assert history["decision"].to_pylist() == ["accept", "reacquire", "undo"]
    assert history["stands"].to_pylist() == [False, True, False]


def test_an_audit_with_more_or_fewer_columns_is_still_read(bench, ana):
    """Columns of the lattice come after the digest; an audit may be written without its steps."""
    queued = bench.cases.find(first_case(ana).removeprefix("/case/"))
    row = bench.cases.certificate_row(queued)
    more = {
        **row,
        "smallest_failing_set": ["age", "purpose"],
        "failure_probability": 0.125,
        "lattice_digest": "sha256:0",
    }
    story = story_of(more, queued, bench.cases.protocol, bench.cases.manifest)
    assert story.lattice == (("smallest failing set", "age, purpose"), ("failure probability", "0.125"))
    steps = (
        "path_margin",
        "path_predicted",
        "path_collapse",
        "fade_margin",
        "one_step_drop",
        "one_step_confidence_drop",
    )
    fewer = {name: value for name, value in row.items() if name not in steps}
    story = story_of(fewer, queued, bench.cases.protocol, bench.cases.manifest)
    assert story.curve is None and len(story.losses) == 3 and "flips without" in story.sentence
    assert callable(render)


def test_what_cannot_be_done_is_one_sentence(ana):
    for path, status in (("/case/7-0000", 404), ("/nowhere", 404), ("/queue?by=luck", 400)):
        answer = ana.get(path)
        assert answer.status_code == status and "<h1>Not possible</h1>" in answer.text
    assert ana.post(f"{first_case(ana)}/undo", data={"entry": "77", "view": ""}).status_code == 422
    assert ana.post("/who", data={"name": " "}).status_code == 422

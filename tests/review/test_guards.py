"""Which requests are answered: none from another site, none without the token, none that is not ours."""

import re
import socket

import pytest
from workbench import ADDRESS, PORT, TOKEN, keys, reviewer, stranger, workbench

from fragility.review.guards import BODY_LIMIT, HEADERS
from fragility.review.serving import LOOPBACK, PortError, listen
from fragility.review.views import View

PAGES = ["/", "/queue", "/who", "/team", "/bulk", "/export/decisions.csv", "/static/review.css", "/nothing"]


def decide_address(client) -> str:
    return f"/case/{keys(client.get('/queue').text)[0]}/decide"


# --- Host ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", f"localhost.evil.example:{PORT}",
     f"0.0.0.0:{PORT}", f"127.0.0.1:{PORT}@evil.example", "", f"127.0.0.1:{PORT}, evil.example"],
)  # fmt: skip
def test_a_name_that_points_here_is_not_ours(bench, ana, host):
    """DNS rebinding: the browser believes the page is evil.example's, and says so; even with the token."""
    for path in PAGES:
        answer = ana.get(path, headers={"host": host})
        assert answer.status_code == 403 and "<html" not in answer.text, path
    assert stranger(bench).get(f"/?token={TOKEN}", headers={"host": host}).status_code == 403
    write = ana.post("/who", data={"name": "Eve"}, headers={"host": host, "origin": f"http://{host}"})
    assert write.status_code == 403


def test_the_loopback_names_are_ours(bench, ana):
    for name in ("localhost", "LOCALHOST", "[::1]", "127.0.0.1"):
        assert ana.get("/static/review.css", headers={"host": f"{name}:{PORT}"}).status_code == 200


# --- token --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
def test_without_the_token_nothing_is_told(bench, path):
    client = stranger(bench, origin=ADDRESS)
    assert client.get(path).status_code == 401
    assert client.get(path, params={"token": "wrong"}).status_code == 401
    assert client.get(path, params={"token": TOKEN[:-1]}).status_code == 401
    assert client.get(path, cookies={f"fragility-review-{PORT}": "wrong"}).status_code == 401
    assert client.get(path, cookies={"fragility-review-9999": TOKEN}).status_code == 401
    assert client.post("/who", data={"name": "Eve", "token": TOKEN}).status_code == 401
    assert client.post(f"/who?token={TOKEN}", data={"name": "Eve"}).status_code == 401  # it opens pages, never writes


def test_the_first_address_leaves_no_token_behind(bench):
    client = stranger(bench)
    answer = client.get("/queue", params={"token": TOKEN, "label": "bad & worse"})
    assert answer.status_code == 303 and answer.headers["location"] == "/queue?label=bad+%26+worse"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and f"fragility-review-{PORT}=" in cookie
    assert client.get("/who").status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "/%2F/evil.example", "///evil.example"])
def test_the_first_address_leads_nowhere_else(bench, path):
    from fragility.review.guards import Guards

    guards = Guards(None, port=PORT, token=TOKEN)
    scope = {"method": "GET", "path": path.replace("%2F", "/"), "query_string": f"token={TOKEN}".encode()}
    assert re.match(r"/[^/\\]", guards._entered(scope))


# --- writes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": f"http://evil.example:{PORT}"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": f"https://127.0.0.1:{PORT}"},
        {"origin": f"http://localhost:{PORT}"},  # not the name this request went to
        {"origin": f"http://127.0.0.1:{PORT + 1}"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
    ids=str,
)
def test_writes_from_elsewhere_are_refused(bench, ana, headers):
    address = decide_address(ana)
    for path in (address, "/next", "/bulk", "/who", "/team/second"):
        assert ana.post(path, data={"action": "accept", "view": ""}, headers=headers).status_code == 403
    assert bench.store.last() == 0


def test_a_write_without_an_origin_is_refused(bench, ana):
    address = decide_address(ana)
    del ana.headers["origin"]
    assert ana.post(address, data={"action": "accept", "view": ""}).status_code == 403
    assert bench.store.last() == 0


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "application/xml", ""])
def test_a_write_is_a_form_or_json(bench, ana, kind):
    answer = ana.post(decide_address(ana), content=b"action=accept&view=", headers={"content-type": kind})
    assert answer.status_code == 415 and bench.store.last() == 0


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_not_used(ana, method):
    assert ana.request(method, "/queue").status_code == 405


def test_large_bodies_are_refused_whether_announced_or_not(bench, ana):
    address = decide_address(ana)
    note = b"action=accept&view=&note=" + b"x" * BODY_LIMIT
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert ana.post(address, content=note, headers=form).status_code == 413
    pieces = (note[i : i + 1000] for i in range(0, len(note), 1000))  # sent in chunks, without a length
    assert ana.post(address, content=pieces, headers=form).status_code == 413
    assert ana.post(address, content=note, headers={**form, "content-length": "-1"}).status_code == 413
    assert bench.store.last() == 0


def test_every_answer_forbids_what_is_not_ours(bench, ana):
    answers = [ana.get(path) for path in PAGES] + [
        stranger(bench).get("/"),
        ana.get("/case/1-2"),
        ana.get("/queue?k=9"),
    ]
    for answer in answers:
        for name, value in HEADERS.items():
            if name != "cache-control":
                assert answer.headers[name] == value
    assert (
        "unsafe" not in HEADERS["content-security-policy"]
        and "default-src 'none'" in HEADERS["content-security-policy"]
    )
    assert ana.get("/queue").headers["cache-control"] == "no-store"


# --- addresses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/..%2Fapp.py", "/static/%2e%2e/store.py", "/static//etc/passwd", "/static/C:%5Cx",
     "/export/..%2F..%2Freview.sqlite", "/export/decisions.csv%00.sqlite", "/case/..%2F..%2Fmanifest.json",
     "/case/%2e%2e", "/manifest.json", "/docs", "/openapi.json"],
)  # fmt: skip
def test_paths_cannot_leave_the_application(ana, path):
    answer = ana.get(path)
    assert answer.status_code in (404, 405)
    assert "import" not in answer.text and "SQLite" not in answer.text and "root:" not in answer.text


@pytest.mark.parametrize(
    "target", ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:1", "/\r\nx"]
)
def test_after_saying_who_one_stays_here(ana, target):
    assert ana.post("/who", data={"name": "Ana", "next": target}).headers["location"] == "/queue"
    assert "evil.example" not in ana.get("/who", params={"next": target}).text


# --- markup -------------------------------------------------------------------------------------------------


def test_markup_in_data_names_and_notes_is_shown_as_text(hostile, tmp_path):
    with workbench(hostile, tmp_path / "hostile.sqlite") as bench:
        eve = reviewer(bench, "<script>window.broken='name'</script>")
        queue = eve.get("/queue", params={"budget": "all", "confident": "0"}).text
        case = f"/case/{keys(queue)[0]}"
        note = "</textarea><script>window.broken='note'</script>\"' onfocus=alert(1)"
        done = eve.post(f"{case}/decide", data={"action": "escalate", "note": note, "view": "", "advance": ""})
        pages = [queue, eve.get(done.headers["location"]).text, eve.get("/team").text, eve.get("/who").text]
        pages += [eve.get("/queue", params={"search": "<script>", "label": "<i>good</i>"}).text]
        pages += [eve.get("/bulk", params={"search": "<script>"}).text, eve.get("/queue?k=<script>1</script>").text]
        answer = eve.post(f"{case}/whatif", json={"severities": {"<script>": 1}})
        assert answer.headers["content-type"] == "application/json" and answer.status_code == 400
    for page in pages:
        scripts = re.findall(r"<script[^>]*>", page)
        assert scripts == ['<script src="/static/review.js" defer>'], scripts
        assert not re.search(r"<(b|i|img src=x)>|<img src=x|\son\w+=(?!&#)[^&]*alert\(1\)>", page)
    assert "&lt;script&gt;window.broken=&#39;note&#39;&lt;/script&gt;" in pages[1]
    assert "&lt;b&gt;amount&lt;/b&gt;" in pages[1]


# --- the port -----------------------------------------------------------------------------------------------


def test_it_listens_on_this_machine_only():
    with listen(None) as first:
        assert first.getsockname()[0] == LOOPBACK == "127.0.0.1"
        first.listen()
        with pytest.raises(PortError, match="choose another --port"), listen(first.getsockname()[1]):
            pass
        with listen(None) as second:  # the usual port is taken, perhaps by the first
            assert second.getsockname() != first.getsockname() and second.family == socket.AF_INET


def test_a_queue_needs_a_name_first(bench):
    client = stranger(bench, origin=ADDRESS)
    client.get("/", params={"token": TOKEN})
    assert client.get(f"/queue?{View(label='bad').address()}").headers["location"].startswith("/who?next=%2Fqueue%3F")
    assert client.post("/next", data={"view": ""}).status_code == 403
    assert client.get("/case/1-2/state").json() == {"error": "say who you are first, then try again"}

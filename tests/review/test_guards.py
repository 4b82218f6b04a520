"""Which requests are answered: none from another site, none without a session, none that is not ours."""

import re
import socket

import pytest
from workbench import ADDRESS, HOST, PORT, keys, reviewer, stranger, workbench

from fragility.apps.guards import BODY_LIMIT, HEADERS, Sessions, random_host, split_token
from fragility.apps.review.app import LOOPBACK, Place, listen
from fragility.apps.review.views import View
from fragility.apps.server import AddressError

PAGES = ["/", "/queue", "/who", "/team", "/bulk", "/export/decisions.csv", "/static/review.css", "/nothing"]


def decide_address(client) -> str:
    return f"/case/{keys(client.get('/queue').text)[0]}/decide"


# --- Host ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"[::1]:{PORT}",
     f"other.localhost:{PORT}", HOST, f"{HOST}:{PORT + 1}", f"{HOST}.:{PORT}", f"x.{HOST}:{PORT}", f"0.0.0.0:{PORT}",
     f"{HOST}:{PORT}@evil.example", "", f"{HOST}:{PORT}, evil.example"],
)  # fmt: skip
def test_a_name_that_points_here_is_not_ours(bench, ana, host):
    """DNS rebinding: the browser believes the page is evil.example's, and says so; even with the token."""
    for path in PAGES:
        answer = ana.get(path, headers={"host": host})
        assert answer.status_code == 403 and "<html" not in answer.text, path
    sessions = Sessions(HOST, PORT)
    assert stranger(bench, sessions).get(sessions.new_address(), headers={"host": host}).status_code == 403
    write = ana.post("/who", data={"name": "Eve"}, headers={"host": host, "origin": f"http://{host}"})
    assert write.status_code == 403


def test_only_the_name_of_this_server_is_ours(bench, ana):
    assert ana.get("/static/review.css", headers={"host": f"{HOST}:{PORT}".upper()}).status_code == 200
    refused = ana.get("/queue", headers={"host": f"127.0.0.1:{PORT}"})
    assert refused.status_code == 403 and HOST not in refused.text  # the name is a secret, too
    assert len({random_host() for _ in range(50)}) == 50


# --- token and session ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
def test_without_a_session_nothing_is_told(bench, path):
    sessions = Sessions(HOST, PORT)
    client = stranger(bench, sessions, origin=ADDRESS)
    token = sessions.new_address().partition("=")[2]
    assert client.get(path).status_code == 401
    assert client.get(path, params={"token": "wrong"}).status_code == 401
    assert client.get(path, params={"token": token[:-1]}).status_code == 401
    for value in ("wrong", token):
        assert client.get(path, headers={"cookie": f"{sessions.cookie}={value}"}).status_code == 401
    assert client.post("/who", data={"name": "Eve", "token": token}).status_code == 401
    assert client.post(f"/who?token={token}", data={"name": "Eve"}).status_code == 401  # it opens pages, never writes
    assert client.head(path, params={"token": token}).status_code == 401
    assert client.get("/", params={"token": token}).status_code == 200  # none of which has used it up


def test_a_token_works_once_and_leaves_no_trace(bench):
    sessions = Sessions(HOST, PORT)
    client = stranger(bench, sessions)
    token = sessions.new_address().partition("=")[2]
    answer = client.get("/queue", params={"token": token, "label": "bad & worse"})
    assert answer.status_code == 200 and 'content="0; url=/queue?label=bad+%26+worse"' in answer.text
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "; Path=/;" in cookie and "Domain" not in cookie
    assert cookie.startswith(f"fragility-review-{PORT}-") and token not in cookie and token not in answer.text
    assert client.get("/who").status_code == 200
    again = client.get("/queue", params={"token": token})
    assert again.status_code == 200 and "set-cookie" not in again.headers  # the same browser may come again
    other = stranger(bench, sessions)
    refused = other.get("/queue", params={"token": token})
    assert refused.status_code == 401 and "lets one browser in, once" in refused.text
    assert "set-cookie" not in refused.headers and other.get("/who").status_code == 401


def test_a_reviewer_makes_an_address_for_another_browser(bench):
    sessions = Sessions(HOST, PORT)
    ana, ben = (stranger(bench, sessions, origin=ADDRESS) for _ in range(2))
    ana.get(sessions.new_address())
    ana.post("/who", data={"name": "Ana"})
    address = re.search(r"http://\S+token=[\w-]+", ana.post("/team/address", data={"view": ""}).text)[0]
    assert ben.get(address).status_code == 200 and ben.post("/who", data={"name": "Ben"}).status_code == 303
    assert (
        "<strong><bdi>Ben</bdi></strong>" in ben.get("/queue").text
        and "<strong><bdi>Ana</bdi></strong>" in ana.get("/queue").text
    )
    assert stranger(bench, sessions).get(address).status_code == 401


def test_no_cookie_tells_who_is_reviewing(ana):
    """Another server of this machine can set cookies; the name is not one of them."""
    assert len(ana.cookies) == 1
    forged = {"cookie": "; ".join([*(f"{k}={v}" for k, v in ana.cookies.items()), f"fragility-reviewer-{PORT}=Eve"])}
    assert "<strong><bdi>Ana Lima</bdi></strong>" in ana.get("/queue", headers=forged).text


def test_the_session_of_one_server_is_none_of_another(bench, ana):
    cookies = "; ".join(f"{name}={value}" for name, value in ana.cookies.items())
    assert stranger(bench).get("/queue", headers={"cookie": cookies}).status_code == 401


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "/%2F/evil.example", "///evil.example"])
def test_the_first_address_leads_nowhere_else(path):
    scope = {"path": path.replace("%2F", "/"), "query_string": b"token=abc"}
    token, address = split_token(scope)
    assert token == "abc" and re.match(r"/[^/\\]", address)


# --- writes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": f"http://evil.example:{PORT}"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": f"https://{HOST}:{PORT}"},
        {"origin": f"http://localhost:{PORT}"},  # not the name this request went to
        {"origin": f"http://{HOST}:{PORT + 1}"},
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
    for announced in ("-1", "9" * 5000):
        assert ana.post(address, content=note, headers={**form, "content-length": announced}).status_code == 413
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


def close(sockets) -> None:
    for each in sockets:
        each.close()


def test_it_listens_on_this_machine_only():
    first = listen(None)
    assert first[0].getsockname()[0] == LOOPBACK == "127.0.0.1"
    assert {each.getsockname()[0] for each in first} <= {"127.0.0.1", "::1"}
    assert len({each.getsockname()[1] for each in first}) == 1
    for each in first:
        each.listen()
    with pytest.raises(AddressError, match="choose another --port"):
        listen(first[0].getsockname()[1])
    second = listen(None)  # the usual port is taken, perhaps by the first
    assert second[0].getsockname() != first[0].getsockname() and second[0].family == socket.AF_INET
    close((*first, *second))


def test_a_store_is_served_at_its_last_place_unless_others_may_know_it(tmp_path):
    """Bookmarks and drafts belong to a name and a port; a name that others can read might be theirs to serve."""
    store, place = tmp_path / "review.sqlite", Place("review-0123456789abcdef0123.localhost", 8123)
    new = Place.recall(store)
    assert new.port is None and new.host != Place.recall(store).host
    place.keep(store)
    file = tmp_path / "review.sqlite.address"
    assert Place.recall(store) == place and file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    assert Place.recall(store) != place
    for forged in (
        '{"host": "evil.example", "port": 80}',
        '{"host": "' + place.host + '", "port": "80"}',
        "[]",
        "{",
        "",
    ):
        file.write_text(forged)
        file.chmod(0o600)
        assert Place.recall(store).port is None and Place.recall(store).host.endswith(".localhost")
    (taken := socket.socket()).bind(("127.0.0.1", 0))
    taken.listen()
    found = listen(None, taken.getsockname()[1])  # the port of last time is somebody else's now
    assert found[0].getsockname()[1] != taken.getsockname()[1]
    close((*found, taken))


def test_a_port_that_someone_else_has_on_the_other_loopback_address_is_not_taken():
    """Browsers try ::1 first, and would bring the token there."""
    squatter = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    try:
        squatter.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no ::1")
    squatter.listen()
    with pytest.raises(AddressError, match="choose another --port"):
        listen(squatter.getsockname()[1])
    squatter.close()


def test_a_queue_needs_a_name_first(bench):
    sessions = Sessions(HOST, PORT)
    client = stranger(bench, sessions, origin=ADDRESS)
    client.get(sessions.new_address())
    assert client.get(f"/queue?{View(label='bad').address()}").headers["location"].startswith("/who?next=%2Fqueue%3F")
    assert client.post("/next", data={"view": ""}).status_code == 403
    assert client.get("/case/1-2/state").json()["error"]["message"] == "say who you are first, then try again"

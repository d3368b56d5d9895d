"""Who may do what: S1 and S5 generated from the route table, S4, S7, sessions, and open mode."""

from __future__ import annotations

import re
import secrets
import socket
import sqlite3
from contextlib import closing
from http.client import HTTPResponse, IncompleteRead
from typing import NamedTuple

import pytest

from noetl.api.access import FAILURES_SECONDS
from noetl.api.edge import COOKIE
from noetl.api.rights import ROLES
from noetl.api.route import Route
from noetl.api.router import RightMissing, Router
from noetl.api.table import TABLE
from tests.server.conftest import Guarded
from tests.server.processes import Process, serving
from tests.server.stage import SMALL
from tests.stopwatch import PATIENCE

WAITING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waits, path: tests/waits}
workflow:
  - step: start
    spec: {eval_mode: on_event}
    case: [{when: "{{ event.name == 'go' }}", then: {next: end}}]
  - {step: end, tool: {kind: noop}}
"""


class Declared(NamedTuple):
    method: str
    path: str
    right: str


ROUTES = [Declared(route.method, path, route.right) for route in TABLE for path in route.paths]
OPEN_TO_ALL = {
    ("GET", "/"),
    ("GET", "/health"),
    ("GET", "/api/health"),
    ("POST", "/api/auth/login"),
    ("POST", "/hooks/{path}"),  # What a hook verifies is the delivery itself.
}
ids = {"ids": lambda row: f"{row.method} {row.path}" if isinstance(row, Declared) else str(row)}


def written(path: str) -> str:
    """The path with something for each of its parameters."""
    return re.sub(r"\{\w+\}", "77", path)


def body_for(row: Declared) -> bytes | None:
    return b"{}" if row.method in ("POST", "PUT") else None


# --- S1: nobody gets in --------------------------------------------------------------------------


def test_s01_the_routes_that_are_open_are_few_and_known():
    assert {(row.method, row.path) for row in ROUTES if row.right == "anyone"} == OPEN_TO_ALL


def variants(path: str) -> list[str]:
    """The same path, spelled so that a careless check would take it for another."""
    first, _, rest = path[1:].partition("/")
    return [
        path,
        f"{path}/",
        f"{path}//",
        f"/{path}",
        f"//{first}//{rest}",
        f"{path};x=1",
        f"{path}.json",
        f"{path}%2f",
        f"{path}%00",
        f"{path}?x=/health",
        f"/health/..{path}",
        f"/health/%2e%2e{path}",
        f"/./{path[1:]}",
        path.upper(),
        path.replace("a", "%61", 1),
        path.replace("/", "/%2e/", 1),
        f"{path}#/health",
        f"/health%0d%0a{path}",
    ]


@pytest.mark.parametrize("row", ROUTES, **ids)
def test_s01_whoever_is_unknown_is_refused_however_they_spell_it(guarded: Guarded, row: Declared):
    if row.right == "anyone":
        return
    for path in variants(written(row.path)):
        # What is wrong with a token does not depend on how the path is spelled.
        tokens = ("", "wrong", "noetl_t_wrong", "noetl_s_wrong")
        for token in tokens if path == written(row.path) else tokens[:1]:
            reply = guarded.server.ask(row.method, path, token=token, raw=body_for(row))
            assert reply.status in (401, 400), (path, reply.status)
            if reply.status == 401:
                assert reply.code == "unauthenticated"
                said = "unknown, revoked or expired" if token else "not signed in"
                assert said in reply.json["error"]["message"]


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PATCH", "TRACE", "get", "NONSENSE"])
def test_s01_other_methods_lead_nowhere(guarded: Guarded, method: str):
    for path in ("/api/executions", "/api/executions/1/stream", "/api/openapi.json", "/nowhere"):
        assert guarded.server.ask(method, path, token="").status in (400, 401), path


def test_s01_there_are_no_web_sockets(guarded: Guarded):
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    for token in ("", guarded.tokens["admin"]):
        reply = guarded.server.ask("GET", "/api/executions", token=token, headers=headers)
        assert reply.status == 403


def test_s01_a_stream_is_refused_before_it_begins(guarded: Guarded):
    reply = guarded.server.ask("GET", "/api/executions/1/stream", token="")

    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("header", ["", "Basic YWRtaW46YWRtaW4=", "Bearer", "Bearer  ", "bearer x"])
def test_s01_half_a_proof_is_none(guarded: Guarded, header: str):
    reply = guarded.server.ask(
        "GET", "/api/executions", token="", headers={"Authorization": header, "Cookie": "a=b; ;"}
    )

    assert reply.status == 401


@pytest.mark.parametrize("right", [None, "", "everything"])
def test_s01_a_route_without_a_right_fails_at_start_up(right):
    async def known(services, caller) -> None: ...

    one = Route("a.known", "GET", "/known", "read", known)
    other = Route("a.forgotten", "GET", "/forgotten", right, known)

    assert Router([one]).match("GET", "/known").route is one
    with pytest.raises(RightMissing, match="GET /forgotten"):
        Router([one, other])


# --- S5: everybody gets as far as their role -----------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("row", ROUTES, **ids)
def test_s05_a_role_reaches_the_routes_whose_right_it_has_and_no_others(
    guarded: Guarded, row: Declared, role: str
):
    may = row.right == "anyone" or row.right in ROLES[role]
    if may and row.path in ("/api/commands/lease", "/api/keys/rotate"):
        return  # waits, or changes what other tests need
    reply = guarded.server.ask(
        row.method, written(row.path), token=guarded.tokens[role], raw=body_for(row)
    )

    refused_for_its_role = reply.status == 403 and "needs the right" in reply.raw.decode()
    assert refused_for_its_role == (not may), (reply.status, reply.raw)
    assert reply.status < 500


def test_s05_roles_are_as_they_were_agreed():
    assert ROLES["viewer"] < ROLES["operator"] < ROLES["author"] < ROLES["admin"]
    assert ROLES["worker"] < ROLES["admin"]
    assert not ROLES["worker"] & {"read", "operate", "author", "secrets.read", "manage"}


def test_s26_what_a_worker_reaches_is_about_its_work():
    """A right that workers share with people is not enough for what only people should read:
    whoever adds a route here looks whether it is bound to the leases of the worker."""
    of_workers = ROLES["worker"] - {"anyone", "self"}

    assert {f"{row.method} {row.path}" for row in ROUTES if row.right in of_workers} == {
        "POST /api/events",
        "POST /v1/events",
        "POST /api/commands/lease",
        "POST /api/commands/renew",
        "POST /api/commands/report",
        "GET /api/commands/cancelled",
        "GET /api/playbooks/{digest}",
        "GET /api/credentials/{name}",
        "GET /api/auth-cache/{key}",
        "PUT /api/auth-cache/{key}",
        "POST /api/rates/take",
        "GET /api/results/{execution_id}/{key}",
        "PUT /api/results/{execution_id}/{key}",
        "POST /api/worker/pool/register",
        "POST /api/worker/pool/heartbeat",
        "POST /api/worker/pool/deregister",
    }


# --- Tokens, users, sessions -------------------------------------------------------------------


def test_a_token_is_shown_once_kept_as_a_digest_and_worth_nothing_when_revoked(guarded: Guarded):
    server, admin = guarded.server, guarded.tokens["admin"]
    made = server.post("/api/access/tokens", {"name": "ci", "roles": ["viewer"]}, token=admin)

    assert server.ask("GET", "/api/executions", token=made["token"]).status == 200
    listed = server.ask("GET", "/api/access/tokens", token=admin)
    assert made["token"] not in listed.raw.decode()
    again = server.ask(
        "POST", "/api/access/tokens", {"name": "ci", "roles": ["admin"]}, token=admin
    )
    assert again.status == 409
    database = guarded.folder / ".noetl" / "noetl.db"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        assert made["token"] not in str(db.execute("SELECT * FROM noetl_token").fetchall())
    assert server.ask("DELETE", "/api/access/tokens/ci", token=admin).status == 200
    assert server.ask("GET", "/api/executions", token=made["token"]).status == 401


def test_an_answer_is_not_ended_as_if_it_were_whole_when_the_token_is_revoked(guarded: Guarded):
    server, admin = guarded.server, guarded.tokens["admin"]
    made = server.post("/api/access/tokens", {"name": "reader", "roles": ["viewer"]}, token=admin)
    content = {"content": WAITING}
    server.post("/api/catalog/register", content, token=admin)
    execution_id = server.post("/api/execute", {"path": "tests/waits"}, token=admin)["execution_id"]
    for _ in range(200):
        signal = {"name": "kept", "data": secrets.token_urlsafe(48_000)}
        server.post(f"/api/executions/{execution_id}/events", signal, token=admin)

    with (
        closing(Asking(server.port, made["token"])) as export,
        closing(Asking(server.port, made["token"])) as news,
    ):
        whole = export.begin(f"/api/executions/{execution_id}/export")
        ending = news.begin("/api/stream?topics=inbox")
        assert server.ask("DELETE", "/api/access/tokens/reader", token=admin).status == 200
        ending.read()  # Both end together, and news may end anywhere.
        with pytest.raises(IncompleteRead):
            whole.read()


class Asking:
    """A connection on which nothing is read that was not asked for."""

    def __init__(self, port: int, token: str) -> None:
        self._line = socket.socket()
        self._line.settimeout(PATIENCE)
        self._line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        self._line.connect(("127.0.0.1", port))
        self._token = token

    def begin(self, path: str) -> HTTPResponse:
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._token}"
        self._line.sendall(f"{head}\r\n\r\n".encode())
        answer = HTTPResponse(self._line)
        answer.begin()
        assert answer.status == 200
        return answer

    def close(self) -> None:
        self._line.close()


def test_a_token_that_has_expired_is_worth_nothing(guarded: Guarded):
    server, admin = guarded.server, guarded.tokens["admin"]
    body = {"name": "short", "roles": ["viewer"], "expires_in": 1e-6}
    made = server.post("/api/access/tokens", body, token=admin)

    assert server.ask("GET", "/api/executions", token=made["token"]).status == 401


def test_the_audit_log_can_be_read_to_its_beginning(guarded: Guarded):
    server, admin = guarded.server, guarded.tokens["admin"]
    for name in ("p1", "p2", "p3"):
        server.post("/api/access/tokens", {"name": name, "roles": ["viewer"]}, token=admin)
    whole = server.get("/api/access/audit", limit=1000, token=admin)
    found, page = [], {"next_cursor": None, "entries": []}
    for _ in range(len(whole["entries"])):
        more = {} if page["next_cursor"] is None else {"cursor": page["next_cursor"]}
        page = server.get("/api/access/audit", limit=2, token=admin, **more)
        found += page["entries"]
        if page["next_cursor"] is None:
            break

    assert whole["next_cursor"] is None
    assert found == whole["entries"]
    assert found[-1]["action"] == "token.created"
    assert server.ask("GET", "/api/access/audit", cursor="zz", token=admin).status == 400


def test_people_sign_in_see_their_sessions_and_sign_out(guarded: Guarded):
    server, admin = guarded.server, guarded.tokens["admin"]
    body = {"name": "ada", "roles": ["operator"], "password": "lovelace1815", "email": "a@b.c"}
    assert server.post("/api/access/users", body, token=admin)["name"] == "ada"

    login = {"user": "ada", "password": "lovelace1815"}
    first = server.ask("POST", "/api/auth/login", login, token="")
    second = server.ask("POST", "/api/auth/login", login, token="").json["token"]
    cookie = first.headers["set-cookie"]
    shown = {"Cookie": cookie.partition(";")[0]}
    me = server.ask("GET", "/api/auth/me", token="", headers=shown).json
    sessions = server.get("/api/auth/sessions", token=second)["sessions"]

    assert first.headers["cache-control"] == "no-store"
    assert cookie.startswith(f"{COOKIE}=noetl_s_")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert (me["name"], me["roles"], me["email"]) == ("ada", ["operator"], "a@b.c")
    assert [session["current"] for session in sessions] == [True, False]
    assert server.ask("POST", "/api/auth/logout", token="", headers=shown).status == 200
    assert server.ask("GET", "/api/auth/me", token="", headers=shown).status == 401
    assert len(server.get("/api/auth/sessions", token=second)["sessions"]) == 1
    assert server.ask("DELETE", "/api/access/users/ada", token=admin).status == 200
    assert server.ask("GET", "/api/auth/me", token=second).status == 401


def test_a_password_is_kept_as_argon2_hashes_it(guarded: Guarded):
    body = {"name": "grace", "roles": ["viewer"], "password": "a nanosecond of wire"}
    guarded.server.post("/api/access/users", body, token=guarded.tokens["admin"])
    with closing(sqlite3.connect(guarded.folder / ".noetl" / "noetl.db")) as db:
        [[kept]] = db.execute("SELECT password_hash FROM noetl_user WHERE name = 'grace'")

    assert kept.startswith("$argon2id$")


def test_nobody_ends_the_sessions_of_somebody_else(guarded: Guarded):
    server, admin = guarded.server, guarded.tokens["admin"]
    tokens = {}
    for name in ("eve", "bob"):
        body = {"name": name, "roles": ["viewer"], "password": "correct horse"}
        server.post("/api/access/users", body, token=admin)
        login = {"user": name, "password": "correct horse"}
        tokens[name] = server.ask("POST", "/api/auth/login", login, token="").json["token"]
    [session] = server.get("/api/auth/sessions", token=tokens["bob"])["sessions"]

    taken = server.ask("DELETE", f"/api/auth/sessions/{session['session_id']}", token=tokens["eve"])
    all_of_eve = server.ask("DELETE", "/api/auth/sessions", token=tokens["eve"])

    assert taken.status == 404
    assert all_of_eve.json == {"ended": []}
    assert server.ask("GET", "/api/auth/me", token=tokens["bob"]).status == 200


def test_a_token_with_the_name_of_a_user_has_none_of_their_sessions(guarded: Guarded):
    server, admin = guarded.server, guarded.tokens["admin"]
    body = {"name": "mary", "roles": ["admin"], "password": "somerville"}
    server.post("/api/access/users", body, token=admin)
    login = {"user": "mary", "password": "somerville"}
    session = server.ask("POST", "/api/auth/login", login, token="").json["token"]
    [own] = server.get("/api/auth/sessions", token=session)["sessions"]
    same = {"name": "mary", "roles": ["viewer"]}
    token = server.post("/api/access/tokens", same, token=admin)["token"]

    assert server.get("/api/auth/sessions", token=token)["sessions"] == []
    one = server.ask("DELETE", f"/api/auth/sessions/{own['session_id']}", token=token)
    assert one.status == 404
    assert server.ask("DELETE", "/api/auth/sessions", token=token).json == {"ended": []}
    assert server.ask("GET", "/api/auth/me", token=session).status == 200


@pytest.mark.parametrize(
    "others",
    ['a={"x": 1}; ', "two words; ", "[x]=1; ", "ü=ö; ", "a; b=; =c; ", "xnoetl_session=1; "],
)
def test_a_session_is_found_whatever_other_programs_put_into_their_cookies(
    guarded: Guarded, others: str
):
    server, admin = guarded.server, guarded.tokens["admin"]
    body = {"name": "joan", "roles": ["viewer"], "password": "clarke-1917"}
    server.post("/api/access/users", body, token=admin)
    login = {"user": "joan", "password": "clarke-1917"}
    session = server.ask("POST", "/api/auth/login", login, token="").json["token"]
    for sent in (f"{others}{COOKIE}={session}", f"{COOKIE}={session}; {others}"):
        me = server.ask("GET", "/api/auth/me", token="", headers={"Cookie": sent.strip("; ")})
        assert me.json["name"] == "joan"


def test_guessing_passwords_is_stopped_and_remembered(guarded: Guarded):
    server, admin = guarded.server, guarded.tokens["admin"]
    body = {"name": "grace", "roles": ["viewer"], "password": "hopper-1906"}
    server.post("/api/access/users", body, token=admin)

    asked = [
        server.ask("POST", "/api/auth/login", {"user": "grace", "password": "no"}, token="")
        for _ in range(6)
    ]
    tries = [one.status for one in asked]
    right = server.ask("POST", "/api/auth/login", {"user": "grace", "password": "hopper-1906"})

    assert tries == [401] * 5 + [429]
    assert right.status == 429
    assert 1 <= int(asked[-1].headers["retry-after"]) <= FAILURES_SECONDS
    assert f"in {asked[-1].headers['retry-after']} seconds" in asked[-1].raw.decode()
    audit = server.get("/api/access/audit", token=admin)["entries"]
    assert sum(row["action"] == "login.refused" and row["target"] == "grace" for row in audit) == 5


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x", "roles": [], "password": "long enough"},
        {"name": "x", "roles": ["king"], "password": "long enough"},
        {"name": "x", "roles": ["viewer"], "password": "short"},
        {"name": "a/b", "roles": ["viewer"], "password": "long enough"},
        {"name": "", "roles": ["viewer"], "password": "long enough"},
    ],
)
def test_a_user_that_makes_no_sense_is_refused(guarded: Guarded, body: dict[str, object]):
    reply = guarded.server.ask("POST", "/api/access/users", body, token=guarded.tokens["admin"])

    assert reply.status == 400


def test_a_page_of_another_site_cannot_act(guarded: Guarded):
    server, admin = guarded.server, guarded.tokens["admin"]

    def cancel(origin: str) -> int:
        headers = {"Origin": origin}
        return server.ask(
            "POST", "/api/executions/1/cancel", {}, token=admin, headers=headers
        ).status

    assert cancel("https://evil.example") == 403
    assert cancel("null") == 403
    assert cancel(server.url) == 404


# --- Open mode ---------------------------------------------------------------------------------


def test_an_open_server_listens_on_its_own_machine_only(tmp_path):
    with pytest.raises(AssertionError, match="no users are configured"):
        Process(tmp_path, "server", "start", "--port", "0", "--host", "0.0.0.0")


def test_an_open_server_answers_to_names_of_its_machine_only(tmp_path):
    with serving(tmp_path) as server:
        assert "every user of this machine" in server.log.read_text()
        assert server.ask("GET", "/api/executions", headers={"Host": "evil.example"}).status == 403
        assert server.ask("GET", "/api/executions", headers={"Host": "localhost:1"}).status == 200


def test_the_first_user_must_be_able_to_let_others_in_and_closes_the_server(tmp_path):
    with serving(tmp_path) as server:
        user = {"name": "ada", "password": "lovelace1815"}
        first = server.ask("POST", "/api/access/users", {**user, "roles": ["viewer"]})
        assert first.status == 409
        assert server.ask("GET", "/api/executions").status == 200

        assert server.ask("POST", "/api/access/users", {**user, "roles": ["admin"]}).status == 200
        assert server.ask("GET", "/api/executions").status == 401


def test_a_server_with_users_listens_anywhere(tmp_path):
    from tests.cli.conftest import COMMAND, clean_environment  # noqa: F401
    from tests.faults.runs import Place

    made = Place(tmp_path).run("access", "token", "create", "boss", "--role", "admin")
    assert made.returncode == 0, made.stderr
    process = Process(tmp_path, "server", "start", "--port", "0", "--host", "0.0.0.0")
    try:
        assert process.said.startswith("http://0.0.0.0:")
    finally:
        process.end()


# --- S7 ----------------------------------------------------------------------------------------


def test_s07_what_is_our_own_fault_tells_nobody_how_we_are_built(tmp_path):
    with serving(tmp_path) as server:
        with closing(sqlite3.connect(tmp_path / ".noetl" / "noetl.db")) as db, db:
            db.execute("DROP TABLE noetl_credential")

        reply = server.ask("GET", "/api/credentials")

    assert reply.status in (500, 503)
    assert set(reply.json["error"]) == {"code", "message", "details"}
    for inside in ("noetl_credential", "sqlite", "Traceback", str(tmp_path), ".py", "SELECT"):
        assert inside.lower() not in reply.raw.decode().lower()
    assert reply.headers["x-request-id"] in reply.json["error"]["message"]
    assert "noetl_credential" in server.log.read_text()


def test_s07_no_route_tells_how_we_are_built_when_the_database_is_broken(tmp_path):
    with serving(tmp_path) as server:
        with closing(sqlite3.connect(tmp_path / ".noetl" / "noetl.db")) as db, db:
            tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'noetl%'"
            for (name,) in db.execute(tables).fetchall():
                db.execute(f"DROP TABLE {name}")

        replies = {
            (row.method, row.path): server.ask(row.method, written(row.path), raw=body_for(row))
            for row in ROUTES
        }

    broken = {asked: reply for asked, reply in replies.items() if reply.status >= 500}
    assert len(broken) > len(ROUTES) / 3
    for asked, reply in broken.items():
        said = reply.raw.decode().lower()
        for inside in ("noetl_", "sqlite", "traceback", str(tmp_path), ".py", "select", "table"):
            assert inside not in said, (asked, said)

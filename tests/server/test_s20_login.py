"""S20, S32 and S34: signing in, and the end of what was signed in."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.cookies import SimpleCookie
from pathlib import Path

import msgspec
import pytest

from noetl.api.access import FAILURES_MAX, REFUSALS_NOTED_MAX, Access
from noetl.api.edge import COOKIE, Proxies
from noetl.api.rights import OPEN
from noetl.api.sessions import Sessions
from noetl.errors import Unauthenticated
from noetl.store.access import StoredUser
from noetl.store.sqlite import SqliteStore
from tests.effort import IS_LONG
from tests.examples.system import temporary_folder
from tests.server.processes import Reply, Server, serving
from tests.stopwatch import Stopwatch, meanwhile

PASSWORD = "lovelace-1815"
TRIES = 60 if IS_LONG else 30


@pytest.fixture
def closed() -> Iterator[Server]:
    """A server of its own, with one user: what is counted is not others' doing."""
    with temporary_folder() as folder, serving(folder) as server:
        made = server.post("/api/access/tokens", {"name": "a", "roles": ["admin"]})
        server.token = made["token"]
        put(server, PASSWORD)
        yield server


def put(server: Server, password: str) -> None:
    server.post("/api/access/users", {"name": "ada", "roles": ["viewer"], "password": password})


def login(server: Server, user: str, password: str, **headers: str) -> Reply:
    body = {"user": user, "password": password}
    return server.ask("POST", "/api/auth/login", body, token="", headers=headers)


def memory(server: Server) -> int:
    """What the process has in memory, in bytes."""
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096


def test_s20_long_names_and_passwords_are_refused_and_leave_nothing(closed: Server):
    for _ in range(3):
        login(closed, "ada", "wrong")
    before = memory(closed)

    statuses = {login(closed, f"{n}" + "x" * 4_000_000, "wrong").status for n in range(20)}
    statuses |= {login(closed, f"{n}" + "x" * 1000, "x" * 5000).status for n in range(20)}

    assert statuses <= {400, 413, 422}
    assert memory(closed) - before < 30 * 2**20
    entries = closed.get("/api/access/audit", limit=1000)["entries"]
    assert all(len(str(entry)) < 500 for entry in entries)


def test_s20_many_guesses_at_once_are_as_few_as_one_after_the_other(closed: Server):
    with ThreadPoolExecutor(50) as threads:
        replies = list(threads.map(lambda n: login(closed, "ada", f"wrong-{n}"), range(100)))

    found = Counter(reply.status for reply in replies)
    assert found.keys() == {401, 429}
    assert found[401] <= FAILURES_MAX


def test_s20_a_name_that_nobody_has_takes_as_long(closed: Server):
    def took(user: str) -> float:
        watch = Stopwatch(closed.process.pid)
        assert login(closed, user, "wrong").status == 401
        return watch.seconds()

    took("first")
    known, unknown = [], []
    for n in range(FAILURES_MAX):
        known.append(took("ada"))
        unknown.append(took(f"nobody-{n}"))

    assert statistics.median(known) < 5 * statistics.median(unknown)
    assert statistics.median(unknown) < 5 * statistics.median(known)


class Standing:
    """A clock that is turned by hand."""

    at = 1_800_000_000.0

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


def test_s20_the_audit_log_does_not_grow_with_every_guess():
    asyncio.run(guessing())


async def guessing() -> None:
    clock = Standing()
    store = await SqliteStore.open(":memory:", threads=False)
    access = Access(store.access, Sessions(store.sessions, clock), clock)
    for n in range(REFUSALS_NOTED_MAX + 7):
        with pytest.raises(Unauthenticated):
            await access.sign_in(f"nobody-{n}", "wrong", "127.0.0.1")

    assert len(await store.access.audit(limit=1000)) == REFUSALS_NOTED_MAX
    await clock.sleep(61)
    with pytest.raises(Unauthenticated):
        await access.sign_in("nobody", "wrong", "127.0.0.1")
    last, others, *_ = await store.access.audit(limit=1000)
    assert (last.target, others.target, others.details) == ("nobody", "(others)", "7 more")
    await store.close()


def test_s32_who_signs_in_while_their_password_is_changed_is_not_let_in():
    async def story() -> None:
        clock = Standing()
        store = await SqliteStore.open(":memory:", threads=False)
        access = Access(store.access, Sessions(store.sessions, clock), clock)
        await access.put_user(OPEN, "ada", PASSWORD, ("admin",))
        [known] = await store.access.users()

        signing_in = asyncio.create_task(access.sign_in("ada", PASSWORD, "127.0.0.1"))
        await asyncio.sleep(0)  # It knows the user, and is checking the password in a thread.
        assert not signing_in.done()
        await store.access.put_user(msgspec.structs.replace(known, password_hash="another"))

        with pytest.raises(Unauthenticated):
            await signing_in
        assert await store.sessions.of_user("ada") == []
        await store.close()

    asyncio.run(story())


def test_s01_nobody_is_let_in_while_it_is_looked_up_whether_anybody_may(tmp_path):
    """Another server has made the first user; two ask this one at the same moment."""

    async def story() -> list[bool]:
        clock = Standing()
        store = await SqliteStore.open(f"sqlite:///{tmp_path}/noetl.db")
        access = Access(store.access, Sessions(store.sessions, clock), clock)
        assert await access.is_open()
        first = StoredUser(name="ann", password_hash="x", roles=("admin",))
        await store.access.put_user(first)
        await clock.sleep(61)
        found = await asyncio.gather(access.is_open(), access.is_open())
        await store.close()
        return found

    assert asyncio.run(story()) == [False, False]


def test_s20_what_is_typed_instead_of_a_name_is_not_kept(closed: Server):
    assert login(closed, "my password is canary", "x").status == 401

    assert "canary" not in str(closed.get("/api/access/audit"))


def test_s20_a_crowd_that_signs_in_does_not_keep_others_waiting(closed: Server):
    health = meanwhile(lambda: closed.get("/health"), closed.process.pid)
    with ThreadPoolExecutor(TRIES) as threads, health as waits:
        tries = threads.map(lambda n: login(closed, f"nobody-{n}", "wrong").status, range(TRIES))
        statuses = set(tries)

    assert statuses <= {401, 429}
    assert max(waits) < 1


def test_s32_a_changed_password_ends_sessions(closed: Server):
    session = login(closed, "ada", PASSWORD).json["token"]
    assert closed.ask("GET", "/api/auth/me", token=session).status == 200

    put(closed, "another-password")

    assert closed.ask("GET", "/api/auth/me", token=session).status == 401
    assert login(closed, "ada", PASSWORD).status == 401
    assert login(closed, "ada", "another-password").status == 200


@pytest.mark.parametrize(
    ("headers", "is_secure"),
    [
        ({}, False),
        ({"X-Forwarded-Proto": "https"}, True),
        ({"X-Forwarded-Proto": "https, http"}, True),
        ({"X-Forwarded-Proto": "http"}, False),
        ({"Forwarded": 'for=192.0.2.1;proto="HTTPS";by=192.0.2.2'}, True),
        ({"Forwarded": "for=192.0.2.1;proto=http, for=192.0.2.2;proto=https"}, True),
        ({"Forwarded": "for=192.0.2.1;proto=http"}, False),
        ({"X-Forwarded-Proto": "http", "Forwarded": "proto=https"}, True),
        ({"Host": "noetl.example", "Origin": "https://noetl.example"}, True),
        (
            {
                "Host": "noetl.example",
                "Origin": "https://noetl.example",
                "X-Forwarded-Proto": "http",
            },
            True,
        ),
    ],
)
def test_s34_cookies_keep_to_tls_where_anybody_says_so(signed: Server, headers, is_secure):
    reply = login(signed, "ada", PASSWORD, **headers)

    cookie = SimpleCookie(reply.headers["set-cookie"])[COOKIE]
    assert (bool(cookie["secure"]), bool(cookie["httponly"])) == (is_secure, True)
    assert cookie["samesite"].lower() == "strict"


@pytest.fixture(scope="module")
def signed() -> Iterator[Server]:
    with temporary_folder() as folder, serving(folder) as server:
        made = server.post("/api/access/tokens", {"name": "a", "roles": ["admin"]})
        server.token = made["token"]
        put(server, PASSWORD)
        yield server


# --- Who speaks for whom -----------------------------------------------------------------------


def addresses(server: Server) -> set[str]:
    """Where sign-ins came from, as the audit log has it."""
    rows = server.get("/api/access/audit")["entries"]
    return {row["details"] for row in rows if row["action"].startswith("login")}


FORGED = {
    "X-Forwarded-For": "203.0.113.7",
    "X-Real-IP": "203.0.113.7",
    "Forwarded": "for=203.0.113.7",
}


def test_s19_nobody_chooses_the_address_that_the_audit_log_shows(closed: Server):
    login(closed, "ada", PASSWORD, **FORGED)
    login(closed, "ada", "wrong", **FORGED)

    assert addresses(closed) == {"127.0.0.1"}


def test_s19_only_a_trusted_proxy_speaks_for_others():
    proxies = Proxies(["10.0.0.0/8"])
    told = {b"x-forwarded-for": b"203.0.113.7", b"x-forwarded-proto": b"https"}

    assert proxies.behind("10.1.2.3", told) == ("203.0.113.7", "https")
    for stranger in ("192.0.2.1", "::1", "uid 1000"):
        assert proxies.behind(stranger, told) == (stranger, "http")


def test_s19_a_proxy_that_the_operator_trusts_says_for_whom_it_speaks():
    with temporary_folder() as folder:
        trusted = {"NOETL_TRUSTED_PROXIES": "127.0.0.1,10.0.0.0/8"}
        with serving(folder, **trusted) as server:
            made = server.post("/api/access/tokens", {"name": "a", "roles": ["admin"]})
            server.token = made["token"]
            put(server, PASSWORD)
            # The first is what the client itself wrote, the others were added on the way.
            login(server, "ada", PASSWORD, **{"X-Forwarded-For": "6.6.6.6, 203.0.113.7, 10.2.3.4"})

            assert addresses(server) == {"203.0.113.7"}

"""The one way to talk to a server: `Client` for commands, `HttpControl` for workers.

Errors come back as what they were raised as on the far side. Where no server answers, a client says
so at once; a worker goes on trying, because what it has to say must not be lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from noetl.engine.program import Program
from noetl.errors import (
    NoetlError,
    NotFound,
    PlaybookRejected,
    StoreError,
    TooMany,
    Unreachable,
)
from noetl.model import net as nets
from noetl.model.access_tokens import AccessToken
from noetl.model.commands import Answer, Command, Lease, Report
from noetl.model.ids import CommandId, ExecutionId
from noetl.model.problems import Problem

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0
BACKOFF_FIRST = 0.05
BACKOFF_MAX = 2.0
BUNDLES_AT_ONCE = 2
BUNDLE_MAX = 100
BUNDLE_BYTES_MAX = 8 * 1024 * 1024
"""Reports that are sent together; a single one may be larger."""
CANCELLED_WAIT = 25.0
Params = dict[str, str] | list[tuple[str, str]]
T = TypeVar("T")
PASSING = (Unreachable, StoreError, TooMany)
"""What another try may not meet."""
WHATEVER = (NoetlError,)
"""A worker without work asks for ever: whatever is wrong may be put right."""
WORKER_HEADER = "X-NoETL-Worker"
_TRY_AGAIN = frozenset({502, 503, 504})


class _Terms(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    expires_at: datetime


class _Leased(Command, frozen=True, kw_only=True):
    """A command with its lease beside its other fields, as it travels."""

    lease: _Terms


class _CachedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token that workers share; for how many seconds, because clocks differ."""

    token: str
    expires_in: float


class _Commands(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a wish for commands, or to a report."""

    commands: list[_Leased] = []
    accepted: bool = True
    cancelled: bool = False
    error: dict[str, Any] | None = None
    """Why a report was refused."""

    def leases(self) -> list[Lease]:
        return [
            Lease(command=one, token=one.lease.token, expires_at=one.lease.expires_at.timestamp())
            for one in self.commands
        ]


class Connection:
    """One or several servers that know the same. If one does not answer, another is asked."""

    def __init__(self, urls: Sequence[str], token: str | None = None) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._current = 0
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_SECONDS, sock_read=ANSWER_SECONDS
            ),
        )

    @property
    def url(self) -> str:
        """The server that is asked at the moment."""
        return self._urls[self._current]

    async def close(self) -> None:
        await self._session.close()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: Params | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """The body of the answer. Raises what went wrong over there, or Unreachable."""
        failure: Exception | None = None
        for _ in self._urls:
            try:
                return await self._ask_once(method, path, body, params, headers)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failure = error
                self._current = (self._current + 1) % len(self._urls)
        raise Unreachable(
            f"no server answers at {', '.join(self._urls)} ({_cause_of(failure)})."
            " Is it running? `noetl server start` starts one; --server names another."
        )

    async def _ask_once(
        self,
        method: str,
        path: str,
        body: bytes | None,
        params: Params | None,
        headers: dict[str, str] | None,
    ) -> bytes:
        sent = dict(headers or {})
        if body is not None:
            sent["Content-Type"] = "application/json"
        async with self._session.request(
            method, self.url + path, data=body, params=params, headers=sent
        ) as response:
            answer = await response.read()
            if response.status < 400:
                return answer
            raise error_of(response.status, answer)

    @asynccontextmanager
    async def stream(
        self, path: str, headers: dict[str, str]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer that goes on."""
        async with self._session.get(self.url + path, headers=headers) as response:
            if response.status >= 400:
                raise error_of(response.status, await response.read())
            yield response.content.__aiter__()


def _cause_of(failure: Exception | None) -> str:
    """Why nobody answered, in a few words."""
    cause = getattr(failure, "os_error", failure)
    number = getattr(cause, "errno", None) or 0
    if number > 0:
        return os.strerror(number).lower()
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def error_of(status: int, body: bytes) -> NoetlError:
    """The error that an answer stands for."""
    try:
        told = msgspec.json.decode(body, type=dict[str, Any])["error"]
        code, message, details = told["code"], told["message"], told.get("details")
    except (msgspec.MsgspecError, KeyError, TypeError):
        code, message, details = "", f"the server answered {status}.", None
    if code == PlaybookRejected.code and isinstance(details, dict):
        return PlaybookRejected(msgspec.convert(details["problems"], tuple[Problem, ...]))
    kind = _kinds(NoetlError).get(code)
    if kind is None:
        kind = StoreError if status in _TRY_AGAIN else NoetlError
    return kind(message)


def _kinds(root: type[NoetlError]) -> dict[str, type[NoetlError]]:
    """Errors by code, of all that can be made from a message alone."""
    found = {} if root is PlaybookRejected else {root.code: root}
    for kind in root.__subclasses__():
        found |= _kinds(kind)
    return found


class _Connected:
    """Something that talks through a connection of its own, for as long as it is entered."""

    def __init__(self, urls: Sequence[str], token: str | None = None) -> None:
        self._connection = Connection(urls, token)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._connection.close()


class Client(_Connected):
    """What commands ask of a server: one method per route that people use."""

    @property
    def url(self) -> str:
        return self._connection.url

    async def get(self, route: str, /, **params: Any) -> Any:
        chosen = [
            (name, str(one))
            for name, value in params.items()
            if value is not None
            for one in (value if isinstance(value, list | tuple) else [value])
        ]
        return msgspec.json.decode(await self._connection.ask("GET", route, params=chosen))

    async def post(self, path: str, body: Any = None, *, key: str | None = None) -> Any:
        headers = {} if key is None else {"Idempotency-Key": key}
        sent = msgspec.json.encode({} if body is None else body)
        answer = await self._connection.ask("POST", path, body=sent, headers=headers)
        return msgspec.json.decode(answer)

    async def delete(self, path: str) -> Any:
        return msgspec.json.decode(await self._connection.ask("DELETE", path))

    # --- Executions ---

    async def execution(self, execution_id: ExecutionId) -> dict[str, Any]:
        found: dict[str, Any] = await self.get(f"/api/executions/{quote(execution_id, safe='')}")
        return found

    async def act(self, execution_id: ExecutionId, action: str, **body: Any) -> dict[str, Any]:
        """cancel, pause, resume, rerun or events."""
        path = f"/api/executions/{quote(execution_id, safe='')}/{action}"
        found: dict[str, Any] = await self.post(path, body)
        return found

    async def events(self, execution_id: ExecutionId, **params: Any) -> dict[str, Any]:
        path = f"/api/executions/{quote(execution_id, safe='')}/events"
        found: dict[str, Any] = await self.get(path, **params)
        return found


async def _persist(
    ask: Callable[[], Awaitable[T]], despite: tuple[type[NoetlError], ...] = PASSING
) -> T:
    """Ask until somebody answers: servers are restarted, networks come back."""
    pause = BACKOFF_FIRST
    while True:
        try:
            return await ask()
        except despite as error:
            if pause == BACKOFF_FIRST:
                logger.warning("trying again until it works: %s", error)
            # Not all at the same moment, when a server comes back to many workers.
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311
            pause = min(pause * 2, BACKOFF_MAX)


class _Answers(msgspec.Struct, frozen=True, kw_only=True):
    answers: list[_Commands]


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker tells about itself, for people who look at pools."""

    worker_id: str
    pool: str
    slots: int
    host: str
    version: str
    draining: bool = False


class _Bundles:
    """Sends reports, each at once if nothing is under way, and together what gathers meanwhile.

    What a request costs is the request: ten reports in one cost a server little more than one.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._gathered: dict[tuple[int, str], deque[tuple[bytes, asyncio.Future[_Commands]]]] = {}
        self._senders = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._decode = msgspec.json.Decoder(_Answers).decode

    async def send(self, report: Report, want: int, pool: str) -> _Commands:
        """The answer to a report. Raises what went wrong with it, or with all that went along."""
        future: asyncio.Future[_Commands] = asyncio.get_running_loop().create_future()
        gathered = self._gathered.setdefault((want, pool), deque())
        gathered.append((msgspec.json.encode(report), future))
        if self._senders < BUNDLES_AT_ONCE:
            self._senders += 1
            sending = asyncio.create_task(self._empty())
            self._tasks.add(sending)
            sending.add_done_callback(self._tasks.discard)
        return await future

    async def _empty(self) -> None:
        """Send until nothing is left; what comes after that finds one sender less."""
        try:
            while self._gathered:
                await self._send_some()
        finally:
            self._senders -= 1

    async def _send_some(self) -> None:
        (want, pool), gathered = next(iter(self._gathered.items()))
        bundle = [gathered.popleft()]
        size = len(bundle[0][0])
        while gathered and len(bundle) < BUNDLE_MAX:
            size += len(gathered[0][0])
            if size > BUNDLE_BYTES_MAX:
                break
            bundle.append(gathered.popleft())
        if not gathered:
            del self._gathered[want, pool]
        await self._send(bundle, {"want": str(want), "pool": pool})

    async def _send(
        self, bundle: list[tuple[bytes, asyncio.Future[_Commands]]], params: Params
    ) -> None:
        body = b"[" + b",".join(report for report, _ in bundle) + b"]"
        try:
            answer = await self._connection.ask(
                "POST", "/api/commands/report", body=body, params=params
            )
            answers = list(zip(bundle, self._decode(answer).answers, strict=True))
        except Exception as error:  # noqa: BLE001  whoever waits gets it
            for _, future in bundle:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), one in answers:
            if future.done():
                continue  # Whoever asked is gone.
            if one.error is None:
                future.set_result(one)
            else:
                future.set_exception(error_of(0, msgspec.json.encode({"error": one.error})))


class HttpControl(_Connected):
    """What a worker needs of the control plane, over HTTP (see `worker.control`)."""

    def __init__(
        self, urls: Sequence[str], token: str | None = None, kinds: Sequence[str] = ()
    ) -> None:
        """`kinds` are the tool kinds that the worker runs; none named: all."""
        super().__init__(urls, token)
        self._worker_id = ""
        self._kinds = kinds
        self._decode = msgspec.json.Decoder(_Commands).decode
        self._bundles = _Bundles(self._connection)

    async def _persist(
        self,
        method: str,
        path: str,
        *,
        despite: tuple[type[NoetlError], ...] = PASSING,
        **request: Any,
    ) -> bytes:
        return await _persist(lambda: self._connection.ask(method, path, **request), despite)

    async def register(self, me: Presence) -> None:
        """Say that we are there. Raises NotAllowed when we may not work."""
        body = msgspec.json.encode(me)
        await self._persist("POST", "/api/worker/pool/register", body=body)

    async def heartbeat(self, me: Presence) -> None:
        """Say that we still are."""
        body = msgspec.json.encode(me)
        await self._connection.ask("POST", "/api/worker/pool/heartbeat", body=body)

    async def deregister(self, worker_id: str) -> None:
        """We end: what we were given and have not reported on goes to others."""
        body = msgspec.json.encode({"worker_id": worker_id})
        await self._connection.ask("POST", "/api/worker/pool/deregister", body=body)

    async def lease(self, worker_id: str, *, pool: str, want: int, wait: float) -> list[Lease]:
        self._worker_id = worker_id
        wish = {"worker_id": worker_id, "pool": pool, "slots": want, "wait": wait}
        if self._kinds:
            wish["kinds"] = self._kinds
        body = msgspec.json.encode(wish)
        answer = await self._persist("POST", "/api/commands/lease", body=body, despite=WHATEVER)
        return self._decode(answer).leases()

    async def report(self, report: Report, *, want: int = 0, pool: str = "default") -> Answer:
        # What follows may need other kinds than this worker runs.
        wanted = 0 if self._kinds else want
        found = await _persist(lambda: self._bundles.send(report, wanted, pool))
        return Answer(
            accepted=found.accepted, cancelled=found.cancelled, leases=tuple(found.leases())
        )

    async def renew(self, tokens: dict[CommandId, str]) -> set[CommandId]:
        body = msgspec.json.encode({"leases": list(tokens.values())})
        answer = await self._connection.ask("POST", "/api/commands/renew", body=body)
        return set(msgspec.json.decode(answer)["lost"])

    async def cancelled(self, worker_id: str) -> set[CommandId]:
        params = {"worker_id": worker_id, "wait": str(CANCELLED_WAIT)}
        while True:
            answer = await self._persist(
                "GET", "/api/commands/cancelled", params=params, despite=WHATEVER
            )
            found = set(msgspec.json.decode(answer)["commands"])
            if found:
                return found
            # A server that is about to end answers at once, and with nothing.
            await asyncio.sleep(BACKOFF_FIRST)

    async def program(self, digest: str) -> Program:
        body = await self._persist("GET", f"/api/playbooks/{digest}")
        return Program(nets.decode(body), digest)

    async def put_result(self, execution_id: ExecutionId, key: str, body: bytes) -> None:
        path = f"/api/results/{execution_id}/{quote(key)}"
        await self._persist("PUT", path, body=body, headers=self._who())

    async def get_result(self, execution_id: ExecutionId, key: str) -> bytes:
        path = f"/api/results/{execution_id}/{quote(key)}"
        return await self._persist("GET", path, headers=self._who())

    async def credential(self, name: str, execution_id: ExecutionId) -> dict[str, Any]:
        params = {"include_data": "true", "execution_id": execution_id}
        path = f"/api/credentials/{quote(name, safe='')}"
        answer = await self._persist("GET", path, params=params, headers=self._who())
        found: dict[str, Any] = msgspec.json.decode(answer)["data"]
        return found

    async def access_token(self, key: str, execution_id: ExecutionId) -> AccessToken | None:
        params = {"execution_id": execution_id}
        try:
            answer = await self._persist(
                "GET", f"/api/auth-cache/{key}", params=params, headers=self._who()
            )
        except NotFound:
            return None
        found = msgspec.json.decode(answer, type=_CachedToken)
        return AccessToken(text=found.token, expires_at=time.time() + found.expires_in)

    async def keep_access_token(
        self, key: str, token: AccessToken, execution_id: ExecutionId
    ) -> None:
        life = token.expires_at - time.time()
        if life > 0:
            body = msgspec.json.encode(_CachedToken(token=token.text, expires_in=life))
            params = {"execution_id": execution_id}
            path = f"/api/auth-cache/{key}"
            await self._persist("PUT", path, body=body, params=params, headers=self._who())

    def _who(self) -> dict[str, str]:
        return {WORKER_HEADER: self._worker_id}

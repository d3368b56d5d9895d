"""The one way to talk to a server: `Client` for commands, `HttpControl` for workers.

Errors come back as what they were raised as on the far side. Where no server answers, a client says
so at once; a worker goes on trying, because what it has to say must not be lost.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import os
import random
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from noetl.api.connection import ANSWER_SECONDS, Lines
from noetl.api.route import Caller, Reply
from noetl.engine.program import Program
from noetl.errors import (
    BadInputs,
    NoetlError,
    NotFound,
    PlaybookRejected,
    StoreError,
    TooMany,
    Unreachable,
)
from noetl.model import net as nets
from noetl.model.access_tokens import AccessToken
from noetl.model.commands import Answer, Command, Lease, Orders, Report
from noetl.model.ids import CommandId, ExecutionId
from noetl.model.problems import Problem
from noetl.settings import without_password

if TYPE_CHECKING:
    from noetl.api.rights import Principal
    from noetl.api.route import A, B, Q, Route
    from noetl.api.services import Services
    from noetl.model.answers import EventDocument, ExecutionDocument, Registered, Started

    Events = AsyncIterator[EventDocument]

logger = logging.getLogger(__name__)

BACKOFF_FIRST = 0.05
BACKOFF_MAX = 2.0
BUNDLES_AT_ONCE = 2
BUNDLE_MAX = 100
BUNDLE_BYTES_MAX = 8 * 1024 * 1024
"""Reports that are sent together; a single one may be larger."""
CANCELLED_WAIT = 10.0
QUICK_SECONDS = 5.0
"""For so long a server may take for what is small and asked all the time. A lease is 30 s, renewed
every ten: of several servers, one that is frozen must not cost a worker its leases."""
WORK_SECONDS = 10.0
"""For so long a server may take to store a report."""
AVOID_SECONDS = 30.0
"""For so long a server that did not answer is asked only if no other does."""
Params = dict[str, str] | list[tuple[str, str]]
T = TypeVar("T")
PASSING = (Unreachable, StoreError, TooMany)
"""What another try may not meet."""
WHATEVER = (NoetlError,)
"""A worker without work asks for ever: whatever is wrong may be put right."""
WORKER_HEADER = "X-NoETL-Worker"
FOLLOW_EVENTS, FOLLOW_SECONDS = 1000, 20.0
LAST_EVENT = "playbook.processed"
"""Nothing is recorded of an execution after it."""
PATH_SAFE = "/%:@!$&'()*+,;=?"
"""What a path may hold as it is: parts of it are quoted already."""
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

    def __init__(
        self, urls: Sequence[str], token: str | None = None, *, repeats: bool = False
    ) -> None:
        self._servers = [Lines(url.rstrip("/"), token, repeats=repeats) for url in urls]
        self._urls = [without_password(url.rstrip("/")) for url in urls]
        self._current = 0
        """The server that answered last, or that is to be asked next."""
        self._avoided_until = [0.0] * len(self._servers)
        self._repeats = repeats

    @property
    def url(self) -> str:
        """The server that is asked at the moment, as people may see it."""
        return self._urls[self._current]

    def close(self) -> None:
        for server in self._servers:
            server.close()

    async def call(
        self,
        route: Route[Q, B, A],
        parameters: dict[str, str],
        *,
        query: Q | None,
        body: B | None,
        headers: dict[str, str],
    ) -> A:
        """See `Transport`."""
        quoted = {name: quote(value, safe="") for name, value in parameters.items()}
        chosen = [] if query is None else _pairs(msgspec.to_builtins(query))
        sent: Any = body if body is None or route.raw else msgspec.json.encode(body)
        answer = await self.ask(
            route.method, route.path.format(**quoted), body=sent, params=chosen, headers=headers
        )
        found: A = msgspec.json.decode(answer, type=route.answer)
        return found

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: Params | None = None,
        headers: dict[str, str] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> bytes:
        """The body of the answer. Raises what went wrong over there, or Unreachable.

        A server that says nothing for so many seconds is passed over, like one that is away.
        """
        target = quote(path, safe=PATH_SAFE)
        if params:
            target += "?" + urlencode(params)
        failure: OSError | None = None
        untried = set(range(len(self._servers)))
        while untried:
            asked = self._next_of(untried)
            untried.discard(asked)
            try:
                answer = await self._servers[asked].ask(method, target, body, headers, seconds)
            except OSError as error:
                failure = error
                self._pass_over(asked)
                if self._repeats and isinstance(error, TimeoutError):
                    # Whatever else was asked of it would wait as long in vain.
                    self._servers[asked].break_off()
                continue
            if self._repeats and untried and answer.status in _TRY_AGAIN:
                # It cannot do its work for now, and another one may.
                self._pass_over(asked)
                continue
            self._avoided_until[asked] = 0.0
            if answer.status < 300:
                return answer.body
            if answer.location is not None and answer.status < 400:
                raise NoetlError(
                    f"{self._urls[asked]} sends us to {answer.location} ({answer.status}), where we"
                    " do not go by ourselves. --server or NOETL_SERVER_URL names the server to ask."
                )
            raise error_of(answer.status, answer.body)
        raise Unreachable(
            f"no server answers at {', '.join(self._urls)} ({_cause_of(failure)})."
            " Is it running? `noetl server start` starts one; --server names another."
        )

    def _next_of(self, untried: set[int]) -> int:
        """The server that answers as a rule; those that failed lately come last."""
        now, count = asyncio.get_running_loop().time(), len(self._servers)
        if self._current in untried and self._avoided_until[self._current] <= now:
            return self._current
        in_order = sorted(untried, key=lambda number: (number - self._current) % count)
        return min(in_order, key=lambda number: max(self._avoided_until[number] - now, 0.0))

    def _pass_over(self, asked: int) -> None:
        """This server failed: others are asked before it for a while."""
        self._avoided_until[asked] = asyncio.get_running_loop().time() + AVOID_SECONDS
        if self._current == asked:
            self._current = (asked + 1) % len(self._servers)


def _pairs(query: dict[str, Any]) -> list[tuple[str, str]]:
    """A query as it is written; what is None is left out, and a table is written key by key."""
    flat: list[tuple[str, Any]] = []
    for name, value in query.items():
        if isinstance(value, dict):
            flat += [(f"{name}.{key}", one) for key, one in value.items()]
        else:
            flat.append((name, value))
    return [
        (name, str(one).lower() if isinstance(one, bool) else str(one))
        for name, value in flat
        for one in (value if isinstance(value, list | tuple) else [value])
        if one is not None
    ]


def _cause_of(failure: OSError | None) -> str:
    """Why nobody answered, in a few words."""
    if failure is None:
        return "none is named"
    number = failure.errno or 0
    if number > 0 and not isinstance(failure, ssl.SSLError):
        return os.strerror(number).lower()
    return failure.strerror or str(failure) or type(failure).__name__


def error_of(status: int, body: bytes) -> NoetlError:
    """The error that an answer stands for."""
    try:
        told = msgspec.json.decode(body, type=dict[str, Any])["error"]
        code, message, details = told["code"], told["message"], told.get("details")
    except (msgspec.MsgspecError, KeyError, TypeError):
        code, message, details = "", f"the server answered {status}.", None
    if code == PlaybookRejected.code and isinstance(details, dict):
        return PlaybookRejected(msgspec.convert(details["problems"], tuple[Problem, ...]))
    if code == BadInputs.code and isinstance(details, dict):
        return BadInputs(message, tuple(details["problems"]))
    kind = _kinds(NoetlError).get(code)
    if kind is None:
        kind = StoreError if status in _TRY_AGAIN else NoetlError
    return kind(message)


def _kinds(root: type[NoetlError]) -> dict[str, type[NoetlError]]:
    """Errors by code, of all that can be made from a message alone. Of those that share a code, the
    first in the tree stands for all."""
    found = {} if root is PlaybookRejected else {root.code: root}
    for kind in root.__subclasses__():
        found = _kinds(kind) | found
    return found


class _Connected:
    """Something that talks through a connection of its own, for as long as it is entered."""

    def __init__(
        self, urls: Sequence[str], token: str | None = None, *, repeats: bool = False
    ) -> None:
        self._connection = Connection(urls, token, repeats=repeats)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()


class Transport(Protocol):
    """A way to the routes of the API."""

    async def call(
        self,
        route: Route[Q, B, A],
        parameters: dict[str, str],
        *,
        query: Q | None,
        body: B | None,
        headers: dict[str, str],
    ) -> A:
        """What the route answers. Raises what went wrong there."""

    def close(self) -> None:
        """Nothing is called any more."""


class InProcess:
    """Handlers called directly, by a process that holds the database."""

    def __init__(self, services: Services, principal: Principal) -> None:
        self._services = services
        self._principal = principal

    async def call(
        self,
        route: Route[Q, B, A],
        parameters: dict[str, str],
        *,
        query: Q | None,
        body: B | None,
        headers: dict[str, str],
    ) -> A:
        self._principal.require(route.right)
        sent = {name.lower().encode(): value.encode() for name, value in headers.items()}
        given: dict[str, Any] = {**parameters}
        # Read as if it had been sent: the same is refused here as there.
        if route.query is not None:
            written = [] if query is None else _pairs(msgspec.to_builtins(query))
            given["query"] = route.reader.query(urlencode(written).encode())
        if route.raw:
            given["body"] = body
        elif route.body is not None:
            sent_body = b"" if body is None else msgspec.json.encode(body)
            given["body"] = route.reader.body(sent_body)
        caller = Caller(self._principal, headers=sent)
        answer = await route.handler(self._services, caller, **given)
        found: A = answer.body if isinstance(answer, Reply) else answer
        return found

    def close(self) -> None:
        """Whoever made the services ends them."""


class Client(_Connected):
    """The API, called by its routes: `await client.call(START, body=StartExecution(path=…))`.

    The same on a server, in this process, and through the socket of the process that holds a
    database.
    """

    _transport: Transport | None = None

    @classmethod
    def through(cls, transport: Transport) -> Self:
        """A client over another transport than connections to servers."""
        made = cls(())
        made._transport = transport
        return made

    async def call(
        self,
        route: Route[Q, B, A],
        *,
        query: Q | None = None,
        body: B | None = None,
        headers: dict[str, str] | None = None,
        **parameters: str,
    ) -> A:
        """What the route answers; raises the error that it ended with."""
        transport = self._transport or self._connection
        return await transport.call(
            route, parameters, query=query, body=body, headers=headers or {}
        )

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

    # --- What programs do most ---

    async def register(self, content: str) -> Registered:
        """Keep a playbook, written in YAML, in the catalog. The same text again is the same
        version. Raises PlaybookRejected with all of its problems.
        """
        from noetl.api.routes.catalog import REGISTER, Register

        return await self.call(REGISTER, body=Register(content=content))

    async def start(
        self,
        path: str,
        workload: dict[str, Any] | None = None,
        *,
        version: int | None = None,
        labels: dict[str, str] | None = None,
        key: str | None = None,
    ) -> Started:
        """Start a playbook of the catalog. With the same `key` it is started once, however often
        this is called.
        """
        from noetl.api.routes.executions import START, StartExecution

        body = StartExecution(path=path, workload=workload, version=version, labels=labels or {})
        headers = {} if key is None else {"Idempotency-Key": key}
        return await self.call(START, body=body, headers=headers)

    async def follow(self, execution_id: ExecutionId, *, after: int = 0) -> Events:
        """The events of an execution as they happen, until its last one."""
        from noetl.api.routes.executions import EVENTS, WhichEvents

        while True:
            query = WhichEvents(after=after, limit=FOLLOW_EVENTS, wait=FOLLOW_SECONDS)
            page = await self.call(EVENTS, query=query, execution_id=execution_id)
            for event in page.events:
                yield event
                if event.event_type == LAST_EVENT:
                    return
            after = page.next_after

    async def wait(self, execution_id: ExecutionId) -> ExecutionDocument:
        """The execution as it is when it has ended: its status, result or error, and its steps."""
        from noetl.api.routes.executions import EVENTS, GET, WhichEvents

        query = WhichEvents(type=(LAST_EVENT,), wait=FOLLOW_SECONDS)
        while not (await self.call(EVENTS, query=query, execution_id=execution_id)).events:
            pass
        return await self.call(GET, execution_id=execution_id)

    # --- Executions ---

    async def execution(self, execution_id: ExecutionId) -> dict[str, Any]:
        found: dict[str, Any] = await self.get(f"/api/executions/{quote(execution_id, safe='')}")
        return found

    async def body(self, execution_id: ExecutionId, key: str) -> bytes:
        """What a reference stands for, as JSON."""
        path = f"/api/results/{quote(execution_id, safe='')}/{quote(key, safe='')}"
        return await self._connection.ask("GET", path)

    async def export(self, execution_id: ExecutionId) -> bytes:
        """The file of an execution; see `control.recording`."""
        return await self._connection.ask(
            "GET", f"/api/executions/{quote(execution_id, safe='')}/export"
        )

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
    sandbox: str = ""


class _Bundles:
    """Sends reports, each at once if nothing is under way, and together what gathers meanwhile.

    What a request costs is the request: ten reports in one cost a server little more than one.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._gathered: dict[str, deque[tuple[bytes, asyncio.Future[_Commands]]]] = {}
        self._senders = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_company = False
        """Several reports went together the last time, so more may follow this very moment."""
        self._decode = msgspec.json.Decoder(_Answers).decode

    async def send(self, report: Report, want: int, pool: str) -> _Commands:
        """The answer to a report. Raises what went wrong with it, or with all that went along."""
        path = _report_path(want, pool)
        written = msgspec.json.encode(report)
        if self._senders or self._has_company:
            future: asyncio.Future[_Commands] = asyncio.get_running_loop().create_future()
            self._gathered.setdefault(path, deque()).append((written, future))
            self._send_soon()
            found = await future
        else:
            found = await self._send_alone(path, written)
        if found.error is not None:
            raise error_of(0, msgspec.json.encode({"error": found.error}))
        return found

    async def _send_alone(self, path: str, report: bytes) -> _Commands:
        """By whoever reports: a task for it would cost as much again."""
        self._senders += 1
        try:
            [answer] = await self._send(path, [report])
            return answer
        finally:
            self._senders -= 1
            if self._gathered:
                self._send_soon()

    def _send_soon(self) -> None:
        if self._senders < BUNDLES_AT_ONCE:
            self._senders += 1
            sending = asyncio.create_task(self._empty())
            self._tasks.add(sending)
            sending.add_done_callback(self._tasks.discard)

    async def _empty(self) -> None:
        """Send until nothing is left; what comes after that finds one sender less."""
        try:
            while self._gathered:
                await self._send_some()
        finally:
            self._senders -= 1

    async def _send_some(self) -> None:
        path, gathered = next(iter(self._gathered.items()))
        bundle = [gathered.popleft()]
        size = len(bundle[0][0])
        while gathered and len(bundle) < BUNDLE_MAX:
            size += len(gathered[0][0])
            if size > BUNDLE_BYTES_MAX:
                break
            bundle.append(gathered.popleft())
        if not gathered:
            del self._gathered[path]
        self._has_company = len(bundle) > 1
        try:
            answers = await self._send(path, [report for report, _ in bundle])
        except Exception as error:  # noqa: BLE001  whoever waits gets it
            for _, future in bundle:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(bundle, answers, strict=True):
            if not future.done():  # Else whoever asked is gone.
                future.set_result(answer)

    async def _send(self, path: str, reports: list[bytes]) -> list[_Commands]:
        """An answer for each. Raises ValueError if the server has more or fewer."""
        body = b"[" + b",".join(reports) + b"]"
        answer = await self._connection.ask("POST", path, body=body, seconds=WORK_SECONDS)
        answers = self._decode(answer).answers
        if len(answers) != len(reports):
            raise ValueError(f"{len(answers)} answers came to {len(reports)} reports.")
        return answers


@lru_cache(maxsize=100)
def _report_path(want: int, pool: str) -> str:
    return f"/api/commands/report?{urlencode({'want': want, 'pool': pool})}"


class HttpControl(_Connected):
    """What a worker needs of the control plane, over HTTP (see `worker.control`)."""

    def __init__(
        self, urls: Sequence[str], token: str | None = None, kinds: Sequence[str] = ()
    ) -> None:
        """`kinds` are the tool kinds that the worker runs; none named: all."""
        # Whatever a worker says it says again until it is heard, and servers are used to that.
        super().__init__(urls, token, repeats=True)
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
        seconds: float = WORK_SECONDS,
        **request: Any,
    ) -> bytes:
        return await _persist(
            lambda: self._connection.ask(method, path, seconds=seconds, **request), despite
        )

    async def register(self, me: Presence) -> None:
        """Say that we are there. Raises NotAllowed when we may not work."""
        body = msgspec.json.encode(me)
        await self._persist("POST", "/api/worker/pool/register", body=body)

    async def heartbeat(self, me: Presence) -> None:
        """Say that we still are."""
        body = msgspec.json.encode(me)
        await self._connection.ask(
            "POST", "/api/worker/pool/heartbeat", body=body, seconds=QUICK_SECONDS
        )

    async def deregister(self, worker_id: str) -> None:
        """We end: what we were given and have not reported on goes to others."""
        body = msgspec.json.encode({"worker_id": worker_id})
        await self._connection.ask(
            "POST", "/api/worker/pool/deregister", body=body, seconds=QUICK_SECONDS
        )

    async def lease(self, worker_id: str, *, pool: str, want: int, wait: float) -> list[Lease]:
        self._worker_id = worker_id
        wish = {"worker_id": worker_id, "pool": pool, "slots": want, "wait": wait}
        if self._kinds:
            wish["kinds"] = self._kinds
        body = msgspec.json.encode(wish)
        answer = await self._persist(
            "POST",
            "/api/commands/lease",
            body=body,
            despite=WHATEVER,
            seconds=wait + QUICK_SECONDS,
        )
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
        answer = await self._connection.ask(
            "POST", "/api/commands/renew", body=body, seconds=QUICK_SECONDS
        )
        return set(msgspec.json.decode(answer)["lost"])

    async def orders(self, worker_id: str) -> Orders:
        params = {"worker_id": worker_id, "wait": str(CANCELLED_WAIT)}
        while True:
            answer = await self._persist(
                "GET",
                "/api/commands/cancelled",
                params=params,
                despite=WHATEVER,
                seconds=CANCELLED_WAIT + QUICK_SECONDS,
            )
            told = msgspec.json.decode(answer)
            found = Orders(stop=set(told["commands"]), pause=set(told.get("paused", ())))
            if found:
                return found
            # A server that is about to end answers at once, and with nothing.
            await asyncio.sleep(BACKOFF_FIRST)

    async def program(self, digest: str) -> Program:
        body = await self._persist("GET", f"/api/playbooks/{digest}")
        return Program(nets.decode(body), digest)

    async def put_result(self, execution_id: ExecutionId, key: str, body: bytes) -> None:
        path = f"/api/results/{execution_id}/{quote(key)}"
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        headers = self._who() | {"Content-Digest": f"sha-256=:{digest}:"}
        await self._persist("PUT", path, body=body, headers=headers, seconds=ANSWER_SECONDS)

    async def get_result(self, execution_id: ExecutionId, key: str) -> bytes:
        path = f"/api/results/{execution_id}/{quote(key)}"
        return await self._persist("GET", path, headers=self._who(), seconds=ANSWER_SECONDS)

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

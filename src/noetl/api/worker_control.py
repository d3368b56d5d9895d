"""The control plane over HTTP, for workers (see `worker.control`).

If no server answers, a worker keeps trying: its reports must not be lost.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import time
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Self
from urllib.parse import quote, urlencode

import msgspec

from noetl.api.connection import ANSWER_SECONDS, Servers, error_of
from noetl.engine.program import Program
from noetl.errors import NoetlError, NotFound
from noetl.model import net as nets
from noetl.model.answers import (
    CachedToken,
    LeasedCommand,
    LeasedCommands,
    LeasesRenewed,
    Moment,
    WorkerKnown,
)
from noetl.model.commands import Answer, Lease, Orders, Presence, Report
from noetl.model.ids import CommandId, ExecutionId
from noetl.model.secrets import AccessToken
from noetl.patience import BACKOFF_FIRST, PASSING, persist
from noetl.templates import Views

logger = logging.getLogger(__name__)

BUNDLES_AT_ONCE = 2
BUNDLE_MAX = 100
BUNDLE_BYTES_MAX = 8 * 1024 * 1024
"""The total size of reports sent together; a single one may be larger."""
CANCELLED_WAIT = 10.0
QUICK_SECONDS = 5.0
"""Timeout of small, frequent requests. A lease lasts 30 s and is renewed every ten: one frozen
server of several must not cost a worker its leases."""
WORK_SECONDS = 10.0
"""Timeout for storing a report."""
WHATEVER = (NoetlError,)
"""An idle worker asks for work forever, because any fault may be repaired."""
WORKER_HEADER = "X-NoETL-Worker"


class _Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one report of several: a `ReportTaken`, or an `ErrorAnswer`."""

    accepted: bool = True
    cancelled: bool = False
    commands: list[LeasedCommand] = []
    error: dict[str, Any] | None = None
    """The reason if it was refused."""


class _Judgements(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to several reports, in their order; see `ReportsTaken`."""

    answers: list[_Judged]


def leases_of(commands: list[LeasedCommand]) -> list[Lease]:
    """Commands as sent by the server, as leases."""
    return [
        Lease(command=one, token=one.lease.token, expires_at=one.lease.expires_at.timestamp())
        for one in commands
    ]


class _Bundles:
    """Sends reports: each at once if none is under way, otherwise together with those that gather
    meanwhile.

    The cost is per request: ten reports in one request cost a server little more than one.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._gathered: dict[str, deque[tuple[bytes, asyncio.Future[_Judged]]]] = {}
        self._senders = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_company = False
        """The last request held several reports, so more may follow in this moment."""
        self._decode = msgspec.json.Decoder(_Judgements).decode

    async def send(self, report: Report, want: int, pool: str) -> _Judged:
        """The answer to a report. Raises the error of the report, or of its request."""
        path = _report_path(want, pool)
        written = msgspec.json.encode(report)
        if self._senders or self._has_company:
            future: asyncio.Future[_Judged] = asyncio.get_running_loop().create_future()
            self._gathered.setdefault(path, deque()).append((written, future))
            self._send_soon()
            found = await future
        else:
            found = await self._send_alone(path, written)
        if found.error is not None:
            raise error_of(0, msgspec.json.encode({"error": found.error}))
        return found

    async def _send_alone(self, path: str, report: bytes) -> _Judged:
        """Runs in the task that reports: a task of its own would double the cost."""
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
        """Send until the queue is empty; a report after that starts a new sender."""
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
            if not future.done():  # Otherwise the task that reported is gone.
                future.set_result(answer)

    async def _send(self, path: str, reports: list[bytes]) -> list[_Judged]:
        """One answer per report. Raises ValueError if the server sent more or fewer."""
        body = b"[" + b",".join(reports) + b"]"
        answer = await self._servers.ask("POST", path, body=body, seconds=WORK_SECONDS)
        answers = self._decode(answer).answers
        if len(answers) != len(reports):
            raise ValueError(f"{len(answers)} answers came to {len(reports)} reports.")
        return answers


@lru_cache(maxsize=100)
def _report_path(want: int, pool: str) -> str:
    return f"/api/commands/report?{urlencode({'want': want, 'pool': pool})}"


class HttpControl:
    """The control plane of a worker, over HTTP (see `worker.control`)."""

    def __init__(
        self,
        urls: Sequence[str],
        views: Views,
        token: str | None = None,
        kinds: Sequence[str] = (),
    ) -> None:
        """`kinds` are the tool kinds that the worker runs; empty means all."""
        # A worker repeats every request until it is answered, and servers accept repeats.
        self._servers = Servers(urls, token, repeats=True)
        self._views = views
        self._worker_id = ""
        self._kinds = kinds
        self._decode = msgspec.json.Decoder(LeasedCommands).decode
        self._bundles = _Bundles(self._servers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._servers.close()

    async def _persist(
        self,
        method: str,
        path: str,
        *,
        despite: tuple[type[NoetlError], ...] = PASSING,
        seconds: float = WORK_SECONDS,
        **request: Any,
    ) -> bytes:
        return await persist(
            lambda: self._servers.ask(method, path, seconds=seconds, **request), despite
        )

    async def _quickly(self, path: str, body: Any) -> bytes:
        """Send it once, and wait only briefly: nothing is lost if it does not arrive."""
        written = msgspec.json.encode(body)
        return await self._servers.ask("POST", path, body=written, seconds=QUICK_SECONDS)

    async def register(self, me: Presence) -> None:
        """Register this worker. Raises NotAllowed if it may not work, and Unreachable if something
        else than a server answers.
        """
        path, body = "/api/worker/pool/register", msgspec.json.encode(me)
        answer = await self._persist("POST", path, body=body)
        self._servers.decoded(answer, msgspec.json.Decoder(WorkerKnown).decode, path)

    async def heartbeat(self, me: Presence) -> bool:
        """Send a heartbeat. Returns whether an operator asked this worker to end."""
        answer = await self._quickly("/api/worker/pool/heartbeat", me)
        return bool(msgspec.json.decode(answer)["drain"])

    async def deregister(self, worker_id: str) -> None:
        """Say goodbye: leased commands without a report go to other workers."""
        await self._quickly("/api/worker/pool/deregister", {"worker_id": worker_id})

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
        return leases_of(self._decode(answer).commands)

    async def report(self, report: Report, *, want: int = 0, pool: str = "default") -> Answer:
        # The next commands may need kinds that this worker does not run.
        wanted = 0 if self._kinds else want
        found = await persist(lambda: self._bundles.send(report, wanted, pool))
        return Answer(
            accepted=found.accepted,
            cancelled=found.cancelled,
            leases=tuple(leases_of(found.commands)),
        )

    async def renew(self, tokens: dict[CommandId, str]) -> set[CommandId]:
        answer = await self._quickly("/api/commands/renew", {"leases": list(tokens.values())})
        return set(msgspec.json.decode(answer, type=LeasesRenewed).lost)

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
            # A server that is ending answers at once, with nothing.
            await asyncio.sleep(BACKOFF_FIRST)

    async def program(self, digest: str) -> Program:
        body = await self._persist("GET", f"/api/playbooks/{digest}")
        return Program(nets.decode(body), digest, self._views)

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
        found = msgspec.json.decode(answer, type=CachedToken)
        return AccessToken(text=found.token, expires_at=time.time() + found.expires_in)

    async def keep_access_token(
        self, key: str, token: AccessToken, execution_id: ExecutionId
    ) -> None:
        life = token.expires_at - time.time()
        if life > 0:
            body = msgspec.json.encode(CachedToken(token=token.text, expires_in=life))
            params = {"execution_id": execution_id}
            path = f"/api/auth-cache/{key}"
            await self._persist("PUT", path, body=body, params=params, headers=self._who())

    async def next_moment(self, key: str, apart: float, execution_id: ExecutionId) -> float:
        wanted = {"execution_id": execution_id, "key": key, "apart": apart}
        answer = await self._persist(
            "POST", "/api/rates/take", body=msgspec.json.encode(wanted), headers=self._who()
        )
        return msgspec.json.decode(answer, type=Moment).delay

    def _who(self) -> dict[str, str]:
        return {WORKER_HEADER: self._worker_id}

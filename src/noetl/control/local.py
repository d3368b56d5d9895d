"""The control plane for a worker in the same process: plain calls. As over HTTP, a worker does not
notice that the database is out of reach for a while: it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from noetl.control.grants import no_credential, require_credential, require_rate
from noetl.control.live import body_of
from noetl.control.orchestrator import Orchestrator
from noetl.control.tokens import Tokens
from noetl.engine.program import Program
from noetl.model.commands import Answer, Lease, Orders, Report
from noetl.model.ids import CommandId, ExecutionId
from noetl.model.secrets import AccessToken
from noetl.patience import persist
from noetl.store.bodies import Bodies
from noetl.store.credentials import Credentials

OpenCredential = Callable[[str], Awaitable[dict[str, Any] | None]]


class LocalControl:
    """What a worker needs, without a network in between."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        bodies: Bodies,
        credentials: Credentials,
        open_credential: OpenCredential,
        tokens: Tokens | None = None,
    ) -> None:
        self._orchestrator = orchestrator
        self._bodies = bodies
        self._credentials = credentials
        self._open_credential = open_credential
        self._tokens = tokens

    async def lease(self, worker_id: str, *, pool: str, want: int, wait: float) -> list[Lease]:
        return await self._orchestrator.leases.lease(worker_id, pool=pool, want=want, wait=wait)

    def report(
        self, report: Report, *, want: int = 0, pool: str = "default"
    ) -> Coroutine[Any, Any, Answer]:
        return self._orchestrator.report(report, want=want, pool=pool)

    async def renew(self, tokens: dict[CommandId, str]) -> set[CommandId]:
        return await self._orchestrator.leases.renew(tokens)

    async def orders(self, worker_id: str) -> Orders:
        return await self._orchestrator.dispatch.orders(worker_id)

    async def orders_within(self, worker_id: str, *, wait: float) -> Orders:
        """Orders that come within `wait` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                return await self.orders(worker_id)
        return Orders()

    async def program(self, digest: str) -> Program:
        return await persist(lambda: self._orchestrator.programs.by_digest(digest))

    async def put_result(self, execution_id: ExecutionId, key: str, body: bytes) -> None:
        await persist(lambda: self._bodies.put(execution_id, key, body))

    async def get_result(self, execution_id: ExecutionId, key: str) -> bytes:
        return await persist(lambda: body_of(self._bodies, execution_id, key))

    async def credential(self, name: str, execution_id: ExecutionId) -> dict[str, Any]:
        return await persist(lambda: self._credential(name, execution_id))

    async def _credential(self, name: str, execution_id: ExecutionId) -> dict[str, Any]:
        await require_credential(self._orchestrator, self._credentials, name, execution_id)
        found = await self._open_credential(name)
        if found is None:
            state = await self._orchestrator.state(execution_id)
            raise await no_credential(self._credentials, name, state.path)
        return found

    async def access_token(self, key: str, execution_id: ExecutionId) -> AccessToken | None:
        return await self._tokens.find(key) if self._tokens is not None else None

    async def keep_access_token(
        self, key: str, token: AccessToken, execution_id: ExecutionId
    ) -> None:
        if self._tokens is not None:
            await self._tokens.keep(key, token)

    async def next_moment(self, key: str, apart: float, execution_id: ExecutionId) -> float:
        async def ask() -> float:
            await require_rate(self._orchestrator, key, apart, execution_id)
            return await self._orchestrator.next_moment(key, apart)

        return await persist(ask)

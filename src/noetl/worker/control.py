"""What a worker needs of the control plane. In one process it is called directly; elsewhere over
HTTP. A worker cannot tell the difference."""

from __future__ import annotations

from typing import Any, Protocol

from noetl.engine.program import Program
from noetl.model.access_tokens import AccessToken
from noetl.model.commands import Answer, Lease, Orders, Report
from noetl.model.ids import CommandId, ExecutionId


class Control(Protocol):
    """The far side, wherever it is."""

    async def lease(self, worker_id: str, *, pool: str, want: int, wait: float) -> list[Lease]:
        """Up to `want` commands, waiting for the first at most `wait` seconds."""

    async def report(self, report: Report, *, want: int = 0, pool: str = "default") -> Answer:
        """Say what happened under a lease. Raises LeaseLost when it is no longer ours."""

    async def renew(self, tokens: dict[CommandId, str]) -> set[CommandId]:
        """Keep these leases; the commands that are lost to us."""

    async def orders(self, worker_id: str) -> Orders:
        """Wait until some of our commands should stop or pause, and say which."""

    async def program(self, digest: str) -> Program:
        """The net of a command, ready to run."""

    async def put_result(self, execution_id: ExecutionId, key: str, body: bytes) -> None:
        """Keep a body that is too large for an event."""

    async def get_result(self, execution_id: ExecutionId, key: str) -> bytes:
        """Read such a body."""

    async def credential(self, name: str, execution_id: ExecutionId) -> dict[str, Any]:
        """The fields of a stored credential. Raises NotFound."""

    async def access_token(self, key: str, execution_id: ExecutionId) -> AccessToken | None:
        """A token that some worker fetched and that has not expired."""

    async def keep_access_token(
        self, key: str, token: AccessToken, execution_id: ExecutionId
    ) -> None:
        """Keep one for whoever asks for it with the same key."""

    async def next_moment(self, key: str, apart: float) -> float:
        """How many seconds from now the next free moment of a rate that all workers share is. It is
        the caller's: moments of one key lie at least so many seconds apart.
        """

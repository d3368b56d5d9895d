"""The control plane as a worker uses it: called directly in one process, over HTTP elsewhere. A
worker cannot tell the difference.
"""

from __future__ import annotations

from typing import Any, Protocol

from noetl.engine.program import Program
from noetl.model.commands import Answer, Lease, Orders, Report
from noetl.model.ids import CommandId, ExecutionId
from noetl.model.secrets import AccessToken


class Control(Protocol):
    """The control plane, wherever it is."""

    async def lease(self, worker_id: str, *, pool: str, want: int, wait: float) -> list[Lease]:
        """Up to `want` commands, waiting for the first at most `wait` seconds."""

    async def report(self, report: Report, *, want: int = 0, pool: str = "default") -> Answer:
        """Report what happened under a lease. Raises LeaseLost if it is no longer ours."""

    async def renew(self, tokens: dict[CommandId, str]) -> set[CommandId]:
        """Renew these leases. Returns the commands that we have lost."""

    async def orders(self, worker_id: str) -> Orders:
        """Wait until some of our commands should stop or pause, and return them."""

    async def program(self, digest: str) -> Program:
        """The net of a command, ready to run."""

    async def put_result(self, execution_id: ExecutionId, key: str, body: bytes) -> None:
        """Store a body that is too large for an event."""

    async def get_result(self, execution_id: ExecutionId, key: str) -> bytes:
        """Read such a body."""

    async def credential(self, name: str, execution_id: ExecutionId) -> dict[str, Any]:
        """The fields of a stored credential. Raises NotFound."""

    async def access_token(self, key: str, execution_id: ExecutionId) -> AccessToken | None:
        """A valid token that some worker fetched."""

    async def keep_access_token(
        self, key: str, token: AccessToken, execution_id: ExecutionId
    ) -> None:
        """Store a token for workers that ask for it with the same key."""

    async def next_moment(self, key: str, apart: float, execution_id: ExecutionId) -> float:
        """Take the next free moment of a rate that workers share. Returns the seconds until then.
        Moments of one key are at least `apart` seconds apart, as the playbook of that execution
        says.
        """

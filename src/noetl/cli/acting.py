"""Acting on an execution, wherever it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from noetl.api.client import Client
    from noetl.settings import Settings


async def find(settings: Settings, written: str) -> str:
    """The execution that people mean by an abbreviated id."""
    from noetl.cli.remote import looking

    async with looking(settings) as records:
        return await records.find(written)


def calling(settings: Settings) -> AbstractAsyncContextManager[Client]:
    """A client of the server, of this process or of the one that has the database."""
    from noetl import wiring
    from noetl.cli.whoami import user_name

    return wiring.client(settings, user_name())

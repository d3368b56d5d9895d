"""Connections to PostgreSQL, kept for later tasks with the same credential.

A connection is kept only after a task that succeeded, and is reset first. Values come as text where
Python's types would lose something: infinite dates, months of an interval.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader

from noetl.tools.credentials import secret_key
from noetl.tools.sql.postgres import CONNECT_SECONDS, settings

IDLE_SECONDS = 60.0
ALIVE_SECONDS = 10.0
"""A kept connection whose other end is there answers within this. It may have vanished without a
word: then it never does."""
IDLE_MAX = 8
_ZONE = re.compile(r"([+-]\d\d)(:\d\d)?(:\d\d)?$")


class MomentLoader(Loader):
    """A date or time as RFC 3339 text; values beyond that (`infinity`, BC) as the server writes
    them.
    """

    def load(self, data: Buffer) -> str:
        text = bytes(data).decode()
        if not text[:1].isdigit() or text.endswith("BC"):
            return text
        text = text.replace(" ", "T", 1)
        zone = _ZONE.search(text) if ":" in text else None
        if zone is None:
            return text
        offset = f"{zone.group(1)}{zone.group(2) or ':00'}{zone.group(3) or ''}"
        return text[: zone.start()] + ("Z" if offset in ("+00:00", "-00:00") else offset)


class TextLoader(Loader):
    """As the server writes it."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode()


class Connections:
    """The connections of one worker, by credential."""

    def __init__(self) -> None:
        self._idle: dict[str, list[tuple[float, psycopg.AsyncConnection[Any]]]] = {}
        self._closed = False

    async def take(
        self, parameters: Mapping[str, str], *, fresh: bool, seconds: float | None
    ) -> psycopg.AsyncConnection[Any]:
        """An idle connection, or a new one; `fresh`: a new one in any case."""
        await self._forget_old()
        waiting = self._idle.get(secret_key(parameters), [])
        while waiting and not fresh:
            _, connection = waiting.pop()
            if not connection.closed and not connection.broken:
                return connection
        how = settings(parameters, seconds or CONNECT_SECONDS)
        connection = await psycopg.AsyncConnection.connect(
            **how, autocommit=True, prepare_threshold=None
        )
        for name in ("timestamptz", "timestamp", "date", "time", "timetz"):
            connection.adapters.register_loader(name, MomentLoader)
        connection.adapters.register_loader("interval", TextLoader)
        return connection

    async def give_back(
        self, parameters: Mapping[str, str], connection: psycopg.AsyncConnection[Any]
    ) -> None:
        """Reset the connection and keep it for the next task."""
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                await connection.execute("DISCARD ALL")
        except (psycopg.Error, TimeoutError):
            # It broke after the task had committed; the next task gets another one.
            await connection.close()
            return
        except BaseException:
            # Cancelled half-way: nothing else refers to it any more.
            await connection.close()
            raise
        # Looked up only now: the pool may have changed during the reset.
        waiting = self._idle.setdefault(secret_key(parameters), [])
        if self._closed or len(waiting) >= IDLE_MAX:
            await connection.close()
            return
        waiting.append((time.monotonic(), connection))

    async def close(self) -> None:
        self._closed = True
        await self._forget_old(everything=True)

    async def _forget_old(self, everything: bool = False) -> None:
        limit = time.monotonic() - IDLE_SECONDS
        for key, waiting in list(self._idle.items()):
            old = [one for one in waiting if everything or one[0] < limit]
            self._idle[key] = [one for one in waiting if one not in old]
            for _, connection in old:
                await connection.close()

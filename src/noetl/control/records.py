"""Executions as they are stored: for looking at them, beside whoever is running them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from noetl.control import documents, task_logs, waiting
from noetl.control.live import fold
from noetl.control.programs import Programs
from noetl.engine.evolve import evolve
from noetl.errors import BadRequest, NotFound
from noetl.model.answers import Logs, WaitDocument
from noetl.model.events import NAMES, decode
from noetl.model.ids import ExecutionId
from noetl.model.spelling import did_you_mean
from noetl.model.state import ExecutionState
from noetl.store.base import EventRow, Store, Summary

PAGE = 1000
LOOK_SECONDS = 0.2
LAST = "last"


class Records:
    """What a store knows of executions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._programs = Programs(store)

    async def find(self, written: str) -> ExecutionId:
        """The execution that people mean: its id, the beginning or end of it, or `last`."""
        if written == LAST:
            return await self._last()
        if await self._store.summary(written) is not None:
            return written
        found: list[ExecutionId] = []
        if written.isdecimal():
            async for row in self._all():
                if row.execution_id.startswith(written) or row.execution_id.endswith(written):
                    found.append(row.execution_id)
        if len(found) == 1:
            return found[0]
        if found:
            some = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
            raise NotFound(f'"{written}" could be any of {some}. Write more of the id.')
        raise NotFound(
            f"there is no execution {written}. `noetl executions list` shows those there are."
        )

    async def _last(self) -> ExecutionId:
        async for row in self._all():
            if row.parent_execution_id is None:
                return row.execution_id
        raise NotFound("there are no executions yet. `noetl run FILE` starts one.")

    async def _all(self) -> AsyncIterator[Summary]:
        before: tuple[float, ExecutionId] | None = None
        while rows := await self._store.summaries(before=before, limit=PAGE):
            for row in rows:
                yield row
            before = (rows[-1].requested_at, rows[-1].execution_id)

    async def state(self, execution_id: ExecutionId) -> ExecutionState:
        loaded = await self._store.load(execution_id)
        if loaded is None:
            raise NotFound(f"there is no execution {execution_id}.")
        return fold(loaded)

    async def document(self, execution_id: ExecutionId) -> dict[str, Any]:
        """The whole execution as the API shows it."""
        state = await self.state(execution_id)
        program = await self._programs.by_digest(state.digest)
        return documents.plain(documents.execution(execution_id, state, program))

    async def text(self, path: str, version: int) -> str | None:
        """What the catalog has of a playbook."""
        entry = await self._store.catalog_entry(path, version)
        return entry.content if entry is not None else None

    async def body(self, execution_id: ExecutionId, key: str) -> bytes:
        """What a reference stands for, as JSON. Raises NotFound."""
        body = await self._store.get_result(execution_id, key)
        if body is None:
            raise NotFound(f"execution {execution_id} has no result {key}.")
        return body

    async def why(self, execution_id: ExecutionId) -> list[WaitDocument]:
        """What an unfinished execution waits for."""
        state = await self.state(execution_id)
        calls = await waiting.calls_waiting(self._store, execution_id)
        return waiting.reasons(state, await self._store.open_commands(execution_id), calls)

    async def summaries(
        self,
        *,
        status: str | None,
        path: str | None,
        since: float | None,
        limit: int,
        labels: dict[str, str] | None = None,
    ) -> list[Summary]:
        """Executions, newest first."""
        return await self._store.summaries(
            status=status, path=path, since=since, limit=limit, labels=labels
        )

    async def label_counts(self, label: str, *, since: float | None) -> list[tuple[str, int]]:
        """The values of a label, and how many executions have each."""
        return await self._store.label_counts(label, since=since)

    async def require(
        self, execution_id: ExecutionId, types: tuple[str, ...], step: str | None
    ) -> None:
        """Raises BadRequest for a type that no event has, NotFound for a step that is none."""
        for name in types:
            if name not in NAMES:
                hint = did_you_mean(name, NAMES)
                raise BadRequest(f'there is no type of event "{name}".{hint}')
        if step is not None:
            await self._require_step(execution_id, step)

    async def events(
        self,
        execution_id: ExecutionId,
        *,
        after: int = 0,
        types: tuple[str, ...] = (),
        step: str | None = None,
        limit: int | None = None,
    ) -> list[EventRow]:
        """Events with a seq above `after`, all of them unless there is a limit."""
        await self.require(execution_id, types, step)
        found: list[EventRow] = []
        while limit is None or len(found) < limit:
            room = PAGE if limit is None else min(PAGE, limit - len(found))
            rows = await self._store.events(
                execution_id, after=after, limit=room, types=types, step=step
            )
            found += rows
            if len(rows) < room:
                break
            after = rows[-1].seq
        return found

    async def logs(
        self,
        execution_id: ExecutionId,
        *,
        step: str | None = None,
        grep: str | None = None,
        after: int = 0,
        limit: int = PAGE,
    ) -> Logs:
        """A page of what its tasks printed. Raises BadRequest and NotFound."""
        row = await self._store.summary(execution_id)
        if row is None:
            raise NotFound(f"there is no execution {execution_id}.")
        return await task_logs.page(
            self.events, execution_id, row.status, step=step, grep=grep, after=after, limit=limit
        )

    async def _require_step(self, execution_id: ExecutionId, step: str) -> None:
        row = await self._store.summary(execution_id)
        if row is None:
            raise NotFound(f"there is no execution {execution_id}.")
        steps = (await self._programs.by_digest(row.digest)).steps
        if step not in steps:
            hint = did_you_mean(step, steps)
            raise NotFound(f'the playbook {row.path} has no step "{step}".{hint}')


class Following:
    """An execution that somebody else runs, kept up to date by reading what is new."""

    def __init__(self, store: Store, execution_id: ExecutionId, state: ExecutionState) -> None:
        self._store = store
        self.execution_id = execution_id
        self.state = state

    async def catch_up(self) -> list[EventRow]:
        """Fold what was stored since; the new events."""
        rows = await self._store.events(self.execution_id, after=self.state.seq, limit=PAGE)
        for row in rows:
            evolve(self.state, decode(row.body))
        return rows

    async def pause(self) -> None:
        """Until it is worth looking again."""
        await asyncio.sleep(LOOK_SECONDS)

"""Versions of a playbook: what there are, how two differ, and which playbooks call which."""

from __future__ import annotations

import difflib
from collections import OrderedDict
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from noetl.control import documents
from noetl.dsl.walk import called_playbooks
from noetl.errors import NotFound
from noetl.model import net as nets
from noetl.model.desk import (
    LatestRuns,
    PlaybookRuns,
    RunMark,
    VersionDiff,
    VersionItem,
    VersionList,
)
from noetl.model.execution_query import exactly

if TYPE_CHECKING:
    from noetl.store.catalog import Catalog, CatalogEntry
    from noetl.store.records import Records, Run

RUNS_SHOWN = 30
CALLS_KEPT = 10_000


class Versions:
    """Looks at versions of playbooks."""

    def __init__(self, catalog: Catalog, records: Records) -> None:
        self._catalog = catalog
        self._records = records
        self._calls: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        """Digest → the playbooks that it calls."""

    async def listed(self, path: str, *, before: int | None, limit: int) -> VersionList:
        """Versions of a path, newest first. Raises NotFound."""
        found = await self._catalog.versions(path, before=before, limit=limit + 1)
        if not found and before is None:
            raise NotFound(f'there is no playbook "{path}" in the catalog.')
        newest = await self._catalog.entry(path)
        runs = await self._records.summaries(exactly(path=path), limit=RUNS_SHOWN)
        return VersionList(
            path=path,
            versions=[documents.of(VersionItem, entry) for entry in found[:limit]],
            more=len(found) > limit,
            called_by=await self._callers(path),
            calls=[] if newest is None else sorted(await self._called(newest)),
            runs=[documents.summary(row) for row in runs],
        )

    async def latest_runs(self, paths: list[str], limit: int) -> LatestRuns:
        """The last executions of each of some playbooks, newest first."""
        found = await self._records.latest_runs(paths, limit=limit)
        return LatestRuns(
            playbooks=[
                PlaybookRuns(path=path, runs=[_mark(run) for run in runs])
                for path, runs in groupby(found, lambda run: run.path)
            ]
        )

    async def _callers(self, path: str) -> list[str]:
        entries = await self._catalog.entries(kind="Playbook")
        return [entry.path for entry in entries if path in await self._called(entry)]

    async def _called(self, entry: CatalogEntry) -> tuple[str, ...]:
        if entry.kind != "Playbook":
            return ()
        found = self._calls.get(entry.digest)
        if found is None:
            body = await self._catalog.net(entry.digest)
            found = () if body is None else tuple(sorted(called_playbooks(nets.decode(body))))
            self._calls[entry.digest] = found
            while len(self._calls) > CALLS_KEPT:
                self._calls.popitem(last=False)
        return found

    async def diff(self, path: str, first: int, last: int) -> VersionDiff:
        """How two versions differ, in text and in steps. Raises NotFound."""
        one, other = await self._version(path, first), await self._version(path, last)
        lines = difflib.unified_diff(
            one.content.splitlines(keepends=True),
            other.content.splitlines(keepends=True),
            f"{path} v{first}",
            f"{path} v{last}",
        )
        before, after = await self._steps(one), await self._steps(other)
        both = before.keys() & after.keys()
        return VersionDiff(
            path=path,
            first=first,
            last=last,
            same=one.content == other.content,
            diff="".join(line if line.endswith("\n") else f"{line}\n" for line in lines),
            steps_added=[name for name in after if name not in before],
            steps_removed=[name for name in before if name not in after],
            steps_changed=[name for name in after if name in both and before[name] != after[name]],
        )

    async def _version(self, path: str, version: int) -> CatalogEntry:
        entry = await self._catalog.entry(path, version)
        if entry is None:
            raise NotFound(f'there is no version {version} of "{path}" in the catalog.')
        return entry

    async def _steps(self, entry: CatalogEntry) -> dict[str, bytes]:
        body = await self._catalog.net(entry.digest) if entry.kind == "Playbook" else None
        steps = nets.decode(body).steps if body is not None else ()
        return {step.name: msgspec.json.encode(step, order="sorted") for step in steps}


def _mark(run: Run) -> RunMark:
    return RunMark(
        execution_id=run.execution_id,
        status=run.status,
        waits=documents.waiting(run.waits),
        start_time=documents.moment(run.requested_at),
        duration_seconds=documents.span(run.requested_at, run.ended_at),
    )

"""Playbooks by path and version, compiled when they come in."""

from __future__ import annotations

from collections.abc import Callable

from noetl.control.clock import Clock
from noetl.control.identity import new_id
from noetl.dsl import Compiled
from noetl.errors import NotFound
from noetl.model import net as nets
from noetl.store.base import CatalogEntry, Store


class Catalog:
    """What has been registered."""

    def __init__(self, store: Store, compile_text: Callable[[str], Compiled], clock: Clock) -> None:
        self._store = store
        self._compile = compile_text
        self._clock = clock

    def check(self, text: str) -> Compiled:
        """Compile without keeping anything."""
        return self._compile(text)

    async def register(self, text: str) -> tuple[CatalogEntry, Compiled]:
        """Keep a playbook. Raises PlaybookRejected; the same content again is the same version."""
        compiled = self._compile(text)
        net = compiled.unwrap()
        now = self._clock.now()
        entry = CatalogEntry(
            catalog_id=new_id(now),
            path=net.path,
            version=0,
            kind="Playbook",
            digest=compiled.digest,
            content=text,
            description=net.description,
            created_at=now,
        )
        return await self._store.register(entry, nets.encode(net)), compiled

    async def entry(self, path: str, version: int | None = None) -> CatalogEntry:
        found = await self._store.catalog_entry(path, version)
        if found is None:
            which = f" in version {version}" if version is not None else ""
            raise NotFound(f'no playbook "{path}"{which} is registered.')
        return found

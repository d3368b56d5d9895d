"""Playbooks and other documents by path and version, compiled when they come in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from noetl.control import documents
from noetl.control.clock import Clock
from noetl.control.identity import new_id
from noetl.control.layouts import Layouts
from noetl.control.programs import playbook_only, unregistered
from noetl.errors import BadRequest, Conflict, NotFound
from noetl.model import net as nets
from noetl.model import triggers
from noetl.model.answers import CatalogResource
from noetl.model.fields import json_schema
from noetl.model.schemas import breaks, place_in
from noetl.store import catalog as stored
from noetl.store.catalog import CatalogEntry
from noetl.store.triggers import Renewed

if TYPE_CHECKING:
    from noetl.dsl import Compiled
    from noetl.dsl.building import Known

ENTRIES_MAX = 100
BREAKS_SHOWN = 10


class Catalog:
    """What has been registered."""

    def __init__(
        self, documents: stored.Catalog, compile_text: Callable[..., Compiled], clock: Clock
    ) -> None:
        self._documents = documents
        self._compile = compile_text
        self._clock = clock
        self.layouts = Layouts()
        self.on_kept: list[Callable[[], None]] = []
        """Called when a version was stored: something may have waited for it."""
        self._entries: dict[tuple[str, int | None], CatalogEntry] = {}

    def check(self, text: str) -> Compiled:
        """Compile without keeping anything."""
        return self._compile(text)

    async def register(self, text: str) -> tuple[CatalogEntry, Compiled]:
        """Keep a playbook. Raises PlaybookRejected; the same content again is the same version."""
        compiled = self._compile(text)
        known = await self.known(compiled)
        if known is not None:
            compiled = self._compile(text, known=known)
        return await self.keep(text, compiled), compiled

    async def known(self, compiled: Compiled) -> Known | None:
        """What a document names that the catalog has; None if that is nothing."""
        from noetl.dsl.building import Known
        from noetl.dsl.walk import called_playbooks

        schemas = {
            name: found
            for name in compiled.unresolved
            if (found := await self._schema(name)) is not None
        }
        playbooks = {}
        for path in sorted(called_playbooks(compiled.net)) if compiled.net is not None else ():
            entry = await self._documents.entry(path)
            body = await self._documents.net(entry.digest) if entry is not None else None
            if entry is not None and entry.kind == "Playbook" and body is not None:
                playbooks[path] = nets.decode(body)
        return Known(schemas=schemas, playbooks=playbooks) if schemas or playbooks else None

    async def _schema(self, name: str) -> nets.ResultSchema | None:
        """A schema by the name that playbooks give it: `path`, or `path@version`."""
        path, _, version = name.partition("@")
        entry = await self._documents.entry(path, int(version) if version else None)
        found = await self._document(entry)
        if entry is None or not isinstance(found, triggers.Schema):
            return None
        return nets.ResultSchema(schema=found.schema, name=f"{path}@{entry.version}")

    async def _document(self, entry: CatalogEntry | None) -> triggers.Trigger | None:
        if entry is None or entry.kind == "Playbook":
            return None
        return await self.by_digest(entry.digest)

    async def by_digest(self, digest: str) -> triggers.Trigger | None:
        """A document that is no playbook."""
        body = await self._documents.net(digest)
        return None if body is None else triggers.decode(body)

    async def _refuse_breaking(self, new: triggers.Schema) -> None:
        """Refuse a version that breaks readers of the last one, unless it says that it does."""
        entry = await self._documents.entry(new.path)
        old = await self._document(entry)
        if entry is None or not isinstance(old, triggers.Schema) or new.compatibility == "none":
            return
        lost = [f"{place_in(path)} {said}" for path, said in breaks(old.schema, new.schema)]
        if lost:
            raise Conflict(
                f"this breaks those who read by {new.path} version {entry.version}:"
                f" {' '.join(lost[:BREAKS_SHOWN])} Give it another path, or write"
                " `spec.compatibility: none`."
            )

    async def keep(
        self, text: str, compiled: Compiled, renewed: Renewed | None = None
    ) -> CatalogEntry:
        """Keep a document that was compiled elsewhere; `renewed` says what is to be done for it."""
        trigger = compiled.trigger
        if isinstance(trigger, triggers.Schema):
            await self._refuse_breaking(trigger)
        made = compiled.unwrap() if trigger is None else trigger
        body = nets.encode(compiled.unwrap()) if trigger is None else triggers.encode(trigger)
        now = self._clock.now()
        entry = CatalogEntry(
            catalog_id=new_id(now),
            path=made.path,
            version=0,
            kind="Playbook" if trigger is None else trigger.kind,
            digest=compiled.digest,
            content=text,
            description=made.description,
            created_at=now,
        )
        kept = await self._documents.register(entry, body, renewed)
        if kept.catalog_id == entry.catalog_id:
            for tell in self.on_kept:
                tell()
        return kept

    async def document(self, path: str, version: int | None = None) -> CatalogResource:
        """A version with its text, its graph and its inputs, as the API shows it."""
        entry = await self.entry(path, version)
        body = await self._documents.net(entry.digest) if entry.kind == "Playbook" else None
        net = None if body is None else nets.decode(body)
        inputs = () if net is None else net.executor.inputs
        drawn = None
        if net is not None:
            drawn = await self.layouts.of_text(entry.catalog_id, net, entry.content)
        return documents.of(
            CatalogResource,
            entry,
            layout=drawn,
            workload={} if net is None else net.workload,
            inputs=[documents.playbook_input(one) for one in inputs],
            inputs_schema=json_schema(inputs),
        )

    async def wanted(
        self, path: str | None, catalog_id: str | None, version: int | None
    ) -> CatalogEntry:
        """The entry that a request means: by path and version, or by its own id."""
        if (path is None) == (catalog_id is None):
            raise BadRequest("say which playbook: its `path`, or its `catalog_id`, and not both.")
        if path is not None:
            return await self.playbook(path, version)
        found = await self._documents.entry_of(str(catalog_id))
        if found is None:
            raise NotFound(f"nothing is registered under the catalog_id {catalog_id}.")
        return playbook_only(found)

    async def playbook(self, path: str, version: int | None = None) -> CatalogEntry:
        """A version of a playbook, or the newest there is."""
        return playbook_only(await self.entry(path, version, kind="Playbook"))

    async def entry(
        self, path: str, version: int | None = None, *, kind: str | None = None
    ) -> CatalogEntry:
        """A version, or the newest there is. If there is none, one of that kind may be meant."""
        found = self._entries.get((path, version))
        if found is not None:
            return found
        found = await self._documents.entry(path, version)
        if found is None:
            raise await unregistered(self._documents, path, version, kind)
        # A version never changes; which one is the newest does.
        if len(self._entries) >= ENTRIES_MAX:
            self._entries.pop(next(iter(self._entries)))
        self._entries[found.path, found.version] = found
        return found

"""Nets made ready to run, each once, found by digest or by path."""

from __future__ import annotations

import msgspec

from noetl.engine.program import Program
from noetl.errors import BadInputs, NotFound, TooLarge
from noetl.model import fields
from noetl.model import net as nets
from noetl.model.net import Limits, Net, Values
from noetl.model.spelling import did_you_mean
from noetl.store.catalog import Catalog, CatalogEntry
from noetl.store.credentials import Credentials
from noetl.templates import Views

CACHED_MAX = 500


class Programs:
    """The programs this process has used lately."""

    def __init__(self, catalog: Catalog, views: Views, limits: Limits | None) -> None:
        """`limits` are the operator's of today: nets that were compiled earlier keep to them."""
        self._catalog = catalog
        self._views = views
        self._limits = limits or Limits()
        self._cache: dict[str, Program] = {}

    async def by_digest(self, digest: str) -> Program:
        found = self._cache.get(digest)
        if found is None:
            body = await self._catalog.net(digest)
            if body is None:
                raise NotFound(f"no net {digest[:12]} is stored; register its playbook again.")
            found = self._remember(nets.decode(body), digest)
        return found

    def known(self, digest: str) -> Program | None:
        """A program that was used lately."""
        return self._cache.get(digest)

    async def keep(self, net: Net, digest: str) -> Program:
        """Store a net that is run without being in the catalog."""
        if digest not in self._cache:
            await self._catalog.put_net(digest, nets.encode(net))
            self._remember(net, digest)
        return self._cache[digest]

    async def by_path(self, path: str, version: int | None) -> tuple[Program, CatalogEntry]:
        entry = await self._catalog.entry(path, version)
        if entry is None:
            raise await unregistered(self._catalog, path, version, "Playbook")
        return await self.by_digest(playbook_only(entry).digest), entry

    def _remember(self, net: Net, digest: str) -> Program:
        executor = msgspec.structs.replace(
            net.executor, limits=net.executor.limits.within(self._limits)
        )
        program = Program(msgspec.structs.replace(net, executor=executor), digest, self._views)
        if len(self._cache) >= CACHED_MAX:
            self._cache.pop(next(iter(self._cache)))
        self._cache[digest] = program
        return program


async def unregistered(
    catalog: Catalog, path: str, version: int | None, kind: str | None
) -> NotFound:
    """The error for a path or version that the catalog does not have, with what may be meant: a
    document of that kind.
    """
    newest = None if version is None else await catalog.entry(path)
    if newest is not None:
        return NotFound(
            f'{newest.kind.lower()} "{path}" has no version {version}; its newest is'
            f" {newest.version}."
        )
    which = f" in version {version}" if version is not None else ""
    known = [entry.path for entry in await catalog.entries(kind=kind)]
    hint = did_you_mean(path, known) or " `noetl register FILE` registers one."
    return NotFound(f'no playbook "{path}"{which} is registered.{hint}')


def playbook_only(entry: CatalogEntry) -> CatalogEntry:
    """The entry; raises NotFound if it is a document of another kind, which nothing can run."""
    if entry.kind != "Playbook":
        raise NotFound(f'"{entry.path}" is a {entry.kind}, not a playbook: it cannot be run.')
    return entry


async def workload_of(credentials: Credentials, program: Program, payload: Values) -> Values:
    """What an execution with this payload works on. Raises TooLarge, and BadInputs with all that
    does not fit."""
    net = program.net
    most = net.executor.limits.max_payload_bytes
    if most is not None and (size := len(msgspec.json.encode(payload))) > most:
        raise TooLarge(
            f"the payload has {size:,} bytes, and the limit for {net.path} is {most:,}"
            " (`max_payload_bytes`). Put large data into a file or a table and say where it is."
        )
    found = merged(net.workload, payload)
    inputs = net.executor.inputs
    if not inputs:
        return found
    values, problems = msgspec.structs.astuple(
        fields.taken_in(inputs, found, payload, net.workload)
    )
    for field in inputs:
        name = values.get(field.name)
        if field.type == "secret" and name is not None and await credentials.get(name) is None:
            problems += (
                f'input "{field.name}" takes the name of a stored credential, and there is none of'
                " the name that was given, which is not shown. `noetl credential set` stores one",
            )
    if problems:
        raise BadInputs(f"{net.path} cannot start: {'; '.join(problems)}.", problems)
    return values  # type: ignore[no-any-return]


def merged(defaults: Values, given: Values) -> Values:
    """The workload: the playbook's defaults with the request's values deep-merged over them."""
    result = dict(defaults)
    for key, value in given.items():
        below = result.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result

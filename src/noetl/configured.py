"""What settings choose: the language, the database, the operator's key and the rules of tools.

`wiring` joins these to a system; commands that check a text or a database need only this. Each
function imports what it makes when it is called, so that a command pays for what it uses.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noetl.errors import BadSetting, StoreBusy

if TYPE_CHECKING:
    from noetl.dsl import Compiled
    from noetl.model.rewrites import Rewritten
    from noetl.secrets.keychain import Sources
    from noetl.secrets.operator_key import OperatorKey
    from noetl.settings import Settings
    from noetl.store.base import Store
    from noetl.tools.base import Tool
    from noetl.tools.processes.namespaces import Room
    from noetl.tools.resources import ToolResources
    from noetl.tools.rules import Rules


# --- The language ------------------------------------------------------------------------------


def compiler(settings: Settings, added: Sequence[Tool] = ()) -> Callable[..., Compiled]:
    """Text → compiled playbook, with the installed tool kinds, those `added` to them, and the
    operator's limits. The language is loaded with the first text: often there is none.
    """

    @cache
    def ready() -> Callable[..., Compiled]:
        from noetl.dsl import compile_text
        from noetl.tools.registry import tools

        limits, strict = settings.limits, settings.strict
        return partial(compile_text, tools=tools(added), limits=limits, strict=strict)

    return lambda text, **more: ready()(text, **more)


def document_compiler(settings: Settings) -> Callable[..., Compiled]:
    """The same for documents of any kind."""
    from noetl.control.zones import SystemZones
    from noetl.dsl.triggers import compile_document
    from noetl.tools.registry import tools

    return partial(
        compile_document,
        tools=tools(),
        limits=settings.limits,
        strict=settings.strict,
        zones=SystemZones(),
    )


def plain_value(text: str) -> Any:
    """A value as playbooks write it; raises ValueError for what is not YAML."""
    indented = text.replace("\n", "\n  ")
    return plain_document(f"value: {indented}")["value"]


def plain_document(text: str) -> dict[str, Any]:
    """A YAML or JSON document that is a mapping; raises ValueError for anything else."""
    from noetl.dsl.nodes import plain
    from noetl.dsl.read import read
    from noetl.dsl.report import Report

    report = Report()
    root = read(text, report)
    if root is None:
        raise ValueError(report.problems(None)[0].message)
    found = plain(root)
    assert isinstance(found, dict)
    return found


def schema(kind: str = "Playbook") -> dict[str, Any]:
    """The JSON Schema of a kind of document; of playbooks with the installed tool kinds."""
    if kind != "Playbook":
        from noetl.dsl.triggers import trigger_schema

        return trigger_schema(kind)
    from noetl.dsl.schema import playbook_schema
    from noetl.tools.registry import tools

    return playbook_schema(tools())


def migrator() -> Callable[[str], Rewritten]:
    """Text → the same playbook in the canonical dialect, with a report."""
    from noetl.rewrite.migrate import migrate_text
    from noetl.tools.registry import tools

    return partial(migrate_text, tools=tools())


# --- The database -----------------------------------------------------------------------------


def database_file(settings: Settings) -> Path | None:
    from noetl.store.sqlite.connections import database_path

    return None if is_server(settings.database_url) else database_path(settings.database_url)


def is_server(url: str) -> bool:
    """Whether the database is one that several processes share."""
    return url.startswith("postgresql:")


def is_missing(settings: Settings) -> bool:
    """Whether the database is a file that is not there yet."""
    database = database_file(settings)
    return settings.server_url is None and database is not None and not database.exists()


def require_database(settings: Settings) -> None:
    """Raises StoreError if the database is a file that is not there."""
    from noetl.store.sqlite.store import no_database

    if is_missing(settings):
        database = database_file(settings)
        assert database is not None
        raise no_database(database)


def is_in_use(settings: Settings) -> bool:
    """Whether some process, perhaps this one, may be using the database at this moment."""
    from noetl.store.sqlite.lock import FileLock

    if is_server(settings.database_url):
        return True
    database = database_file(settings)
    if database is None or not database.exists():
        return False
    try:
        FileLock(database).release()
    except StoreBusy:
        return True
    return False


async def open_store(url: str, *, read_only: bool = False) -> Store:
    """The store that a URL names; `read_only`, it may be open beside a process that writes."""
    if is_server(url):
        from noetl.store.postgres import PostgresStore

        return await PostgresStore.open(url, read_only=read_only)
    from noetl.store.sqlite import SqliteStore

    return await SqliteStore.open(url, read_only=read_only)


@asynccontextmanager
async def open_for_reading(settings: Settings) -> AsyncIterator[Store]:
    """The store, for reading beside a process that writes."""
    store = await open_store(settings.database_url, read_only=True)
    try:
        yield store
    finally:
        await store.close()


# --- Secrets, and what tools may do -----------------------------------------------------------


def operator_key(settings: Settings) -> OperatorKey:
    """The key that encrypts credentials, or the place where it will be created."""
    from noetl.secrets.operator_key import OperatorKey

    if is_server(settings.database_url):
        return OperatorKey(settings.secret_key, None)
    database = database_file(settings)
    folder = database.parent if database is not None else Path(".noetl")
    return OperatorKey(settings.secret_key, folder / "secret.key")


def tool_rules(settings: Settings) -> Rules:
    """What the operator allows the tools of a worker."""
    from noetl.secrets.keychain import opened
    from noetl.tools.egress import EgressPolicy
    from noetl.tools.processes.namespaces import PROCESSES, counts_by_room
    from noetl.tools.processes.spawner import Bounds
    from noetl.tools.rules import Rules, read_container_policy

    room = _room(settings)
    processes = PROCESSES if room is not None and counts_by_room() else None
    return Rules(
        egress=EgressPolicy(private=settings.private_networks == "allow"),
        containers=read_container_policy(settings.containers),
        file_root=settings.files,
        max_response_bytes=settings.max_response_bytes,
        max_file_bytes=settings.max_file_bytes,
        store_url=settings.store_url,
        cache=settings.cache,
        install_libs=settings.python_libs == "install",
        opened=opened(os.environ, settings.task_env),
        bounds=Bounds(
            memory=settings.task_memory_bytes,
            processes=settings.task_processes or processes,
            file_bytes=settings.task_file_bytes,
        ),
        room=room,
        task_network=settings.task_network == "allow",
        python_processes=settings.python_processes,
    )


def check_task_network(settings: Settings) -> None:
    """Raise BadSetting if tasks must have no network and nothing enforces that."""
    if settings.task_network != "allow" and settings.sandbox != "namespaces":
        raise BadSetting(
            "NOETL_TASK_NETWORK=refuse holds only with NOETL_SANDBOX=namespaces: processes"
            " alone have the network of the worker. Set both, or neither."
        )


def _room(settings: Settings) -> Room | None:
    """What code and programs of tasks see, if they are kept in namespaces."""
    from noetl.tools.processes.namespaces import TMP_BYTES, Room

    check_task_network(settings)
    if settings.sandbox != "namespaces":
        return None
    own = [Path(".noetl")]
    own += [Path(settings.secret_files)] if settings.secret_files is not None else []
    database = database_file(settings)
    if database is not None:
        own += [database.with_name(database.name + end) for end in ("", "-wal", "-shm")]
        own += [database.parent / "secret.key"]
        own += [database.parent] if database.parent.name == ".noetl" else []
    files: tuple[tuple[str, str], ...] = ()
    if settings.files is not None:
        root = os.path.realpath(settings.files)
        files = tuple((root, name) for name in {root, os.path.abspath(settings.files)})
    return Room(
        writes=files,
        hides=tuple(dict.fromkeys(os.path.realpath(path) for path in own)),
        tmp_bytes=min(TMP_BYTES, settings.task_file_bytes or TMP_BYTES),
    )


def tool_resources(settings: Settings, slots: int) -> ToolResources:
    """What the tools of a worker with so many slots share."""
    from noetl.tools.resources import ToolResources

    return ToolResources(tool_rules(settings), slots)


def secret_sources(settings: Settings) -> Sources:
    """Where playbooks may read secrets from, beside the stored ones."""
    from noetl.secrets.keychain import Sources, opened

    allowed = settings.env_secrets + settings.task_env
    return Sources(
        environment=opened(os.environ, allowed),
        env_allowed=allowed,
        file_root=settings.secret_files,
    )

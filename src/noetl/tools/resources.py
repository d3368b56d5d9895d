"""What the calls of one worker share: sessions, connections, processes, threads, files.

Everything is created on first use, and belongs to the event loop it was created in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from urllib.parse import unquote, urlsplit

import msgspec

from noetl.model.secrets import AccessToken
from noetl.tools.failures import Refused
from noetl.tools.files.results import FileCache, Files, Get, Put, Screen
from noetl.tools.processes.namespaces import Room
from noetl.tools.processes.programs import task_directory
from noetl.tools.rules import Rules

if TYPE_CHECKING:
    from noetl.tools.processes.sandbox import SandboxPool


class Closable(Protocol):
    """Something that holds connections, processes or threads until it is closed."""

    async def close(self) -> None: ...


Kept = TypeVar("Kept", bound=Closable)
THREADS = "noetl-tool"
"""Prefix of the names of threads that run calls."""


class ToolResources:
    """Shared by all tools of one worker; `close` closes everything."""

    def __init__(self, rules: Rules | None = None, slots: int = 64) -> None:
        """`slots` is how many commands the worker runs at the same time."""
        self.rules = rules or Rules()
        self._slots = slots
        self._kept: dict[Hashable, Closable] = {}
        self._threads: ThreadPoolExecutor | None = None
        self.access_tokens: dict[str, AccessToken] = {}
        """Tokens of this worker; see `tools.credentials`."""

    def shared(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """The shared object of that key, made on first use."""
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = make()
        return cast(Kept, kept)

    @property
    def sandbox(self) -> SandboxPool:
        """The processes that run Python code."""
        return self.shared("sandbox", self._make_sandbox)

    def _make_sandbox(self) -> SandboxPool:
        # Most workers run no Python code.
        from noetl.tools.processes.sandbox import SandboxPool, memory_here, processes_for

        rules = self.rules
        return SandboxPool(
            rules.python_processes or processes_for(self._slots, memory_here()),
            message_max=rules.max_response_bytes,
            bounds=rules.bounds,
            room=rules.room,
        )

    @property
    def threads(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.rules.threads, THREADS)
        return self._threads

    def files(
        self,
        execution_id: str,
        seal: str,
        action_id: str,
        put: Put,
        get: Get,
        screen: Screen | None = None,
    ) -> Files:
        """Files among the results of an execution, for one attempt; close them after it."""
        cache = self.shared("files", FileCache)
        limit = self.rules.max_file_bytes
        return Files(execution_id, seal, action_id, put, get, cache, limit, screen)

    def path(self, written: str) -> Path:
        """The file that a task names, with links resolved. Raises Refused outside `file_root`."""
        parts = urlsplit(written)
        if parts.scheme == "file" and parts.netloc in ("", "localhost"):
            written = unquote(parts.path)
        elif "://" in written:
            raise Refused(
                f'"{written}" is not a file. This version of the tool reads and writes files of '
                "the worker only."
            )
        if "\0" in written:
            raise Refused("a path cannot hold a NUL character.")
        if self.rules.file_root is None:
            return Path(written)
        root = Path(os.path.realpath(self.rules.file_root))
        resolved = Path(os.path.realpath(root / written))
        if not resolved.is_relative_to(root):
            raise Refused(
                f'"{written}" lies outside the directory that this worker may use. Name a file '
                "below it, or ask the operator."
            )
        return resolved

    def network(self, spec: Mapping[str, Any]) -> bool:
        """Whether a task with this `spec` gets the worker's network. Raises Refused.

        Without rooms every task has it.
        """
        written = spec.get("sandbox")
        wanted = isinstance(written, Mapping) and written.get("network") is True
        if wanted and self.rules.room is not None and not self.rules.task_network:
            raise Refused(
                "spec.sandbox.network: the operator of this worker gives no network to code and"
                " programs (NOETL_TASK_NETWORK=refuse). Fetch what they need with `kind: http`."
            )
        return wanted

    @contextmanager
    def workplace(
        self, spec: Mapping[str, Any], cwd: str | None
    ) -> Iterator[tuple[str, Room | None]]:
        """The directory in which a program runs, and the room in which it does. Raises Refused.

        `cwd` is the directory that the task names; without one it is a new one.
        """
        with ExitStack() as stack:
            own: tuple[tuple[str, str], ...] = ()
            if cwd is not None:
                directory = str(self.path(cwd))
            else:
                directory = stack.enter_context(task_directory())
                own = ((directory, directory),)
            network, room = self.network(spec), self.rules.room
            if room is not None:
                if cwd is not None and self.rules.file_root is None:
                    raise Refused(
                        f'cwd "{cwd}": programs on this worker see directories below NOETL_FILES'
                        " only (NOETL_SANDBOX=namespaces), and it is not set. Ask the operator to"
                        " set it."
                    )
                room = msgspec.structs.replace(room, network=network, writes=(*room.writes, *own))
            yield directory, room

    async def close(self) -> None:
        kept = [self._kept.pop(key) for key in list(self._kept)]
        problems: list[Exception] = []
        for thing in reversed(kept):
            try:
                await thing.close()
            except Exception as problem:  # noqa: BLE001 - all are closed first, then all are told
                problems.append(problem)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
        if problems:
            raise ExceptionGroup("some shared resources of tools did not close", problems)

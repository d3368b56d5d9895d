"""Files among the results of an execution: tables, downloads, and other data that is not JSON.

A file is stored in parts of a few megabytes, so that neither worker nor server nor store ever holds
all of it in memory. Events hold a reference to it (`parts`), which stays a reference: the content
is read only by tasks that ask for the file. A worker caches files that it wrote or read for later
tasks.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from noetl.errors import Corrupted, NotFound, TooLarge
from noetl.model import refs
from noetl.model.ids import derive
from noetl.tools.limits import to_thread
from noetl.tools.processes.programs import spawner

PART = 8 * 1024 * 1024
CACHED_BYTES = 4 * 1024**3
"""Total size of the files that a worker keeps for later tasks."""

Put = Callable[[str, str, bytes], Awaitable[None]]
"""Stores a body: execution, key, bytes. The same key again changes nothing."""
Get = Callable[[str, str], Awaitable[bytes]]
"""Reads such a body. Raises NotFound."""


class Screen(Protocol):
    """Masks the secrets of a task in what is stored of it."""

    def file(self, path: Path, form: str) -> None:
        """Mask them in a file. Raises SecretInFile if that is impossible."""

    def shown(self, value: Any) -> Any:
        """Mask them in a value for people."""


class FileCache:
    """Files on the worker's disk, by checksum. The least recently used are dropped first."""

    def __init__(self, limit: int = CACHED_BYTES) -> None:
        self._limit = limit
        self._root: Path | None = None
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._changing = threading.Lock()
        """Attempts read and keep the same files at the same time, in threads."""

    @property
    def root(self) -> Path:
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="files-", dir=spawner().folder))
        return self._root

    def lend(self, checksum: str, name: Path) -> bool:
        """Give that file another name, too. Returns whether it is here."""
        with self._changing:
            if checksum not in self._sizes:
                return False
            self._sizes.move_to_end(checksum)
            link_or_copy(self.root / checksum, name)
            return True

    def add(self, checksum: str, path: Path) -> None:
        """Keep a file under another name, too, without disturbing its readers."""
        with self._changing:
            if checksum in self._sizes:
                return
            link_or_copy(path, self.root / checksum)
            self._sizes[checksum] = path.stat().st_size
            while len(self._sizes) > 1 and sum(self._sizes.values()) > self._limit:
                oldest, _ = self._sizes.popitem(last=False)
                (self.root / oldest).unlink()

    async def close(self) -> None:
        if self._root is not None:
            await to_thread(shutil.rmtree, self._root, ignore_errors=True)
            self._root = None


class Files(msgspec.Struct):
    """The files of one attempt of one task. Everything it leaves behind is deleted at its end."""

    execution_id: str
    seal: str
    action_id: str
    put: Put
    get: Get
    cache: FileCache
    limit: int
    """The maximum size of a file."""
    screen: Screen | None = None
    made: Path | None = None
    """Its directory, once somebody has asked for it."""

    @property
    def folder(self) -> Path:
        """A directory for this attempt alone."""
        if self.made is None:
            self.made = Path(tempfile.mkdtemp(prefix="task-", dir=self.cache.root))
        return self.made

    async def keep(
        self, path: Path, *, form: str, schema_hint: Any = None, preview: Any = None, **more: Any
    ) -> dict[str, Any]:
        """Put a file into the result store. Returns the reference to it."""
        self.allow(path.stat().st_size)
        if self.screen is not None:
            await to_thread(self.screen.file, path, form)
            preview = self.screen.shown(preview)
        size = path.stat().st_size
        checksum = await to_thread(_checksum, path)
        # Another attempt may yield other bytes, which need another key.
        key = derive(self.action_id, checksum)
        parts = max(1, -(-size // PART))
        with await to_thread(path.open, "rb") as file:
            for number in range(parts):
                body = await to_thread(file.read, PART)
                await self.put(self.execution_id, _part_key(key, number), body)
        await to_thread(self.cache.add, checksum, path)
        about = refs.About(
            execution_id=self.execution_id,
            key=key,
            size=size,
            checksum=checksum,
            format=form,
            parts=parts,
        )
        hint = schema_hint if schema_hint is not None else form
        return refs.made(self.seal, about, schema_hint=hint, preview=preview, **more)

    def find(self, value: Any) -> refs.About | None:
        """The parsed reference to a file; None for anything else, however similar."""
        about = refs.about(value, self.seal)
        return about if about is not None and about.is_file else None

    def is_reference(self, value: Any) -> bool:
        """Whether this is a reference that an execution of this family made."""
        return refs.about(value, self.seal) is not None

    async def note(self, name: str, body: bytes) -> None:
        """Store a few bytes that later attempts of the same call find, on any worker."""
        await self.put(self.execution_id, derive(self.action_id, "note", name), body)

    async def noted(self, name: str) -> bytes | None:
        """What an attempt of this call stored under that name."""
        try:
            return await self.get(self.execution_id, derive(self.action_id, "note", name))
        except NotFound:
            return None

    def allow(self, size: int) -> None:
        if size > self.limit:
            raise TooLarge(
                f"The file is larger than the {self.limit:,} bytes that this worker keeps. Ask "
                "the operator to raise NOETL_MAX_FILE_BYTES, or make it in several pieces."
            )

    async def local(self, about: refs.About) -> Path:
        """The local path of the file that a reference names."""
        mine = self.folder / f"{about.checksum}.{about.format}"
        if mine.exists():
            return mine
        if not await to_thread(self.cache.lend, about.checksum, mine):
            self.allow(about.size)
            await self._fetch(about, mine)
            await to_thread(self.cache.add, about.checksum, mine)
        return mine

    async def with_paths(
        self, inputs: Mapping[str, Any], seen_in: str | None
    ) -> tuple[dict[str, Any], tuple[Path, ...]]:
        """The inputs of code that opens files itself: each reference to a file gets its `path`.

        Also returns the files. `seen_in` is the directory in which the code finds them.
        """
        given, files = dict(inputs), []
        for name, value in inputs.items():
            about = self.find(value)
            if about is not None:
                file = await self.local(about)
                files.append(file)
                path = str(file) if seen_in is None else f"{seen_in}/{file.name}"
                given[name] = {**value, "path": path}
        return given, tuple(dict.fromkeys(files))

    async def _fetch(self, about: refs.About, place: Path) -> None:
        assert about.parts is not None
        owner = about.owner(self.execution_id)
        partial = place.with_suffix(".partial")
        seen = hashlib.sha256()
        with await to_thread(partial.open, "wb") as file:
            for number in range(about.parts):
                body = await self.get(owner, _part_key(about.key, number))
                seen.update(body)
                await to_thread(file.write, body)
        if seen.hexdigest() != about.checksum:
            partial.unlink()
            raise Corrupted(
                f"The file {about.key} of execution {owner} is not what was written: its "
                f"sha256 is not {about.checksum}. Run the execution anew."
            )
        partial.rename(place)

    async def body(self, key: str) -> bytes:
        """The body that this execution stores under a key."""
        return await self.get(self.execution_id, key)

    async def read(self, about: refs.About, start: int, stop: int) -> bytes:
        """Bytes `start … stop - 1`, without reading the parts before and after."""
        owner = about.owner(self.execution_id)
        stop = min(stop, about.size)
        found = b""
        for number in range(start // PART, -(-stop // PART)):
            body = await self.get(owner, _part_key(about.key, number))
            first = number * PART
            found += body[max(0, start - first) : stop - first]
        return found

    async def close(self) -> None:
        if self.made is not None:
            await to_thread(shutil.rmtree, self.made, ignore_errors=True)
            self.made = None


def in_memory(bodies: dict[tuple[str, str], bytes]) -> tuple[Put, Get]:
    """Bodies in a mapping, for trials of a tool."""

    async def put(owner: str, key: str, body: bytes) -> None:
        bodies.setdefault((owner, key), body)

    async def get(owner: str, key: str) -> bytes:
        if (owner, key) not in bodies:
            raise NotFound(f"execution {owner} has no result {key}.")
        return bodies[owner, key]

    return put, get


def _part_key(key: str, number: int) -> str:
    return f"{key}.{number}"


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def arriving(place: Path) -> Iterator[Path]:
    """A path for a file that appears at its place when it is complete; writers do not mix."""
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)


def link_or_copy(path: Path, name: Path) -> None:
    """Give a file another name, too."""
    try:
        os.link(path, name)
    except OSError:
        # Another disk, or a file system without links.
        shutil.copyfile(path, name)

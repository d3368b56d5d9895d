"""The API on a Unix socket beside the database file, served by the process that holds the database.

A command that finds the database held calls the holder through this socket, with the same routes as
over the network. An account that can write the file may call: the socket has mode 0600, and the
kernel reports the account of the peer. Only the process with the lock on the database binds the
socket, so an existing socket is a stale one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
import stat
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from noetl.api.protocol import App, Connections

logger = logging.getLogger(__name__)

PATH_BYTES_MAX = 100
"""The kernel accepts 107 bytes on Linux and 103 on macOS."""
DRAIN_SECONDS = 2.0
"""How long a call under way may take when the holder ends."""
BACKLOG = 64
IS_POSSIBLE = hasattr(socket, "AF_UNIX") and sys.platform != "win32"


def short_folder() -> Path:
    """The user's folder for sockets whose path beside the database would be too long.

    It depends on the account alone: a holder started by cron and a caller at a terminal have
    different environments (XDG_RUNTIME_DIR, TMPDIR) and must find each other.
    """
    return Path(f"/tmp/noetl-{os.getuid()}")  # noqa: S108  path_of refuses it unless it is ours alone


def path_of(database: Path, short: Path | None = None) -> Path:
    """Where the holder of that database listens: beside the file, or if that path is too long, in
    the `short` folder under a digest of the database's path. Raises OSError if that folder is not
    private to the user.
    """
    beside = database.with_name(f"{database.name}.sock")
    if len(os.fsencode(beside)) <= PATH_BYTES_MAX:
        return beside
    folder = short or short_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        # Another user may have created it to receive our calls.
        raise PermissionError(f"{folder} is not private to this user")
    digest = hashlib.sha256(os.fsencode(database)).hexdigest()[:24]
    return folder / f"noetl-{digest}.sock"


def url_of(path: Path) -> str:
    """The URL with which a client calls through that socket."""
    return f"unix://{quote(str(path))}"


@asynccontextmanager
async def serving(path: Path, app: Callable[[], App]) -> AsyncIterator[None]:
    """Serve calls on a socket at that path. The app is built on the first call: most processes that
    hold a database are never called, and start faster without it.

    The socket is a convenience. If it cannot be created, the process works without it and logs a
    warning.
    """
    try:
        listener = _listening(path)
    except OSError as error:
        logger.warning("other processes cannot call this one at %s: %s", path, error)
        yield
        return
    connections: Connections | None = None

    def made() -> asyncio.Protocol:
        from noetl.api.protocol import Connections

        nonlocal connections
        connections = connections or Connections(app())
        return connections.made()

    server = await asyncio.get_running_loop().create_unix_server(made, sock=listener)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        server.close()
        if connections is not None:
            await connections.drain(DRAIN_SECONDS)


def remove_stale(path: Path) -> None:
    """Remove the socket that a killed process left. Only the process that holds the database may do
    this, as only it binds the path. Raises OSError.
    """
    if path.is_socket():
        path.unlink()


def _listening(path: Path) -> socket.socket:
    """Bind a socket that only this user can open. Raises OSError."""
    remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    others = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(others)
    return listener


def process_of(sock: socket.socket) -> int | None:
    """The id of the process at the other end; None if the system does not tell."""
    found = _peer(sock)
    return None if found is None else found[0]


def _peer(sock: socket.socket) -> tuple[int, int] | None:
    """The ids of the process and the user at the other end."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    size = struct.calcsize("3i")
    said = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack("3i", said)
    return pid, uid


def account_of(sock: socket.socket) -> str:
    """The account of the process at the other end; empty if the system does not tell."""
    found = _peer(sock)
    if found is None:
        return ""
    _, uid = found
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)  # A container may run under a user id without a name.

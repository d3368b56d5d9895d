"""One process writes a database file. The operating system releases the lock when it dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from noetl.errors import StoreBusy

if sys.platform == "win32":
    import msvcrt

    # Windows keeps others from reading a locked range, so lock a byte after the text.
    _LOCKED_BYTE = 1 << 20

    def _try_lock(handle: int) -> bool:
        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class FileLock:
    """Held from now on until `release`, or until the process ends."""

    def __init__(self, database: Path) -> None:
        path = database.with_name(database.name + ".lock")
        # Not removed afterwards: a waiting process would then hold a lock on no file at all.
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if not _try_lock(self._handle):
            os.lseek(self._handle, 0, os.SEEK_SET)
            holder = os.read(self._handle, 32)
            os.close(self._handle)
            raise StoreBusy(_busy(database, holder.decode("ascii", "replace").strip()))
        os.ftruncate(self._handle, 0)
        os.lseek(self._handle, 0, os.SEEK_SET)
        os.write(self._handle, b"%d\n" % os.getpid())

    def release(self) -> None:
        os.close(self._handle)


def _busy(database: Path, holder: str) -> str:
    who = f"process {holder}" if holder else "another process"
    return (
        f"{database} is in use by {who}, and one process writes a database at a time."
        " Wait until it has finished or stop it, use another file (--db sqlite:///other.db),"
        " or look without writing: `noetl executions list`. If it is `noetl dev` or a server, it"
        " can run a playbook for you: `noetl run FILE --server URL`, with the URL that it printed"
        " when it started."
    )

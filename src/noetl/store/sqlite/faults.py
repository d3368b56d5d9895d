"""Translates errors of SQLite and the disk into our errors: where, what, and what to do."""

from __future__ import annotations

import errno
import sqlite3

import msgspec

from noetl.errors import Corrupted, NoetlError, StoreBusy, StoreError, StoreFull

FORESEEN = (sqlite3.Error, OSError, OverflowError, UnicodeError, TypeError, msgspec.MsgspecError)
"""Everything that a statement, its parameters or a file can raise."""

_FORBIDDEN = {
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DISK = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}


def fault(error: Exception, place: str) -> NoetlError:
    """The error to raise instead. `place` is the file."""
    if isinstance(error, sqlite3.Error):
        return _database_fault(error, place)
    if isinstance(error, OSError):
        if error.errno == errno.ENOSPC:
            return full(place, str(error))
        if error.errno in _FORBIDDEN:
            return _unwritable(place, error.strerror or str(error))
        return StoreError(
            f"{place}: {error.strerror or error}. Nothing of this was kept."
            " Check free space and permissions, then do it again."
        )
    return StoreError(
        f"{place}: a value cannot be stored, or was stored by another version of NoETL: {error}."
        " Nothing was changed."
    )


def _unwritable(place: str, said: str) -> StoreError:
    return StoreError(
        f"{place}: the database cannot be written here ({said}). Check that its file and directory"
        " belong to you and are writable, or name one elsewhere with --db, for example"
        " --db ~/noetl.db."
    )


def full(place: str, said: str) -> StoreFull:
    return StoreFull(
        f"{place}: the disk is full ({said}). Nothing of this was written and nothing stored"
        " is lost. Free some space; writing works again as soon as there is room."
    )


def _database_fault(error: sqlite3.Error, place: str) -> NoetlError:
    # The low byte is the kind of error; the rest says which of its kind.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return full(place, str(error))
    if code in _BUSY:
        return StoreBusy(
            f"{place}: another program keeps the database locked ({error})."
            " Close it, or wait until it has finished, then do it again."
        )
    if code == sqlite3.SQLITE_NOTADB:
        return Corrupted(
            f"{place}: this file is not a database of NoETL, or its beginning is damaged ({error})."
            " Name another one with --db, or restore this one from a backup."
        )
    if code == sqlite3.SQLITE_CORRUPT or "decode to UTF-8" in str(error):
        return Corrupted(
            f"{place}: what is stored is not what was written ({error})."
            " Run `noetl db check` to see what is affected, and restore that from a backup."
        )
    if code == sqlite3.SQLITE_READONLY:
        return _unwritable(place, str(error))
    if code in _DISK:
        return StoreError(
            f"{place}: the disk refused ({error}). Nothing of this was written."
            " Check that the directory exists, is writable and has free space, then do it again;"
            " or name a database elsewhere with --db."
        )
    if code == sqlite3.SQLITE_CONSTRAINT:
        return StoreError(
            f"{place}: the write contradicts what is stored ({error}). Nothing of it was kept."
            " This is an error in NoETL: please report it."
        )
    return StoreError(f"{place}: {error}. Nothing of this was written.")

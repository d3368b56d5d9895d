"""Translates errors of PostgreSQL and the network into our errors, with a remedy."""

from __future__ import annotations

import msgspec
import psycopg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from noetl.errors import BadText, Corrupted, NoetlError, StoreBusy, StoreError, StoreFull

FORESEEN = (psycopg.Error, OSError, OverflowError, UnicodeError, TypeError, msgspec.MsgspecError)
"""Everything that a statement, its parameters or the network can raise."""

CLOSED = "The store is closed. Open it again to use it."

_PASSING = {"57P01", "57P02", "57P03", "40001", "40P01", "53300", "25006", "25P03", "55P03"}
"""Shut down, crashed, starting, lost against another transaction, too many connections, no longer
primary, idle in a transaction for too long, lock timeout."""
_OUT_OF_REACH = (PoolTimeout, TooManyRequests, OSError)


def is_passing(error: Exception) -> bool:
    """Whether the same statement may succeed later: it had no effect, or all of it."""
    if isinstance(error, _OUT_OF_REACH):
        return True
    if not isinstance(error, psycopg.OperationalError):
        return isinstance(error, psycopg.Error) and error.sqlstate in _PASSING
    # Without a code the connection broke, and it is unknown how far the statement got.
    return error.sqlstate is None or error.sqlstate[:2] == "08" or error.sqlstate in _PASSING


def fault(error: Exception, place: str) -> NoetlError:
    """The error to raise instead. `place` is the database, without its password."""
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, PoolClosed):
        return StoreError(CLOSED)
    if _is_refusal(error, said):
        return _not_let_in(place, said)
    if is_passing(error):
        return StoreBusy(
            f"{place} is out of reach: {said}. Nothing that was stored is lost. Check that it runs"
            " and that its address is right; what was asked can be asked again."
        )
    if isinstance(error, psycopg.Error):
        return _database_fault(error, place, said)
    return StoreError(
        f"{place}: a value cannot be stored, or was stored by another version of NoETL: {said}."
        " Nothing was changed."
    )


def _is_refusal(error: Exception, said: str) -> bool:
    """The server refused the connection. While connecting there is no code, only the text."""
    if not isinstance(error, psycopg.OperationalError) or error.sqlstate is not None:
        return False
    return any(word in said for word in ("authentication failed", "does not exist", "pg_hba.conf"))


def _not_let_in(place: str, said: str) -> StoreError:
    return StoreError(
        f"{place} does not let us in: {said}. Check user, password, database and rights in"
        " NOETL_DATABASE_URL; the role needs to own the schema `noetl` or be able to create it."
    )


def _database_fault(error: psycopg.Error, place: str, said: str) -> NoetlError:
    code = error.sqlstate or ""
    if code[:2] == "28" or code == "42501":
        return _not_let_in(place, said)
    if code == "53100":
        return StoreFull(
            f"{place}: the disk is full ({said}). Nothing of this was written and nothing stored"
            " is lost. Free some space; writing works again as soon as there is room."
        )
    if code[:2] == "XX":
        return Corrupted(
            f"{place}: what is stored is not what was written ({said})."
            " Run `noetl db check` to see what is affected, and restore that from a backup."
        )
    if code[:2] == "23":
        return StoreError(
            f"{place}: the write contradicts what is stored ({said}). Nothing of it was kept."
            " This is an error in NoETL: please report it."
        )
    if isinstance(error, psycopg.DataError) and "NUL (0x00)" in said:
        return BadText("a text holds the character NUL, which PostgreSQL does not keep.")
    if isinstance(error, psycopg.DataError):
        return StoreError(f"{place}: a value cannot be stored: {said}. Nothing was changed.")
    return StoreError(f"{place}: {said}. Nothing of this was written.")

"""Objects of a store as files of the worker, wherever a task may name one or the other.

An object is read from a copy, and written when the whole file is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from noetl.model.ids import derive
from noetl.tools.base import Credential, ToolContext
from noetl.tools.extras import lacking
from noetl.tools.failures import Failed, failed_with
from noetl.tools.files.objects import SPELLINGS, named, opened, saved


def is_object(address: str) -> bool:
    """Whether it names an object of a store, not a file."""
    return urlsplit(address).scheme in SPELLINGS


def parts_of(address: str) -> tuple[str, str]:
    """The store and the key: `s3://bucket` and `a/b.csv`; raises Failed without a key."""
    bucket, _, key = address.partition("://")[2].partition("/")
    if not bucket or not key:
        told = f'"{address}" names no object; it should look like s3://bucket/path/of/it.'
        raise Failed("client_error", told)
    return f"{urlsplit(address).scheme}://{bucket}", key


async def local_file(address: str, auth: Credential | None, context: ToolContext) -> Path:
    """The file that is meant: the worker's own, or a copy of the object. It may not be there."""
    if not is_object(address):
        return context.resources.path(address)
    return await fetched(*parts_of(address), auth, context)


async def fetched(url: str | None, key: str, auth: Credential | None, context: ToolContext) -> Path:
    """A copy of the object that is gone when the attempt ends."""
    with _explained(key):
        import obstore

        place = await opened(url, auth, context)
        found = await obstore.get_async(place.store, place.checked(key))
        context.files.allow(int(found.meta["size"]))
        # Objects of the same name may lie in several places.
        path = context.files.folder / f"{derive(url, key)}{''.join(Path(key).suffixes)}"
        await saved(found, path)
    return path


async def stored(
    path: Path, url: str | None, key: str, auth: Credential | None, context: ToolContext
) -> None:
    """The file as the object, in place of what was there."""
    with _explained(key):
        import obstore

        place = await opened(url, auth, context, create=True)
        await obstore.put_async(place.store, place.checked(key), path)


@contextmanager
def _explained(key: str) -> Iterator[None]:
    """What the store or its library says, as a failure of the task."""
    if lack := lacking("store", "obstore"):
        raise failed_with(lack)
    try:
        yield
    except Exception as error:
        known = named(error, f"the object {key}")
        if known is None:
            raise
        raise failed_with(known) from None

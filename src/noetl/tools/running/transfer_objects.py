"""Objects of a store as ends of a transfer: by way of a file on the worker."""

from __future__ import annotations

from pathlib import Path

from noetl.model.outcome import Outcome, TaskError
from noetl.tools.base import ToolContext
from noetl.tools.running.asking import Unanswered
from noetl.tools.running.extras import lacking
from noetl.tools.running.failures import failed_with
from noetl.tools.running.objects import Place, named, opened
from noetl.tools.transfer import InStore


async def fetched(end: InStore, context: ToolContext) -> Path:
    """The object as a file of this attempt."""
    _have_library()
    import obstore

    path = context.files.folder / Path(end.key).name
    try:
        place = await _place(end, context, create=False)
        found = await obstore.get_async(place.store, place.checked(end.key))
        context.files.allow(int(found.meta["size"]))
        with path.open("wb") as file:
            async for piece in found.stream():
                file.write(piece)
    except Exception as error:
        _raise_known(error, end)
        raise
    return path


async def stored(end: InStore, path: Path, context: ToolContext) -> None:
    """The file as the object."""
    _have_library()
    import obstore

    try:
        place = await _place(end, context, create=True)
        await obstore.put_async(place.store, place.checked(end.key), path)
    except Exception as error:
        _raise_known(error, end)
        raise


async def _place(end: InStore, context: ToolContext, *, create: bool) -> Place:
    try:
        return await opened(end.url, end.auth, context, create=create)
    except Unanswered as problem:
        raise failed_with(_error(problem.outcome)) from None


def _have_library() -> None:
    if lack := lacking("store", "obstore"):
        raise failed_with(_error(lack))


def _error(outcome: Outcome) -> TaskError:
    assert outcome.error is not None
    return outcome.error


def _raise_known(error: Exception, end: InStore) -> None:
    known = named(error, f"the object {end.key}")
    if known is not None:
        raise failed_with(known) from None

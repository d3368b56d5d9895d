"""Bodies of answers that go to a file or into the result store, never into memory."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from noetl.tools.base import ToolContext
from noetl.tools.files.object_files import is_object, parts_of, stored
from noetl.tools.tables.types import form_of
from noetl.tools.web.bodies import form_of_media
from noetl.tools.web.request import Request

CHUNK = 1024 * 1024
MEDIA = {
    "application/vnd.apache.parquet": "parquet",
    "application/vnd.apache.arrow.file": "arrow",
}


async def saved(
    answer: aiohttp.ClientResponse, url: URL, config: Request, context: ToolContext
) -> dict[str, Any]:
    """What stands for the body: a reference, or the place of the file it went to."""
    media = answer.headers.get("Content-Type", "")
    if config.download is True:
        path = context.files.folder / "download"
        await _written(answer, path, context)
        form = config.decode if config.decode != "auto" else form_of_media(media)
        if form == "bytes":
            form = MEDIA.get(media) or form_of(url.name) or "bytes"
        return await context.files.keep(path, form=form, media=media)
    address = str(config.download)
    if is_object(address):
        url_of_store, key = parts_of(address)
        path = context.files.folder / "download"
        size, checksum = await _written(answer, path, context)
        await stored(path, url_of_store, key, config.store_auth, context)
        return {"path": address, "size": size, "checksum": checksum, "media": media}
    place = context.resources.path(address)
    await asyncio.to_thread(place.parent.mkdir, parents=True, exist_ok=True)
    # The file appears when it is whole; two that write it at once do not mix.
    partial = place.with_name(f".{place.name}.{context.action_id}.partial")
    try:
        size, checksum = await _written(answer, partial, context)
        await asyncio.to_thread(partial.replace, place)
    finally:
        partial.unlink(missing_ok=True)
    return {"path": address, "size": size, "checksum": checksum, "media": media}


async def _written(
    answer: aiohttp.ClientResponse, path: Path, context: ToolContext
) -> tuple[int, str]:
    size, seen = 0, hashlib.sha256()
    with await asyncio.to_thread(path.open, "wb") as file:
        async for chunk in answer.content.iter_chunked(CHUNK):
            size += len(chunk)
            context.files.allow(size)
            seen.update(chunk)
            await asyncio.to_thread(file.write, chunk)
        await asyncio.to_thread(file.flush)
        await asyncio.to_thread(os.fsync, file.fileno())
    return size, seen.hexdigest()

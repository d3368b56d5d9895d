"""Puts objects into a store and gets them out, in chunks."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import obstore

from noetl.model.duration import seconds
from noetl.model.outcome import Outcome, ok
from noetl.tools.base import ToolContext
from noetl.tools.failures import Failed, require, within
from noetl.tools.files.formats import Unreadable, decoded
from noetl.tools.files.objects import Place, explained, opened, saved
from noetl.tools.limits import check_memory, shortest, to_thread
from noetl.tools.plain_data import NotPlain, plain
from noetl.tools.store import NEEDS, Store

FORMS = {
    "json": "json",
    "ndjson": "ndjson",
    "jsonl": "ndjson",
    "csv": "csv",
    "parquet": "parquet",
    "arrow": "arrow",
    "xml": "xml",
    "txt": "text",
}
"""Formats by file extension."""
SAYS_NOTHING = ("application/octet-stream", "binary/octet-stream")
"""Media types that stores assign to objects that were put without one."""


async def run(config: Store, context: ToolContext) -> Outcome:
    assert config.op is not None
    require(config, "op", NEEDS)
    limit = shortest(config.timeout, context.timeout)
    what = f"{config.op} {config.key or config.prefix}".strip()
    try:
        with explained(what):
            async with within(limit, f"{what} took longer than", who=what):
                place = await opened(config.url, config.auth, context, create=config.op == "put")
                key = place.checked(config.key) if config.key and config.op in NEEDS else ""
                return ok(await OPERATIONS[config.op](place, key, config, context))
    except (Unreadable, NotPlain) as error:
        raise Failed("parse", f"{what}: the content cannot be read: {error}.") from None


# --- put ---------------------------------------------------------------------------------------


async def _put(place: Place, key: str, config: Store, context: ToolContext) -> Any:
    content = await _content(config, context)
    size, checksum = await to_thread(_measured, content)
    attributes = dict(config.metadata)
    if config.content_type is not None:
        attributes["Content-Type"] = config.content_type
    await obstore.put_async(
        place.store,
        key,
        content,
        # A directory cannot store them.
        attributes=None if place.directory is not None else attributes,
        mode="overwrite" if config.overwrite else "create",
        # The parts of a large object cannot be put conditionally.
        use_multipart=None if config.overwrite else False,
    )
    return {"store": place.url, "key": key, "size": size, "checksum": checksum}


async def _content(config: Store, context: ToolContext) -> Path | bytes:
    if config.file is not None:
        path = context.resources.path(config.file)
        if not path.is_file():
            raise Failed("not_found", f'There is no file "{config.file}" on this worker.')
        return path
    value = config.value
    file = context.files.find(value)
    if file is not None:
        return await context.files.local(file)
    if isinstance(value, dict):
        value = await context.read_result(value)
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _measured(content: Path | bytes) -> tuple[int, str]:
    if isinstance(content, bytes):
        return len(content), hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return content.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


# --- get ---------------------------------------------------------------------------------------


async def _get(place: Place, key: str, config: Store, context: ToolContext) -> Any:
    found = await obstore.get_async(place.store, key)
    media = str(found.attributes.get("Content-Type", ""))
    if media in SAYS_NOTHING:
        media = ""
    size = int(found.meta["size"])
    if config.decode == "reference":
        context.files.allow(size)
        path = context.files.folder / "object"
        await saved(found, path)
        form = FORMS.get(key.rpartition(".")[2].lower(), "bytes")
        return await context.files.keep(path, form=form, content_type=media or None)
    check_memory(size, context.resources.rules.max_response_bytes, "Use `decode: reference`.")
    body = bytes(await found.bytes_async())
    return plain(_read(body, media, config))


def _read(body: bytes, media: str, config: Store) -> Any:
    form: str = config.decode
    if form == "auto" and not media:
        form = FORMS.get((config.key or "").rpartition(".")[2].lower(), "")
        form = form if form in ("json", "ndjson", "csv", "xml", "text") else _guessed(body)
    if form == "bytes":
        return base64.b64encode(body).decode("ascii")
    return decoded(body, media, form)


def _guessed(body: bytes) -> str:
    try:
        body.decode()
    except UnicodeDecodeError:
        return "bytes"
    return "text"


# --- The others --------------------------------------------------------------------------------


async def _list(place: Place, key: str, config: Store, context: ToolContext) -> Any:
    """Keys in order. At most the requested ones and one page are in memory."""
    folder = config.prefix.rpartition("/")[0]
    if folder:
        place.checked(folder)
    found: list[dict[str, Any]] = []
    async for page in obstore.list(place.store, folder or None, chunk_size=1000):
        found += [
            {"key": one["path"], "size": one["size"], "modified": plain(one["last_modified"])}
            for one in page
            if one["path"].startswith(config.prefix)
        ]
        found = sorted(found, key=lambda one: str(one["key"]))[: config.limit + 1]
    return {"objects": found[: config.limit], "truncated": len(found) > config.limit}


async def _delete(place: Place, key: str, config: Store, context: ToolContext) -> Any:
    # Other stores do not tell whether it existed; it is gone, as requested.
    with suppress(FileNotFoundError):
        await obstore.delete_async(place.store, key)
    return {"key": key}


async def _presign(place: Place, key: str, config: Store, context: ToolContext) -> Any:
    if place.directory is not None:
        told = "A directory has no addresses to hand out; `presign` needs s3://, gs:// or az://."
        raise Failed("client_error", told)
    lasts = seconds(config.expires) or 0.0
    until = datetime.fromtimestamp(time.time() + lasts, UTC).replace(microsecond=0)
    store: Any = place.store
    url = await obstore.sign_async(store, config.method, key, timedelta(seconds=lasts))
    return {"url": url, "expires_at": plain(until)}


OPERATIONS: dict[str, Callable[[Place, str, Store, ToolContext], Awaitable[Any]]] = {
    "put": _put,
    "get": _get,
    "list": _list,
    "delete": _delete,
    "presign": _presign,
}

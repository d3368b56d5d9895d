"""Loads program text from a file of the worker, from the web, or from an object store."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from noetl.model.outcome import failed
from noetl.tools.base import Credential, ToolContext
from noetl.tools.failures import Failed, Refused, failed_with, lacking
from noetl.tools.files.objects import SPELLINGS, named, opened
from noetl.tools.limits import to_thread
from noetl.tools.web.service import ask

BYTES_MAX = 10 * 1024 * 1024


async def loaded(script: str, auth: Credential | None, context: ToolContext) -> str:
    """The text at that address. Raises Failed."""
    scheme = urlsplit(script).scheme
    try:
        if scheme in ("http", "https"):
            return await _from_web(script, auth, context)
        if scheme in SPELLINGS:
            body = await _from_store(script, auth, context)
        else:
            path = context.resources.path(script)
            body = await to_thread(path.read_bytes)
        return body.decode()
    except Refused as refusal:
        problem = failed("auth", f"script: {refusal}")
    except FileNotFoundError:
        told = f'The script "{script}" does not exist on this worker.'
        problem = failed("not_found", told)
    except (IsADirectoryError, PermissionError) as error:
        told = f'The script "{script}" cannot be read: {error.strerror}.'
        problem = failed("auth", told)
    except UnicodeDecodeError as error:
        told = f'The script "{script}" is not UTF-8 text: {error}.'
        problem = failed("parse", told)
    raise failed_with(problem)


async def _from_web(script: str, auth: Credential | None, context: ToolContext) -> str:
    more = {"auth": auth} if auth is not None else {}
    try:
        answer = await ask(context, "GET", script, decode="text", **more)
    except msgspec.ValidationError as error:
        raise Failed("auth", f"script: the credential is not an HTTP one: {error}") from None
    return str(answer.data or "")


async def _from_store(script: str, auth: Credential | None, context: ToolContext) -> bytes:
    if lack := lacking("store", "obstore"):
        raise failed_with(lack)
    import obstore

    url, _, key = script.rpartition("/")
    try:
        place = await opened(url, auth, context)
        found = await obstore.get_async(place.store, place.checked(key))
        if int(found.meta["size"]) > BYTES_MAX:
            told = f"The script is longer than {BYTES_MAX:,} bytes."
            raise Failed("client_error", told)
        return bytes(await found.bytes_async())
    except Exception as error:
        if isinstance(error, Failed | Refused) or (known := named(error, "script")) is None:
            raise
        raise Failed(known.kind, known.message, retryable=known.retryable) from None

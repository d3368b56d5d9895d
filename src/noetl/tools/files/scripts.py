"""Loads program text from a file of the worker, from the web, or from an object store."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from noetl.tools.base import Credential, ToolContext
from noetl.tools.failures import Failed, Refused
from noetl.tools.files.objects import is_object, local_file
from noetl.tools.limits import to_thread
from noetl.tools.web.service import ask

BYTES_MAX = 10 * 1024 * 1024
"""Of a script from a store; what stands on the worker is the operator's."""


async def loaded(script: str, auth: Credential | None, context: ToolContext) -> str:
    """The text at that address. Raises Failed."""
    scheme = urlsplit(script).scheme
    try:
        if scheme in ("http", "https"):
            return await _from_web(script, auth, context)
        path = await local_file(script, auth, context)
        if is_object(script) and path.stat().st_size > BYTES_MAX:
            raise Failed("client_error", f"The script is longer than {BYTES_MAX:,} bytes.")
        return (await to_thread(path.read_bytes)).decode()
    except Refused as refusal:
        raise Failed("auth", f"script: {refusal}") from None
    except FileNotFoundError:
        raise Failed("not_found", f'The script "{script}" does not exist on this worker.') from None
    except (IsADirectoryError, PermissionError) as error:
        raise Failed("auth", f'The script "{script}" cannot be read: {error.strerror}.') from None
    except UnicodeDecodeError as error:
        raise Failed("parse", f'The script "{script}" is not UTF-8 text: {error}.') from None


async def _from_web(script: str, auth: Credential | None, context: ToolContext) -> str:
    more = {"auth": auth} if auth is not None else {}
    try:
        answer = await ask(context, "GET", script, decode="text", **more)
    except msgspec.ValidationError as error:
        raise Failed("auth", f"script: the credential is not an HTTP one: {error}") from None
    return str(answer.data or "")

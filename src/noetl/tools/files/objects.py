"""Object stores behind one interface: a directory, S3 and compatible stores, Google Cloud Storage,
Azure.

A store is used with the task's credential or with none: the worker's own access (its environment,
the machine's role) is never lent to a playbook. Wherever a task names a file it may name an object,
which is read from a local copy, and written once the whole file is there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from noetl.model.ids import derive
from noetl.model.outcome import ErrorKind
from noetl.tools.base import Credential, ToolContext
from noetl.tools.credentials import fields_of, text_field
from noetl.tools.egress import Gateway, check_egress
from noetl.tools.failures import Failed, Refused, need
from noetl.tools.limits import to_thread

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import ObjectStore

    from noetl.tools.resources import ToolResources


SPELLINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "s3": {
        "access_key_id": ("access_key_id", "aws_access_key_id", "access_key", "key_id"),
        "secret_access_key": ("secret_access_key", "aws_secret_access_key", "secret_key"),
        "session_token": ("session_token", "aws_session_token", "token"),
        "region": ("region", "aws_region"),
        "endpoint": ("endpoint", "endpoint_url", "url"),
    },
    "gs": {
        "service_account_key": ("service_account_key", "service_account", "json"),
        "base_url": ("endpoint", "base_url"),
    },
    "az": {
        "account_name": ("account_name", "account"),
        "account_key": ("account_key", "access_key", "key"),
        "sas_key": ("sas_token", "sas_key"),
        "tenant_id": ("tenant_id",),
        "client_id": ("client_id",),
        "client_secret": ("client_secret",),
        "endpoint": ("endpoint",),
    },
}
"""For each kind of store: our name of a setting, and its spellings in credentials."""
PROOFS = ("access_key_id", "service_account_key", "account_key", "sas_key", "client_secret")
PIECE = 1024 * 1024
_STATUS = re.compile(r"status code: (\d{3})")


class Place(msgspec.Struct, frozen=True):
    """An open store and its name."""

    store: ObjectStore
    url: str
    directory: Path | None = None
    """The path, if the store is a directory."""

    def checked(self, key: str) -> str:
        """The key, if it stays inside the store. Raises Refused."""
        parts = key.split("/")
        if "\0" in key or "\\" in key or any(part in ("", ".", "..") for part in parts):
            raise Refused(
                f'the key "{key}" is not allowed: a key is names with "/" between, without "..".'
            )
        if self.directory is not None:
            root = os.path.realpath(self.directory)
            if not Path(os.path.realpath(os.path.join(root, key))).is_relative_to(root):
                raise Refused(f'the key "{key}" leads out of the store.')
        return key


async def opened(
    url: str | None, auth: Credential | None, context: ToolContext, *, create: bool = False
) -> Place:
    """Open the store at that URL. Raises Failed or Refused. `create` makes a directory."""
    return await place_at(url, lambda: fields_of(auth, context), context.resources, create=create)


async def place_at(
    url: str | None,
    fields: Callable[[], Awaitable[dict[str, Any]]],
    resources: ToolResources,
    *,
    create: bool = False,
) -> Place:
    """The same, with the fields of a credential."""
    url = url or resources.rules.store_url
    if not url:
        raise Failed("client_error", "Which store? Write `url`; this worker's operator names none.")
    scheme = urlsplit(url).scheme
    if scheme == "file":
        return _directory(url, resources, create)
    if scheme not in SPELLINGS:
        told = f'"{url}" is not a store. Write file:///…, s3://…, gs://… or az://….'
        raise Failed("client_error", told)
    config = _config(scheme, await fields())
    endpoint = str(config.get("endpoint") or config.get("base_url") or "")
    policy = resources.rules.egress
    await check_egress(policy, endpoint)
    proxy = None
    if endpoint.startswith("http://") or not policy.private:
        # A store may answer with a redirect, which the library follows. With TLS required it cannot
        # reach a metadata service, because those have none.
        proxy = await resources.shared("gateway", lambda: Gateway(policy)).url()
    return Place(_remote(url, config, endpoint, proxy), url.rstrip("/"))


def _directory(url: str, resources: ToolResources, create: bool) -> Place:
    from obstore.store import LocalStore

    path = resources.path(url)
    if path.exists() and not path.is_dir():
        raise Failed("not_found", f'"{path}" on this worker is a file, not a directory.')
    if not path.is_dir() and not create:
        raise Failed("not_found", f'There is no directory "{path}" on this worker.')
    return Place(LocalStore(path, mkdir=create), url.rstrip("/"), path)


def _config(scheme: str, fields: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for setting, spellings in SPELLINGS[scheme].items():
        whole = next((fields[name] for name in spellings if isinstance(fields.get(name), dict)), "")
        found = msgspec.json.encode(whole).decode() if whole else text_field(fields, *spellings)
        if found is not None:
            config[setting] = found
    if scheme == "gs" and "private_key" in fields:
        config["service_account_key"] = msgspec.json.encode(fields).decode()
    if not any(name in config for name in PROOFS):
        config["skip_signature"] = True
    return config


def _remote(url: str, config: dict[str, Any], endpoint: str, proxy: str | None) -> ObjectStore:
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    client = {"allow_http": endpoint.startswith("http://"), "timeout": "1 day"}
    options: dict[str, Any] = {
        "config": config,
        "client_options": client | ({"proxy_url": proxy} if proxy else {}),
        # Retries are the playbook's decision.
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
    }
    try:
        store: ObjectStore = from_url(url, **options)
        return store
    except (BaseError, ValueError) as error:
        told = f'The store "{url}" cannot be opened: {_first_line(error)}.'
        raise Failed("client_error", told) from None


async def saved(found: GetResult, path: Path) -> None:
    """Save the content of an object to a file, chunk by chunk."""
    with await to_thread(path.open, "wb") as file:
        async for piece in found.stream(min_chunk_size=PIECE):
            await to_thread(file.write, piece)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn errors of the store or its library into failures of the task."""
    need("store", "obstore")
    try:
        yield
    except Exception as error:
        known = _named(error, what)
        if known is None:
            raise
        raise known from None


def _named(error: Exception, what: str) -> Failed | None:
    """The failure in our words; None if it is not the store's."""
    from obstore import exceptions as known

    status = int(found.group(1)) if (found := _STATUS.search(str(error))) else 0
    match error:
        case FileNotFoundError() | known.NotFoundError():
            return Failed("not_found", f"{what}: it is not there.")
        case known.AlreadyExistsError() | known.PreconditionError():
            told = f"{what}: it exists already, and `overwrite` is off."
            return Failed("client_error", told, code="exists")
        case PermissionError() | known.PermissionDeniedError() | known.UnauthenticatedError():
            return Failed("auth", f"{what}: the store refuses the credential.")
        case NotImplementedError() | known.NotSupportedError():
            return Failed("client_error", f"{what}: this store cannot do that.")
        case known.GenericError() if status == 429:
            return Failed("rate_limit", f"{what}: the store asks to wait.", status=status)
        case known.GenericError() if status:
            kind: ErrorKind = "server_error" if status >= 500 else "client_error"
            return Failed(kind, f"{what}: the store answered {status}.", status=status)
        case known.BaseError():
            return Failed(
                "connection", f"{what}: the store cannot be reached: {_first_line(error)}."
            )
        case OSError():
            return Failed("server_error", f"{what}: {error.strerror or type(error).__name__}.")
    return None


def _first_line(error: Exception) -> str:
    """The useful part of the message; the library appends its inner state."""
    lines = str(error).strip().splitlines()
    return lines[0].rpartition(" - ")[2].rstrip(".") if lines else type(error).__name__


# --- Objects as files of the worker ------------------------------------------------------------


def is_object(address: str) -> bool:
    """Whether it names an object of a store, not a file."""
    return urlsplit(address).scheme in SPELLINGS


def store_and_key(address: str) -> tuple[str, str]:
    """The store and the key: `s3://bucket` and `a/b.csv`; raises Failed without a key."""
    bucket, _, key = address.partition("://")[2].partition("/")
    if not bucket or not key:
        told = f'"{address}" names no object; it should look like s3://bucket/path/of/it.'
        raise Failed("client_error", told)
    return f"{urlsplit(address).scheme}://{bucket}", key


async def local_file(address: str, auth: Credential | None, context: ToolContext) -> Path:
    """The local file: the worker's own, or a copy of the object. It may not exist."""
    if not is_object(address):
        return context.resources.path(address)
    return await fetched(*store_and_key(address), auth, context)


async def fetched(url: str | None, key: str, auth: Credential | None, context: ToolContext) -> Path:
    """A local copy of the object, deleted when the attempt ends."""
    with explained(f"the object {key}"):
        import obstore

        place = await opened(url, auth, context)
        found = await obstore.get_async(place.store, place.checked(key))
        context.files.allow(int(found.meta["size"]))
        # Objects of the same name may exist in several places.
        path = context.files.folder / f"{derive(url, key)}{''.join(Path(key).suffixes)}"
        await saved(found, path)
    return path


async def stored(
    path: Path, url: str | None, key: str, auth: Credential | None, context: ToolContext
) -> None:
    """Upload the file as the object, replacing the old one."""
    with explained(f"the object {key}"):
        import obstore

        place = await opened(url, auth, context, create=True)
        await obstore.put_async(place.store, place.checked(key), path)

"""Runs operations on a NATS server over one connection per credential, shared by all calls."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from nats import errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js import errors as js
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.kv import VALID_KEY_RE

from noetl.cancellation import heeded
from noetl.model.duration import seconds
from noetl.model.outcome import Outcome, ok
from noetl.tools.base import ToolContext
from noetl.tools.credentials import fields_of, secret_key, text_field
from noetl.tools.egress import check_egress
from noetl.tools.failures import Failed, check_header, require, within
from noetl.tools.files.formats import form_of
from noetl.tools.limits import check_memory, shortest, to_thread
from noetl.tools.nats import NEEDS, Nats
from noetl.tools.plain_data import NotPlain, plain, read_json

LISTED_AT_ONCE = 500
LAST_REVISION = "Nats-Expected-Last-Subject-Sequence"
WRONG_REVISION = 10071
CONNECT_SECONDS = 5
PING_SECONDS, PINGS_UNANSWERED = 4, 2
"""A server that vanished without a word is noticed within about twelve seconds."""


class Connection:
    """One connection, made on first use and again when it is lost."""

    def __init__(self, servers: list[str], fields: dict[str, Any]) -> None:
        self._servers = servers
        self._fields = fields
        self._client: Client | None = None
        self._making = asyncio.Lock()

    async def client(self) -> Client:
        async with self._making:
            if self._client is None or self._client.is_closed:
                self._client = await self._connected()
            return self._client

    async def _connected(self) -> Client:
        fields = self._fields
        client = Client()
        try:
            await client.connect(
                self._servers,
                name="noetl",
                user=text_field(fields, "user", "username", "nats_user"),
                password=text_field(fields, "password", "nats_password"),
                token=text_field(fields, "token", "value"),
                nkeys_seed_str=text_field(fields, "nkey_seed", "seed"),
                connect_timeout=CONNECT_SECONDS,
                ping_interval=PING_SECONDS,
                max_outstanding_pings=PINGS_UNANSWERED,
                # A failed call is reported at once; retries are the playbook's decision.
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                error_cb=_unheard,
            )
        except BaseException:
            # The library leaves a connection open that was refused half-way.
            await client.close()
            raise
        return client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


async def _unheard(error: Exception) -> None:
    """The call that meets the error reports it; the library would also print it."""


async def run(config: Nats, context: ToolContext) -> Outcome:
    assert config.op is not None
    require(config, "op", NEEDS)
    if config.decode == "reference" and config.op != "object_get":
        raise Failed("client_error", "`decode: reference` is for `op: object_get`.")
    for header, value in config.headers.items():
        check_header(header, value)
    limit = shortest(config.timeout, context.timeout)
    try:
        with heeded():
            async with within(limit, "The NATS server did not answer within", who="nats"):
                client = await _client(config, context)
                names = (config.bucket or "", config.key or "", config.subject or "")
                return ok(await OPERATIONS[config.op](Call(client, config, context, *names)))
    except (msgspec.DecodeError, UnicodeDecodeError, NotPlain) as error:
        said = f"What came back is not what `decode: {config.decode}` says: {error}."
        raise Failed("parse", said) from None
    except (errors.Error, OSError) as error:
        raise _named(error, config) from None


async def _client(config: Nats, context: ToolContext) -> Client:
    fields = await fields_of(config.auth, context)
    servers = servers_of(config.url, fields)
    await check_egress(context.resources.rules.egress, *servers)
    key = ("nats", secret_key(servers, fields))
    kept = context.resources.shared(key, lambda: Connection(servers, fields))
    return await kept.client()


def servers_of(url: str | tuple[str, ...] | None, fields: dict[str, Any]) -> list[str]:
    """The addresses that a task or its credential names. Raises Failed."""
    written = url or fields.get("servers") or fields.get("url") or fields.get("nats_url")
    servers = [written] if isinstance(written, str) else [str(one) for one in written or ()]
    if not servers:
        raise Failed("client_error", "Which server? Write `url`, or put it into the credential.")
    return servers


Bucket = Callable[..., Awaitable[Any]]
"""Finds or makes a bucket."""


class Call(msgspec.Struct, frozen=True):
    """One operation and its context."""

    client: Client
    config: Nats
    context: ToolContext
    bucket: str
    key: str
    subject: str
    """Those of the config; empty where the operation needs none."""

    @property
    def stream(self) -> JetStreamContext:
        return self.client.jetstream()

    async def payload(self) -> bytes:
        """`value` as bytes to send: text and files as they are, other data as JSON."""
        value = self.config.value
        file = self.context.files.find(value)
        if file is not None:
            self.check_size(file.size)
            return await to_thread((await self.context.files.local(file)).read_bytes)
        if isinstance(value, dict):
            value = await self.context.read_result(value)
        if value is None:
            return b""
        return value.encode() if isinstance(value, str) else msgspec.json.encode(value)

    def check_size(self, size: int) -> None:
        most = self.context.resources.rules.max_response_bytes
        check_memory(size, most, "Keep it as an object, and use a reference.")

    def read(self, data: bytes) -> Any:
        match self.config.decode:
            case "text":
                return data.decode()
            case "json":
                return plain(read_json(data))
            case "bytes":
                return base64.b64encode(data).decode("ascii")
        with suppress(msgspec.DecodeError):
            return plain(read_json(data))
        with suppress(UnicodeDecodeError, NotPlain):
            return plain(data.decode())
        return base64.b64encode(data).decode("ascii")


# --- Buckets -----------------------------------------------------------------------------------


async def _bucket(call: Call, found: Bucket, made: Bucket) -> Any:
    try:
        return await found(call.bucket)
    except js.NotFoundError:
        if not call.config.create:
            told = f'There is no bucket "{call.bucket}". With `create: true` the task makes it.'
            raise Failed("not_found", told) from None
        return await made(bucket=call.bucket)


def _kv(call: Call) -> Awaitable[Any]:
    return _bucket(call, call.stream.key_value, call.stream.create_key_value)


def _objects(call: Call) -> Awaitable[Any]:
    return _bucket(call, call.stream.object_store, call.stream.create_object_store)


# --- Keys --------------------------------------------------------------------------------------


async def _kv_get(call: Call) -> Any:
    entry = await (await _kv(call)).get(call.key)
    return {"key": call.key, "value": call.read(entry.value or b""), "revision": entry.revision}


async def _kv_put(call: Call) -> Any:
    await _kv(call)
    if not VALID_KEY_RE.match(call.key) or call.key.startswith(".") or call.key.endswith("."):
        raise js.InvalidKeyError(call.key)
    config = call.config
    headers = {} if config.revision is None else {LAST_REVISION: str(config.revision)}
    stored = await call.stream.publish(
        f"$KV.{call.bucket}.{call.key}",
        await call.payload(),
        headers=headers or None,
        msg_ttl=None if config.ttl is None else seconds(config.ttl),
    )
    return {"key": call.key, "revision": stored.seq}


async def _kv_delete(call: Call) -> Any:
    await (await _kv(call)).delete(call.key, last=call.config.revision)
    return {"key": call.key}


async def _kv_list(call: Call) -> Any:
    pattern = call.config.key
    keys = [key for key in await _keys(call) if pattern is None or _matches(key, pattern)]
    return {"keys": sorted(keys)}


async def _keys(call: Call) -> list[str]:
    """Every key of the bucket. The library's own way, a watcher, may end before it begins."""
    await _kv(call)  # reports it if there is no such bucket
    stream, prefix = f"KV_{call.bucket}", f"$KV.{call.bucket}."
    newest = ConsumerConfig(
        deliver_policy=DeliverPolicy.LAST_PER_SUBJECT, ack_policy=AckPolicy.NONE, headers_only=True
    )
    answers = await call.stream.pull_subscribe(f"{prefix}>", stream=stream, config=newest)
    found: list[Any] = []
    try:
        about = await answers.consumer_info()
        while left := (about.num_pending or 0) - len(found):
            found += await answers.fetch(min(left, LISTED_AT_ONCE))
    finally:
        await answers.unsubscribe()
    await call.stream.delete_consumer(stream, about.name)
    return [
        one.subject.removeprefix(prefix)
        for one in found
        if "KV-Operation" not in (one.headers or {})
    ]


def _matches(key: str, pattern: str) -> bool:
    """`*` matches one part between dots, `>` all that follow."""
    parts, wanted = key.split("."), pattern.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(parts) <= len(wanted):
            return False
        parts = parts[: len(wanted)]
    return len(parts) == len(wanted) and all(
        fnmatchcase(part, one) for part, one in zip(parts, wanted, strict=True)
    )


# --- Messages ----------------------------------------------------------------------------------


async def _publish(call: Call) -> Any:
    headers = {"Nats-Msg-Id": call.context.action_id, **call.config.headers}
    if call.config.stream:
        stored = await call.stream.publish(call.subject, await call.payload(), headers=headers)
        return {"subject": call.subject, "stream": stored.stream, "seq": stored.seq}
    await call.client.publish(call.subject, await call.payload(), headers=headers)
    # Wait until the server has it; a message in our buffer is not sent.
    await call.client.flush()
    return {"subject": call.subject}


async def _request(call: Call) -> Any:
    answer = await call.client.request(
        call.subject,
        await call.payload(),
        timeout=shortest(call.config.timeout) or CONNECT_SECONDS,
        headers=call.config.headers or None,
    )
    headers = dict(answer.headers or {})
    return {"subject": call.subject, "headers": headers, "data": call.read(answer.data)}


# --- Objects -----------------------------------------------------------------------------------


async def _object_get(call: Call) -> Any:
    store = await _objects(call)
    info = await store.get_info(call.key)
    if call.config.decode == "reference":
        return {"key": call.key, "data": await _object_file(call, store, info.size or 0)}
    call.check_size(info.size or 0)
    found = await store.get(call.key)
    return {"key": call.key, "data": call.read(bytes(found.data or b""))}


async def _object_file(call: Call, store: Any, size: int) -> Any:
    files = call.context.files
    files.allow(size)
    path = files.folder / "object"
    with await to_thread(path.open, "wb") as file:
        await store.get(call.key, writeinto=file)
    return await files.keep(path, form=form_of(call.key) or "bytes")


async def _object_put(call: Call) -> Any:
    store = await _objects(call)
    file = call.context.files.find(call.config.value)
    if file is None:
        info = await store.put(call.key, await call.payload())
        return {"key": call.key, "size": info.size}
    path = await call.context.files.local(file)
    with await to_thread(path.open, "rb") as opened:
        info = await store.put(call.key, opened)
    return {"key": call.key, "size": info.size}


async def _object_delete(call: Call) -> Any:
    await (await _objects(call)).delete(call.key)
    return {"key": call.key}


async def _object_list(call: Call) -> Any:
    store = await _objects(call)
    try:
        entries = await store.list(ignore_deletes=True)
    except js.NotFoundError:
        entries = []
    pattern = call.config.key or "*"
    shown = [
        {"key": entry.name, "size": entry.size, "modified": plain(entry.mtime)}
        for entry in entries
        if not entry.deleted and fnmatchcase(entry.name, pattern)
    ]
    return {"objects": sorted(shown, key=lambda one: one["key"])}


OPERATIONS: dict[str, Callable[[Call], Awaitable[Any]]] = {
    "kv_get": _kv_get,
    "kv_put": _kv_put,
    "kv_delete": _kv_delete,
    "kv_list": _kv_list,
    "publish": _publish,
    "request": _request,
    "object_get": _object_get,
    "object_put": _object_put,
    "object_delete": _object_delete,
    "object_list": _object_list,
}


# --- Failures ----------------------------------------------------------------------------------


def _named(error: Exception, config: Nats) -> Failed:
    """The failure in our words."""
    what = f"{config.op} {config.bucket or ''}{'/' if config.bucket else ''}"
    what = f"{what}{config.key or config.subject or ''}".strip()
    said = str(error).removeprefix("nats: ")
    match error:
        case errors.NoRespondersError():
            return Failed("connection", f'Nobody answers on the subject "{config.subject}".')
        case js.NoStreamResponseError():
            return Failed("not_found", f'No stream stores the subject "{config.subject}".')
        case js.NotFoundError():
            return Failed("not_found", f"{what}: it is not there.")
        case js.APIError() if getattr(error, "err_code", None) == WRONG_REVISION:
            told = f"{what}: the key has another revision than {config.revision} by now."
            return Failed("client_error", told, code="wrong_revision")
        case js.ServiceUnavailableError() | js.ServerError():
            return Failed("server_error", f"{what}: the server failed: {error.description}.")
        case js.APIError():
            return Failed("client_error", f"{what}: {error.description}.")
        case errors.Error() if "authoriz" in str(error).lower():
            return Failed("auth", "The NATS server refuses the credential.")
        case js.InvalidKeyError() | js.InvalidBucketNameError() | js.InvalidObjectNameError():
            return Failed("client_error", f"{what}: this name is not allowed.")
        case errors.BadSubjectError() | errors.MaxPayloadError() | errors.BadHeaderError():
            return Failed("client_error", f"{what}: {said}.")
    return Failed("connection", f"The NATS server cannot be reached: {said}.")

"""Sends requests through one shared session, under the egress policy, redirect by redirect."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
from yarl import URL

from noetl.errors import BadRequest, NotFound, reason_of
from noetl.model.outcome import Outcome, TaskError
from noetl.model.secrets import without_values
from noetl.tools.base import ToolContext
from noetl.tools.credentials import reject_token
from noetl.tools.failures import Failed, Refused, check_header, failed_with
from noetl.tools.files.formats import Unreadable, decoded, form_of, form_of_media
from noetl.tools.files.objects import is_object, local_file, store_and_key, stored
from noetl.tools.limits import awaiting, part, shortest, time_limit, to_thread, waiting
from noetl.tools.plain_data import NotPlain, as_text, plain
from noetl.tools.rules import Rules
from noetl.tools.web.auth import Proof, proof_of
from noetl.tools.web.request import ClientCertificate, FilePart, OAuth2Auth, Request
from noetl.version import __version__

WRITING = frozenset(["POST", "PUT", "PATCH", "DELETE"])
REDIRECTS = frozenset([301, 302, 303, 307, 308])
ERROR_BODY = 2000
"""How much of an error's body goes into the outcome."""
TOKENS_TRIED = 3
HOSTS_KEPT = 1000
CONNECT_SECONDS = 30.0
"""How long to wait for a connection, unless the task says it. An answer may take any time."""
KEEPALIVES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""A machine that vanished while a call waits for its answer is missed within two minutes."""


class AddressRefused(Exception):
    """The egress policy refuses the address."""


class TooLarge(Exception):
    """The body is longer than this worker reads."""


class Session:
    """The connections and TLS settings that all HTTP calls of a worker share."""

    def __init__(self, rules: Rules) -> None:
        self._policy = rules.egress
        self._tls: dict[str, ssl.SSLContext] = {}
        self._per_host = rules.connections_per_host
        self._places: dict[tuple[str | None, int | None], asyncio.Semaphore] = {}
        self.client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, socket_factory=self._socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"noetl/{__version__}"},
            trust_env=False,
        )

    @asynccontextmanager
    async def place(self, url: URL) -> AsyncIterator[None]:
        """Reserve one of the connections to a host. Waiting for it does not count as the task's
        time.
        """
        if len(self._places) > HOSTS_KEPT:
            # Restarts the count: a few connections too many are better than an endless table of
            # hosts.
            self._places.clear()
        key = (url.host, url.port)
        place = self._places.setdefault(key, asyncio.Semaphore(self._per_host))
        if place.locked():
            with waiting(f"a connection to {url.host}"):
                await place.acquire()
        else:
            await place.acquire()
        try:
            with awaiting(f"an answer of {url.host}:{url.port}"):
                yield
        finally:
            place.release()

    def _socket(self, address: Any) -> socket.socket:
        """Every connection is made here, whether its address came from a task, DNS, a redirect or a
        proxy.
        """
        family, kind, protocol, _, target = address
        if refusal := self._policy.refusal(target[0]):
            raise AddressRefused(refusal)
        made = socket.socket(family=family, type=kind, proto=protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVES.items():
            if hasattr(socket, name):  # Not every system lets us choose.
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return made

    def tls(self, config: Request, certificate: ClientCertificate | None) -> ssl.SSLContext:
        """How to check the server's certificate, and which of ours to present."""
        written = msgspec.json.encode([config.verify_ssl, config.ca, certificate])
        key = hashlib.sha256(written).hexdigest()
        if key not in self._tls:
            self._tls[key] = _tls_context(config, certificate)
        return self._tls[key]

    async def close(self) -> None:
        await self.client.close()


def _tls_context(config: Request, certificate: ClientCertificate | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not config.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.ca is not None:
        is_text = "-----BEGIN" in config.ca
        context.load_verify_locations(**{"cadata" if is_text else "cafile": config.ca})
    if certificate is not None:
        with ExitStack() as stack:
            files = [_pem_file(text, stack) for text in (certificate.cert, certificate.key)]
            assert files[0] is not None
            # Always give a password: without one OpenSSL would ask at the terminal.
            context.load_cert_chain(files[0], files[1], certificate.password or "")
    return context


def _pem_file(written: str | None, stack: ExitStack) -> str | None:
    if written is None or "-----BEGIN" not in written:
        return written
    place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-"))) / "pem"
    with open(os.open(place, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(written)
    return str(place)


# --- One task ----------------------------------------------------------------------------------


class Prepared(NamedTuple):
    """The first request; redirects change parts of it."""

    config: Request
    context: ToolContext
    headers: dict[str, str]
    proof: Proof
    timeout: aiohttp.ClientTimeout
    tls: ssl.SSLContext | bool

    def __repr__(self) -> str:
        return without_values(self)


async def run(config: Request, context: ToolContext) -> Outcome:
    """Send the request and follow redirects. Raises Failed unless it succeeds."""
    session = context.resources.shared("http", lambda: Session(context.resources.rules))
    name = f"{config.method} {_shown(config.url or '')}"
    with _explained(name):
        # A kept token may be refused: ours, then another worker's. Then fetch a new one.
        for _ in range(TOKENS_TRIED):
            outcome = await _asked(session, config, context)
            if outcome is not None:
                return outcome
    raise Failed("auth", f"{name} refuses every token.", status=401, retryable=True)


async def access_token(fields: Mapping[str, Any], context: ToolContext) -> str:
    """The token that an OAuth 2 server issues to a client; the kept one while it is valid.

    Raises Failed.
    """
    session = context.resources.shared("http", lambda: Session(context.resources.rules))
    known = {name: fields[name] for name in OAuth2Auth.__struct_fields__ if fields.get(name)}
    known.pop("credential", None)
    auth = msgspec.convert({**known, "type": "oauth2"}, OAuth2Auth, strict=False)
    config = Request(method="POST", url=auth.token_url, auth=auth)
    with _explained(f"POST {_shown(auth.token_url or '')}"):
        proof = await _proof(session, config, context, _timeout(config, context))
    return proof.headers["Authorization"].removeprefix("Bearer ")


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn every error of a request into a failure that names it. Raises Failed."""
    try:
        yield
    except NotFound as error:
        raise Failed("auth", f"auth: {error}") from None
    except AddressRefused as refusal:
        said = f"{name} is refused by the egress policy: {refusal}."
        raise Failed("client_error", said) from None
    except Refused as refusal:
        raise Failed("auth", f"{name}: {refusal}") from None
    except (TooLarge, BadRequest) as error:
        raise Failed("client_error", f"{name}: {error}") from None
    except aiohttp.ConnectionTimeoutError:
        raise Failed("timeout", f"{name} got no connection in time.", retryable=True) from None
    except TimeoutError:
        raise Failed("timeout", f"{name} got no answer in time.", retryable=True) from None
    except aiohttp.ClientConnectorCertificateError as error:
        why = getattr(error.certificate_error, "verify_message", "") or "it is not trusted"
        said = f"{name}: the server's certificate is invalid: {why}."
        raise Failed("connection", said, retryable=False) from None
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        said = f"{name}: this is not an http or https address. Begin it with https:// or http://."
        raise Failed("client_error", said) from None
    except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
        said = f"{name} failed: {_cause(error)}."
        raise Failed("connection", said, retryable=True) from None


async def _asked(session: Session, config: Request, context: ToolContext) -> Outcome | None:
    """The answer; None if a cached token is no longer valid."""
    if sum(body is not None for body in (config.json, config.body, config.form)) > 1:
        raise Failed("client_error", "Write one of `json`, `body` and `form`, not several.")
    for header, value in config.headers.items():
        check_header(header, as_text(value))
    timeout = _timeout(config, context)
    certificate = await _certificate(config, context)
    request = Prepared(
        config=config,
        context=context,
        headers={name: as_text(v) for name, v in config.headers.items() if v is not None},
        proof=await _proof(session, config, context, timeout),
        timeout=timeout,
        tls=await _tls(session, config, certificate, context),
    )
    started = time.monotonic()
    async with time_limit(_total(config, context)):
        return await _followed(session, request, started)


async def _tls(
    session: Session, config: Request, certificate: ClientCertificate | None, context: ToolContext
) -> ssl.SSLContext | bool:
    if config.ca is None and certificate is None:
        return config.verify_ssl
    config = msgspec.structs.replace(config, ca=_allowed(config.ca, context))
    if certificate is not None:
        own = {name: _allowed(getattr(certificate, name), context) for name in ("cert", "key")}
        certificate = msgspec.structs.replace(certificate, **own)
    try:
        return await to_thread(session.tls, config, certificate)
    except (OSError, ValueError) as error:
        said = f"`ca` or `client_cert` cannot be used: {_cause(error)}."
        raise Failed("auth", said) from None


def _allowed(pem: str | None, context: ToolContext) -> str | None:
    """PEM text as it is, or the path of a file that the worker may read."""
    is_text = pem is None or "-----BEGIN" in pem
    return pem if is_text else str(context.resources.path(pem or ""))


async def _certificate(config: Request, context: ToolContext) -> ClientCertificate | None:
    if not isinstance(config.client_cert, str):
        return config.client_cert
    fields = await context.credential(config.client_cert)
    known = {key: fields[key] for key in ("cert", "key", "password") if key in fields}
    if "cert" not in known:
        raise Failed("auth", "client_cert: the credential has no field `cert`.")
    return msgspec.convert(known, ClientCertificate)


async def _proof(
    session: Session, config: Request, context: ToolContext, timeout: aiohttp.ClientTimeout
) -> Proof:
    if config.auth is None:
        return Proof()

    async def fetch(url: str, form: Mapping[str, str]) -> tuple[int, bytes]:
        async with session.client.post(
            url, data=form, timeout=timeout, allow_redirects=False, proxy=config.proxy
        ) as answer:
            return answer.status, await _read(answer, 1024 * 1024)

    async with time_limit(_total(config, context)):
        return await proof_of(config.auth, context, fetch)


def _total(config: Request, context: ToolContext) -> float | None:
    return shortest(config.timeout, context.timeout)


def _timeout(config: Request, context: ToolContext) -> aiohttp.ClientTimeout:
    """The timeouts of the parts; `time_limit` limits the whole, because it knows what counts."""
    return aiohttp.ClientTimeout(
        total=None,
        sock_connect=part(config.timeout, "connect")
        or part(context.timeout, "connect")
        or CONNECT_SECONDS,
        sock_read=part(config.timeout, "read") or part(context.timeout, "read"),
    )


async def _followed(session: Session, request: Prepared, started: float) -> Outcome | None:
    config = request.config
    method, with_body = config.method, True
    url = _address(config.url or "", [*pairs(config.params), *request.proof.params.items()])
    origin = url.origin()
    for _ in range(config.max_redirects + 1):
        at_home = url.origin() == origin
        async with session.place(url), _body(request, with_body) as (body, headers):
            answer = await session.client.request(
                method,
                url,
                data=body,
                headers=_headers(request, method, headers, at_home),
                timeout=request.timeout,
                ssl=request.tls,
                proxy=config.proxy,
                allow_redirects=False,
            )
            async with answer:
                target = answer.headers.get("Location", "")
                if not (config.follow_redirects and answer.status in REDIRECTS and target):
                    return await _outcome(request, answer, url, started)
        if answer.status == 303 or (answer.status in (301, 302) and method == "POST"):
            method, with_body = ("HEAD" if method == "HEAD" else "GET"), False
        url = _joined(url, target)
    raise Failed(
        "client_error",
        f"{config.method} {_shown(config.url or '')} was redirected more than "
        f"{config.max_redirects} times.",
    )


def _address(written: str, params: list[tuple[str, str]]) -> URL:
    try:
        url = URL(written)
        if url.scheme not in ("http", "https") or not url.host:
            raise aiohttp.InvalidURL(written)
        return url.extend_query(params) if params else url
    except ValueError:
        raise aiohttp.InvalidURL(written) from None


def _joined(url: URL, target: str) -> URL:
    return _address(str(url.join(URL(target))), [])


def _headers(
    request: Prepared, method: str, of_body: Mapping[str, str], at_home: bool
) -> dict[str, str]:
    """The headers of the task, of its authentication, and of the body. Secrets are not sent
    elsewhere.
    """
    headers = {name.lower(): (name, value) for name, value in of_body.items()}
    if method in WRITING:
        headers["idempotency-key"] = ("Idempotency-Key", request.context.action_id)
    if request.context.traceparent:
        headers["traceparent"] = ("traceparent", request.context.traceparent)
    if at_home:
        headers |= {name.lower(): (name, v) for name, v in request.proof.headers.items()}
    for name, value in request.headers.items():
        if at_home or name.lower() not in ("authorization", "cookie", "proxy-authorization"):
            headers[name.lower()] = (name, value)
    return dict(headers.values())


@asynccontextmanager
async def _body(request: Prepared, wanted: bool) -> AsyncIterator[tuple[Any, dict[str, str]]]:
    """A body for one request, and its headers. It is rebuilt for each: files of a multipart can be
    read only once.
    """
    config, context = request.config, request.context
    value = config.json if config.json is not None else config.body
    with ExitStack() as stack:
        if not wanted:
            yield None, {}
        elif config.files is not None:
            yield await _multipart(request, config.files, stack), {}
        elif config.form is not None:
            yield aiohttp.FormData(pairs(config.form)), {}
        elif value is None:
            yield None, {}
        elif config.json is not None:
            yield msgspec.json.encode(value), {"Content-Type": "application/json"}
        elif (file := context.files.find(value)) is not None:
            opened = await _opened(await context.files.local(file), "body", stack)
            yield opened, {"Content-Type": "application/octet-stream"}
        else:
            body, media = encoded(value)
            yield body, {"Content-Type": media}


async def _multipart(
    request: Prepared, parts: Mapping[str, Any], stack: ExitStack
) -> aiohttp.FormData:
    config, context = request.config, request.context
    form = aiohttp.FormData()
    for name, value in pairs(config.form or {}):
        form.add_field(name, value)
    for name, written in parts.items():
        for one in written if isinstance(written, tuple) else (written,):
            file = FilePart(path=one) if isinstance(one, str) else one
            value, usual, name_there = file.content, None, name
            content: Any
            if file.path is not None:
                path = await local_file(file.path, config.store_auth, context)
                content = await _opened(path, file.path, stack)
                name_there = file.path.rpartition("/")[2]
            elif (kept := context.files.find(value)) is not None:
                content = await _opened(await context.files.local(kept), name, stack)
            else:
                if isinstance(value, dict):
                    value = await context.read_result(value)
                content, usual = encoded(value)
            media = file.content_type or usual
            form.add_field(name, content, filename=file.filename or name_there, content_type=media)
    return form


async def _opened(path: Path, written: str, stack: ExitStack) -> Any:
    """A file to send in chunks. Raises Refused or Failed."""
    try:
        return stack.enter_context(await to_thread(path.open, "rb"))
    except FileNotFoundError:
        told = f'files: "{written}" does not exist on this worker.'
        raise Failed("not_found", told) from None
    except OSError as error:
        raise Refused(f'files: "{written}" cannot be read: {error.strerror}.') from None


# --- Encoding of values ------------------------------------------------------------------------


def pairs(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values; a list repeats its name, None leaves it out."""
    found: list[tuple[str, str]] = []
    for name, value in fields.items():
        for one in value if isinstance(value, list | tuple) else (value,):
            if one is not None:
                found.append((name, as_text(one)))
    return found


def encoded(value: Any) -> tuple[bytes, str]:
    """A body and its media type: text as it is, all else as JSON."""
    if isinstance(value, str):
        return value.encode(), "text/plain; charset=utf-8"
    return msgspec.json.encode(value), "application/json"


# --- The answer --------------------------------------------------------------------------------


async def _outcome(
    request: Prepared, answer: aiohttp.ClientResponse, url: URL, started: float
) -> Outcome | None:
    config, context = request.config, request.context
    headers = {name.lower(): ", ".join(answer.headers.getall(name)) for name in answer.headers}
    seen = {"status": answer.status, "headers": headers}
    name = f"{config.method} {_shown(str(url))}"
    most = context.resources.rules.max_response_bytes
    if not 200 <= answer.status < 300:
        body = await _read(answer, most)
        if answer.status == 401 and reject_token(request.proof.token_key, context):
            return None
        raise failed_with(Outcome(status="error", error=_error(name, answer, body), http=seen))
    try:
        if config.download:
            data: Any = await saved(answer, url, config, context)
        else:
            body = await _read(answer, most)
            data = plain(decoded(body, headers.get("content-type", ""), config.decode))
    except (Unreadable, NotPlain) as error:
        kept = isinstance(error, NotPlain)
        problem = TaskError(
            kind="schema" if kept else "parse",
            message=f"The body of {name} cannot be {'kept' if kept else 'read'}: {error}.",
        )
        raise failed_with(Outcome(status="error", error=problem, http=seen)) from None
    result = {
        "status_code": answer.status,
        "headers": headers,
        "data": data,
        "url": str(url.with_user(None).without_query_params(*request.proof.params)),
        "elapsed": round(time.monotonic() - started, 6),
    }
    return Outcome(status="ok", result=result, http=seen)


async def _read(answer: aiohttp.ClientResponse, limit: int) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_chunked(256 * 1024):
        body += chunk
        if len(body) > limit:
            answer.close()
            raise TooLarge(f"the body is longer than the {limit:,} bytes that this worker reads.")
    return bytes(body)


def _error(name: str, answer: aiohttp.ClientResponse, body: bytes) -> TaskError:
    status = answer.status
    if status == 429:
        kind = "rate_limit"
    elif status in (401, 403):
        kind = "auth"
    elif status in (404, 410):
        kind = "not_found"
    else:
        kind = "server_error" if status >= 500 else "client_error"
    text = body[:ERROR_BODY].decode("utf-8", "replace").replace("\0", "\ufffd")
    return TaskError(
        kind=kind,  # type: ignore[arg-type]  # one of five, all of them kinds
        code=status,
        status=status,
        message=f"{name} answered {status} {answer.reason or ''}".strip() + ".",
        retryable=kind in ("rate_limit", "server_error"),
        retry_after=_retry_after(answer.headers.get("Retry-After")),
        details={"body": text} if text else None,
    )


def _retry_after(written: str | None) -> float | None:
    """Seconds to wait, from a number of them or from a date."""
    if written is None:
        return None
    if written.strip().isdigit():
        return float(written)
    try:
        return max(0.0, parsedate_to_datetime(written).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _shown(url: str) -> str:
    """An address for messages: without user, password and query, which may hold secrets."""
    try:
        found = URL(url).with_query(None).with_fragment(None)
        if found.absolute:
            found = found.with_user(None)
        elif "@" in str(found):
            raise ValueError
        return str(found)
    except ValueError:
        return "(an address that cannot be read)"


def _cause(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientPayloadError) and "not completed" in str(error):
        return "the connection ended in the middle of the answer"
    inner = getattr(error, "os_error", None) or error
    text = reason_of(inner) if isinstance(inner, OSError) else str(inner)
    return text.rstrip(".") or type(error).__name__


# --- Downloads ---------------------------------------------------------------------------------

CHUNK = 1024 * 1024
MEDIA = {
    "application/vnd.apache.parquet": "parquet",
    "application/vnd.apache.arrow.file": "arrow",
}


async def saved(
    answer: aiohttp.ClientResponse, url: URL, config: Request, context: ToolContext
) -> dict[str, Any]:
    """Save the body. Returns a reference, or the path of the file."""
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
        url_of_store, key = store_and_key(address)
        path = context.files.folder / "download"
        size, checksum = await _written(answer, path, context)
        await stored(path, url_of_store, key, config.store_auth, context)
    else:
        place = context.resources.path(address)
        await to_thread(place.parent.mkdir, parents=True, exist_ok=True)
        # The file appears when it is complete; concurrent writers do not mix.
        partial = place.with_name(f".{place.name}.{context.action_id}.partial")
        try:
            size, checksum = await _written(answer, partial, context)
            await to_thread(partial.replace, place)
        finally:
            partial.unlink(missing_ok=True)
    return {"path": address, "size": size, "checksum": checksum, "media": media}


async def _written(
    answer: aiohttp.ClientResponse, path: Path, context: ToolContext
) -> tuple[int, str]:
    size, seen = 0, hashlib.sha256()
    with await to_thread(path.open, "wb") as file:
        async for chunk in answer.content.iter_chunked(CHUNK):
            size += len(chunk)
            context.files.allow(size)
            seen.update(chunk)
            await to_thread(file.write, chunk)
        await to_thread(file.flush)
        await to_thread(os.fsync, file.fileno())
    return size, seen.hexdigest()

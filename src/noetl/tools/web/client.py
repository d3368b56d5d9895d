"""Sends requests through one shared session, under the egress policy, redirect by redirect."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, nullcontext
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from noetl.errors import BadRequest, TooLarge, distrust, reason_of
from noetl.model.outcome import ErrorKind, Outcome, TaskError
from noetl.tools.base import ToolContext
from noetl.tools.credentials import fields_of, reject_token, secret_key
from noetl.tools.failures import RETRYABLE, Failed, Refused, check_header, failed_with
from noetl.tools.files.formats import Unreadable, decoded, form_of, form_of_media
from noetl.tools.files.objects import is_object, local_file, store_and_key, stored
from noetl.tools.files.results import arriving
from noetl.tools.limits import awaiting, part, shortest, time_limit, to_thread, waiting
from noetl.tools.plain_data import NotPlain, as_text, plain
from noetl.tools.rules import Rules
from noetl.tools.web.auth import Proof, proof_of
from noetl.tools.web.request import ClientCertificate, FilePart, OAuth2Auth, Request
from noetl.version import __version__

WRITING = frozenset(["POST", "PUT", "PATCH", "DELETE"])
KINDS: dict[int, ErrorKind] = {
    401: "auth",
    403: "auth",
    404: "not_found",
    410: "not_found",
    429: "rate_limit",
}
"""Of statuses; others are the client's or the server's fault."""
REDIRECTS = frozenset([301, 302, 303, 307, 308])
ERROR_BODY = 2000
"""How much of an error's body goes into the outcome."""
TOKENS_TRIED = 3
HOSTS_KEPT = 1000
CHUNK = 1024 * 1024
MEDIA = {
    "application/vnd.apache.parquet": "parquet",
    "application/vnd.apache.arrow.file": "arrow",
}
"""Formats of downloads whose media type is not one of text."""
CONNECT_SECONDS = 30.0
"""How long to wait for a connection, unless the task says it. An answer may take any time."""
KEEPALIVES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""A machine that vanished while a call waits for its answer is missed within two minutes."""


class AddressRefused(Exception):
    """The egress policy refuses the address."""


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
        with waiting(f"a connection to {url.host}") if place.locked() else nullcontext():
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
        key = secret_key(config.verify_ssl, config.ca, certificate)
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


async def run(config: Request, context: ToolContext) -> Outcome:
    """Send the request and follow redirects. Raises Failed unless it succeeds."""
    if sum(body is not None for body in (config.json, config.body, config.form)) > 1:
        raise Failed("client_error", "Write one of `json`, `body` and `form`, not several.")
    for header, value in config.headers.items():
        check_header(header, as_text(value))
    exchange = Exchange(config, context)
    async with exchange.explained():
        await exchange.secure()
        # A kept token may be refused: ours, then another worker's. Then fetch a new one.
        for _ in range(TOKENS_TRIED):
            await exchange.prove()
            outcome = await exchange.followed()
            if outcome is not None:
                return outcome
    raise Failed("auth", f"{exchange.name} refuses every token.", status=401, retryable=True)


async def access_token(fields: Mapping[str, Any], context: ToolContext) -> str:
    """The token that an OAuth 2 server issues to a client; the kept one while it is valid.

    Raises Failed.
    """
    known = {name: fields[name] for name in OAuth2Auth.__struct_fields__ if fields.get(name)}
    known.pop("credential", None)
    auth = msgspec.convert({**known, "type": "oauth2"}, OAuth2Auth, strict=False)
    exchange = Exchange(Request(method="POST", url=auth.token_url, auth=auth), context)
    async with exchange.explained():
        await exchange.prove()
    return exchange.proof.headers["Authorization"].removeprefix("Bearer ")


class Exchange:
    """The requests of one task, from the first to the answer that is not a redirect."""

    def __init__(self, config: Request, context: ToolContext) -> None:
        rules = context.resources.rules
        self.config = config
        self.context = context
        self.session = context.resources.shared("http", lambda: Session(rules))
        self.name = f"{config.method} {_shown(config.url or '')}"
        # The timeouts of the parts; `time_limit` limits the whole, because it knows what counts.
        self.timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=part(config.timeout, "connect")
            or part(context.timeout, "connect")
            or CONNECT_SECONDS,
            sock_read=part(config.timeout, "read") or part(context.timeout, "read"),
        )
        self.proof = Proof()
        self.tls: ssl.SSLContext | bool = config.verify_ssl
        self.tls_elsewhere: ssl.SSLContext | bool = config.verify_ssl
        """Of another origin, which is not shown the client's certificate."""

    @asynccontextmanager
    async def explained(self) -> AsyncIterator[None]:
        """Limit the time, and turn every error into a failure that names the request."""
        name = self.name
        limit = shortest(self.config.timeout, self.context.timeout)
        try:
            async with time_limit(limit):
                yield
        except AddressRefused as refusal:
            said = f"{name} is refused by the egress policy: {refusal}."
            raise Failed("client_error", said) from None
        except Refused as refusal:
            raise Failed("auth", f"{name}: {refusal}") from None
        except BadRequest as error:
            raise Failed("client_error", f"{name}: {error}") from None
        except aiohttp.ConnectionTimeoutError:
            raise Failed("timeout", f"{name} got no connection in time.") from None
        except TimeoutError as late:
            passed = (
                self.timeout.sock_read if isinstance(late, aiohttp.ServerTimeoutError) else limit
            )
            allowed = "in time" if passed is None else f"within {passed:g} s, its `timeout`"
            raise Failed("timeout", f"{name} got no answer {allowed}.") from None
        except aiohttp.ClientConnectorCertificateError as error:
            why = "it is not trusted"
            if isinstance(error.certificate_error, ssl.SSLCertVerificationError):
                named = "under `ca`, or in SSL_CERT_FILE of the worker"
                why = distrust(error.certificate_error, named)
            said = f"{name}: the server's certificate is invalid: {why}."
            raise Failed("connection", said, retryable=False) from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            said = f"{name}: this is not an http or https address. Begin it with https:// or"
            raise Failed("client_error", f"{said} http://.") from None
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            raise Failed("connection", f"{name} failed: {_cause(error)}.") from None

    async def secure(self) -> None:
        """Find out how to check certificates, and which of ours to present."""
        config, certificate = self.config, self.config.client_cert
        if isinstance(certificate, str):
            fields = await fields_of(certificate, self.context)
            known = {key: fields[key] for key in ("cert", "key", "password") if key in fields}
            if "cert" not in known:
                raise Failed("auth", "client_cert: the credential has no field `cert`.")
            certificate = msgspec.convert(known, ClientCertificate)
        if config.ca is not None:
            self.tls = self.tls_elsewhere = await self._tls(None)
        if certificate is not None:
            self.tls = await self._tls(certificate)

    async def _tls(self, certificate: ClientCertificate | None) -> ssl.SSLContext:
        config = msgspec.structs.replace(self.config, ca=self._allowed(self.config.ca))
        if certificate is not None:
            own = {name: self._allowed(getattr(certificate, name)) for name in ("cert", "key")}
            certificate = msgspec.structs.replace(certificate, **own)
        try:
            return await to_thread(self.session.tls, config, certificate)
        except (OSError, ValueError) as error:
            said = f"`ca` or `client_cert` cannot be used: {_cause(error)}."
            raise Failed("auth", said) from None

    def _allowed(self, pem: str | None) -> str | None:
        """PEM text as it is, or the path of a file that the worker may read."""
        is_text = pem is None or "-----BEGIN" in pem
        return pem if is_text else str(self.context.resources.path(pem or ""))

    async def prove(self) -> None:
        """Find out how to prove who is asking."""
        if self.config.auth is not None:
            self.proof = await proof_of(self.config.auth, self.context, self._fetch)

    async def _fetch(self, url: str, form: Mapping[str, str]) -> tuple[int, bytes]:
        async with self.session.client.post(
            url, data=form, timeout=self.timeout, allow_redirects=False, proxy=self.config.proxy
        ) as answer:
            return answer.status, await _read(answer, 1024 * 1024)

    async def followed(self) -> Outcome | None:
        """The answer; None if a kept token is no longer valid."""
        config, started = self.config, time.monotonic()
        method, with_body = config.method, True
        url = _address(config.url or "", [*pairs(config.params), *self.proof.params.items()])
        origin = url.origin()
        for _ in range(config.max_redirects + 1):
            at_home = url.origin() == origin
            async with self.session.place(url), self._body(with_body) as (body, headers):
                answer = await self.session.client.request(
                    method,
                    url,
                    data=body,
                    headers=self._headers(method, headers, at_home),
                    timeout=self.timeout,
                    ssl=self.tls if at_home else self.tls_elsewhere,
                    proxy=config.proxy,
                    allow_redirects=False,
                )
                async with answer:
                    target = answer.headers.get("Location", "")
                    if not (config.follow_redirects and answer.status in REDIRECTS and target):
                        return await self._outcome(answer, url, started)
            if answer.status == 303 or (answer.status in (301, 302) and method == "POST"):
                method, with_body = ("HEAD" if method == "HEAD" else "GET"), False
            try:
                url = _address(str(url.join(URL(target))), [])
            except ValueError:
                said = f"{self.name} is redirected to {_shown(target)}"
                raise Failed("client_error", f"{said}, not an http or https address.") from None
            if with_body and url.origin() != origin and self._is_body_secret():
                raise Failed(
                    "client_error",
                    f"{self.name} is redirected to {url.origin()}, and the body holds a secret,"
                    " which is not sent to another origin. If it may go there, write that address"
                    " as `url`.",
                )
        said = f"{self.name} was redirected more than {config.max_redirects} times."
        raise Failed("client_error", said)

    def _headers(self, method: str, of_body: Mapping[str, str], at_home: bool) -> dict[str, str]:
        """The headers of the task, of its authentication, and of the body. Secrets are not sent to
        another origin.
        """
        context = self.context
        headers = {name.lower(): (name, value) for name, value in of_body.items()}
        if method in WRITING:
            headers["idempotency-key"] = ("Idempotency-Key", context.action_id)
        if context.traceparent:
            headers["traceparent"] = ("traceparent", context.traceparent)
        if at_home:
            headers |= {name.lower(): (name, v) for name, v in self.proof.headers.items()}
        for name, written in self.config.headers.items():
            if written is None:
                continue
            value = as_text(written)
            is_proof = name.lower() in ("authorization", "cookie", "proxy-authorization")
            if at_home or not (is_proof or context.is_masked(value)):
                headers[name.lower()] = (name, value)
        return dict(headers.values())

    def _is_body_secret(self) -> bool:
        """Whether a secret stands in what the task writes as its body."""
        config = self.config
        written = msgspec.json.encode([config.json, config.body, config.form, config.files])
        return self.context.is_masked(written.decode())

    @asynccontextmanager
    async def _body(self, wanted: bool) -> AsyncIterator[tuple[Any, dict[str, str]]]:
        """A body for one request, and its headers. It is rebuilt for each: files of a multipart
        can be read only once.
        """
        config, files = self.config, self.context.files
        value = config.json if config.json is not None else config.body
        with ExitStack() as stack:
            if not wanted:
                yield None, {}
            elif config.files is not None:
                yield await self._multipart(config.files, stack), {}
            elif config.form is not None:
                yield aiohttp.FormData(pairs(config.form)), {}
            elif value is None:
                yield None, {}
            elif config.json is not None:
                yield msgspec.json.encode(value), {"Content-Type": "application/json"}
            elif (file := files.find(value)) is not None:
                opened = await _opened(await files.local(file), "body", stack)
                yield opened, {"Content-Type": "application/octet-stream"}
            else:
                body, media = encoded(value)
                yield body, {"Content-Type": media}

    async def _multipart(self, parts: Mapping[str, Any], stack: ExitStack) -> aiohttp.FormData:
        config, context = self.config, self.context
        form = aiohttp.FormData(pairs(config.form or {}))
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
                media, shown = file.content_type or usual, file.filename or name_there
                form.add_field(name, content, filename=shown, content_type=media)
        return form

    # --- The answer ---

    async def _outcome(
        self, answer: aiohttp.ClientResponse, url: URL, started: float
    ) -> Outcome | None:
        headers = {
            name.lower(): _text(", ".join(answer.headers.getall(name))) for name in answer.headers
        }
        seen = {"status": answer.status, "headers": headers}
        name = f"{self.config.method} {_shown(str(url))}"
        most = self.context.resources.rules.max_response_bytes
        if not 200 <= answer.status < 300:
            body = await _read(answer, most)
            if answer.status == 401 and reject_token(self.proof.token_key, self.context):
                return None
            raise failed_with(Outcome(status="error", error=_error(name, answer, body), http=seen))
        try:
            if self.config.download:
                data: Any = await self._saved(answer, url)
            else:
                body = await _read(answer, most)
                data = plain(decoded(body, headers.get("content-type", ""), self.config.decode))
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
            "url": str(url.with_user(None).without_query_params(*self.proof.params)),
            "elapsed": round(time.monotonic() - started, 6),
        }
        return Outcome(status="ok", result=result, http=seen)

    async def _saved(self, answer: aiohttp.ClientResponse, url: URL) -> dict[str, Any]:
        """Save the body. Returns a reference, or the path of the file."""
        config, files = self.config, self.context.files
        media = _text(answer.headers.get("Content-Type", ""))
        if config.download is True:
            path = files.folder / "download"
            await self._written(answer, path)
            form = config.decode if config.decode != "auto" else form_of_media(media)
            if form == "bytes":
                form = MEDIA.get(media) or form_of(url.name) or "bytes"
            return await files.keep(path, form=form, media=media)
        address = str(config.download)
        if is_object(address):
            path, place = files.folder / "download", store_and_key(address)
            size, checksum = await self._written(answer, path)
            await stored(path, *place, config.store_auth, self.context)
        else:
            with arriving(self.context.resources.path(address)) as path:
                size, checksum = await self._written(answer, path)
        return {"path": address, "size": size, "checksum": checksum, "media": media}

    async def _written(self, answer: aiohttp.ClientResponse, path: Path) -> tuple[int, str]:
        size, seen = 0, hashlib.sha256()
        with await to_thread(path.open, "wb") as file:
            async for chunk in answer.content.iter_chunked(CHUNK):
                size += len(chunk)
                self.context.files.allow(size)
                seen.update(chunk)
                await to_thread(file.write, chunk)
            await to_thread(file.flush)
            await to_thread(os.fsync, file.fileno())
        return size, seen.hexdigest()


def _address(written: str, params: list[tuple[str, str]]) -> URL:
    try:
        url = URL(written)
        if url.scheme not in ("http", "https") or not url.host:
            raise aiohttp.InvalidURL(written)
        return url.extend_query(params) if params else url
    except ValueError:
        raise aiohttp.InvalidURL(written) from None


async def _opened(path: Path, written: str, stack: ExitStack) -> Any:
    """A file to send in chunks. Raises Refused or Failed."""
    try:
        return stack.enter_context(await to_thread(path.open, "rb"))
    except FileNotFoundError:
        raise Failed("not_found", f'files: "{written}" does not exist on this worker.') from None
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
    kind = KINDS.get(status) or ("server_error" if status >= 500 else "client_error")
    text = body[:ERROR_BODY].decode("utf-8", "replace").replace("\0", "\ufffd")
    return TaskError(
        kind=kind,
        code=status,
        status=status,
        message=f"{name} answered {status} {_text(answer.reason or '')}".strip() + ".",
        retryable=kind in RETRYABLE,
        retry_after=_retry_after(answer.headers.get("Retry-After")),
        details={"body": text} if text else None,
    )


def _text(written: str) -> str:
    """What a header says: UTF-8, or else Latin-1, which older servers send."""
    raw = written.encode("utf-8", "surrogateescape")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _retry_after(written: str | None) -> float | None:
    """Seconds to wait, from a number of them or from a date."""
    if written is None:
        return None
    if written.strip().isdecimal():
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
    if isinstance(inner, ssl.SSLError) and inner.reason == "WRONG_VERSION_NUMBER":
        return "no TLS is spoken there; if it serves plain HTTP, write http://"
    text = reason_of(inner) if isinstance(inner, OSError) else str(inner)
    return text.rstrip(".") or type(error).__name__

"""A route is a value: who may call it, what it takes and returns, and the function that does it.

Everything else is derived from these values: path matching, rights, limits, parsing of queries and
bodies, the OpenAPI document, and the calls of `Client`. A handler knows no HTTP. It is

    async def start(services, caller, body: StartExecution) -> Started

and receives the services, the caller, each path parameter by its name, `query` if the route has
one, and `body` if it takes one. Its return annotation is the type of the answer, and its docstring
the description of the route.

Unknown keys in a query or body are refused, because a misspelt key would otherwise silently mean
its default. Routes for workers accept them: a worker of a later release may send more.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, lru_cache
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Protocol,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import parse_qsl

import msgspec

from noetl.errors import BadRequest, BadText, UnknownKey
from noetl.model.spelling import did_you_mean

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from noetl.api.rights import Principal, Right
    from noetl.api.services import Services as Services
    from noetl.model.facts import Actor

    Q = TypeVar("Q", default=None)
    B = TypeVar("B", default=None)
    A = TypeVar("A", default=Any)
else:
    from typing import TypeVar

    Q, B, A = TypeVar("Q"), TypeVar("B"), TypeVar("A")
    Services = Any  # Handlers name the type for the type checker; clients need no services.

Method = Literal["GET", "POST", "PUT", "DELETE"]
BODY_MAX = 16 * 1024 * 1024
QUERIES_REMEMBERED = 64
"""How many queries are remembered: a worker sends the same parameters each time."""
JSON = "application/json"
FILE = "application/octet-stream"
"""A file of bytes. Client generators read no other type of these, nor `application/yaml`."""
NEWS = "text/event-stream"
"""Messages as they come; whoever misses some asks again for what followed the last."""
YAML = frozenset({b"application/yaml", b"application/x-yaml", b"text/yaml", b"text/x-yaml"})
LET_THROUGH = "resource_kind"
"""Some clients send it beside `resource_type`; it adds nothing."""
_PARAMETER = re.compile(r"\{(\w+)\}")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""NUL as JSON escapes it, which is its only spelling there."""
_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$(?P<where>.*?)`)?$", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `([^`]*)`")
_MISSING_FIELD = re.compile(r"Object missing required field `([^`]*)`")
_NO_CHOICE = re.compile(r"Invalid enum value '(.*)'", re.DOTALL)


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The query parameters of a route."""


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON body."""


class Header(msgspec.Struct, frozen=True):
    """A request header that a handler reads: `caller.header(WORKER)`."""

    name: str
    says: str

    @property
    def key(self) -> bytes:
        return self.name.lower().encode()


IDEMPOTENCY_KEY = Header(
    "Idempotency-Key", "The same request under a key that was used before is the one made then."
)
"""With it a request has its effect once, however often it is sent."""


class Malformed(BadRequest):
    """The request does not have the form the route takes; the message names the field."""

    def __init__(self, message: str, details: Any = None) -> None:
        super().__init__(message)
        self.details = details


class Incoming(Protocol):
    """A body that its handler reads itself: whole, or in chunks as it arrives."""

    async def read(self) -> bytes:
        """All of it."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Its pieces."""


async def never() -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


class Caller:
    """The caller of a route, and what a handler may know of the call beyond its parameters."""

    __slots__ = ("_headers", "address", "gone", "principal", "request_id", "scheme")

    def __init__(
        self,
        principal: Principal,
        *,
        request_id: str = "",
        headers: Mapping[bytes, bytes] | None = None,
        gone: Callable[[], Awaitable[None]] = never,
        address: str = "",
        scheme: str = "http",
    ) -> None:
        self.principal = principal
        self.request_id = request_id
        self.address = address
        """The network address of the peer, if there is one."""
        self.scheme = scheme
        self.gone = gone
        """Returns once the caller has hung up, or their access has ended."""
        self._headers = headers or {}

    @property
    def name(self) -> str:
        return self.principal.name

    @property
    def actor(self) -> Actor:
        """The name of the caller in records and in the audit log."""
        return self.principal.actor

    @property
    def headers(self) -> dict[str, str]:
        """All headers, with lower-case names."""
        # Decoding one joined text is faster than many. No header holds a line break.
        names = b"\n".join(self._headers).decode("latin-1").lower().split("\n")
        values = b"\n".join(self._headers.values()).decode("latin-1").split("\n")
        return dict(zip(names, values, strict=True)) if self._headers else {}

    def header(self, header: Header) -> str | None:
        found = self._headers.get(header.key)
        return None if found is None else found.decode("latin-1")


@dataclass(frozen=True, slots=True)
class Reply(Generic[A]):
    """An answer with a status, headers or a stream beside its body."""

    body: A | AsyncIterator[bytes] | None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    size: int | None = None
    """The length of a body sent in chunks, if it is known."""
    tag: str | None = None
    """The ETag of a body that never changes: a client that has it gets 304."""


@dataclass(frozen=True, eq=False)
class Route(Generic[Q, B, A]):
    """One operation of the API."""

    name: str
    """`area.verb`: the area is the tag, and `area_verb` the operation id."""
    method: Method
    path: str
    """Parameters are in braces."""
    right: Right
    """There is no default, so no route is open by oversight."""
    handler: Callable[..., Awaitable[A | Reply[A]]]
    _: KW_ONLY
    query: type[Q] | None = None
    body: type[B] | None = None
    aliases: tuple[str, ...] = ()
    """Alias paths, each with the same parameters."""
    headers: tuple[Header, ...] = ()
    deep: bool = False
    """The last path parameter may contain slashes."""
    keyed: bool = False
    """It takes an Idempotency-Key."""
    streamed: bool = False
    """The handler receives a raw body as `Incoming`."""
    holds: Any = None
    """Describes a raw body in the OpenAPI document."""
    yaml: bool = False
    """The body has a field `content`, which may also be sent alone, as YAML."""
    secret: bool = False
    """The answer may hold secrets, so it is not compressed."""
    body_max: int = BODY_MAX
    media: str = JSON
    """The content type of an answer that is bytes, text or a stream."""
    statuses: tuple[int, ...] = ()
    """Possible answers beside 200 and errors."""
    patient: bool = False
    """The answer may wait for news, so its duration says nothing about the server."""

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of its path parameters, in order."""
        return tuple(_PARAMETER.findall(self.path))

    @property
    def raw(self) -> bool:
        """The handler receives the body as bytes, with any content."""
        return self.body is bytes

    @cached_property
    def reader(self) -> Reader:
        # Made by the first call: a command makes few of all calls.
        return Reader(self)

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.aliases)

    @property
    def area(self) -> str:
        return self.name.partition(".")[0]

    @cached_property
    def answer(self) -> type[A]:
        """The type of the answer: what the handler returns, alone or in a `Reply`."""
        found = get_type_hints(self.handler)["return"]
        answer: type[A] = get_args(found)[0] if get_origin(found) is Reply else found
        return answer

    def decoded(self, body: bytes) -> A:
        """The answer that was sent as these bytes. Raises msgspec.MsgspecError."""
        found: Any = body
        if self.answer is not bytes:
            is_json = self.media == JSON
            found = msgspec.json.decode(body, type=self.answer) if is_json else body.decode()
        return cast(A, found)

    @property
    def says(self) -> str:
        """A sentence for people: the handler's docstring."""
        return inspect.cleandoc(self.handler.__doc__ or "")


AnyRoute = Route[Any, Any, Any]


class Reader:
    """Parses the query and the body of one route into typed values."""

    def __init__(self, route: AnyRoute) -> None:
        self._route = route
        self.query = lru_cache(QUERIES_REMEMBERED)(self._read_query)
        self._decode = (
            None
            if route.body is None or route.raw
            else msgspec.json.Decoder(route.body, strict=False).decode
        )

    @cached_property
    def _parameters(self) -> dict[str, msgspec.inspect.Type]:
        """The parameters of the query, with their types."""
        if self._route.query is None:
            return {}
        fields = msgspec.inspect.type_info(self._route.query).fields  # type: ignore[attr-defined]
        return {one.encode_name: one.type for one in fields}

    def _read_query(self, written: bytes) -> Any:
        """The query as its struct; None if the route has none. Raises UnknownKey, Malformed."""
        pairs = parse_qsl(written.decode("latin-1"), keep_blank_values=True)
        route = self._route
        if route.query is dict:  # The caller may add parameters of their own.
            return dict(pairs)
        known, given = self._parameters, dict[str, Any]()
        for key, value in pairs:
            kind = known.get(key)
            table, _, entry = key.partition(".")  # A table is written entry by entry.
            if isinstance(kind, msgspec.inspect.VarTupleType):
                given.setdefault(key, []).append(value)
            elif kind is not None and not isinstance(kind, msgspec.inspect.DictType):
                _put(given, key, key, value)
            elif entry and isinstance(known.get(table), msgspec.inspect.DictType):
                _put(given.setdefault(table, {}), entry, key, value)
            elif key != LET_THROUGH and route.right != "work":
                keys = (
                    f"{name}.NAME" if isinstance(one, msgspec.inspect.DictType) else name
                    for name, one in known.items()
                )
                raise _unknown("the query", key, tuple(keys))
        if route.query is None:
            return None
        try:
            return msgspec.convert(given, route.query, strict=False)
        except msgspec.ValidationError as error:
            raise misfit(error, route.query, "") from None

    def body(self, written: bytes, media: bytes = b"") -> Any:
        """The body as its type, parsed from JSON or as `media` says. Raises UnknownKey, BadText and
        Malformed.
        """
        if self._route.raw:
            return written
        assert self._decode is not None
        if not written:
            written = b"{}"
        elif self._route.yaml and media.partition(b";")[0].strip().lower() in YAML:
            written = msgspec.json.encode({"content": written.decode()})
        refuse_nul(written)
        try:
            return self._decode(written)
        except msgspec.ValidationError as error:
            raise misfit(error, self._route.body) from None
        except msgspec.DecodeError as error:
            raise Malformed(f"the body is not JSON: {error}.") from None


def refuse_nul(written: bytes) -> None:
    """Raises BadText if a text in this JSON contains NUL."""
    if b"\\u0000" in written and _NUL.search(written):
        raise BadText(
            "a text in the body contains the character NUL, which databases cannot store."
        )


def _put(table: dict[str, str], name: str, key: str, value: str) -> None:
    """Enter a parameter of the query. Raises Malformed if it was there already."""
    if name in table:
        raise Malformed(f"the query has `{key}` more than once, and it takes one value.")
    table[name] = value


def misfit(error: msgspec.ValidationError, kind: Any, whole: str = "the body") -> BadRequest:
    """What msgspec says of a value of that type, with the place in our notation. The query is the
    `whole` without a name.
    """
    said = str(error)
    if (unknown := unknown_field(said, kind, whole)) is not None:
        return unknown
    found = _AT.match(said)
    assert found is not None
    what, where = found["what"], (found["where"] or "").removeprefix(".")
    if (missing := _MISSING_FIELD.fullmatch(what)) is not None:
        what, where = "it is missing", f"{where}.{missing[1]}".removeprefix(".")
    elif (wrong := _NO_CHOICE.fullmatch(what)) is not None:
        choices = tuple(_choices(kind, where.rpartition(".")[2]))
        hint = did_you_mean(wrong[1], choices)
        what = f'it is one of {", ".join(choices)}, not "{wrong[1][:80]}".{hint}'
    place = ", ".join(filter(None, (whole, where)))
    details = [{"key": where, "message": what, "source": "body" if whole else "query"}]
    return Malformed(f"{place}: {what}" if place else what, details)


def unknown_field(said: str, kind: Any, where: str = "the body") -> UnknownKey | None:
    """The error of msgspec for that type; UnknownKey if it is about a key."""
    found = _UNKNOWN_FIELD.search(said)
    if found is None:
        return None
    structs = (one for one in structs_in([kind]) if one.forbid_unknown_fields)
    return _unknown(
        where, found[1], tuple(key.encode_name for one in structs for key in one.fields)
    )


def _choices(kind: Any, key: str) -> Iterator[str]:
    """What may stand under that key in a value of this type, where not every text may."""
    named = (
        each.type for one in structs_in([kind]) for each in one.fields if each.encode_name == key
    )
    for part in (part for one in named for part in getattr(one, "types", (one,))):
        if isinstance(part, msgspec.inspect.LiteralType):
            yield from map(str, part.values)
        elif isinstance(part, msgspec.inspect.IntType):
            yield "a number"


def structs_in(kinds: Iterable[Any]) -> list[msgspec.inspect.StructType]:
    """Every struct among these types, at any depth."""
    found: dict[type, msgspec.inspect.StructType] = {}
    waiting: list[Any] = list(msgspec.inspect.multi_type_info(kinds))
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, msgspec.inspect.StructType):
            if one.cls not in found:
                found[one.cls] = one
                waiting += [each.type for each in one.fields]
            continue
        for part in ("item_type", "key_type", "value_type", "type"):
            if hasattr(one, part):
                waiting.append(getattr(one, part))
        for parts in ("types", "item_types"):
            waiting += getattr(one, parts, ())
    return list(found.values())


def _unknown(where: str, key: str, known: tuple[str, ...]) -> UnknownKey:
    listed = f"It may have: {', '.join(known)}." if known else "It has none."
    hint = did_you_mean(key, known)
    return UnknownKey(f'{where} has no key "{key[:80]}".{hint or " " + listed}')

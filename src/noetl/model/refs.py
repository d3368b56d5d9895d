"""References: what an event holds in place of a value that is too large for it.

A long list is stored in segments: bodies of a fixed number of elements, so that a part of it can be
written and read without the rest.

A reference is recognised by its mark, a MAC under the execution's `seal`. The seal is generated
when an execution is requested, is in its first fact, and is never shown; children and reruns share
it, so they can read each other's results. A mapping without the right mark is data, however much it
looks like a reference: no body is read for it. Executions from before seals have an empty one;
their references are recognised by their form alone.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Annotated, Any, Literal

import msgspec

from noetl.errors import Corrupted

INLINE_MAX = 64 * 1024
"""Values up to this many bytes of JSON travel in events."""
PREVIEW_MAX = 200
KV_MAX = 1 << 20
"""From this size on a body is not a row of the database but of the class `disk`."""
UNSEALED = ""
"""The seal of executions that have none. Code that only shows results uses it, too: references are
then recognised by their form, and by the body under their key."""
UNSEALED_LENGTH_MAX = 10_000_000
"""How many elements a list of an execution without a seal may claim to have."""

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode

# --- What a reference is -----------------------------------------------------------------------


class Segments(msgspec.Struct, frozen=True):
    """How a list is divided: the stored segments, as spans; all others contain only nulls."""

    length: Annotated[int, msgspec.Meta(ge=0)]
    width: Annotated[int, msgspec.Meta(ge=1)]
    kept: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        return -(-self.length // self.width)

    def __post_init__(self) -> None:
        if not self.kept:
            raise ValueError("nothing of it is kept")
        last = 0
        for begin, end in self.kept:
            if not last <= begin < end <= self.count:
                raise ValueError("the spans are not in order")
            last = end


class About(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a reference. The patterns are those of our own keys: they cannot spell a path
    or an address.
    """

    store: Literal["result"] = "result"
    execution_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z_-]{0,64}\Z")] = ""
    key: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{8,64}\Z")]
    size: Annotated[int, msgspec.Meta(ge=0)]
    checksum: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    format: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-z_]{1,32}\Z")] | None = None
    parts: Annotated[int, msgspec.Meta(ge=1)] | None = None
    segments: Segments | None = None
    seal: str = ""

    @property
    def is_file(self) -> bool:
        """It refers to a file, which is stored in parts and is not JSON."""
        return self.parts is not None

    def owner(self, default: str) -> str:
        """The execution that owns the body: a child's result is the child's."""
        return self.execution_id or default


def _mark(seal: str, about: About) -> str:
    """A MAC over everything that determines what is read."""
    text = repr(
        (
            *(about.execution_id, about.key, about.size, about.checksum),
            *(about.format, about.parts),
            msgspec.structs.astuple(about.segments) if about.segments is not None else None,
        )
    )
    return hashlib.blake2b(text.encode(), key=seal.encode(), digest_size=16).hexdigest()


def about(value: Any, seal: str) -> About | None:
    """The parsed reference; None for anything else, including data that looks like one."""
    if not isinstance(value, dict) or not isinstance(value.get("_ref"), dict):
        return None
    try:
        found = msgspec.convert(value["_ref"], About)
    except (msgspec.ValidationError, ValueError, RecursionError):
        return None
    if found.is_file and found.format is None:
        return None
    if seal:
        return found if hmac.compare_digest(found.seal, _mark(seal, found)) else None
    cut = found.segments
    return None if cut is not None and cut.length > UNSEALED_LENGTH_MAX else found


def made(seal: str, what: About, *, schema_hint: Any, preview: Any, **more: Any) -> dict[str, Any]:
    """The reference as events and answers show it; `more` is for people."""
    mark = _mark(seal, what) if seal else ""
    shown = {"store": what.store, **decode(encode(msgspec.structs.replace(what, seal=mark)))}
    return {
        "_ref": {**shown, "schema_hint": schema_hint, **more},
        "_store": _place(what),
        "_preview": preview,
    }


def _place(what: About) -> str:
    """The class of storage, as playbooks see it."""
    return "disk" if what.is_file or what.size >= KV_MAX else "kv"


def reference(
    execution_id: str, key: str, body: bytes, value: Any, seal: str, schema: str = ""
) -> dict[str, Any]:
    """The reference to a value whose JSON is this body; `schema` names the schema that it fits."""
    what = About(
        execution_id=execution_id,
        key=key,
        size=len(body),
        checksum=hashlib.sha256(body).hexdigest(),
    )
    preview = body[:PREVIEW_MAX].decode("utf-8", errors="replace")
    return made(seal, what, schema_hint=schema or type(value).__name__, preview=preview)


def key_of(value: Any, seal: str) -> str | None:
    """The key, if this is a reference to a value. A file is none: it stays a reference."""
    found = about(value, seal)
    return None if found is None or found.is_file else found.key


def held_by(value: Any, seal: str) -> list[dict[str, Any]]:
    """The references in a value: itself, or those in the result of a loop."""
    if not isinstance(value, dict) or not ("_ref" in value or "results" in value):
        return []
    if key_of(value, seal) is not None:
        return [value]
    each: Any = value.get("results")
    if key_of(each, seal) is not None:
        return [each]
    if not isinstance(each, list):
        return []
    return [one for one in each if key_of(one, seal) is not None]


def holds_reference(value: Any, seal: str) -> bool:
    return bool(held_by(value, seal))


def weight(value: Any) -> int:
    """The approximate number of bytes of JSON, computed cheaply if possible."""
    if value is None or isinstance(value, int | float):
        return 8
    return len(value) + 2 if isinstance(value, str) else len(encode(value))


# --- Lists in segments -------------------------------------------------------------------------


def segment_key(key: str, number: int) -> str:
    return f"{key}-{number}"


def segmented(
    execution_id: str,
    key: str,
    *,
    length: int,
    width: int,
    kept: Mapping[int, str],
    size: int,
    seal: str,
) -> dict[str, Any]:
    """The reference to a list of this length; `kept` are its stored segments, by number, and their
    checksums.

    Segments that were never stored contain only nulls. The checksum is over those of all others.
    """
    spans: list[tuple[int, int]] = []
    whole = hashlib.sha256()
    for number in sorted(kept):
        whole.update(bytes.fromhex(kept[number]))
        if spans and spans[-1][1] == number:
            spans[-1] = (spans[-1][0], number + 1)
        else:
            spans.append((number, number + 1))
    what = About(
        execution_id=execution_id,
        key=key,
        size=size,
        checksum=whole.hexdigest(),
        segments=Segments(length=length, width=width, kept=tuple(spans)),
    )
    return made(seal, what, schema_hint="list", preview=f"{length} elements")


Bodies = Generator[tuple[str, str], Any, Any]
"""Requests bodies by owner and key, one after another, and returns the assembled value."""


def part(what: About, owner: str, start: int, stop: int) -> Bodies:
    """Elements `start … stop - 1` of a list that is kept in segments."""
    cut = what.segments
    assert cut is not None
    stop = min(stop, cut.length)
    kept = {number for begin, end in cut.kept for number in range(begin, end)}
    elements: list[Any] = []
    for number in range(start // cut.width, -(-stop // cut.width)):
        first = number * cut.width
        if number in kept:
            body = yield what.owner(owner), segment_key(what.key, number)
            if not isinstance(body, list):
                raise Corrupted(f"segment {number} of the list {what.key} is not a list.")
        else:
            body = [None] * min(cut.width, cut.length - first)
        elements += body[max(0, start - first) : stop - first]
    return elements


def real(value: Any, owner: str, seal: str) -> Bodies:
    """The value with every reference that events may hold replaced by its value."""
    what = about(value, seal)
    if what is not None and what.segments is not None:
        elements = yield from part(what, owner, 0, what.segments.length)
        return (yield from _each(elements, owner, seal))
    if what is not None and not what.is_file:
        return (yield what.owner(owner), what.key)
    if not holds_reference(value, seal):
        return value
    results = value["results"]
    if not isinstance(results, list):
        results = yield from real(results, owner, seal)
    return {**value, "results": (yield from _each(results, owner, seal))}


def _each(elements: Any, owner: str, seal: str) -> Bodies:
    if not isinstance(elements, list):
        return elements
    found = []
    for one in elements:
        is_kept = key_of(one, seal) is not None
        found.append((yield from real(one, owner, seal)) if is_kept else one)
    return found


async def fetched(asking: Bodies, get: Callable[[str, str], Awaitable[bytes]]) -> Any:
    """The assembled value, with `get` reading each body."""
    try:
        wanted = next(asking)
        while True:
            body = await get(*wanted)
            try:
                value = decode(body)
            except msgspec.DecodeError as error:
                owner, key = wanted
                message = f"the result {key} of execution {owner} is not JSON: {error}."
                raise Corrupted(message) from None
            wanted = asking.send(value)
    except StopIteration as done:
        return done.value

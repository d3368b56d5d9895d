"""Recordings: one execution in one file, for other machines, later years and offline eyes.

The format, version 1. The file is gzip. Inside are lines of JSON, each an object with one key:

    {"recording": {"format": "noetl-recording", "version": 1, "noetl": …, "execution_id": …,
                   "path": …, "playbook_version": …, "digest": …, "status": …, "events": 204,
                   "made_at": …}}
    {"net": {…}}                             the compiled playbook; its digest is in the head
    {"playbook": "…"}                        its text, where the catalog has it
    {"layout": {…}}                          the graph, as `GET /api/catalog/{path}` has it
    {"event": {"seq": 1, "body": {…}}}       every event, in order
    {"result": {"execution_id": …, "key": …, "sha256": …, "body": …}}
                                             large results that events refer to, as base64
    {"left_out": {"execution_id": …, "key": …, "size": …}}
                                             those that did not fit into the file
    {"end": {"lines": 211, "sha256": "…"}}   over all lines before it, with their line ends

A reader refuses a version that it does not know, and a file whose checksum is wrong or whose end is
missing. New kinds of lines may come within version 1: a reader passes over those it does not know.

Events hold no secrets: they are masked as they are made. What a playbook writes out as a `static`
keychain entry is masked in its net and text. The seal that marks the references of an
execution is left out, so references in a recording are known by their shape, and a reader of the
file cannot make any that a server would believe.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import IO, TYPE_CHECKING, Any

import msgspec

from noetl.control.layouts import layout
from noetl.control.live import summary_of
from noetl.control.records import events, no_execution, row_of
from noetl.engine.evolve import evolve
from noetl.errors import BadRequest, Corrupted, NotFound
from noetl.model import events as facts_of
from noetl.model import net as nets
from noetl.model import refs
from noetl.model.events import Event
from noetl.model.ids import ExecutionId
from noetl.model.net import Net
from noetl.model.state import ExecutionState
from noetl.store.log import Facts, Write
from noetl.templates import MASK, is_template
from noetl.version import __version__

if TYPE_CHECKING:
    from noetl.store.base import Store

FORMAT = "noetl-recording"
VERSION = 1
RESULTS_MAX = 64 * 1024 * 1024
"""Bytes of large results that a recording has; those that do not fit are named."""
LINE_MAX = 96 * 1024 * 1024
WHOLE_MAX = 2 * 1024**3
"""Bytes that a recording may have when it is unpacked."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording says of itself."""

    format: str = FORMAT
    version: int = VERSION
    noetl: str = __version__
    execution_id: ExecutionId
    path: str
    playbook_version: int | None = None
    digest: str
    status: str
    events: int
    made_at: float = 0.0


class Recording(msgspec.Struct, kw_only=True):
    """An execution as it was recorded."""

    head: Head
    net: Net
    facts: list[Event]
    results: dict[tuple[ExecutionId, str], bytes] = {}
    left_out: set[tuple[ExecutionId, str]] = set()
    playbook: str | None = None

    async def body(self, execution_id: ExecutionId, key: str) -> bytes:
        """A large result. Raises NotFound."""
        found = self.results.get((execution_id, key))
        if found is None:
            is_large = (execution_id, key) in self.left_out
            why = ": it was too large and was left out" if is_large else ""
            raise NotFound(f"the recording has no result {key} of execution {execution_id}{why}.")
        return found


# --- Writing -----------------------------------------------------------------------------------


async def recorded(store: Store, execution_id: ExecutionId, made_at: float) -> AsyncIterator[bytes]:
    """The file of an execution, piece by piece. Raises NotFound before the first one, or before the
    last if it is deleted meanwhile: half of it must not pass for the whole.
    """
    summary = await row_of(store.records, execution_id)
    heads = await store.log.heads([execution_id])
    net = await store.catalog.net(summary.digest)
    if net is None:
        raise no_execution(execution_id)
    head = Head(
        execution_id=execution_id,
        path=summary.path,
        playbook_version=summary.version,
        digest=summary.digest,
        status=summary.status,
        events=heads[execution_id],
        made_at=made_at,
    )
    return _pieces(store, head, net)


async def _pieces(store: Store, head: Head, net: bytes) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(wbits=31)
    whole, lines = hashlib.sha256(), 0
    async for line in _lines(store, head, net):
        data = msgspec.json.encode(line) + b"\n"
        whole.update(data)
        lines += 1
        piece = packer.compress(data)
        if piece:
            yield piece
    end = {"end": {"lines": lines, "sha256": whole.hexdigest()}}
    yield packer.compress(msgspec.json.encode(end) + b"\n") + packer.flush()


async def _lines(store: Store, head: Head, net: bytes) -> AsyncIterator[dict[str, Any]]:
    yield {"recording": head}
    shown, secrets = _without_secrets(nets.decode(net))
    yield {"net": shown}
    if head.playbook_version is not None:
        entry = await store.catalog.entry(head.path, head.playbook_version)
        if entry is not None:
            text = entry.content
            for secret in secrets:
                text = text.replace(secret, MASK)
            yield {"playbook": text}
    yield {"layout": layout(shown)}
    wanted: dict[tuple[ExecutionId, str], None] = {}
    seal, last = "", 0
    async for row in events(store.log, head.execution_id):
        body = refs.decode(row.body)
        if row.seq == 1:
            seal = body.pop("seal", "")
            body.pop("key", None)
        for one in _references(body, seal, head.execution_id):
            wanted[one] = None
        yield {"event": {"seq": row.seq, "body": body}}
        last = row.seq
        if last == head.events:
            break
    if last < head.events:
        raise no_execution(head.execution_id)
    room = RESULTS_MAX
    for owner, key in wanted:
        body = await store.bodies.get(owner, key)
        if body is None:
            continue
        if len(body) > room:
            yield {"left_out": {"execution_id": owner, "key": key, "size": len(body)}}
            continue
        room -= len(body)
        checksum = hashlib.sha256(body).hexdigest()
        kept = {"execution_id": owner, "key": key, "sha256": checksum, "body": body}
        yield {"result": kept}
    if not await store.log.heads([head.execution_id]):
        raise no_execution(head.execution_id)


def _without_secrets(net: Net) -> tuple[Net, list[str]]:
    """The net without what playbooks write out as secrets, and these, the longest first."""
    secrets: set[str] = set()

    def masked(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: masked(one) for key, one in value.items()}
        if isinstance(value, list):
            return [masked(one) for one in value]
        if isinstance(value, str) and value and not is_template(value):
            secrets.add(value)
        return MASK if isinstance(value, str) and not is_template(value) else value

    entries = tuple(
        msgspec.structs.replace(entry, config=masked(entry.config))
        if entry.kind == "static"
        else entry
        for entry in net.keychain
    )
    kept = msgspec.structs.replace(net, keychain=entries)
    return kept, sorted(secrets, key=len, reverse=True)


def _references(value: Any, seal: str, owner: ExecutionId) -> Iterator[tuple[ExecutionId, str]]:
    """Every body that a value refers to, however deep; its marks are taken off."""
    if isinstance(value, list):
        for one in value:
            yield from _references(one, seal, owner)
    elif isinstance(value, dict):
        what = refs.about(value, seal) if "_ref" in value else None
        if what is None:
            for one in value.values():
                yield from _references(one, seal, owner)
            return
        value["_ref"].pop("seal", None)
        if what.segments is not None:
            for begin, end in what.segments.kept:
                for number in range(begin, end):
                    yield what.owner(owner), refs.segment_key(what.key, number)
        elif not what.is_file:
            yield what.owner(owner), what.key


# --- Reading -----------------------------------------------------------------------------------


NO_RECORDING = (
    "this is not a recording of an execution. `noetl executions export ID -o FILE` writes one."
)
_line = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _EventLine(msgspec.Struct):
    seq: int
    body: msgspec.Raw


class _ResultLine(msgspec.Struct):
    execution_id: ExecutionId
    key: str
    sha256: str = ""
    body: bytes = b""


def read(file: IO[bytes]) -> Recording:
    """The recording in a file. Raises BadRequest for what is none, Corrupted for a damaged one."""
    head: Head | None = None
    found: dict[str, Any] = {"facts": [], "results": {}, "left_out": set()}
    whole, lines, ended = hashlib.sha256(), 0, False
    unpacked = _unpacked(file)
    try:
        for line in unpacked:
            [(kind, value)] = _line(line).items()
            if kind == "end":
                ended = refs.decode(value) == {"lines": lines, "sha256": whole.hexdigest()}
                ended = ended and next(unpacked, None) is None
                break
            whole.update(line)
            lines += 1
            if kind == "recording":
                head = _head(refs.decode(value))
            elif head is None:
                raise BadRequest(NO_RECORDING)
            else:
                _take(kind, value, found)
    except (OSError, EOFError, zlib.error, ValueError, msgspec.MsgspecError) as error:
        if head is None:
            raise BadRequest(NO_RECORDING) from None
        raise Corrupted(f"the recording is damaged: {error}. Export the execution again.") from None
    if head is None:
        raise BadRequest(NO_RECORDING)
    if not ended or "net" not in found or len(found["facts"]) != head.events:
        raise Corrupted(
            "the recording is damaged or cut off: what it holds is not what its end says."
            " Export the execution again."
        )
    return Recording(head=head, **found)


def _unpacked(file: IO[bytes]) -> Iterator[bytes]:
    total = 0
    with gzip.open(file) as unpacked:
        while line := unpacked.readline(LINE_MAX + 1):
            total += len(line)
            if len(line) > LINE_MAX or total > WHOLE_MAX:
                raise BadRequest("the recording is too large to be read here.")
            yield line


def _head(value: Any) -> Head:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise BadRequest(NO_RECORDING)
    if value.get("version") != VERSION:
        raise BadRequest(
            f"this recording has version {value.get('version')} of the format, and NoETL"
            f" {__version__} reads version {VERSION}. A later release may read it."
        )
    return msgspec.convert(value, Head)


def _take(kind: str, value: msgspec.Raw, found: dict[str, Any]) -> None:
    match kind:
        case "net":
            found["net"] = nets.decode(bytes(value))
        case "playbook":
            found["playbook"] = msgspec.json.decode(value, type=str)
        case "event":
            event = msgspec.json.decode(value, type=_EventLine)
            if event.seq != len(found["facts"]) + 1:
                raise ValueError(f"event {event.seq} is out of order")
            found["facts"].append(facts_of.decode(bytes(event.body)))
        case "result":
            result = msgspec.json.decode(value, type=_ResultLine)
            if hashlib.sha256(result.body).hexdigest() != result.sha256:
                raise ValueError(f"the result {result.key} has another checksum")
            found["results"][result.execution_id, result.key] = result.body
        case "left_out":
            result = msgspec.json.decode(value, type=_ResultLine)
            found["left_out"].add((result.execution_id, result.key))
        case _:
            pass  # of a later release


def read_bytes(data: bytes) -> Recording:
    return read(io.BytesIO(data))


async def keep(store: Store, recording: Recording) -> None:
    """Put it into a store, as if it had run there."""
    head = recording.head
    # Without its secrets the net is another one, and known by another digest.
    digest = nets.digest(recording.net)
    await store.catalog.put_net(digest, nets.encode(recording.net))
    facts = [*recording.facts]
    facts[0] = msgspec.structs.replace(facts[0], digest=digest)
    state = ExecutionState()
    for fact in facts:
        evolve(state, fact)
    body = b",".join(facts_of.encode([fact])[1:-1] for fact in facts)
    write = Write(
        execution_id=head.execution_id,
        seq_before=0,
        events=[Facts(len(facts), body)],
        summary=summary_of(head.execution_id, state, None),
    )
    await store.log.commit([write])
    for (owner, key), result in recording.results.items():
        await store.bodies.put(owner, key, result)

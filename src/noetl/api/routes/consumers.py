"""/api/consumers: messages that start executions, and the outcome of each."""

from __future__ import annotations

from typing import Annotated

import msgspec

from noetl.api.route import Caller, Query, Route, Services
from noetl.api.routes.trigger_documents import Documents
from noetl.control import documents
from noetl.control.consumers import ConsumerState
from noetl.model.trigger_answers import (
    ConsumedMessage,
    ConsumerDeleted,
    ConsumerDocument,
    ConsumerItem,
    ConsumerList,
)
from noetl.model.triggers import Consumer, FilesSource, NatsSource, Source, StartTarget


class WhichMessages(Query, frozen=True, kw_only=True):
    """How many messages to return."""

    messages: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 20


async def show(
    services: Services, caller: Caller, *, path: str, query: WhichMessages
) -> ConsumerDocument:
    """A consumer, and the outcome of its last messages."""
    return await _shown(services, path, query.messages)


async def _shown(services: Services, path: str, count: int = 20) -> ConsumerDocument:
    item = await _item(services, *await services.consumers.find(path))
    found = (
        await services.consumers.messages(path, before=float("inf"), limit=count) if count else []
    )
    return documents.of(
        ConsumerDocument,
        item,
        running=await services.consumers.running(path),
        messages=[documents.of(ConsumedMessage, one, time=one.at) for one in found],
    )


async def _item(services: Services, consumer: Consumer, state: ConsumerState) -> ConsumerItem:
    target = consumer.target
    return documents.of(
        ConsumerItem,
        consumer,
        state,
        source=_words(consumer.source),
        playbook=target.playbook.path if isinstance(target, StartTarget) else None,
        signal=None if isinstance(target, StartTarget) else target.signal,
    )


def _words(source: Source) -> str:
    """The source of the messages, in a few words."""
    match source:
        case NatsSource():
            stream = f"stream {source.stream} " if source.stream else ""
            return f"nats {stream}{source.subject}".rstrip()
        case FilesSource():
            return f"files {source.url.rstrip('/')}/{source.prefix}{source.pattern}"
    return f"postgres {f'table {source.table}' if source.table else f'channel {source.channel}'}"


DOCUMENTS = Documents("consumers", item=_item, show=_shown, shown=ConsumerDocument)
LIST = DOCUMENTS.listing(ConsumerList)
GET = Route(
    "consumers.get", "GET", "/api/consumers/{path}", "read", show, query=WhichMessages, deep=True
)
PAUSE = DOCUMENTS.pause()
RESUME = DOCUMENTS.resume()
DELETE = DOCUMENTS.delete(ConsumerDeleted)
ROUTES = (LIST, GET, PAUSE, RESUME, DELETE)

"""/api/consumers: messages that start executions, and the outcome of each."""

from __future__ import annotations

from typing import Annotated

import msgspec

from noetl.api.route import Caller, Query, Services
from noetl.api.routes.trigger_documents import Documents, target_words
from noetl.control import documents
from noetl.control.consumers import ConsumerState
from noetl.model.trigger_answers import (
    ConsumedMessage,
    ConsumerDocument,
    ConsumerItem,
    ConsumerList,
)
from noetl.model.triggers import Consumer, FilesSource, NatsSource, Source


class WhichMessages(Query, frozen=True, kw_only=True):
    """How many messages to return."""

    messages: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 20


async def show(
    services: Services, caller: Caller, *, path: str, query: WhichMessages
) -> ConsumerDocument:
    """A consumer, and the outcome of its last messages."""
    item = await _item(services, *await services.consumers.find(path))
    found = []
    if query.messages:
        found = await services.store.messages.of(path, limit=query.messages)
    return documents.of(
        ConsumerDocument,
        item,
        running=await services.store.messages.open(path),
        messages=[documents.of(ConsumedMessage, one, time=one.at) for one in found],
    )


async def _item(services: Services, consumer: Consumer, state: ConsumerState) -> ConsumerItem:
    source, target = _words(consumer.source), target_words(consumer.target)
    return documents.of(ConsumerItem, consumer, state, source=source, **target)


def _words(source: Source) -> str:
    """The source of the messages, in a few words."""
    match source:
        case NatsSource():
            stream = f"stream {source.stream} " if source.stream else ""
            return f"nats {stream}{source.subject}".rstrip()
        case FilesSource():
            return f"files {source.url.rstrip('/')}/{source.prefix}{source.pattern}"
    return f"postgres {f'table {source.table}' if source.table else f'channel {source.channel}'}"


DOCUMENTS = Documents("consumers", item=_item, show=show, query=WhichMessages)
LIST = DOCUMENTS.listing(ConsumerList)
GET = DOCUMENTS.get()
PAUSE = DOCUMENTS.pause()
RESUME = DOCUMENTS.resume()
DELETE = DOCUMENTS.delete()

"""The routes that all trigger documents share: list, show, pause, resume, delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_type_hints

import msgspec

from noetl.api.route import Body, Caller, Query, Route, Services
from noetl.model.trigger_answers import TriggerDeleted
from noetl.model.triggers import SignalTarget, StartTarget

if TYPE_CHECKING:
    from noetl.control.trigger_documents import TriggerDocuments

Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Page = TypeVar("Page")
Which = TypeVar("Which")
Shown = TypeVar("Shown")
Handler = TypeVar("Handler", bound=Callable[..., Any])


class WhichDocuments(Query, frozen=True, kw_only=True):
    """Which documents."""

    prefix: str = ""
    """Only paths that begin with this."""
    after: str = ""
    """`next_after` of the previous page."""
    limit: Limit = 100


class NamedDocument(Body, frozen=True, kw_only=True):
    """A document by its path."""

    path: str


class PauseDocument(NamedDocument, frozen=True, kw_only=True):
    """Which one, and why."""

    reason: str = ""


class Documents(Generic[Which, Shown]):
    """The routes of one kind. `plural` names it in paths and in the services."""

    def __init__(
        self,
        plural: str,
        *,
        item: Callable[[Services, Any, Any], Awaitable[Any]],
        show: Callable[..., Awaitable[Shown]],
        query: type[Which] | None = None,
        completed: Callable[[Services, list[Any]], Awaitable[list[Any]]] | None = None,
    ) -> None:
        """`item` makes the entry of a list, from a document and its state; `completed` adds to all
        of a page what is asked for once. `show` is the handler that shows one document, as its
        `query` says or by default.
        """
        self._plural = plural
        self._item = item
        self._show = show
        self._query = query
        self._completed = completed
        self._shown = get_type_hints(show)["return"]
        self._path = f"/api/{plural}"

    async def _now(self, services: Services, caller: Caller, path: str) -> Shown:
        """A document as it is now."""
        query = {} if self._query is None else {"query": self._query()}
        return await self._show(services, caller, path=path, **query)

    def _of(self, services: Services) -> TriggerDocuments[Any, Any]:
        found: TriggerDocuments[Any, Any] = getattr(services, self._plural)
        return found

    async def _note(
        self, services: Services, caller: Caller, verb: str, path: str, details: str = ""
    ) -> None:
        action = f"{self._plural.removesuffix('s')}.{verb}"
        await services.access.note(caller.actor, action, path, details=details)

    def listing(self, page: type[Page]) -> Route[WhichDocuments, Any, Page]:
        async def listing(services: Services, caller: Caller, *, query: WhichDocuments) -> Page:
            found = await self._of(services).all(query.prefix, query.after, query.limit + 1)
            listed = found[: query.limit]
            items = [await self._item(services, *one) for one in listed]
            if self._completed is not None:
                items = await self._completed(services, items)
            more = listed[-1][0].path if len(found) > query.limit else None
            return page(**{self._plural: items, "next_after": more})

        listing.__doc__ = f"{self._plural.capitalize()} by path."
        handler = _returns(page, listing)
        name = f"{self._plural}.list"
        return Route(name, "GET", self._path, "read", handler, query=WhichDocuments)

    def get(self) -> Route[Which, Any, Shown]:
        name, path = f"{self._plural}.get", f"{self._path}/{{path}}"
        return Route(name, "GET", path, "read", self._show, query=self._query, deep=True)

    def pause(self) -> Route[Any, PauseDocument, Shown]:
        async def pause(services: Services, caller: Caller, *, body: PauseDocument) -> Shown:
            """It starts nothing until it is resumed. Running executions continue."""
            await self._of(services).pause(body.path, body.reason)
            await self._note(services, caller, "pause", body.path, body.reason)
            return await self._now(services, caller, body.path)

        handler = _returns(self._shown, pause)
        name, path = f"{self._plural}.pause", f"{self._path}/pause"
        return Route(name, "POST", path, "operate", handler, body=PauseDocument)

    def resume(self) -> Route[Any, NamedDocument, Shown]:
        async def resume(services: Services, caller: Caller, *, body: NamedDocument) -> Shown:
            """It continues from now on."""
            await self._of(services).resume(body.path)
            await self._note(services, caller, "resume", body.path)
            return await self._now(services, caller, body.path)

        handler = _returns(self._shown, resume)
        name, path = f"{self._plural}.resume", f"{self._path}/resume"
        return Route(name, "POST", path, "operate", handler, body=NamedDocument)

    def delete(self) -> Route[Any, Any, TriggerDeleted]:
        async def delete(services: Services, caller: Caller, *, path: str) -> TriggerDeleted:
            """It starts nothing any more. Its versions and executions remain."""
            await self._of(services).delete(path)
            await self._note(services, caller, "delete", path)
            return TriggerDeleted(path=path)

        name, path = f"{self._plural}.delete", f"{self._path}/{{path}}"
        return Route(name, "DELETE", path, "author", delete, deep=True)


def target_words(target: StartTarget | SignalTarget) -> dict[str, str | None]:
    """What a document starts or signals, as answers name it."""
    if isinstance(target, StartTarget):
        return {"playbook": target.playbook.path, "signal": None}
    return {"playbook": None, "signal": target.signal}


def _returns(answer: type[Any], handler: Handler) -> Handler:
    """Name the type of the answer, where the handler is annotated with a type variable."""
    handler.__annotations__["return"] = answer
    return handler

"""The routes that all trigger documents share: list, pause, resume, delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec

from noetl.api.route import Body, Caller, Query, Route

if TYPE_CHECKING:
    from noetl.api.services import Services
    from noetl.control.trigger_documents import TriggerDocuments

Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Page = TypeVar("Page")
Item = TypeVar("Item")
Shown = TypeVar("Shown")
Gone = TypeVar("Gone")


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


class Documents(Generic[Item, Shown]):
    """The routes of one kind. `plural` names it in paths and in the services."""

    def __init__(
        self,
        plural: str,
        *,
        item: Callable[[Services, Any, Any], Awaitable[Item]],
        show: Callable[[Services, str], Awaitable[Shown]],
        shown: type[Shown],
    ) -> None:
        self._plural = plural
        self._word = plural.removesuffix("s")
        self._item = item
        self._show = show
        self._shown = shown

    def _of(self, services: Services) -> TriggerDocuments[Any, Any]:
        found: TriggerDocuments[Any, Any] = getattr(services, self._plural)
        return found

    async def _note(self, services: Services, caller: Caller, verb: str, *said: str) -> None:
        await services.access.note(
            caller.name, f"{self._word}.{verb}", said[0], details="".join(said[1:])
        )

    def listing(self, page: type[Page]) -> Route[WhichDocuments, Any, Page]:
        async def listing(services: Services, caller: Caller, *, query: WhichDocuments) -> Page:
            found = await self._of(services).all(query.prefix, query.after, query.limit + 1)
            listed = found[: query.limit]
            items = [await self._item(services, *one) for one in listed]
            more = listed[-1][0].path if len(found) > query.limit else None
            return page(**{self._plural: items, "next_after": more})

        listing.__doc__ = f"{self._plural.capitalize()} by path."
        return Route(
            f"{self._plural}.list",
            "GET",
            f"/api/{self._plural}",
            right="read",
            query=WhichDocuments,
            answer=page,
            handler=listing,
        )

    def pause(self) -> Route[Any, PauseDocument, Shown]:
        async def pause(services: Services, caller: Caller, *, body: PauseDocument) -> Shown:
            await self._of(services).pause(body.path, body.reason)
            await self._note(services, caller, "pause", body.path, body.reason)
            return await self._show(services, body.path)

        pause.__doc__ = "It starts nothing until it is resumed. Running executions continue."
        return Route(
            f"{self._plural}.pause",
            "POST",
            f"/api/{self._plural}/pause",
            right="operate",
            body=PauseDocument,
            answer=self._shown,
            handler=pause,
        )

    def resume(self) -> Route[Any, NamedDocument, Shown]:
        async def resume(services: Services, caller: Caller, *, body: NamedDocument) -> Shown:
            await self._of(services).resume(body.path)
            await self._note(services, caller, "resume", body.path)
            return await self._show(services, body.path)

        resume.__doc__ = "It continues from now on."
        return Route(
            f"{self._plural}.resume",
            "POST",
            f"/api/{self._plural}/resume",
            right="operate",
            body=NamedDocument,
            answer=self._shown,
            handler=resume,
        )

    def delete(self, gone: type[Gone]) -> Route[Any, Any, Gone]:
        async def delete(services: Services, caller: Caller, *, path: str) -> Gone:
            await self._of(services).delete(path)
            await self._note(services, caller, "delete", path)
            return gone(path=path)  # type: ignore[call-arg]

        delete.__doc__ = "It starts nothing any more. Its versions and executions remain."
        return Route(
            f"{self._plural}.delete",
            "DELETE",
            f"/api/{self._plural}/{{path}}",
            right="author",
            answer=gone,
            handler=delete,
            deep=True,
        )

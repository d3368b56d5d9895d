"""/api/notifications: playbooks that are started when executions fail or wait."""

from __future__ import annotations

from noetl.api.route import Caller, Route, Services
from noetl.api.routes.trigger_documents import Documents
from noetl.control import documents
from noetl.control.notifications import NotificationState
from noetl.model.trigger_answers import (
    NotificationDeleted,
    NotificationItem,
    NotificationList,
)
from noetl.model.triggers import Notification


async def show(services: Services, caller: Caller, *, path: str) -> NotificationItem:
    """One notification."""
    return await _shown(services, path)


async def _shown(services: Services, path: str) -> NotificationItem:
    return await _item(services, *await services.notifications.find(path))


async def _item(
    services: Services, rule: Notification, state: NotificationState
) -> NotificationItem:
    return documents.of(NotificationItem, rule, state, playbook=rule.target.playbook.path)


DOCUMENTS = Documents("notifications", item=_item, show=_shown, shown=NotificationItem)
LIST = DOCUMENTS.listing(NotificationList)
GET = Route("notifications.get", "GET", "/api/notifications/{path}", "read", show, deep=True)
PAUSE = DOCUMENTS.pause()
RESUME = DOCUMENTS.resume()
DELETE = DOCUMENTS.delete(NotificationDeleted)
ROUTES = (LIST, GET, PAUSE, RESUME, DELETE)

"""/api/notifications: playbooks that are started when executions fail or wait."""

from __future__ import annotations

from noetl.api.route import Caller, Services
from noetl.api.routes.trigger_documents import Documents
from noetl.control import documents
from noetl.control.notifications import NotificationState
from noetl.model.trigger_answers import (
    NotificationItem,
    NotificationList,
)
from noetl.model.triggers import Notification


async def show(services: Services, caller: Caller, *, path: str) -> NotificationItem:
    """One notification."""
    return await _item(services, *await services.notifications.find(path))


async def _item(
    services: Services, rule: Notification, state: NotificationState
) -> NotificationItem:
    return documents.of(NotificationItem, rule, state, playbook=rule.target.playbook.path)


DOCUMENTS: Documents[None, NotificationItem] = Documents("notifications", item=_item, show=show)
LIST = DOCUMENTS.listing(NotificationList)
GET = DOCUMENTS.get()
PAUSE = DOCUMENTS.pause()
RESUME = DOCUMENTS.resume()
DELETE = DOCUMENTS.delete()

"""/api/vars: the variables of an execution."""

from __future__ import annotations

from typing import Any

from litestar import Request

from noetl.api.manners import Body
from noetl.api.routing import route
from noetl.api.services import Services
from noetl.control.variables import change
from noetl.errors import NotFound

Asked = Request[Any, Any, Any]


class Value(Body, frozen=True, kw_only=True):
    value: Any


@route("GET", "/api/vars/{execution_id:str}", right="read")
async def listing(services: Services, execution_id: str) -> dict[str, Any]:
    """All of them."""
    state = await services.orchestrator.state(execution_id)
    return {"execution_id": execution_id, "vars": state.vars}


@route("GET", "/api/vars/{execution_id:str}/{name:str}", right="read")
async def show(services: Services, execution_id: str, name: str) -> dict[str, Any]:
    """One of them."""
    return {"name": name, "value": await _value(services, execution_id, name)}


async def _value(services: Services, execution_id: str, name: str) -> Any:
    state = await services.orchestrator.state(execution_id)
    if name not in state.vars:
        raise NotFound(f'execution {execution_id} has no variable "{name}".')
    return state.vars[name]


@route("PUT", "/api/vars/{execution_id:str}/{name:str}", right="operate")
async def put(
    services: Services, request: Asked, execution_id: str, name: str, data: Value
) -> dict[str, Any]:
    """Set it; steps that start from now on see it."""
    actor = request.user.actor
    await change(services.orchestrator, execution_id, {name: data.value}, actor=actor)
    return {"name": name, "value": data.value}


@route("DELETE", "/api/vars/{execution_id:str}/{name:str}", right="operate")
async def delete(
    services: Services, request: Asked, execution_id: str, name: str
) -> dict[str, str]:
    """Remove it."""
    await _value(services, execution_id, name)
    actor = request.user.actor
    await change(services.orchestrator, execution_id, {}, removed=(name,), actor=actor)
    return {"deleted": name}


routes = [listing, show, put, delete]

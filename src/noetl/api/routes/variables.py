"""/api/vars: the variables of an execution."""

from __future__ import annotations

from typing import Any

from noetl.api.route import Body, Caller, Route, Services
from noetl.errors import NotFound
from noetl.model.answers import Deleted, Variable, Variables


class Value(Body, frozen=True, kw_only=True):
    """A new value."""

    value: Any


async def listing(services: Services, caller: Caller, *, execution_id: str) -> Variables:
    """All variables of an execution."""
    state = await services.orchestrator.state(execution_id)
    return Variables(execution_id=execution_id, vars=state.vars)


async def show(services: Services, caller: Caller, *, execution_id: str, name: str) -> Variable:
    """One variable of an execution."""
    return Variable(name=name, value=await _value(services, execution_id, name))


async def _value(services: Services, execution_id: str, name: str) -> Any:
    state = await services.orchestrator.state(execution_id)
    if name not in state.vars:
        raise NotFound(f'execution {execution_id} has no variable "{name}".')
    return state.vars[name]


async def put(
    services: Services, caller: Caller, *, execution_id: str, name: str, body: Value
) -> Variable:
    """Set a variable; steps that start from now on see it."""
    await services.orchestrator.change_vars(execution_id, {name: body.value}, actor=caller.actor)
    return Variable(name=name, value=body.value)


async def delete(services: Services, caller: Caller, *, execution_id: str, name: str) -> Deleted:
    """Remove a variable."""
    await _value(services, execution_id, name)
    await services.orchestrator.change_vars(execution_id, {}, removed=(name,), actor=caller.actor)
    return Deleted(deleted=name)


ALL = "/api/vars/{execution_id}"
ONE = "/api/vars/{execution_id}/{name}"
LIST = Route("vars.list", "GET", ALL, "read", listing)
GET = Route("vars.get", "GET", ONE, "read", show)
PUT = Route("vars.put", "PUT", ONE, "operate", put, body=Value)
DELETE = Route("vars.delete", "DELETE", ONE, "operate", delete)

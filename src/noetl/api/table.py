"""All routes of the API in one tuple: what is not here is not served."""

from __future__ import annotations

from noetl.api import openapi
from noetl.api.route import AnyRoute, Route
from noetl.api.routes import (
    access,
    auth,
    catalog,
    commands,
    consumers,
    context,
    credentials,
    desk,
    executions,
    external,
    health,
    hooks,
    language,
    moments,
    notifications,
    playbooks,
    rates,
    results,
    retention,
    schedules,
    tokens,
    variables,
    whatif,
    workers,
)

_MODULES = (
    *(health, catalog, desk, executions, moments, schedules, hooks, consumers),
    *(notifications, external, commands, playbooks, credentials, tokens, rates, variables, context),
    *(language, results, retention, whatif, workers, auth, access, openapi),
)
"""In the order in which the description of the API lists them."""
TABLE: tuple[AnyRoute, ...] = tuple(
    one for module in _MODULES for one in vars(module).values() if isinstance(one, Route)
)
"""Every route that one of these modules defines."""

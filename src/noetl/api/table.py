"""All routes of the API in one visible tuple: nothing is found by magic."""

from __future__ import annotations

from noetl.api.routes import (
    access,
    auth,
    catalog,
    commands,
    context,
    credentials,
    executions,
    external,
    health,
    playbooks,
    results,
    tokens,
    variables,
    workers,
)

TABLE = (
    *health.routes,
    *catalog.routes,
    *executions.routes,
    *external.routes,
    *commands.routes,
    *playbooks.routes,
    *credentials.routes,
    *tokens.routes,
    *variables.routes,
    *context.routes,
    *results.routes,
    *workers.routes,
    *auth.routes,
    *access.routes,
)

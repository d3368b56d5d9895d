"""All routes of the API in one tuple: what is not here is not served."""

from __future__ import annotations

from noetl.api.openapi import ROUTES as DESCRIPTION
from noetl.api.route import AnyRoute
from noetl.api.routes import (
    access,
    auth,
    catalog,
    commands,
    comparisons,
    context,
    credentials,
    desk,
    executions,
    external,
    health,
    hooks,
    language,
    moments,
    playbooks,
    results,
    retention,
    schedules,
    tokens,
    variables,
    whatif,
    workers,
)

TABLE: tuple[AnyRoute, ...] = (
    *health.ROUTES,
    *catalog.ROUTES,
    *desk.ROUTES,
    *executions.ROUTES,
    *comparisons.ROUTES,
    *moments.ROUTES,
    *schedules.ROUTES,
    *hooks.ROUTES,
    *external.ROUTES,
    *commands.ROUTES,
    *playbooks.ROUTES,
    *credentials.ROUTES,
    *tokens.ROUTES,
    *variables.ROUTES,
    *context.ROUTES,
    *language.ROUTES,
    *results.ROUTES,
    *retention.ROUTES,
    *whatif.ROUTES,
    *workers.ROUTES,
    *auth.ROUTES,
    *access.ROUTES,
    *DESCRIPTION,
)

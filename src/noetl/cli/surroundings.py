"""What commands learn from their surroundings: settings, and which server to talk to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from noetl.cli.printing import say

if TYPE_CHECKING:
    from noetl.settings import Settings


def current_settings() -> Settings:
    """The settings in force; says which variables look like settings and are none."""
    from noetl.settings import Settings, unknown_variables

    for remark in unknown_variables(os.environ):
        say(f"warning: {remark}")
    return Settings.from_environment(os.environ)


def with_server(settings: Settings, *, server: str | None, db: str | None) -> Settings:
    """The same settings with the server to talk to, or none if a database is meant.

    The nearest word counts: an option, then the environment, then `noetl context use`.
    """
    from noetl.cli.contexts import contexts
    from noetl.settings import HTTP

    if server is not None:
        try:
            url = HTTP.parse(server)
        except ValueError:
            from noetl.errors import BadSetting

            raise BadSetting(f'--server is {HTTP.expected}, not "{server}".') from None
        known = {one.url: one.token for one in contexts().servers.values()}
        return msgspec.structs.replace(
            settings, server_url=url, token=settings.token or known.get(url)
        )
    if db is not None:
        return msgspec.structs.replace(settings, server_url=None)
    if settings.server_url is not None or os.environ.get("NOETL_DATABASE_URL", "").strip():
        return settings
    chosen = contexts().chosen
    if chosen is None:
        return settings
    return msgspec.structs.replace(
        settings, server_url=chosen.url, token=settings.token or chosen.token
    )

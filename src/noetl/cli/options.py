"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from noetl.errors import BadSetting

if TYPE_CHECKING:
    from noetl.settings import Settings

db_option = click.option(
    "--db", metavar="URL", help="Where executions are kept. Default .noetl/noetl.db."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
set_option = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="A value for the workload, e.g. --set days=3 or --set shop.url=http://…; YAML.",
)
payload_option = click.option(
    "--payload", metavar="JSON", help="The workload as JSON, or @FILE with JSON in it."
)
execution_argument = click.argument("execution", metavar="ID")


def settings_for(db: str | None) -> Settings:
    """The settings in force, with `--db` over the environment."""
    from noetl.cli.context import current_settings

    settings = current_settings()
    if db is not None:
        settings = msgspec.structs.replace(settings, database_url=db)
    scheme, has_scheme, _ = settings.database_url.partition("://")
    if has_scheme and scheme != "sqlite":
        raise BadSetting(
            f"this version keeps executions in SQLite only, not in {scheme}. Name a file:"
            " --db noetl.db or NOETL_DATABASE_URL=sqlite:///noetl.db."
        )
    return settings

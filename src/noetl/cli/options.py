"""Options that several commands share, and the settings they lead to: which server or database."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click
import msgspec

from noetl.cli.completion import executions_beginning_with
from noetl.cli.output import printable, say
from noetl.errors import BadSetting

if TYPE_CHECKING:
    from noetl.settings import Settings

DEFAULT_SERVER = "http://127.0.0.1:8082"

db_option = click.option(
    "--db", metavar="URL", help="The database: a file or postgresql://… Default .noetl/noetl.db."
)
server_option = click.option(
    "--server", metavar="URL", help="The server to use. Default NOETL_SERVER_URL, or the context."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
set_option = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="A value for the workload, in YAML, e.g. --set days=3 or --set shop.url=http://…",
)
payload_option = click.option(
    "--payload", metavar="JSON", help="The workload as JSON, or @FILE with JSON in it."
)
label_option = click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="A label of the execution, e.g. --label team=sales.",
)
execution_argument = click.argument(
    "execution", metavar="ID", shell_complete=executions_beginning_with
)


def labels_of(written: tuple[str, ...]) -> dict[str, str]:
    """Parse `--label NAME=VALUE`, given any number of times."""
    from noetl.model.labels import problems

    found: dict[str, str] = {}
    for item in written:
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f'"{item}" is not NAME=VALUE, e.g. --label team=sales.')
        found[name.strip()] = value
    if wrong := problems(found):
        raise click.BadParameter(" ".join(wrong))
    return found


def current_settings() -> Settings:
    """The current settings; warns about variables that look like settings and are none."""
    from noetl.settings import Settings, unknown_variables

    for remark in unknown_variables(os.environ):
        say(f"warning: {remark}")
    return Settings.from_environment(os.environ)


def with_server(settings: Settings, *, server: str | None, db: str | None) -> Settings:
    """The same settings with the server to talk to, or with none for a database.

    Precedence: an option, then the environment, then `noetl context use`.
    """
    from noetl.cli.context import contexts
    from noetl.settings import HTTP

    if server is not None:
        try:
            url = HTTP.parse(server)
        except ValueError:
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


def settings_for(db: str | None, server: str | None = None) -> Settings:
    """The current settings, with `--db` and `--server` over the environment.

    They name a server if the command acts on one, otherwise a database.
    """
    if db is not None and server is not None:
        raise click.UsageError("--db is a database, --server a server: give only one of them.")
    settings = with_server(current_settings(), server=server, db=db)
    return settings if settings.server_url is not None else _on_database(settings, db)


def local_settings(db: str | None) -> Settings:
    """The current settings, for a command that always works on a database."""
    return _on_database(msgspec.structs.replace(current_settings(), server_url=None), db)


def settings_for_server(server: str | None) -> Settings:
    """The current settings, for a command that needs a server; by default one on this machine."""
    settings = with_server(current_settings(), server=server, db=None)
    if settings.server_url is None:
        settings = msgspec.structs.replace(settings, server_url=DEFAULT_SERVER)
    return settings


def _on_database(settings: Settings, db: str | None) -> Settings:
    if db is not None:
        settings = msgspec.structs.replace(settings, database_url=db)
    scheme, has_scheme, _ = settings.database_url.partition("://")
    if has_scheme and scheme not in ("sqlite", "postgresql"):
        raise BadSetting(
            f"NoETL uses SQLite or PostgreSQL, not {printable(scheme)}. Name a file"
            " (--db noetl.db) or a database (--db postgresql://user:password@host/database)."
        )
    return settings

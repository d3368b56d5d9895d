"""The ways to write a PostgreSQL credential, as the parameters of a connection. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

NAMES = {
    "host": ("host", "db_host", "hostname", "server"),
    "hostaddr": ("hostaddr",),
    "port": ("port", "db_port"),
    "user": ("user", "db_user", "username"),
    "password": ("password", "db_password"),
    "dbname": ("dbname", "db_name", "database"),
    "sslmode": ("sslmode", "db_sslmode"),
    "sslrootcert": ("sslrootcert",),
    "options": ("options",),
    "connect_timeout": ("connect_timeout",),
    "application_name": ("application_name",),
    "target_session_attrs": ("target_session_attrs",),
}
NOWHERE = "/nonexistent/noetl"
NOT_LENT = {"password": "", "passfile": NOWHERE, "sslcert": NOWHERE}
"""What libpq would else look for by itself: in the worker's environment, in its home directory."""
OF_THE_WORKER = ("service", "servicefile", "passfile")
ADDRESSES = ("dsn", "url", "uri", "connection_string", "db_url", "conninfo")


class BadCredential(ValueError):
    """The credential does not say how to connect. Its values are not repeated here."""


def parameters(fields: Mapping[str, Any]) -> dict[str, str]:
    """Parameters by their libpq names, from fields, `db_…` fields, or a DSN or URL in one."""
    found: dict[str, str] = {}
    address = next((fields[name] for name in ADDRESSES if fields.get(name)), None)
    if address is not None:
        found = _from_url(str(address)) if "://" in str(address) else _from_dsn(str(address))
    for parameter, names in NAMES.items():
        value = next((fields[name] for name in names if fields.get(name) is not None), None)
        if value is not None:
            found[parameter] = str(value)
    for name in OF_THE_WORKER:
        if name in found:
            raise BadCredential(
                f"auth: `{name}` names credentials of the worker's own; they are not lent to tasks."
                " Write host, user, password and dbname into the credential."
            )
    if not any(name in found for name in ("host", "hostaddr", "dbname")):
        raise BadCredential(
            "auth: the credential has neither `host` nor `dbname` nor a `dsn`. It needs host, "
            "port, user, password and dbname, or the same as db_host, db_port, …, or a DSN."
        )
    return found


def _from_url(address: str) -> dict[str, str]:
    try:
        parts = urlsplit(address)
        if parts.scheme.partition("+")[0] not in ("postgres", "postgresql"):
            raise ValueError
        found = {
            "host": unquote(parts.hostname or ""),
            "port": str(parts.port or ""),
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "dbname": unquote(parts.path.lstrip("/")),
            **dict(parse_qsl(parts.query)),
        }
    except ValueError:
        raise BadCredential(
            "auth: the credential's address is not like postgresql://user:password@host/database."
        ) from None
    return {name: value for name, value in found.items() if value}


def _from_dsn(text: str) -> dict[str, str]:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return {name: str(value) for name, value in conninfo_to_dict(text).items()}
    except ProgrammingError:
        raise BadCredential(
            "auth: the credential's DSN is not like host=… port=… user=… password=… dbname=…."
        ) from None

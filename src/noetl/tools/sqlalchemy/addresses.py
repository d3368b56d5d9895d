"""Builds the SQLAlchemy URL of each database from the fields of a credential."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from noetl.tools.credentials import text_field
from noetl.tools.sql.postgres import ADDRESSES, NAMES, BadCredential

DRIVERS = {
    "mysql": "mysql+pymysql",
    "snowflake": "snowflake",
    "clickhouse": "clickhousedb",
    "bigquery": "bigquery",
    "mssql": "mssql+pymssql",
    "oracle": "oracle+oracledb",
}
"""The default driver of each kind; the extra that brings it has the name of the kind."""
INSTALLED = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}
"""The driver that every worker has, for URLs that name none. SQLAlchemy would take psycopg2."""


class Address(NamedTuple):
    """The address to connect to, and options for the driver."""

    url: URL
    options: dict[str, Any]


def address(kind: str, written: str | None, fields: Mapping[str, Any]) -> Address:
    """From a URL, from the fields of a credential, or from both. Raises BadCredential."""
    text = written or next((str(fields[name]) for name in ADDRESSES if fields.get(name)), None)
    url = _read(text) if text else _built(kind, fields)
    url = url.set(drivername=INSTALLED.get(url.drivername, url.drivername))
    if text and fields:
        # A password belongs in a credential; the rest may be written in the task.
        user, password = _field(fields, "user"), _field(fields, "password")
        url = url.set(
            username=url.username or user, password=str(url.password or password or "") or None
        )
    return Address(url, _options(kind, fields))


def _read(text: str) -> URL:
    try:
        return make_url(text)
    except (ArgumentError, ValueError):
        raise BadCredential("`url` is not like driver://user@host:port/database.") from None


def _built(kind: str, fields: Mapping[str, Any]) -> URL:
    driver = str(fields.get("driver") or DRIVERS.get(kind) or "")
    if not driver:
        raise BadCredential(
            "auth: the credential has neither `url` nor `driver`, such as mysql+pymysql."
        )
    account = fields.get("account")
    host = account if kind == "snowflake" else _field(fields, "host") or fields.get("project")
    if not host:
        needed = {"snowflake": "account", "bigquery": "project"}.get(kind, "host")
        raise BadCredential(f"auth: the credential has neither `url` nor `{needed}`.")
    port = _field(fields, "port")
    if port and not port.isdigit():
        raise BadCredential("auth: `port` is not a number.")
    return URL.create(
        driver,
        username=_field(fields, "user"),
        password=_field(fields, "password"),
        host=str(host),
        port=int(port) if port else None,
        database=_database(kind, fields),
        query=_query(kind, fields),
    )


def _database(kind: str, fields: Mapping[str, Any]) -> str | None:
    name = _field(fields, "dbname") or fields.get("dataset")
    if kind == "oracle":
        return None if fields.get("service_name") else (fields.get("sid") or name)
    if kind == "snowflake" and name and fields.get("schema"):
        return f"{name}/{fields['schema']}"
    return str(name) if name else None


def _query(kind: str, fields: Mapping[str, Any]) -> dict[str, str]:
    wanted = {
        "snowflake": ("warehouse", "role"),
        "oracle": ("service_name",),
        "clickhouse": ("secure",),
    }.get(kind, ())
    return {name: str(fields[name]) for name in wanted if fields.get(name)}


def _options(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Options for SQLAlchemy itself rather than for the URL."""
    if kind == "bigquery":
        account = fields.get("service_account") or fields.get("credentials_info")
        found = {"credentials_info": account, "location": fields.get("location")}
        return {name: value for name, value in found.items() if value}
    if kind == "snowflake" and fields.get("private_key"):
        key = _private_key(str(fields["private_key"]), fields.get("private_key_passphrase"))
        return {"connect_args": {"private_key": key}}
    return {}


def _private_key(text: str, passphrase: Any) -> bytes:
    """The key in the format of Snowflake's driver."""
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_pem_private_key(
            text.encode(), str(passphrase).encode() if passphrase else None
        )
    except (ValueError, TypeError):
        raise BadCredential(
            "auth: `private_key` is not a private key in PEM form, or its passphrase is wrong."
        ) from None
    return key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _field(fields: Mapping[str, Any], name: str) -> str | None:
    return text_field(fields, *NAMES[name])

"""The egress policy for libraries that open their connections themselves.

They are asked for an address once, before they begin. `http` sees to each connection instead, and
object stores, whose library follows redirects, are reached through a gateway.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from noetl.tools.egress import EgressPolicy
from noetl.tools.resources import Refused
from noetl.tools.sql.pg_credentials import parameters


async def check_egress(policy: EgressPolicy, *urls: str) -> None:
    """Raise Refused if a host of these addresses is, or resolves to, one that is not allowed."""
    for url in urls:
        host = urlsplit(url if "://" in url else f"//{url}").hostname
        if host is None:
            continue
        for address in (host, *await _resolved(host)):
            if refusal := policy.refusal(address):
                raise Refused(f"the egress policy does not allow it: {refusal}.")


async def login_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """How to connect to a PostgreSQL, from a credential's fields; raises Refused."""
    found = parameters(fields)
    await check_database(*found.get("host", "").split(","), *found.get("hostaddr", "").split(","))
    return found


async def check_database(*hosts: str) -> None:
    """Raise Refused for hosts that no task may reach. A database may be in a private network."""
    named = [host for host in hosts if host and not host.startswith("/")]
    await check_egress(EgressPolicy(), *(f"[{host}]" if ":" in host else host for host in named))


async def _resolved(host: str) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        # The library will say so itself when it cannot reach the host.
        return []
    return [str(target[0]) for *_, target in found]

"""The egress policy for libraries that open their connections themselves.

They are asked for an address once, before they begin; `http` sees to each connection instead.
"""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

from noetl.tools.running.egress import EgressPolicy
from noetl.tools.running.resources import Refused


async def check_egress(policy: EgressPolicy, *urls: str) -> None:
    """Raise Refused if a host of these addresses is, or resolves to, one that is not allowed."""
    for url in urls:
        host = urlsplit(url if "://" in url else f"//{url}").hostname
        if host is None:
            continue
        for address in (host, *await _resolved(host)):
            if refusal := policy.refusal(address):
                raise Refused(f"the egress policy does not allow it: {refusal}.")


async def _resolved(host: str) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        # The library will say so itself when it cannot reach the host.
        return []
    return [str(target[0]) for *_, target in found]

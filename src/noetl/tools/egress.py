"""Which addresses a worker may connect to, and how libraries are held to that.

Host names are judged by the addresses they resolve to. Cloud metadata services give the machine's
credentials to every caller, so their addresses are always refused. An IPv6 address that embeds an
IPv4 address is judged as that one.

The HTTP client checks each connection itself. For a library that opens its own connections,
`check_egress` checks the hosts beforehand. A library that also follows redirects gets a proxy on
this machine (`Gateway`), which checks every connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

import msgspec

from noetl.tools.failures import Refused
from noetl.tools.limits import to_thread

METADATA = tuple(
    ip_network(text)
    for text in (
        "169.254.0.0/16",  # link-local: AWS, Google, Azure, DigitalOcean, OpenStack, ECS, EKS
        "fe80::/10",
        "fd00:ec2::/32",  # AWS
        "fd20:ce::254/128",  # Google
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure's platform services
        "192.0.0.192/32",  # Oracle
    )
)
_NAT64 = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))
_COMPATIBLE = ip_network("::/96")
_SHARED = ip_network("100.64.0.0/10")


class EgressPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's choice."""

    private: bool = True
    """Whether addresses of private networks and of the machine itself may be reached."""

    def refusal(self, address: str) -> str | None:
        """Why this address is refused; None if it is allowed. A text that is no address is
        allowed.
        """
        try:
            found = ip_address(address.partition("%")[0].strip("[]"))
        except ValueError:
            return None
        meant = _inside(found) or found
        if any(one in network for one in (found, meant) for network in METADATA):
            return f"{address} belongs to a cloud metadata service or link-local network"
        if not self.private and _is_private(meant):
            return f"{address} lies in a private network, which this worker may not reach"
        return None


def _inside(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """The IPv4 address embedded in an IPv6 address, if any."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in (*_NAT64, _COMPATIBLE)) and int(address) > 1:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _is_private(address: IPv4Address | IPv6Address) -> bool:
    return (
        not address.is_global
        or address.is_multicast
        or (address.version == 4 and address in _SHARED)
    )


# --- Checks before a library connects ----------------------------------------------------------


async def check_egress(policy: EgressPolicy, *urls: str) -> None:
    """Raise Refused if a host of these URLs is, or resolves to, an address that is not allowed."""
    for url in urls:
        try:
            host = urlsplit(url if "://" in url else f"//{url}").hostname
        except ValueError:
            # Its text may hold a password.
            raise Refused(
                "the egress policy does not allow it: no host is written like that."
            ) from None
        if host is None:
            continue
        for address in (host, *await _resolved(host)):
            if refusal := policy.refusal(address):
                raise Refused(f"the egress policy does not allow it: {refusal}.")


async def check_database(*hosts: str) -> None:
    """Raise Refused for hosts that no task may reach. A database may be in a private network."""
    named = [host for host in hosts if host and not host.startswith("/")]
    await check_egress(EgressPolicy(), *(f"[{host}]" if ":" in host else host for host in named))


async def _resolved(host: str) -> list[str]:
    try:
        found = await to_thread(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    except OSError:
        # The library itself will report that it cannot reach the host.
        return []
    return [str(target[0]) for *_, target in found]


# --- A proxy for libraries that follow redirects -----------------------------------------------

logger = logging.getLogger(__name__)

PIECE = 256 * 1024
HEAD_MAX = 64 * 1024
OF_THE_CONNECTION = (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization")
"""Headers for this proxy, not for the server behind it."""


class Unroutable(Exception):
    """The request is refused; carries the status line."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


class Gateway:
    """A proxy on the loopback address, started when it is first needed."""

    def __init__(self, policy: EgressPolicy) -> None:
        self._policy = policy
        self._server: asyncio.Server | None = None
        self._starting = asyncio.Lock()
        self._calls: set[asyncio.Task[None]] = set()

    async def url(self) -> str:
        """Its address, for the library's `proxy` setting."""
        async with self._starting:
            if self._server is None:
                self._server = await asyncio.start_server(
                    self._accepted, "127.0.0.1", 0, limit=HEAD_MAX
                )
        port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.get_running_loop().create_task(self._served(reader, writer))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Each connection carries one request: both sides are told to close it afterwards."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await self._passed_on(head, reader, writer)
        except Unroutable as refusal:
            writer.write(f"HTTP/1.1 {refusal.status}\r\nContent-Length: 0\r\n\r\n".encode())
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            # The client sees a broken connection, as it would without this proxy.
            logger.debug("a connection through the gateway broke: %s", error)
        finally:
            writer.close()

    async def _passed_on(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        first, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        method, _, target = first.decode("latin-1").rpartition(" ")[0].partition(" ")
        if method == "CONNECT":
            there, back = await self._connected(*_host_and_port(f"//{target}", 443))
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            there, back = await self._connected(*_host_and_port(target, 80))
            back.write(_asked_directly(method, target, fields))
        try:
            answering = asyncio.create_task(_piped(there, writer))
            asking = asyncio.create_task(_piped(reader, back))
            await asyncio.wait([answering, asking], return_when=asyncio.FIRST_COMPLETED)
            # A client that has sent everything may still be reading; a server that has answered is
            # done.
            await answering
        finally:
            asking.cancel()
            answering.cancel()
            back.close()
            # How the other side failed is of no interest; the loop would report an unhandled error.
            await asyncio.gather(asking, answering, return_exceptions=True)

    async def _connected(
        self, host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to an address that the policy allows. Raises Unroutable or OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(target[0]) for *_, target in found]
        if any(self._policy.refusal(address) for address in addresses):
            raise Unroutable("403 the egress policy does not allow it")
        *others, last = addresses
        for address in others:
            with suppress(OSError):
                return await asyncio.open_connection(address, port)
        return await asyncio.open_connection(last, port)


def _host_and_port(url: str, usual: int) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or usual
    except ValueError:
        host, port = None, 0
    if not host:
        raise Unroutable("400 this is not an address")
    return host, port


def _asked_directly(method: str, target: str, fields: list[bytes]) -> bytes:
    """The request as it is sent to the host itself."""
    parts = urlsplit(target)
    path = target[target.index(parts.netloc) + len(parts.netloc) :] or "/"
    kept = [one for one in fields if one.split(b":")[0].strip().lower() not in OF_THE_CONNECTION]
    lines = [f"{method} {path} HTTP/1.1".encode("latin-1"), *kept, b"Connection: close"]
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def _piped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()

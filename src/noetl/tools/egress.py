"""Which addresses a worker may talk to. Names are judged by what they resolve to.

The addresses of cloud metadata services hand credentials of the machine to whoever asks, so they
are refused always. An IPv6 address that only wraps an IPv4 address is judged as that.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import msgspec

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
        """Why this address must not be reached; None if it may. What is no address is fine."""
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
    """The IPv4 address that an IPv6 address carries, if any."""
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

"""Addresses of servers, of which some are refused."""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

EMBEDDED = "embedded"
"""As an address: the server of that kind that `cdc-lake stack up` started."""


_METADATA_HOSTS = frozenset(
    {
        *("instance-data", "instance-data.ec2.internal", "metadata", "metadata.azure.internal", "metadata.goog"),
        *("metadata.google.internal", "metadata.internal"),
    }
)


_METADATA_ADDRESSES = frozenset(map(ip_address, ("100.100.100.200", "192.0.0.192", "fd00:ec2::23", "fd00:ec2::254")))
"""Of clouds whose metadata services are not link-local."""


_HOLD_IPV4 = tuple(map(ip_network, ("::/96", "64:ff9b::/96")))
"""Networks of IPv6 whose last 32 bits are an address of IPv4."""


def http_url(value: str) -> str:
    url = urlsplit(value)
    if url.scheme not in ("http", "https") or not url.hostname or "," in value:
        raise ValueError("write one address, `https://host` or `http://host:port`")
    if "@" in url.netloc:
        raise ValueError("an address must not hold a user or a password: see `registry.auth`")
    if url.query or url.fragment:
        raise ValueError("an address ends with its path: leave out what follows `?` or `#`")
    if _is_of_this_machine_only(url.hostname):
        raise ValueError("a link-local address or a metadata service is a machine's own, such as its cloud credentials")
    return value


def _is_of_this_machine_only(host: str) -> bool:
    """Whether a host is link-local or a cloud's metadata service, in any way of writing that resolvers take."""
    try:
        address = ip_address(host)
    except ValueError:
        try:
            address = IPv4Address(socket.inet_aton(host))  # 2852039166, 0xa9.254.43518
        except OSError:
            return host.rstrip(".").lower() in _METADATA_HOSTS
    if isinstance(address, IPv6Address) and (address.ipv4_mapped or any(address in net for net in _HOLD_IPV4)):
        address = IPv4Address(int(address) & 0xFFFFFFFF)
    return address.is_link_local or address in _METADATA_ADDRESSES


HttpUrl = Annotated[str, AfterValidator(http_url)]

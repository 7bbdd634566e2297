"""Server addresses, and the check that rejects unsafe ones."""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

EMBEDDED = "embedded"
"""As an address: the matching server that `cdc-lake stack up` started."""


_METADATA_HOSTS = frozenset(
    {
        *("instance-data", "instance-data.ec2.internal", "metadata", "metadata.azure.internal", "metadata.goog"),
        *("metadata.google.internal", "metadata.internal"),
    }
)


_METADATA_ADDRESSES = frozenset(map(ip_address, ("100.100.100.200", "192.0.0.192", "fd00:ec2::23", "fd00:ec2::254")))
"""Addresses of cloud metadata services that are not link-local."""


_HOLD_IPV4 = tuple(map(ip_network, ("::/96", "64:ff9b::/96")))
"""IPv6 networks whose last 32 bits are an IPv4 address."""


def http_url(value: str) -> str:
    url = urlsplit(value)
    if url.scheme not in ("http", "https") or not url.hostname or "," in value:
        raise ValueError("write one address, `https://host` or `http://host:port`")
    if "@" in url.netloc:
        raise ValueError("an address must not contain a user or a password; set `registry.auth`")
    if url.query or url.fragment:
        raise ValueError("an address must not have a query or a fragment; remove `?` or `#` and what follows")
    if _is_of_this_machine_only(url.hostname):
        raise ValueError("link-local and metadata service addresses are not allowed; write the address of the server")
    return value


def _is_of_this_machine_only(host: str) -> bool:
    """Whether a host is link-local or a cloud's metadata service, in any notation that resolvers accept."""
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

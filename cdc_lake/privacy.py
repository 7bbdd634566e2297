"""Credentials on their way to a server."""

from ipaddress import ip_address
from urllib.parse import urlsplit

from pydantic import SecretStr
from requests.utils import get_environ_proxies

from cdc_lake.errors import ConfigError


def check_privacy(setting: str, url: str, proxy: SecretStr | None = None) -> None:
    """See that nobody between here and a server is told the credentials.

    Args:
        setting: where the address stands.
        url: the server's.
        proxy: the one of the settings; the environment's count, too.

    Raises:
        ConfigError: they would travel in the clear.
    """
    if urlsplit(url).scheme == "https":
        return
    if not is_loopback(urlsplit(url).hostname or ""):
        todo = f"use https, or leave {setting.partition('.')[0]}.auth out"
        raise ConfigError(setting, f"credentials would go to {url} in the clear", todo)
    if proxy or get_environ_proxies(url).keys() & {"http", "all"}:
        raise ConfigError(
            setting,
            f"credentials would go to {url} in the clear, and by way of a proxy",
            f"{'leave registry.proxy out, and ' if proxy else ''}name the host in NO_PROXY",
        )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, as far as its name or address tells."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False

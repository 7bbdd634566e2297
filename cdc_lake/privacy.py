"""Checks that credentials are not sent unencrypted."""

from ipaddress import ip_address
from urllib.parse import urlsplit

from pydantic import SecretStr
from requests.utils import get_environ_proxies

from cdc_lake.errors import ConfigError


def check_privacy(setting: str, url: str, proxy: SecretStr | None = None) -> None:
    """Check that credentials for a server are encrypted on their way, or stay on this machine.

    Args:
        setting: the settings key of `url`, for the message.
        url: the server's URL.
        proxy: the proxy from the settings; proxies from the environment are checked, too.

    Raises:
        ConfigError: the credentials would be sent unencrypted.
    """
    if urlsplit(url).scheme == "https":
        return
    if not is_loopback(urlsplit(url).hostname or ""):
        todo = f"use https, or remove {setting.partition('.')[0]}.auth"
        raise ConfigError(setting, f"credentials would be sent unencrypted to {url}", todo)
    if proxy or get_environ_proxies(url).keys() & {"http", "all"}:
        raise ConfigError(
            setting,
            f"credentials would be sent unencrypted to {url} through a proxy",
            f"{'remove registry.proxy, and ' if proxy else ''}add the host to NO_PROXY",
        )


def is_loopback(host: str) -> bool:
    """Whether a host is `localhost` or a loopback address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False

"""What the settings of all servers share (addresses, logins, certificates, the embedded servers); the registry's."""

import json
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PrivateAttr, SecretStr, ValidationInfo, model_validator

from cdc_lake.config.base import ConfigPath, FileOrReference, Model, SecretReference, check_reference, is_reference
from cdc_lake.errors import ConfigError

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
        what = f"credentials would be sent unencrypted to {url}"
        raise ConfigError(setting, what, "use https, or remove the login")
    from requests.utils import get_environ_proxies  # imported here: it takes long

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


class BasicAuth(Model):
    """A user and a password, or an API key and its secret."""

    user: str = Field(description="Sets the user or the API key.")
    password: SecretReference = Field(description="References the password or the API secret.")


class BearerAuth(Model):
    """A token that another process renews."""

    token: SecretReference = Field(description="References the token. It is read again if the registry rejects it.")


class OAuth(Model):
    """OAuth client credentials: tokens from an identity provider, renewed before they expire."""

    token_url: HttpUrl = Field(description="Sets the provider's token endpoint.")
    client_id: str = Field(description="Sets the client's id.")
    client_secret: SecretReference = Field(description="References the client's secret.")
    scope: str | None = Field(default=None, description="Sets the scopes, separated by spaces.")


class TlsConfig(Model):
    """Certificates, as PEM files."""

    ca: FileOrReference | None = Field(
        default=None, description="Names the CA of the server's certificate, if it is not public."
    )
    cert: FileOrReference | None = Field(
        default=None, description="Names the client's certificate, if the server requires one."
    )
    key: FileOrReference | None = Field(
        default=None, description="Names the private key of `cert`, unencrypted. `cert` may contain it."
    )

    @model_validator(mode="after")
    def _key_has_certificate(self) -> Self:
        if self.key and not self.cert:
            raise ValueError("`key` is the private key of a certificate; set `cert` too")
        return self


def endpoints_file(stack_folder: str | Path) -> Path:
    """The file in which a running embedded stack stores its addresses: a JSON object of strings."""
    return Path(stack_folder) / "endpoints.json"


class StackConfig(Model):
    """The embedded servers of `cdc-lake stack` and `cdc-lake demo`."""

    folder: ConfigPath = Field(
        default=".cdc_lake/stack", description="Sets the folder of their data, logs and addresses."
    )

    def address(self, server: str) -> str:
        """The address of a running server, read each time, because a restart may change it.

        Raises:
            ConfigError: the server is not running.
        """
        file = endpoints_file(self.folder)
        if not file.is_file():
            raise ConfigError(
                f"{server}: embedded",
                f"the embedded servers in {self.folder} are not running",
                "run `cdc-lake stack up`, or write the addresses of your servers with `cdc-lake init`",
            )
        address: str | None = json.loads(file.read_text(encoding="utf-8")).get(server)
        if address is None:
            raise ConfigError(
                f"{server}: embedded",
                f"the embedded servers in {self.folder} were started without this server",
                f"run `cdc-lake stack down`, then `cdc-lake stack up --{server}`",
            )
        return address


class ServerConfig(Model):
    """A section with the address of a server. `Config` gives it the stack that `embedded` refers to."""

    _stack: StackConfig = PrivateAttr(default_factory=StackConfig)

    def _resolved(self, setting: str, server: str) -> str:
        return self._stack.address(server) if setting == EMBEDDED else setting


def _registry_url(value: str) -> str:
    return value if value == EMBEDDED else http_url(value)


def _header(value: str) -> str:
    if not value.isascii() or not value.isprintable():
        raise ValueError("a header's value may have printable ASCII characters only")
    return value


def _header_name(value: str) -> str:
    if not value.replace("-", "").isalnum():
        raise ValueError("a header's name may have letters, digits and hyphens only")
    if value.lower() in ("authorization", "proxy-authorization", "cookie"):
        raise ValueError("headers must not contain credentials; set `registry.auth` or `registry.proxy`")
    return _header(value)


def _proxy(value: str, info: ValidationInfo) -> str:
    if is_reference(value):
        return check_reference(value, info)
    if "@" in urlsplit(value).netloc:
        raise ValueError("a proxy URL with a password is a secret; write a reference such as `env:NAME` or `file:PATH`")
    return http_url(value)


class RegistryAuth(Model):
    """Login to the registry: exactly one of these."""

    basic: BasicAuth | None = None
    bearer: BearerAuth | None = None
    oauth: OAuth | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError("write one of `basic`, `bearer` and `oauth`")
        return self


class RegistryConfig(ServerConfig):
    """The schema registry."""

    type: Literal["apicurio", "confluent", "ccompat", "glue"] = Field(
        default="apicurio", description="Sets the kind of registry. `ccompat`: any registry with Confluent's API."
    )
    url: Annotated[str, AfterValidator(_registry_url)] = Field(
        default=EMBEDDED,
        description="Sets the URL: for apicurio without `/apis` or up to `/apis/registry/v2` or `v3`, for ccompat up "
        "to `/apis/ccompat/v6` or `v7`. `embedded`: the registry of `cdc-lake stack up`; with glue, AWS' own endpoint.",
    )
    ids: Literal["auto", "content", "global"] = Field(
        default="auto", description="Sets the kind of id in Apicurio's frames. Other registries have one kind only."
    )
    context: str | None = Field(
        default=None, pattern=r"^[\w-][\w.-]*$", description="With confluent, names the schema context."
    )
    auth: RegistryAuth | None = None
    tls: TlsConfig = TlsConfig()
    headers: dict[Annotated[str, AfterValidator(_header_name)], Annotated[str, AfterValidator(_header)]] = Field(
        default_factory=dict,
        description="Adds headers to each request, such as Confluent Cloud's `target-sr-cluster`. No secrets.",
    )
    proxy: Annotated[str, AfterValidator(_proxy)] | None = Field(
        default=None, description="Sets the proxy's URL, or a reference to it if it contains a password."
    )
    region: str | None = Field(
        default=None, description="With glue, names the AWS region. Without it: boto3's default region."
    )
    timeout_seconds: float = Field(default=10.0, gt=0, description="Sets the timeout of a request, in seconds.")
    attempts: int = Field(default=4, ge=1, description="Sends a request up to this many times before the run gives up.")

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if self.context and self.type != "confluent":
            raise ValueError("only registries of type `confluent` have a `context`")
        if self.auth and self.type == "glue":
            raise ValueError("glue uses AWS' default credentials; remove `auth`")
        return self

    @property
    def address(self) -> str:
        """The URL without a trailing slash, with `embedded` resolved; see `StackConfig.address`."""
        url = self._resolved(self.url, "registry").rstrip("/")
        return f"{url}/apis/ccompat/v7" if (self.url, self.type) == (EMBEDDED, "ccompat") else url

    @property
    def glue_endpoint(self) -> str | None:
        """The URL of AWS Glue; None for AWS' own endpoint."""
        return None if self.url == EMBEDDED else self.url

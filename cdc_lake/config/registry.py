"""The schema registry."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from cdc_lake.config.base import Model, check_reference, is_reference
from cdc_lake.config.servers import EMBEDDED, BasicAuth, BearerAuth, OAuth, ServerConfig, TlsConfig, http_url


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

"""Logins and certificates that several kinds of servers use."""

from typing import Self

from pydantic import Field, model_validator

from cdc_lake.config.base import Model
from cdc_lake.config.secrets import FileOrReference, SecretReference
from cdc_lake.config.urls import HttpUrl


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

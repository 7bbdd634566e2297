"""Logins and certificates that several servers take."""

from typing import Self

from pydantic import Field, model_validator

from cdc_lake.config.base import Model
from cdc_lake.config.secrets import FileOrReference, SecretReference
from cdc_lake.config.urls import HttpUrl


class BasicAuth(Model):
    """A user and a password, or an API key and its secret."""

    user: str = Field(description="Or the API key.")
    password: SecretReference = Field(description="A reference.")


class BearerAuth(Model):
    """A token that someone else keeps fresh."""

    token: SecretReference = Field(description="A reference; read again when the registry refuses it.")


class OAuth(Model):
    """Client credentials: tokens from an identity provider, renewed before they expire."""

    token_url: HttpUrl = Field(description="The provider's token endpoint.")
    client_id: str
    client_secret: SecretReference = Field(description="A reference.")
    scope: str | None = Field(default=None, description="Several are separated by spaces.")


class TlsConfig(Model):
    """Certificates, as PEM files."""

    ca: FileOrReference | None = Field(
        default=None, description="Authority that signed the server's certificate, if it is not a public one."
    )
    cert: FileOrReference | None = Field(default=None, description="The client's own, for a server that asks for one.")
    key: FileOrReference | None = Field(
        default=None, description="Private key of `cert`, without a password; `cert` may hold it instead."
    )

    @model_validator(mode="after")
    def _key_has_certificate(self) -> Self:
        if self.key and not self.cert:
            raise ValueError("`key` is the private key of a certificate: set `cert` too")
        return self

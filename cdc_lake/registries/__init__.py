"""Schema registries, one module each; `http_client` sends the requests."""

from typing import TYPE_CHECKING

from cdc_lake.config import RegistryConfig
from cdc_lake.errors import InstallationError, UnsupportedError
from cdc_lake.registries.credentials import access_to
from cdc_lake.registries.registry import Registry
from cdc_lake.registries.subjects import Subjects

if TYPE_CHECKING:
    from cdc_lake.registries.apicurio import ApicurioRegistry
    from cdc_lake.registries.confluent import ConfluentRegistry


def open_registry(settings: RegistryConfig) -> Registry:
    """The registry, without a request to it.

    Raises:
        ConfigError: the settings lack its URL, or would send credentials unencrypted.
        InstallationError: its client is not installed.
    """
    if settings.type == "glue":
        try:
            from cdc_lake.registries.glue import GlueRegistry
        except ModuleNotFoundError as exc:
            cure = "pip install 'cdc-lake[aws]'"
            raise InstallationError("registry.type: glue", f"{exc.name} is not installed", cure) from exc
        return GlueRegistry(settings)
    return _by_http(settings)


def open_subjects(settings: RegistryConfig) -> Subjects:
    """The registry, to register schemas in. This checks that it responds.

    Raises:
        ConfigError: the settings lack its URL, or would send credentials unencrypted; or it rejects them.
        UnsupportedError: this version cannot register schemas in a registry of this type.
        InfrastructureError: it does not respond.
    """
    if settings.type == "glue":
        cure = "use `apicurio`, `confluent` or `ccompat`"
        raise UnsupportedError("registry.type: glue", "cdc_lake cannot register schemas in Glue", cure)
    subjects = _by_http(settings)
    subjects.check()
    return subjects


def _by_http(settings: RegistryConfig) -> "ApicurioRegistry | ConfluentRegistry":
    endpoint, credentials = access_to(settings)
    # Imported here, because their clients take long to import.
    if settings.type == "apicurio":
        from cdc_lake.registries.apicurio import ApicurioRegistry

        return ApicurioRegistry(endpoint, credentials, ids=settings.ids)
    from cdc_lake.registries.confluent import ConfluentRegistry

    return ConfluentRegistry(endpoint, credentials, name=settings.type, context=settings.context)

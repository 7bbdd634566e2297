"""Schema registries, one module each; `http_client` sends the requests."""

from typing import TYPE_CHECKING

from cdc_lake.config import Config, registry_address
from cdc_lake.errors import InstallationError, UnsupportedError
from cdc_lake.registries.access import access_to
from cdc_lake.registries.registry import Registry
from cdc_lake.registries.subjects import Subjects

if TYPE_CHECKING:
    from cdc_lake.registries.apicurio import ApicurioRegistry
    from cdc_lake.registries.confluent import ConfluentRegistry


def open_registry(config: Config) -> Registry:
    """The settings' registry, without a request to it.

    Raises:
        ConfigError: the settings lack its URL, or would send credentials unencrypted.
        InstallationError: its client is not installed.
    """
    if config.registry.type == "glue":
        try:
            from cdc_lake.registries.glue import GlueRegistry
        except ModuleNotFoundError as exc:
            todo = "pip install 'cdc-lake[aws]'"
            raise InstallationError("registry.type: glue", f"{exc.name} is not installed", todo) from exc
        return GlueRegistry(config.registry)
    return _by_http(config)


def open_subjects(config: Config) -> Subjects:
    """The settings' registry, to register schemas in. This checks that it responds.

    Raises:
        ConfigError: the settings lack its URL, or would send credentials unencrypted; or it rejects them.
        UnsupportedError: this version cannot register schemas in a registry of this type.
        InfrastructureError: it does not respond.
    """
    if config.registry.type == "glue":
        todo = "use `apicurio`, `confluent` or `ccompat`"
        raise UnsupportedError("registry.type: glue", "cdc_lake cannot register schemas in Glue", todo)
    subjects = _by_http(config)
    subjects.check()
    return subjects


def _by_http(config: Config) -> "ApicurioRegistry | ConfluentRegistry":
    settings = config.registry
    endpoint, credentials = access_to(settings, registry_address(config))
    # Imported here, because their clients take long to import.
    if settings.type == "apicurio":
        from cdc_lake.registries.apicurio import ApicurioRegistry

        return ApicurioRegistry(endpoint, credentials, ids=settings.ids)
    from cdc_lake.registries.confluent import ConfluentRegistry

    return ConfluentRegistry(endpoint, credentials, name=settings.type, context=settings.context)

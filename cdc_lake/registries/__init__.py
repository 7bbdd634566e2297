"""The registries, one file each, and what they share (`access`)."""

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
    """The settings' registry. Nothing is asked of it yet.

    Raises:
        ConfigError: the settings do not say how to reach it, or would give credentials away.
        InstallationError: the client it takes is not installed.
    """
    if config.registry.type == "glue":
        try:
            from cdc_lake.registries.glue import GlueRegistry
        except ModuleNotFoundError as exc:
            todo = "install cdc-lake with its extra `aws`"
            raise InstallationError("registry.type: glue", f"{exc.name} is not installed", todo) from exc
        return GlueRegistry(config.registry)
    return _by_http(config)


def open_subjects(config: Config) -> Subjects:
    """The same for who registers schemas. It is seen to answer.

    Raises:
        ConfigError: the settings do not say how to reach it, or would give credentials away; or it refuses them.
        UnsupportedError: it is of a type that this version does not register in.
        InfrastructureError: it does not answer.
    """
    if config.registry.type == "glue":
        todo = "use `apicurio`, `confluent` or `ccompat`"
        raise UnsupportedError("registry.type: glue", "schemas are read from Glue, and never registered there", todo)
    subjects = _by_http(config)
    subjects.check()
    return subjects


def _by_http(config: Config) -> "ApicurioRegistry | ConfluentRegistry":
    settings = config.registry
    endpoint, credentials = access_to(settings, registry_address(config))
    # Each brings a client of its own along, which takes its time to import.
    if settings.type == "apicurio":
        from cdc_lake.registries.apicurio import ApicurioRegistry

        return ApicurioRegistry(endpoint, credentials, ids=settings.ids)
    from cdc_lake.registries.confluent import ConfluentRegistry

    return ConfluentRegistry(endpoint, credentials, name=settings.type, context=settings.context)

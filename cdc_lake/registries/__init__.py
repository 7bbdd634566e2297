"""The registries, one file each, and what they share (`access`)."""

from cdc_lake.config import Config, registry_address
from cdc_lake.errors import InstallationError
from cdc_lake.registries.access import access_to
from cdc_lake.registries.registry import Registry


def open_registry(config: Config) -> Registry:
    """The settings' registry. Nothing is asked of it yet.

    Raises:
        ConfigError: the settings do not say how to reach it, or would give credentials away.
        InstallationError: the client it takes is not installed.
    """
    settings = config.registry
    # Each brings a client of its own along, which takes its time to import.
    if settings.type == "glue":
        try:
            from cdc_lake.registries.glue import GlueRegistry
        except ModuleNotFoundError as exc:
            todo = "install cdc-lake with its extra `aws`"
            raise InstallationError("registry.type: glue", f"{exc.name} is not installed", todo) from exc
        return GlueRegistry(settings)
    endpoint, credentials = access_to(settings, registry_address(config))
    if settings.type == "apicurio":
        from cdc_lake.registries.apicurio import ApicurioRegistry

        return ApicurioRegistry(endpoint, credentials, ids=settings.ids)
    from cdc_lake.registries.confluent import ConfluentRegistry

    return ConfluentRegistry(endpoint, credentials, name=settings.type, context=settings.context)

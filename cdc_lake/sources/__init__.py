"""Where records and their schemas come from: the broker, the registry, the lake's own schema files."""

"""Where records and their schemas come from: the broker, the lake's own schema files."""

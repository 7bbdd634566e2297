"""State of the lake: opening tables, leases, side tables and schema files."""

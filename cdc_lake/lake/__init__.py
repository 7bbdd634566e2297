"""The lake's state: opening tables, leases, side tables and schema files."""

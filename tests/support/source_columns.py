"""Columns of a Postgres table, as its catalog describes them."""

from cdc_lake.reconcile.postgres_catalog import SourceColumn

PLAIN = SourceColumn(
    *("a column", "text", "b"),
    is_array=False,
    is_nullable=True,
    has_default=False,
    is_generated=False,
    key_place=None,
    is_unique=False,
    is_reference=False,
)
"""A nullable text without any other trait."""

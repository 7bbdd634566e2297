"""Grouped settings of a table, combined for tests."""

from collections.abc import Mapping
from typing import Any


def patched(settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Merge settings into others, key by key in each group, as `Config.table` merges them into the defaults."""
    groups = {group: {**settings.get(group, {}), **keys} for group, keys in more.items() if isinstance(keys, Mapping)}
    return {**settings, **more, **groups}

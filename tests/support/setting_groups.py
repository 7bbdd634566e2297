"""Settings of a table in groups, as tests put them together."""

from collections.abc import Mapping
from typing import Any


def patched(settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with others on top, key by key of each group, as `Config.table` patches the defaults."""
    groups = {group: {**settings.get(group, {}), **keys} for group, keys in more.items() if isinstance(keys, Mapping)}
    return {**settings, **more, **groups}

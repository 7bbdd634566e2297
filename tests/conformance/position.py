"""A change's position in the source's log, from a connector's source block. Lists compare from the left."""

from collections.abc import Mapping
from typing import Any

from support.reference import SHARED

Position = tuple[int, ...] | None


def position_of(connector: str, given: int | Mapping[str, Any] | None) -> tuple[Position, str | None]:
    """The position and its domain: positions compare only within one domain. Null means unknown."""
    if given is None:
        return None, "pagila"
    if isinstance(given, int):
        return (given,), "pagila"
    if connector == "mysql":
        base, suffix = given["file"].rsplit(".", 1)
        return (int(suffix), given["pos"], SHARED), f"{given['server_id']}/{base}"
    if connector == "sqlserver":
        return (*(int(part, 16) for part in given["commit_lsn"].split(":")), SHARED), "pagila"
    scn = given.get("commit_scn") or given.get("scn")
    return (None if scn is None else (int(scn), SHARED)), "pagila"

"""A change's position in the source's log, from a connector's source block. Lists compare from the left."""

from collections.abc import Mapping
from typing import Any

Position = tuple[int, ...] | None


def position_of(connector: str, given: int | Mapping[str, Any] | None) -> tuple[Position, str | None]:
    """The position and its domain: positions compare only within one domain. Null means unknown."""
    if given is None:
        return None, "pagila"
    if isinstance(given, int):
        return (given,), "pagila"
    if connector == "mysql":
        base, suffix = given["file"].rsplit(".", 1)
        return (int(suffix), given["pos"], given["row"]), f"{given['server_id']}/{base}"
    if connector == "sqlserver":
        parts = [int(part, 16) for name in ("commit_lsn", "change_lsn") for part in given[name].split(":")]
        return (*parts, given["event_serial_no"]), "pagila"
    if any(given.get(name) is None for name in ("commit_scn", "scn", "rs_id", "ssn")):
        return None, "pagila"
    redo = (int(part, 16) for part in given["rs_id"].removeprefix("0x").split("."))
    return (int(given["commit_scn"]), int(given["scn"]), *redo, given["ssn"]), "pagila"

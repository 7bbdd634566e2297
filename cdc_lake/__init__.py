"""Debezium change events from Kafka into lakehouse tables: the front door for notebooks and programs.

    import cdc_lake

    films = cdc_lake.read(spark, "pagila.public.film", as_of="2026-11-23T12:00:00Z")

docs/how-to/time-travel.md has more. What is behind the functions, Spark above all, is loaded when one is called.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cdc_lake.config import Config
    from cdc_lake.operations.story import Story
    from cdc_lake.points import Offset, Point, SourceTime

__all__ = ["Offset", "SourceTime", "changes", "load_config", "read", "story"]


def __getattr__(name: str) -> Any:
    if name not in ("Offset", "SourceTime"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cdc_lake import points

    return getattr(points, name)


def load_config(path: str | Path | None = None) -> "Config":
    """The settings of a file; without one of the file that a run without `--config` takes.

    Raises:
        ConfigError: there is no such file, or something in it is wrong.
    """
    from cdc_lake.config import load_config

    return load_config(path)


def read(
    spark: "SparkSession",
    table: str,
    *,
    layer: Literal["bronze", "silver", "gold"] = "silver",
    as_of: "Point | None" = None,
    config: "Config | None" = None,
) -> "DataFrame":
    """A table, now or as it was.

    Args:
        spark: the session.
        table: the topic; of gold the model. Silver that is held in several tables is the first of them, and
            `<topic>@hudi_mor` and the like another.
        layer: bronze: the records as they were landed; silver; gold.
        as_of: a number: the version, as the table's engine counts (Delta) or names (Hudi) it. A time, a datetime with a
            zone or ISO text with one: the newest version that was committed by then. Silver only: `SourceTime`, the
            fold of the events that had happened by then; `Offset`, the fold of those before a place in Kafka. The
            newest version, if nothing is said.
        config: the settings; `load_config()`, if none are given.

    Returns:
        The table's columns: of silver the source's and its own (`__op`, `__deleted`, …), deleted rows that stay
        included. What was folded from bronze has null in `__batch`, because it is no commit of silver's.

    Raises:
        UnknownTableError: there is no such table; the message names the nearest.
        ConfigError: `as_of` is none of these, or a time without a zone.
        ExpiredError: the table has no such version, or has it no more; the message says which it has.
        TimeTravelError: bronze cannot tell this source time or offset; the message says which it can.
    """
    from cdc_lake.operations import time_travel as travel

    return travel.read(config or load_config(), table, spark, layer=layer, as_of=as_of)


def changes(
    spark: "SparkSession", table: str, *, since: "Point", until: "Point | None" = None, config: "Config | None" = None
) -> "DataFrame":
    """What became of a silver table's rows between two points.

    Args:
        spark: the session.
        table: as in `read`.
        since: the point before, as `as_of` takes it.
        until: the point behind; now, if nothing is said.
        config: the settings; `load_config()`, if none are given.

    Returns:
        Silver's columns and `_change_type`: `insert`, `delete` with the row as it was, or, two rows of one key,
        `update_preimage` and `update_postimage`. At most one change for each key, however often it changed in between.
        Rows whose source columns are the same are left out; a soft-deleted row is a deleted one.

    Raises:
        UnknownTableError, ConfigError, ExpiredError, TimeTravelError: see `read`.
    """
    from cdc_lake.operations import time_travel as travel

    return travel.changes(config or load_config(), table, spark, since=since, until=until)


def story(spark: "SparkSession", table: str, key: str, *, config: "Config | None" = None) -> "Story":
    """One row's life: every event of its key, what it changed, and why it won, lost or was set aside.

    Args:
        spark: the session.
        table: the topic.
        key: its value, `column=value` pairs separated by commas, or a JSON object of its columns.
        config: the settings; `load_config()`, if none are given.

    Raises:
        UnknownTableError: there is no such bronze table.
        ConfigError: bronze has no event of this key.
    """
    from cdc_lake.operations.story import story

    return story(config or load_config(), table, key, spark)

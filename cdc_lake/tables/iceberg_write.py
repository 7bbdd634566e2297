"""Writes to an Iceberg table: the properties of new tables, SQL statements, and maintenance."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from cdc_lake.columns import DELETE, KEEP, quoted
from cdc_lake.config import PartitionField
from cdc_lake.spark.session import session_settings
from cdc_lake.tables.iceberg_metadata import ICEBERG_FOLDER
from cdc_lake.tables.progress import METADATA_KEY, Progress

IcebergType = Literal["cow", "mor"]
MERGE_MODE = "write.merge.mode"
MODES: Mapping[IcebergType, str] = {"cow": "copy-on-write", "mor": "merge-on-read"}
_VERSIONS: Mapping[IcebergType, str] = {"cow": "2", "mor": "3"}
_DEFAULTS = {
    "write.wap.enabled": "true",
    "write.parquet.compression-codec": "zstd",
    # Each commit writes a new file with all metadata.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "history.expire.max-snapshot-age-ms": str(5 * 24 * 3600 * 1000),
}
_STAGE = "spark.wap.id"
"""With this setting of the session, Spark stages what it writes ("write, audit, publish")."""
_ORPHAN_SECONDS = 3 * 24 * 3600
"""Files without a reference are removed at this age: younger ones may belong to a running commit."""
_CONFLICTS = (
    *("ValidationException", "CommitFailedException", "is not an ancestor of"),
    *("AlreadyExistsException", "TABLE_OR_VIEW_ALREADY_EXISTS"),
    "Cannot add snapshot with sequence number",  # a REST catalog's, with status 400, if both stage at the same moment
)


def properties_of_new_table(path: str, table_type: IcebergType, own: Mapping[str, str]) -> dict[str, str]:
    """The properties of a new table, without its location.

    Args:
        own: the properties in the settings, which override the defaults.
    """
    return {
        **_DEFAULTS,
        **own,
        **{f"write.{operation}.mode": MODES[table_type] for operation in ("merge", "update", "delete")},
        "format-version": _VERSIONS[table_type],
        "write.data.path": path,
        "write.metadata.path": f"{path}/{ICEBERG_FOLDER}",
    }


def transform(field: PartitionField) -> str:
    """Iceberg's name of a partition transform."""
    name = "identity" if field.part == "value" else field.part
    return f"{name}[{field.number}]" if field.number else name


def create_statement(
    verb: Literal["CREATE", "REPLACE"],
    table: str,
    view: str,
    path: str,
    partitions: Sequence[PartitionField],
    properties: Mapping[str, str],
) -> str:
    """A statement that creates or replaces a table with the rows of a view."""
    fields = ", ".join(map(_partition, partitions))
    listed = ", ".join(f"{_literal(name)} = {_literal(value)}" for name, value in properties.items())
    return (
        f"{verb} TABLE {table} USING iceberg {f'PARTITIONED BY ({fields})' if fields else ''} "
        f"LOCATION {_literal(path)} TBLPROPERTIES ({listed}) AS SELECT * FROM {view}"
    )


def merge_statement(table: str, view: str, columns: Sequence[str], keys: Sequence[str]) -> str:
    """A MERGE of a view with the table's `columns`, `__keep` and `__delete`."""
    same = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in keys)
    updated = ", ".join(f"t.{quoted(name)} = {_kept_or_sent(name)}" for name in columns if name not in keys)
    update = f"WHEN MATCHED THEN UPDATE SET {updated} " if updated else ""
    sent = ", ".join(f"s.{quoted(name)}" for name in columns)
    return (
        f"MERGE INTO {table} t USING {view} s ON {same} WHEN MATCHED AND s.{DELETE} THEN DELETE {update}"
        f"WHEN NOT MATCHED AND NOT s.{DELETE} THEN INSERT ({_listed(columns)}) VALUES ({sent})"
    )


def insert_statement(table: str, view: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({_listed(columns)}) SELECT {_listed(columns)} FROM {view}"


def stage(rows: DataFrame, statement: Callable[[str], str], progress: Progress) -> None:
    """Execute a statement as `write` does, but stage what it writes."""
    with session_settings(rows.sparkSession, {_STAGE: progress.nonce}):
        write(rows, statement, progress)


def write(rows: DataFrame, statement: Callable[[str], str], progress: Progress) -> None:
    """Execute a statement that commits rows, with the progress as a property of the snapshot.

    Iceberg takes such properties from the thread that runs a Callable in `CommitMetadata.withCommitProperties`; for
    Spark 3.5 there is no other way. This Callable calls `SparkSession.sql`, which executes a statement at once.

    Args:
        rows: the rows to write.
        statement: returns the statement for the name of a view with them.
    """
    spark = rows.sparkSession
    jvm: Any = spark._jvm
    view = f"cdc_lake_{progress.nonce}"
    rows.createOrReplaceTempView(view)
    handles, named = jvm.java.lang.invoke.MethodHandles, jvm.java.lang.Class.forName
    session = spark._jsparkSession
    text = _array(spark, jvm.java.lang.Class, named("java.lang.String"))
    method = handles.publicLookup().unreflect(session.getClass().getMethod("sql", text))
    arguments = _array(spark, jvm.java.lang.Object, session, statement(view))
    call = jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(
        named("java.util.concurrent.Callable"), handles.insertArguments(method, 0, arguments)
    )
    properties, error = {METADATA_KEY: progress.to_metadata()}, named("java.lang.RuntimeException")
    try:
        jvm.org.apache.iceberg.spark.CommitMetadata.withCommitProperties(properties, call, error)
    finally:
        spark.catalog.dropTempView(view)


def compact(spark: SparkSession, table: Any) -> int:
    """Compact small files, and those of which many rows are deleted. Returns the number of files written."""
    return int(_actions(spark).rewriteDataFiles(table).execute().addedDataFilesCount())


def remove_old_files(spark: SparkSession, load: Callable[[], Any]) -> None:
    """Expire the snapshots past retention, and remove files that no snapshot has.

    Args:
        load: returns Iceberg's newest state of the table.
    """
    _actions(spark).expireSnapshots(load()).execute()
    oldest_ms = int(1000 * (time.time() - _ORPHAN_SECONDS))
    _actions(spark).deleteOrphanFiles(load()).olderThan(oldest_ms).execute()


def table_cache(spark: SparkSession) -> Any:
    """Iceberg's `SparkTableCache`, by reflection: Py4J looks only at the first of its two methods `get` that Java
    lists, in no fixed order.
    """
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    found = jvm.java.lang.Class.forName("org.apache.iceberg.spark.SparkTableCache", True, loader)
    get = found.getMethod("get", _array(spark, jvm.java.lang.Class))
    return get.invoke(None, _array(spark, jvm.java.lang.Object))


def is_conflict(error: Py4JError) -> bool:
    """Whether another commit came first."""
    return any(sign in str(error) for sign in _CONFLICTS)


def _actions(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.iceberg.spark.actions.SparkActions.get(spark._jsparkSession)


def _array(spark: SparkSession, kind: Any, *values: Any) -> Any:
    gateway: Any = spark.sparkContext._gateway
    array = gateway.new_array(kind, len(values))
    for number, value in enumerate(values):
        array[number] = value
    return array


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def _kept_or_sent(name: str) -> str:
    """`joins.kept_or_sent` as SQL."""
    column = quoted(name)
    return f"CASE WHEN array_contains(s.{KEEP}, {_literal(name)}) THEN t.{column} ELSE s.{column} END"


def _partition(field: PartitionField) -> str:
    column = quoted(field.column)
    if field.part == "value":
        return column
    return f"{field.part}({f'{field.number}, ' if field.number else ''}{column})"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

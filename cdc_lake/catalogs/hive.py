"""A Hive metastore through Hive's client, which Spark includes; on EMR with Glue this is Glue's client.

The session's catalog is not used: a session with a metastore as its catalog calls it on every action, and waits while
it is down (docs/explanation/runs.md, "Catalogs").
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JJavaError

from cdc_lake.catalogs.catalog import PATH, Entry, HiveColumn, Listing, delta_listing, differences, hudi_listings
from cdc_lake.config import CatalogConfig
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError
from cdc_lake.storage.hadoop import message_of

_URIS = "hive.metastore.uris"
_FACTORY = "hive.metastore.client.factory.class"
_DOWN = ("TTransportException", "ConnectException", "SocketTimeoutException", "UnknownHostException")
_OTHER_COLUMNS = "types incompatible with the existing columns"
"""Error of a metastore, which accepts additional last columns but no other types for the columns that it has."""
_KEEP_FILES_IF_EXISTS = False, True
"""Arguments of dropping a table: keep its files, and ignore a missing one."""


class HiveCatalog:
    """A metastore's databases and tables; see `cdc_lake.catalogs.Catalog`.

    Args:
        conf: Hadoop's configuration, which has the metastore's address if the settings do not.

    Raises:
        ConfigError: the metastore's address is not set.
    """

    def __init__(self, jvm: Any, conf: Any, settings: CatalogConfig) -> None:
        uris = settings.address
        self._jvm = jvm
        self._api = jvm.org.apache.hadoop.hive.metastore.api
        conf_class = jvm.java.lang.Class.forName("org.apache.hadoop.hive.conf.HiveConf")
        self._conf = jvm.org.apache.hadoop.hive.conf.HiveConf(conf, conf_class)
        self._hive = jvm.org.apache.hadoop.hive.ql.metadata.Hive
        if uris:
            self._conf.set(_URIS, uris)
        self._where = self._conf.get(_URIS, "") or "the cluster's catalog"
        if not self._conf.get(_URIS, "") and not self._conf.get(_FACTORY, ""):
            cure = "set `catalog.uri`, or run on a machine whose hive-site.xml has it"
            raise ConfigError("catalog", "the metastore's address is not set", cure)
        # Hive's defaults are ten minutes, and nine attempts a second apart.
        for name, value in (
            ("hive.metastore.client.socket.timeout", f"{settings.timeout_seconds * 1000:.0f}ms"),
            ("hive.metastore.connect.retries", "1"),
            ("hive.metastore.failure.retries", "0"),
            ("hive.metastore.client.connect.retry.delay", "0s"),
        ):
            self._conf.set(name, value)

    def listings(self, entry: Entry) -> tuple[Listing, ...]:
        return (delta_listing(entry),) if entry.kind == "delta" else hudi_listings(entry)

    def found(self, database: str, names: Collection[str] | None = None) -> dict[str, Listing]:
        with self._client() as client:
            if database not in client.getAllDatabases():
                return {}
            there = client.getAllTables(database)
            # One by one, because Hive's client needs a session of Hive to get several.
            return {name: _listing(client.getTable(database, name)) for name in there if names is None or name in names}

    def put(self, entry: Entry) -> None:
        """See `Catalog`. A Hudi table is listed by Hudi's own sync."""
        with self._client() as client:
            if entry.database not in client.getAllDatabases():
                client.createDatabase(self._api.Database(entry.database, None, None, self._map({})))
        if entry.kind == "delta":
            self._put_as_listed(entry)
            return
        self._sync_hudi(entry)
        if any(_differs_beyond_comments(*pair) for pair in self._pairs(entry)):
            # Hudi's sync does not correct manual changes.
            for name in entry.names:
                self.drop(entry.database, name)
            self._sync_hudi(entry)
        self._put_as_listed(entry)

    def drop(self, database: str, name: str) -> None:
        with self._client() as client:
            if database in client.getAllDatabases():
                client.dropTable(database, name, *_KEEP_FILES_IF_EXISTS)

    def _put_as_listed(self, entry: Entry) -> None:
        """Create missing listings and alter different ones: for Hudi the comments, which its sync does not write."""
        with self._client() as client:
            for wanted, current in self._pairs(entry):
                if current is None:
                    client.createTable(self._table(self._api.Table(), wanted))
                elif differences(wanted, current):
                    self._alter(client, wanted)

    def _alter(self, client: Any, wanted: Listing) -> None:
        stored = client.getTable(wanted.database, wanted.name)
        try:
            client.alter_table(wanted.database, wanted.name, self._table(stored, wanted))
        except Py4JJavaError as exc:
            if _OTHER_COLUMNS not in str(exc):
                raise
            client.dropTable(wanted.database, wanted.name, *_KEEP_FILES_IF_EXISTS)
            client.createTable(self._table(self._api.Table(), wanted))

    def _pairs(self, entry: Entry) -> list[tuple[Listing, Listing | None]]:
        """The wanted listings, each with the one in the catalog."""
        listed = self.found(entry.database, entry.names)
        return [(wanted, listed.get(wanted.name)) for wanted in self.listings(entry)]

    def _sync_hudi(self, entry: Entry) -> None:
        sync = "hoodie.datasource.hive_sync"
        extractor = "MultiPartKeysValueExtractor" if entry.partition_by else "NonPartitionedExtractor"
        settings = {
            "hoodie.datasource.meta.sync.base.path": entry.path,
            f"{sync}.mode": "hms",
            **({f"{sync}.metastore.uris": uris} if (uris := self._conf.get(_URIS, "")) else {}),
            f"{sync}.database": entry.database,
            f"{sync}.table": entry.name,
            f"{sync}.partition_fields": ",".join(entry.partition_by),
            f"{sync}.partition_extractor_class": f"org.apache.hudi.hive.{extractor}",
            f"{sync}.support_timestamp": "true",
            f"{sync}.table_properties": f"{PATH}={entry.path}",
        }
        properties = self._jvm.java.util.Properties()
        for name, value in settings.items():
            properties.setProperty(name, value)
        with self._translated():
            tool = self._jvm.org.apache.hudi.hive.HiveSyncTool(properties, self._conf)
            try:
                tool.syncHoodieTable()
            finally:
                tool.close()

    def _table(self, table: Any, listing: Listing) -> Any:
        """A table of Hive's client, updated from a listing; its other fields stay."""
        storage = table.getSd() or self._api.StorageDescriptor()
        serde = storage.getSerdeInfo() or self._api.SerDeInfo()
        serde.setSerializationLib(listing.serialization_library)
        serde.setParameters(self._map({**dict(serde.getParameters() or {}), **listing.serde}))
        storage.setSerdeInfo(serde)
        storage.setCols(self._columns(listing.columns))
        storage.setLocation(listing.location)
        storage.setInputFormat(listing.input_format)
        storage.setOutputFormat(listing.output_format)
        table.setDbName(listing.database)
        table.setTableName(listing.name)
        table.setTableType("EXTERNAL_TABLE")
        table.setSd(storage)
        table.setPartitionKeys(self._columns(listing.partition_by))
        table.setParameters(self._map({**dict(table.getParameters() or {}), **listing.parameters}))
        return table

    def _columns(self, columns: Collection[HiveColumn]) -> Any:
        return self._list(self._api.FieldSchema(column.name, column.type, column.comment) for column in columns)

    def _list(self, values: Any) -> Any:
        java_list = self._jvm.java.util.ArrayList()
        for value in values:
            java_list.add(value)
        return java_list

    def _map(self, values: Mapping[str, str]) -> Any:
        java_map = self._jvm.java.util.HashMap()
        for name, value in values.items():
            java_map.put(name, value)
        return java_map

    @contextmanager
    def _client(self) -> Iterator[Any]:
        with self._translated():
            # From Hive's session, because a cluster may have configured another client.
            yield self._hive.get(self._conf).getMSC()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as exc:
            self._hive.closeCurrent()
            if any(sign in str(exc) for sign in _DOWN):
                cure = "check that it runs and that `catalog.uri` is its address, then run again"
                raise InfrastructureError(self._where, "the metastore does not respond", cure) from exc
            what = f"the metastore rejects the request: {message_of(exc)[:300]}"
            raise CdcLakeError(self._where, what, "see docs/how-to/catalogs.md") from exc


def _differs_beyond_comments(wanted: Listing, current: Listing | None) -> bool:
    return bool(differences(_without_comments(wanted), current and _without_comments(current)))


def _without_comments(listing: Listing) -> Listing:
    columns, partition_by = (
        tuple(replace(column, comment="") for column in some) for some in (listing.columns, listing.partition_by)
    )
    return replace(listing, columns=columns, partition_by=partition_by)


def _listing(table: Any) -> Listing:
    storage = table.getSd()
    serde = storage.getSerdeInfo()
    return Listing(
        database=table.getDbName(),
        name=table.getTableName(),
        location=storage.getLocation() or "",
        columns=_as_columns(storage.getCols()),
        partition_by=_as_columns(table.getPartitionKeys()),
        parameters=dict(table.getParameters() or {}),
        serde=dict(serde.getParameters() or {}),
        input_format=storage.getInputFormat() or "",
        output_format=storage.getOutputFormat() or "",
        serialization_library=serde.getSerializationLib() or "",
    )


def _as_columns(columns: Any) -> tuple[HiveColumn, ...]:
    return tuple(HiveColumn(column.getName(), column.getType(), column.getComment() or "") for column in columns)

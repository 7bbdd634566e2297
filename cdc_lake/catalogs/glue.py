"""AWS Glue's data catalog through boto3 (extra `aws`), without Spark."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import boto3
from botocore.config import Config as ClientConfig
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from cdc_lake.aws import rejects_credentials
from cdc_lake.catalogs.catalog import Entry, HiveColumn, Listing, delta_listing, differences, hudi_listings
from cdc_lake.config import CatalogConfig
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError

_MISSING = "EntityNotFoundException"
_INVALID = re.compile(r"InvalidInput|Validation")
_CREATE_LIMIT, _DELETE_LIMIT = 100, 25
"""Partitions per request, by Glue's API."""
_ATTEMPTS = 4


class GlueCatalog:
    """Glue's databases and tables; see `cdc_lake.catalogs.Catalog`.

    Args:
        settings: the catalog's. Credentials come from boto3's default chain.
    """

    def __init__(self, settings: CatalogConfig) -> None:
        self._where = f"AWS Glue{f' in {settings.region}' if settings.region else ''}"
        self._with_delta_columns = settings.delta_columns
        with self._translated():
            self._glue: Any = boto3.Session().client(
                "glue",
                region_name=settings.region,
                endpoint_url=settings.endpoint,
                config=ClientConfig(
                    connect_timeout=settings.timeout_seconds,
                    read_timeout=settings.timeout_seconds,
                    retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
                ),
            )

    def listings(self, entry: Entry) -> tuple[Listing, ...]:
        """See `Catalog`. Athena accepts only s3:// URLs."""
        entry = replace(entry, path=re.sub(r"^s3[an]://", "s3://", entry.path))
        if entry.kind == "delta":
            return (delta_listing(entry, with_columns=self._with_delta_columns),)
        return hudi_listings(entry)

    def found(self, database: str, names: Collection[str] | None = None) -> dict[str, Listing]:
        with self._translated():
            if names is None:
                tables = self._all("get_tables", "TableList", DatabaseName=database)
            else:
                tables = [listed for name in names if (listed := self._table(database, name))]
            return {table["Name"]: _listing(table) for table in tables}

    def put(self, entry: Entry) -> None:
        with self._translated():
            if self._or_nothing(self._glue.get_database, Name=entry.database) is None:
                self._glue.create_database(DatabaseInput={"Name": entry.database})
            listed = self.found(entry.database, entry.names)
            for listing in self.listings(entry):
                self._put_table(listing, listed.get(listing.name))
                if listing.partition_by:
                    self._put_partitions(listing, entry.partitions)

    def drop(self, database: str, name: str) -> None:
        with self._translated():
            self._or_nothing(self._glue.delete_table, DatabaseName=database, Name=name)

    def _put_table(self, wanted: Listing, current: Listing | None) -> None:
        """Create or update the table, if it differs: each update creates a version. Other parameters stay."""
        if current is None:
            self._glue.create_table(DatabaseName=wanted.database, TableInput=_table_input(wanted))
        elif differences(wanted, current) or wanted.parameters.items() - current.parameters.items():
            kept = replace(wanted, parameters={**current.parameters, **wanted.parameters})
            self._glue.update_table(DatabaseName=wanted.database, TableInput=_table_input(kept))

    def _put_partitions(self, listing: Listing, folders: Sequence[str]) -> None:
        """List exactly these partitions, with the table's columns."""
        place = {"DatabaseName": listing.database, "TableName": listing.name}
        wanted = {(folder.partition("=")[2],): _partition_input(listing, folder) for folder in folders}
        listed = {tuple(one["Values"]): one for one in self._all("get_partitions", "Partitions", **place)}
        new = [partition for values, partition in wanted.items() if values not in listed]
        removed = [list(values) for values in listed if values not in wanted]
        changed = [
            {"PartitionValueList": list(values), "PartitionInput": partition}
            for values, partition in wanted.items()
            if values in listed and not _is_same(partition, listed[values])
        ]
        for chunk in _chunks(new, _CREATE_LIMIT):
            self._check_complete(self._glue.batch_create_partition(**place, PartitionInputList=chunk))
        for chunk in _chunks(changed, _CREATE_LIMIT):
            self._check_complete(self._glue.batch_update_partition(**place, Entries=chunk))
        for chunk in _chunks(removed, _DELETE_LIMIT):
            partitions = [{"Values": values} for values in chunk]
            self._check_complete(self._glue.batch_delete_partition(**place, PartitionsToDelete=partitions))

    def _check_complete(self, answer: Mapping[str, Any]) -> None:
        for error in answer.get("Errors", ()):
            code = error.get("ErrorDetail", error).get("ErrorCode", "no code")
            raise self._request_error(code, f"partition {error.get('PartitionValues')}")

    def _table(self, database: str, name: str) -> dict[str, Any] | None:
        answer = self._or_nothing(self._glue.get_table, DatabaseName=database, Name=name)
        table: dict[str, Any] | None = answer and answer["Table"]
        return table

    def _all(self, operation: str, member: str, **place: str) -> list[dict[str, Any]]:
        pages = self._glue.get_paginator(operation).paginate(**place)
        return self._or_nothing(lambda: [item for page in pages for item in page[member]]) or []

    @staticmethod
    def _or_nothing(ask: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return ask(**arguments)
        except ClientError as exc:
            if exc.response["Error"]["Code"] == _MISSING:
                return None
            raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except ClientError as exc:
            error = exc.response.get("Error", {})
            code, message = error.get("Code", "no code"), error.get("Message", "")
            if rejects_credentials(exc):
                raise self._rejection_error(message or code) from exc
            raise self._request_error(code, message) from exc
        except (NoCredentialsError, PartialCredentialsError) as exc:
            raise self._rejection_error(type(exc).__name__) from exc
        except BotoCoreError as exc:
            cure = "check catalog.region, catalog.endpoint and the network connection, then run again"
            raise InfrastructureError(self._where, f"it does not respond ({type(exc).__name__})", cure) from exc

    def _rejection_error(self, why: str) -> ConfigError:
        cure = "provide AWS credentials that allow glue:Get…, Create…, Update… and Delete…"
        return ConfigError(self._where, f"it rejects the credentials ({why})", cure)

    def _request_error(self, code: str, message: str) -> CdcLakeError:
        if _INVALID.search(code):
            return CdcLakeError(self._where, f"it rejects an entry ({code}: {message})", "see docs/how-to/catalogs.md")
        return InfrastructureError(self._where, f"it responded with {code}", "run again")


def _table_input(listing: Listing) -> dict[str, Any]:
    return {
        "Name": listing.name,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": dict(listing.parameters),
        "PartitionKeys": _columns(listing.partition_by),
        "StorageDescriptor": _storage(listing, listing.location),
    }


def _partition_input(listing: Listing, folder: str) -> dict[str, Any]:
    storage = _storage(listing, f"{listing.location}/{folder}")
    return {"Values": [folder.partition("=")[2]], "StorageDescriptor": storage}


def _storage(listing: Listing, location: str) -> dict[str, Any]:
    return {
        "Columns": _columns(listing.columns),
        "Location": location,
        "InputFormat": listing.input_format,
        "OutputFormat": listing.output_format,
        "SerdeInfo": {
            "SerializationLibrary": listing.serialization_library,
            "Parameters": dict(listing.serde),
        },
    }


def _columns(columns: Sequence[HiveColumn]) -> list[dict[str, str]]:
    return [
        {"Name": one.name, "Type": one.type, **({"Comment": one.comment} if one.comment else {})} for one in columns
    ]


def _chunks(values: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for at in range(0, len(values), size):
        yield list(values[at : at + size])


def _is_same(wanted: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    storage = current["StorageDescriptor"]
    return all(storage.get(name) == value for name, value in wanted["StorageDescriptor"].items())


def _listing(table: Mapping[str, Any]) -> Listing:
    storage = table.get("StorageDescriptor", {})
    serde = storage.get("SerdeInfo", {})
    return Listing(
        database=table["DatabaseName"],
        name=table["Name"],
        location=storage.get("Location", ""),
        columns=_as_columns(storage.get("Columns", ())),
        partition_by=_as_columns(table.get("PartitionKeys", ())),
        parameters=table.get("Parameters", {}),
        serde=serde.get("Parameters", {}),
        input_format=storage.get("InputFormat", ""),
        output_format=storage.get("OutputFormat", ""),
        serialization_library=serde.get("SerializationLibrary", ""),
    )


def _as_columns(columns: Sequence[Mapping[str, str]]) -> tuple[HiveColumn, ...]:
    return tuple(HiveColumn(column["Name"], column.get("Type", ""), column.get("Comment", "")) for column in columns)

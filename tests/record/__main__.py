"""`python -m tests.record`: record the bytes that real converters send. See CONTRIBUTING.md."""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import psycopg
import requests
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo

from cdc_lake.demo.servers.connectors import postgres_connector_config, put_connector
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.demo.tap import messages
from tests.support.wire import Side, opened

from .demo import record_demo
from .recordings import JSON_CONVERTER, RECORDINGS, Recording
from .registry import part_the_ids, schemas
from .servers import servers
from .story import SNAPSHOT, STORY, TABLES, TABLES_SQL, Change, Shape

RECORDED: Final = Path(__file__).parents[1] / "fixtures" / "recorded"
PREFIX: Final = "shop"
_TIMEOUT_SECONDS: Final = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the selected converters, and print what was written."""
    parser = argparse.ArgumentParser("python -m tests.record", description="Record what real converters send.")
    parser.add_argument("names", nargs="*", default=["*"], help="those to record, as patterns; else all")
    names = parser.parse_args(arguments).names
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))  # without `finally`, because servers are running
    if any(fnmatchcase("demo", name) for name in names):  # on servers of its own, so that ids are always the same
        with _new_servers() as (stack, _):
            record_demo(stack.endpoints)
    chosen = [one for one in RECORDINGS if any(fnmatchcase(one.name, name) for name in names)]
    if not chosen:
        return 0
    with _new_servers(with_other=not all(one.is_embedded for one in chosen)) as (stack, other):
        part_the_ids(stack.endpoints["registry"])
        RECORDED.mkdir(parents=True, exist_ok=True)
        for recording in chosen:
            connect = stack.endpoints["connect"] if recording.is_embedded else other
            for shape in recording.shapes:
                file = RECORDED / f"{recording.name}-{shape}.json"
                recorded = record(recording, shape, stack.endpoints, connect)
                file.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
                print(f"{file.name}: {len(recorded['records'])} records, {file.stat().st_size // 1000} kB", flush=True)
    return 0


@contextmanager
def _new_servers(*, with_other: bool = False) -> Iterator[tuple[Stack, str]]:
    """Servers without content, in a temporary folder; see `servers`."""
    with (
        tempfile.TemporaryDirectory(prefix="cdc_lake-record-") as work,
        servers(Path(work), with_other=with_other) as (stack, other),
    ):
        yield stack, other


def record(recording: Recording, shape: Shape, endpoints: Mapping[str, str], connect: str) -> dict[str, Any]:
    """Make the changes once, and return all records that arrived and their schemas.

    Args:
        endpoints: the stack's addresses.
        connect: the address of the worker that has the converter.
    """
    name = f"{recording.name}-{shape}"
    own = {"skipped.operations": "none", **recording.connector}
    with _database(endpoints["postgres"]) as dsn, psycopg.connect(dsn, autocommit=True) as source:
        source.execute(TABLES_SQL.encode())
        _tell(source, SNAPSHOT)
        put_connector(connect, name, {**_connector(recording, shape, endpoints), **own})
        try:
            _arrived(endpoints["kafka"], shape, SNAPSHOT)
            _tell(source, STORY)
            arrived = _arrived(endpoints["kafka"], shape, (*SNAPSHOT, *STORY))
        except TimeoutError as exc:
            status = requests.get(f"{connect}/connectors/{name}/status", timeout=_TIMEOUT_SECONDS)
            raise RuntimeError(f"{exc}; Connect says {status.text}") from exc
        finally:
            requests.delete(f"{connect}/connectors/{name}", timeout=_TIMEOUT_SECONDS).raise_for_status()
    _forget_topics(endpoints["kafka"])
    records = [_record(recording, name, message) for name, message in arrived]
    references = [one[f"{side}_schema"] for one in records for side in ("key", "value") if f"{side}_schema" in one]
    is_json = recording.converter == JSON_CONVERTER
    return {
        "about": f"{recording.about}. Debezium 3.6.3, Kafka 4.1.1, Apicurio Registry 3.0.9, Postgres 16. Headers"
        f"{'' if is_json else ', keys and values'} are in hex. By `python -m tests.record`.",
        "shape": shape,
        "format": "json" if is_json else "avro",
        "frame": recording.frame,
        "connector": own,
        "converter": {"class": recording.converter, **recording.settings},
        "schemas": dict(schemas(endpoints["registry"], references)),
        "records": records,
    }


def _connector(recording: Recording, shape: Shape, endpoints: Mapping[str, str]) -> dict[str, str]:
    config = postgres_connector_config(
        endpoints,
        database=PREFIX,
        topic_prefix=PREFIX,
        tables=TABLES,
        envelope_tables=TABLES if shape == "envelope" else (),
    )
    config = {
        name: value for name, value in config.items() if not name.startswith(("key.converter", "value.converter"))
    }
    for side in ("key", "value"):
        config[f"{side}.converter"] = recording.converter
        for name, value in recording.settings.items():
            config[f"{side}.converter.{name}"] = value.format(registry=endpoints["registry"])
    return config


def _tell(source: psycopg.Connection, changes: Sequence[Change]) -> None:
    for change in changes:
        with source.transaction():
            source.execute(change.sql.encode())


def _arrived(kafka: str, shape: Shape, changes: Sequence[Change]) -> list[tuple[str, Message]]:
    """All records of both topics with their names, once the expected number has arrived; table by table."""
    found: list[tuple[str, Message]] = []
    for table in TABLES:
        names = [name for change in changes if f"public.{change.table}" == table for name in change.arriving(shape)]
        arrived = _awaited(lambda table=table: list(messages(kafka, [f"{PREFIX}.{table}"])), len(names))  # type: ignore[misc]
        found += zip(names, arrived, strict=True)
    return found


def _awaited(ask: Callable[[], list[Message]], count: int) -> list[Message]:
    _until(lambda: len(ask()) >= count, f"{count} records")
    return ask()


def _until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_TIMEOUT_SECONDS:.0f} s for {what}")
        time.sleep(0.1)


def _record(recording: Recording, name: str, message: Message) -> dict[str, Any]:
    headers = message.headers() or []
    one = {
        "name": name,
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": message.timestamp()[1],
        "headers": [[header, value.hex()] for header, value in headers],
    }
    sides: Mapping[Side, bytes | None] = {"key": message.key(), "value": message.value()}
    for side, data in sides.items():
        if data is None:
            one[side] = None
        elif recording.converter == JSON_CONVERTER:
            one[side] = data.decode()
        else:
            one[f"{side}_schema"] = opened(data, headers, side, recording.id_kind).reference
            one[side] = data.hex()
    return one


@contextmanager
def _database(dsn_admin: str) -> Iterator[str]:
    """A temporary database; the slot of its connector is dropped with it."""
    with psycopg.connect(dsn_admin, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {PREFIX}".encode())
        try:
            yield make_conninfo(dsn_admin, dbname=PREFIX)
        finally:
            in_use = b"SELECT FROM pg_replication_slots WHERE active"
            _until(lambda: admin.execute(in_use).fetchone() is None, "the end of the connector")
            admin.execute(b"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
            admin.execute(f"DROP DATABASE {PREFIX} WITH (FORCE)".encode())


def _forget_topics(kafka: str) -> None:
    """Delete the topics, so that offsets begin at 0 again."""
    admin, topics = AdminClient({"bootstrap.servers": kafka}), {f"{PREFIX}.{table}" for table in TABLES}
    for deleted in admin.delete_topics(list(topics)).values():
        deleted.result()
    _until(lambda: not topics & set(admin.list_topics().topics), "the end of the topics")


if __name__ == "__main__":
    sys.exit(main())

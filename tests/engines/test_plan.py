"""`cdc-lake plan` shows what the next runs would do, and writes nothing."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from support.events import OPTIONAL_STRING, FakeRegistry, Topic
from support.fakes import FakeBroker
from support.schema_changes import CHANGES, TABLE, Change, steps_of, text_of, value_schemas
from test_evolution import EvolvingLake, played

from cdc_lake.bronze.run import run_bronze
from cdc_lake.cli.look import _print_plan
from cdc_lake.config import Config, LakeConfig, StackConfig, TableConfig
from cdc_lake.errors import ConfigError, InfrastructureError
from cdc_lake.operations import plan as plan_module
from cdc_lake.operations.plan import Plan, plan
from cdc_lake.registries.subjects import SubjectVersion
from cdc_lake.runs.context import Leases, lake_of
from cdc_lake.storage.hadoop import HadoopFiles


class BrokenBroker:
    """A fake: a broker that does not respond."""

    def topics(self) -> list[str]:
        """See `TopicSource`."""
        raise InfrastructureError("Kafka", "it does not respond", "run again")


class Announcing:
    """A fake: the part of a registry that returns the newest version of a subject; without a text it is down."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    def version(self, subject: str, number: str | None = None) -> SubjectVersion | None:
        """See `Subjects`."""
        if self._text is None:
            raise InfrastructureError("the registry", "it does not answer any more", "run again")
        return SubjectVersion("2", self._text, "contentId", 21) if subject == f"{TABLE}-value" else None


def changes(*names: str) -> list[Change]:
    return [change for change in CHANGES if change.name in names]


def content(root: Path) -> dict[str, str]:
    """Every file and its content."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def planned(spark: SparkSession, place: EvolvingLake, root: Path, among: Sequence[Change], **settings: Any) -> Plan:
    """The plan, after checking that the lake did not change."""
    before = content(root)
    config = Config(lake=LakeConfig(root=str(root)), defaults=TableConfig(**settings))
    announcing: Any = Announcing(text_of(value_schemas(among)[1]))
    found = plan(config, ["*"], spark, source=place.lake.broker, subjects=announcing)
    assert content(root) == before
    return found


def test_plan_of_new_topics_starts_no_session(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("a session is made")

    monkeypatch.setattr(plan_module, "build_session", refuse)
    topic, broker = Topic({"text": OPTIONAL_STRING}), FakeBroker()
    broker.append(topic.change("c", 1, {"text": "x"}, lsn=1))

    (new,) = plan(Config(lake=LakeConfig(root=str(tmp_path))), ["*"], source=broker, subjects=Announcing("{}")).tables

    assert (new.table, new.what, new.records, new.held_by) == (topic.table, "creates the table", 1, None)


def test_plan_matches_the_next_run(spark: SparkSession, tmp_path: Path) -> None:
    among = changes("a column is added", "integer to bigint", "text to integer", "a column is dropped")
    place = EvolvingLake(spark, tmp_path, among, "delta")
    place.send(False, 1, {"whole": 7, "to_number": "x", "dropped": 7})

    (new,) = planned(spark, place, tmp_path, among).tables

    assert (new.layer, new.what, new.records, new.consumed_to) == ("bronze", "creates the table", 1, {"0": 1})

    wanted = played(place, among)
    announced = planned(spark, place, tmp_path, among)
    bronze, silver = announced.tables
    assert (bronze.what, bronze.records) == ("appends", 3)
    words = [step.words for step in steps_of(among)]
    assert (silver.what, silver.steps, [step.words for step in silver.announced]) == ("nothing", [], words)

    place.lake.land()
    bronze, silver = planned(spark, place, tmp_path, among).tables
    assert (bronze.what, bronze.records) == ("nothing", 0)
    assert (silver.what, silver.records, silver.announced) == ("merges", 3, [])
    assert [step.words for step in silver.steps] == words
    rewritten = {step.words: step.rewritten_bytes for step in silver.steps if step.rewritten_bytes}
    assert set(rewritten) == {"`whole` int becomes bigint"}
    assert f"ALTER TABLE {TABLE} ALTER COLUMN `whole` TYPE bigint" in [step.ddl for step in silver.steps]

    frozen = planned(spark, place, tmp_path, among, schema={"evolution": "freeze"})
    (refused,) = frozen.refused
    assert refused.startswith(f"{TABLE}: `schema.evolution: freeze` does not allow these changes: ")
    assert "; ".join(words) in refused

    (report,) = place.fold()
    assert (report.error, report.warnings) == (None, words)
    rows = next(place.rows())
    assert {key: {name: rows[key][name] for name in columns} for key, columns in wanted.items()} == wanted
    assert [table.what for table in planned(spark, place, tmp_path, among).tables] == ["nothing", "nothing"]


SOON = changes("integer to text", "a column is added")


@pytest.fixture(scope="module")
def folded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[EvolvingLake, Path]:
    """A read-only lake with one row, and its folder; its columns have not changed yet."""
    root = tmp_path_factory.mktemp("folded")
    place = EvolvingLake(spark, root, SOON, "delta")
    place.send(False, 1, {"to_text": 7})
    assert place.fold()[0].error is None
    return place, root


def test_registry_schema_that_policy_refuses_is_named_in_advance(
    spark: SparkSession, folded: tuple[EvolvingLake, Path]
) -> None:
    found = planned(spark, *folded, SOON, schema={"evolution": "add_only"})

    assert [table.what for table in found.tables] == ["nothing", "nothing"]
    (refused,) = found.refused
    assert refused.startswith(f"{TABLE}-value in the registry: `schema.evolution: add_only` does not allow")
    console = Console(width=80, record=True, highlight=False)
    _print_plan(found, console)
    text = console.export_text()
    assert "the registry's latest schema, which no record uses yet:" in text
    assert "`to_text` changed from int to string" in text


def test_plan_reports_registry_outage_and_the_writing_run(
    spark: SparkSession, folded: tuple[EvolvingLake, Path]
) -> None:
    place, root = folded
    config = Config(lake=LakeConfig(root=str(root)))
    down: Any = Announcing(None)

    with Leases(lake_of(config), config.lake.lease, HadoopFiles(spark), "20260101T000000-other", "silver").hold(TABLE):
        found = plan(config, ["*"], spark, source=place.lake.broker, subjects=down)
    free = plan(config, ["*"], spark, source=place.lake.broker, subjects=down)

    assert found.registry_error == "the registry: it does not answer any more; run again"
    assert found.refused == []
    assert [table.what for table in found.tables] == ["nothing", "nothing"]
    bronze, silver = (table.held_by or "" for table in found.tables)
    assert (bronze, silver.partition(" (")[0]) == ("", "run 20260101T000000-other")
    assert [table.held_by for table in free.tables] == [None, None]


def test_plan_names_settings_of_tables_that_match_no_topic(
    spark: SparkSession, folded: tuple[EvolvingLake, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, root = folded
    typo, glob = TABLE.replace("public", "pubic"), "warehouse.*"
    tables = dict.fromkeys((TABLE, f"{TABLE[:-2]}*", typo, glob), TableConfig())
    config = Config(lake=LakeConfig(root=str(root)), tables=tables)
    options: Any = {"spark": spark, "subjects": Announcing(None)}
    down: Any = BrokenBroker()

    found = plan(config, [TABLE], source=place.lake.broker, **options)

    wanted = [f"tables: {typo} matches no topic; similar names: {TABLE}", f"tables: {glob} matches no topic"]
    assert Plan.model_validate_json(found.model_dump_json()).warnings == wanted
    console = Console(width=120, record=True, highlight=False)
    _print_plan(found, console)
    assert [line for line in console.export_text().splitlines() if line.startswith("tables: ")] == wanted
    assert found.refused == []
    assert plan(config, [TABLE], source=down, **options).warnings == []
    with monkeypatch.context() as patched:
        patched.setattr(place.lake.broker, "topics", list)
        assert plan(config, [TABLE], source=place.lake.broker, **options).warnings == wanted


def test_plan_of_an_empty_lake_reports_that_kafka_is_down(spark: SparkSession, tmp_path: Path) -> None:
    down: Any = BrokenBroker()

    with pytest.raises(InfrastructureError, match="Kafka: it does not respond"):
        plan(Config(lake=LakeConfig(root=str(tmp_path))), ["*"], spark, source=down)


def test_plan_without_kafka_shows_the_tables_of_the_lake(
    spark: SparkSession, folded: tuple[EvolvingLake, Path]
) -> None:
    down: Any = BrokenBroker()

    found = plan(Config(lake=LakeConfig(root=str(folded[1]))), ["*"], spark, source=down, subjects=Announcing(None))

    assert found.broker_error == "Kafka: it does not respond; run again"
    assert [table.table for table in found.tables] == [TABLE, TABLE]


def test_plan_warns_of_updates_with_partial_rows(spark: SparkSession, tmp_path: Path) -> None:
    broker, registry = FakeBroker(), FakeRegistry()
    full = {"a": "old", "b": "B"}, {"a": "new", "b": "B"}
    rows = {"bare": ("mysql", {}, {"a": "new"}), "full": ("mysql", *full), "vitess": ("vitess", *full)}
    for name, (connector, before, after) in rows.items():
        topic = Topic({"a": OPTIONAL_STRING, "b": OPTIONAL_STRING}, connector=connector, registry=registry, table=name)
        broker.append(topic.change("c", 1, {"a": "old", "b": "B"}))
        broker.append(topic.change("u", 1, after, before=before))
    lake, bare = LakeConfig(root=str(tmp_path)), "the updates have only the key in `before`"
    told = TableConfig(envelope={"null_means_unchanged": ["a", "b"]}, merge={"order": "log"})
    run_bronze(Config(lake=lake), ["*"], spark, source=broker, registry=registry)
    options: Any = {"spark": spark, "source": broker, "subjects": Announcing("{}")}

    found = plan(Config(lake=lake), ["*"], **options)

    warnings = {table.table: table.warnings for table in found.tables if table.layer == "silver"}
    assert {name: [bare in warning for warning in of_table] for name, of_table in warnings.items()} == {
        "bare": [True, False],
        "full": [False],
        "vitess": [False, False],
    }
    console = Console(width=200, record=True, highlight=False)
    _print_plan(found, console)
    text = console.export_text()
    assert "set binlog_row_image=full" in text and text.count("merge.order: log") == 3
    assert not any(table.warnings for table in plan(Config(lake=lake, defaults=told), ["bare"], **options).tables)


@pytest.mark.core
def test_plan_without_embedded_servers_shows_the_lake(
    spark: SparkSession, folded: tuple[EvolvingLake, Path], tmp_path: Path
) -> None:
    stopped = {"stack": StackConfig(folder=str(tmp_path / "stack"))}
    config = Config(lake=LakeConfig(root=str(folded[1])), **stopped)

    found = plan(config, ["*"], spark, subjects=Announcing(None))

    assert found.broker_error and "the embedded servers in" in found.broker_error
    assert [(table.layer, table.what.partition(":")[0]) for table in found.tables] == [
        ("bronze", "unknown"),
        ("silver", "nothing"),
    ]
    assert found.warnings == []
    with_percent = plan(
        Config(lake=LakeConfig(root=f"{folded[1]}/%"), **stopped), ["*"], spark, source=folded[0].lake.broker
    )
    assert with_percent.warnings == Config(lake=LakeConfig(root="%")).lake.warnings
    with pytest.raises(ConfigError, match=r"embedded servers in .* are not running; run `cdc-lake stack up`"):
        plan(Config(lake=LakeConfig(root=str(tmp_path)), **stopped), ["*"], spark)

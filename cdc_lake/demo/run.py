"""The demo: run Postgres -> Debezium -> Kafka -> bronze -> silver -> gold, and compare the result with Postgres.

The source changes while the jobs run with spark-submit. The comparison shares no code with the jobs: it reads the
source with psycopg, tables with delta-rs, and topics with a plain consumer.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psutil
import psycopg
from deltalake import DeltaTable

from cdc_lake.config import CHECKOUT, TABLE_TYPES, TableType
from cdc_lake.config.gold_models import read_model
from cdc_lake.demo import sample
from cdc_lake.demo.any_changes import AnyChanges
from cdc_lake.demo.comparer import Comparison, compare
from cdc_lake.demo.dump import load_dump
from cdc_lake.demo.shop import ENOUGH, Shop
from cdc_lake.demo.tap import StreamStats, observe
from cdc_lake.demo.workload import ChangesTo, changing
from cdc_lake.embedded.connectors import check_connector, postgres_connector_config, put_connector
from cdc_lake.embedded.stack import Stack, rss_bytes
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError
from cdc_lake.reconcile.catalogue import Table, in_the_lake, read_tables
from cdc_lake.spark.jars import EMBEDDED_PROFILE, cache_folder, lock_file, read_lock, require
from cdc_lake.spark.java import SHORT_JVM
from cdc_lake.spark.versions import profile_name

SAMPLE: Final = "pagila"
"""The sample's database, connector and prefix of topics."""
SEED: Final = 1
FLOOR: Final = {"updates": 1000, "deletes": 50, "ties": 50, "key_changes": 20, "placeholders": 20}
"""What the sample's stream holds at least. A proof over an easy stream would prove little."""
DUMP_TRANSACTIONS: Final = 500
"""Those of the workload that knows nothing of its tables, at least."""
_MARKER = "made-by-cdc-lake-demo"
_SENT_SECONDS = 120.0
_ERRORS_NAMED = 5
SMALL_JVM = f"-Dorg.apache.avro.fastread=true {SHORT_JVM}"
"""Starts in half the time and pays for it in speed, which a few thousand rows do not need."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """What the demo reads, and who changes it meanwhile.

    Attributes:
        name: of the database, the connector and the topics' prefix.
        dsn: of the database.
        pattern: a glob for its topics.
        tables: all that are captured.
        left_out: why others are not, by their names.
        skipped: errors of the dump's statements that failed, and how often each occurred.
        envelope_tables: those of the captured whose records are whole change events.
        signal_table: the connector's.
        changes_to: the workload.
        transactions: how many it commits at least.
        floor: what the stream must hold at least, by the names of `StreamStats`.
        gold: what the models' tables must hold, by their names: queries of the database.
    """

    name: str
    dsn: str
    pattern: str
    tables: Sequence[Table]
    left_out: Mapping[str, str]
    skipped: Mapping[str, int]
    envelope_tables: Sequence[str]
    signal_table: str | None
    changes_to: ChangesTo
    transactions: int
    floor: Mapping[str, int]
    gold: Mapping[str, str]

    @property
    def topics(self) -> dict[str, Table]:
        """The tables by the topics that hold their records."""
        return {table.topic(self.name): table for table in self.tables}


@dataclass(frozen=True)
class Where:
    """Where the jobs run, and where the lake is.

    Attributes:
        command: what submits a job: `spark-submit`, with its flags.
        jobs: folder of the jobs' files.
        config: the configuration file.
        variables: the jobs' environment, but for `CDC_LAKE__` settings of the demo's own.
        lake: the lake's root; none for the demo's folder.
        bring: brings such a lake into a folder, to be read there.
        tries: a job that fails for want of a server or a node is submitted so often, as a scheduler does.
    """

    command: Sequence[str]
    jobs: Path
    config: Path
    variables: Mapping[str, str]
    lake: str | None = None
    bring: Callable[[Path], None] = lambda folder: None
    tries: int = 1


def here() -> Where:
    """Jobs on this machine, with the programs of this Python environment."""
    programs = Path(sys.executable).parent
    return Where(
        command=(str(programs / "spark-submit"), "--conf", f"spark.driver.extraJavaOptions={SMALL_JVM}"),
        jobs=CHECKOUT / "jobs",
        config=CHECKOUT / "conf" / "cdc-lake.yml",
        variables={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"},
    )


@dataclass(frozen=True)
class TableResult:
    """How one table came through.

    Attributes:
        events: records on the topic.
        differences: rows or cells in which silver is not the source, and records that bronze has not or twice.
        losses: cells that differ because of what was lost before Kafka, by the kind of loss; no differences.
        seconds: spent on it in bronze and silver.
    """

    topic: str
    events: int
    bronze_rows: int
    quarantined: int
    silver_rows: int
    source_rows: int
    differences: int
    losses: dict[str, int]
    seconds: float


@dataclass(frozen=True)
class GoldResult:
    """How the table of one model came out.

    Attributes:
        differences: rows that only gold has, and rows that only the source's answer has.
    """

    model: str
    rows: int
    source_rows: int
    differences: int
    seconds: float


@dataclass
class DemoResult:
    """What the demo found.

    Attributes:
        source: name of the database and the topics' prefix.
        left_out: why other tables of the source were not followed, by their names.
        skipped: errors of the dump's statements that failed, and how often each occurred.
        transactions: those the workload committed.
        stream: what the topics held, by the names of `StreamStats`.
        too_few: those of them that are below the floor; then nothing was proven.
        parts: seconds, in the order in which things were done.
    """

    source: str = ""
    left_out: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    tables: list[TableResult] = field(default_factory=list)
    gold: list[GoldResult] = field(default_factory=list)
    differences: int = 0
    transactions: int = 0
    stream: dict[str, int] = field(default_factory=dict)
    too_few: dict[str, int] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    peak_rss_bytes: int = 0

    @property
    def exit_code(self) -> int:
        """0 only if nothing differs and the stream was hard enough to say so."""
        return 1 if self.differences or self.too_few else 0

    @property
    def losses(self) -> dict[str, int]:
        """What was lost before Kafka in all tables, by the kind of loss."""
        total: Counter[str] = Counter()
        for table in self.tables:
            total.update(table.losses)
        return dict(total)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Record how long the body takes."""
        started = time.monotonic()
        yield
        self.parts[name] = round(time.monotonic() - started, 1)


def run_demo(
    folder: Path,
    *,
    dumps: Sequence[Path] = (),
    tables: Sequence[str] = (),
    table_type: TableType = "delta",
    where: Where | None = None,
    keep: bool,
    say: Say,
) -> DemoResult:
    """Run the demo in `folder`, which it empties first.

    Args:
        folder: servers and lake are made in it.
        dumps: files of `pg_dump`, in any of its formats, to load instead of the sample.
        tables: globs of the topics to follow; all when there are none.
        table_type: silver's storage type, one of `config.TABLE_TYPES`.
        where: the jobs run; here, if that is not given.
        keep: leave the servers running.
        say: told what is going on.

    Raises:
        ConfigError: the folder has files of others, a dump cannot be loaded, or a table does not exist.
        InstallationError: a jar is missing or damaged.
        InfrastructureError: a server or connector does not start.
        CdcLakeError: a job failed.
    """
    started = time.monotonic()
    if not dumps:  # whose tables are known only once they are loaded
        _chosen(tables, [f"{SAMPLE}.public.{table}" for table in sample.TABLES])
    for profile in (profile_name(), EMBEDDED_PROFILE):
        require(read_lock(lock_file(profile)), cache_folder())
    stack, lake = Stack(folder / "stack"), folder / "lake"
    _empty(folder, stack, lake)
    result = DemoResult()
    with _peak_memory(result):
        say("starting Postgres, Kafka, Apicurio Registry and Kafka Connect with Debezium")
        with result.part("start"):
            stack.start(detach=False)
        try:
            say(f"loading {', '.join(path.name for path in dumps) or 'the sample'}")
            postgres = stack.endpoints["postgres"]
            with result.part("load"):
                source = _dump(postgres, dumps) if dumps else _sample(postgres)
                source = _only(source, tables) if tables else source
            result.source, result.left_out, result.skipped = source.name, dict(source.left_out), dict(source.skipped)
            where = where or here()
            jobs = Jobs(where, stack, where.lake or str(lake), table_type)
            _play(source, jobs, stack, result, say)
            say("reading Postgres, Kafka and the tables with other programs, and comparing them")
            with result.part("compare"):
                where.bring(lake)
                _judge(source, jobs, stack, lake, result, say)
            if keep:
                stack.detach()
        finally:
            if not keep:
                stack.stop()
    result.seconds = round(time.monotonic() - started, 1)
    return result


def _sample(dsn_admin: str) -> Source:
    dsn = sample.create(dsn_admin, SAMPLE)
    with psycopg.connect(dsn) as source:
        tables = {table.name: table for table in read_tables(source)}
    return Source(
        name=SAMPLE,
        dsn=dsn,
        pattern=f"{SAMPLE}.public.*",
        tables=[tables[name] for name in sample.TABLES],
        left_out={},
        skipped={},
        envelope_tables=[tables[name].place for name in sample.ENVELOPE_TABLES],
        signal_table=tables[sample.SIGNAL_TABLE].place,
        changes_to=Shop,
        transactions=ENOUGH,
        floor=FLOOR,
        gold=sample.GOLD,
    )


def _dump(dsn_admin: str, files: Sequence[Path]) -> Source:
    dsn, skipped = load_dump(dsn_admin, "dump", files)
    with psycopg.connect(dsn) as source:
        tables = read_tables(source)
    followed = [table for table in tables if table.trouble is None]
    if not followed:
        wrong = "no table in it has a usable primary key"
        if skipped:
            wrong += f". Postgres reported: {'; '.join(list(skipped)[:_ERRORS_NAMED])}"
        raise ConfigError(", ".join(map(str, files)), wrong, "use another dump")
    return Source(
        name="dump",
        dsn=dsn,
        pattern="dump.*",
        tables=followed,
        left_out={table.place: table.trouble for table in tables if table.trouble},
        skipped=skipped,
        envelope_tables=[table.place for table in followed[::2]],
        signal_table=None,
        changes_to=partial(AnyChanges, followed),
        transactions=DUMP_TRANSACTIONS,
        floor={"updates": 1},
        gold={},
    )


def _chosen(globs: Sequence[str], topics: Sequence[str]) -> list[str]:
    """The topics that fit any of the globs.

    Raises:
        ConfigError: a glob fits none.
    """
    for glob in globs:
        if not any(fnmatchcase(topic, glob) for topic in topics):
            raise ConfigError(glob, "it matches no topic", f"the topics are {', '.join(topics)}")
    return [topic for topic in topics if any(fnmatchcase(topic, glob) for glob in globs)]


def _only(source: Source, globs: Sequence[str]) -> Source:
    """The same source with fewer tables, of which the stream need not hold so much, and the models that read no others.

    Raises:
        ConfigError: a glob fits no table.
    """
    topics = source.topics
    chosen = {topic: topics[topic] for topic in _chosen(globs, list(topics))}
    places = {table.place for table in chosen.values()}
    return replace(
        source,
        tables=list(chosen.values()),
        envelope_tables=[place for place in source.envelope_tables if place in places],
        floor={"updates": 1},
        gold=reading_only(chosen, source.gold),
    )


def reading_only(topics: Collection[str], gold: Mapping[str, str]) -> dict[str, str]:
    """Those models that read no other topics."""
    return {
        model: query
        for model, query in gold.items()
        if set(topics) >= set(read_model(CHECKOUT / "conf" / "gold" / f"{model}.sql").header.topics.values())
    }


class Jobs:
    """The jobs, each by a spark-submit of its own.

    Attributes:
        seconds: spent so far, by topic or model.
    """

    def __init__(self, where: Where, stack: Stack, lake: str, table_type: TableType) -> None:
        self._where = where
        self._environment = {
            **where.variables,
            "CDC_LAKE__STACK__FOLDER": str(stack.folder),
            "CDC_LAKE__LAKE__ROOT": lake,
            "CDC_LAKE__DEFAULTS__STORAGE": held_in(table_type),
        }
        self.seconds: dict[str, float] = {}

    def submit(self, layer: str, *flags: str) -> dict[str, Any]:
        """Run a layer's job; its report.

        Raises:
            CdcLakeError: it failed.
        """
        job, config = str(self._where.jobs / f"{layer}.py"), str(self._where.config)
        with TemporaryDirectory() as folder:
            file = Path(folder) / "report.json"
            command = [*self._where.command, job, "--config", config, "--json-file", str(file), *flags]
            for left in reversed(range(self._where.tries)):
                done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
                if done.returncode != InfrastructureError.exit_code or not left:
                    break
            if done.returncode:
                raise CdcLakeError(
                    f"the {layer} job",
                    f"it ended with exit code {done.returncode}",
                    f"its output:\n{done.stdout}{done.stderr}",
                )
            report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        for table in report["tables"]:
            spent = sum(table["seconds"].values())
            self.seconds[table["table"]] = self.seconds.get(table["table"], 0.0) + spent
        return report


def _play(source: Source, jobs: Jobs, stack: Stack, result: DemoResult, say: Say) -> None:
    """Run the jobs while the source changes, and once more when it has stopped changing."""
    connector = postgres_connector_config(
        stack.endpoints,
        database=source.name,
        topic_prefix=source.name,
        tables=[table.place for table in source.tables],
        envelope_tables=source.envelope_tables,
        signal_table=source.signal_table,
    )
    connect = stack.endpoints["connect"]
    put_connector(connect, source.name, connector)
    wait = partial(
        sample.wait_until_sent,
        source.dsn,
        source.name,
        _SENT_SECONDS,
        check=partial(check_connector, connect, source.name),
    )
    with changing(source.dsn, source.changes_to, seed=SEED, at_least=source.transactions) as done:
        with result.part("snapshot"):
            wait()
        for layer in ("bronze", "silver"):
            say(f"the {layer} job, while the tables change")
            with result.part(layer):
                jobs.submit(layer, "--table", source.pattern)
        _make_gold(source, jobs, result, say, "gold", "while the tables change")
    result.transactions = done.total()
    with result.part("rest"):
        wait(signal_table=source.signal_table)
    for layer in ("bronze", "silver"):
        say(f"the {layer} job, after {result.transactions} transactions")
        with result.part(f"{layer} again"):
            jobs.submit(layer, "--table", source.pattern)
    _make_gold(source, jobs, result, say, "gold again", f"after {result.transactions} transactions")


def _make_gold(source: Source, jobs: Jobs, result: DemoResult, say: Say, part: str, when: str) -> None:
    if source.gold:
        say(f"the gold job, {when}")
        with result.part(part):
            jobs.submit("gold", *(flag for model in source.gold for flag in ("--model", model)))


def _judge(source: Source, jobs: Jobs, stack: Stack, lake: Path, result: DemoResult, say: Say) -> None:
    addresses = stack.endpoints
    landed = {topic: table for topic, table in source.topics.items() if topic in jobs.seconds}
    stream = observe(addresses["kafka"], f"{addresses['registry']}/apis/registry/v3", list(landed))
    for topic, table in source.topics.items():
        if topic not in landed:
            result.tables.append(_unheard_of(source.dsn, topic, table))
            continue
        silver = str(_folder(lake, "silver", topic))
        compared = compare(source.dsn, table.schema, table.name, silver, lake_name=in_the_lake, explain=table.loss)
        for found in compared.samples:
            say(f"{topic}: {found}")
        result.tables.append(
            _table_result(topic, _folder(lake, "bronze", topic), stream, compared, jobs.seconds[topic])
        )
    for model, query in source.gold.items():
        result.gold.append(gold_result(source.dsn, model, query, lake, jobs.seconds[model]))
    result.differences = sum(table.differences for table in result.tables)
    result.differences += sum(made.differences for made in result.gold)
    result.stream = {key: value for key, value in asdict(stream).items() if key != "records"}
    result.too_few = too_few(result.stream, source.floor)


def too_few(stream: Mapping[str, int], floor: Mapping[str, int]) -> dict[str, int]:
    """The counts that are below their minimum."""
    return {name: stream[name] for name, least in floor.items() if stream[name] < least}


def _unheard_of(dsn: str, topic: str, table: Table) -> TableResult:
    """The result of a table without a topic: an empty table has none; otherwise all its rows are missing."""
    with psycopg.connect(dsn) as source:
        ((rows,),) = source.execute(f"SELECT count(*) FROM {table.qualified}".encode()).fetchall()
    return TableResult(topic, 0, 0, 0, 0, source_rows=rows, differences=rows, losses={}, seconds=0.0)


def _folder(lake: Path, layer: str, topic: str) -> Path:
    return lake.joinpath(layer, *topic.split("."))


def _table_result(topic: str, bronze: Path, stream: StreamStats, compared: Comparison, seconds: float) -> TableResult:
    landed = DeltaTable(str(bronze)).to_pyarrow_table(columns=["partition", "offset", "status"])
    records = set(zip(landed["partition"].to_pylist(), landed["offset"].to_pylist(), strict=True))
    lost_or_doubled = abs(stream.records[topic] - len(records)) + landed.num_rows - len(records)
    return TableResult(
        topic=topic,
        events=stream.records[topic],
        bronze_rows=landed.num_rows,
        quarantined=landed["status"].to_pylist().count("quarantined"),
        silver_rows=compared.lake_rows,
        source_rows=compared.source_rows,
        differences=compared.differences + lost_or_doubled,
        losses=dict(compared.known),
        seconds=round(seconds, 1),
    )


def gold_result(dsn: str, model: str, query: str, lake: Path, seconds: float) -> GoldResult:
    """Compare a model's table with the result of a query in the source."""
    with psycopg.connect(dsn) as source:
        asked = source.execute(query.encode())
        names = [column.name for column in asked.description or ()]
        expected = Counter(asked.fetchall())
    columns = DeltaTable(str(lake / "gold" / model)).to_pyarrow_table(columns=names).to_pydict().values()
    found = Counter(zip(*columns, strict=True))
    differences = (expected - found) + (found - expected)
    return GoldResult(model, found.total(), expected.total(), differences.total(), round(seconds, 1))


def held_in(table_type: TableType) -> str:
    """The setting `defaults.silver` for a table type, as the value of an environment variable."""
    return f"[{TABLE_TYPES[table_type].model_dump_json(exclude_none=True)}]"


def _empty(folder: Path, stack: Stack, lake: Path) -> None:
    """Empty the folder, unless it has files that the demo did not create."""
    marker = folder / _MARKER
    if not marker.exists():
        if lake.exists() or stack.folder.exists():
            raise ConfigError(
                str(folder), "it contains servers or tables that the demo did not create", "use another --folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        marker.touch()
    stack.delete()
    shutil.rmtree(lake, ignore_errors=True)


@contextmanager
def _peak_memory(result: DemoResult) -> Iterator[None]:
    """Record the peak memory of this process and its descendants."""
    done = threading.Event()

    def watch() -> None:
        me = psutil.Process()
        while not done.wait(0.5):
            result.peak_rss_bytes = max(result.peak_rss_bytes, rss_bytes(me))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()

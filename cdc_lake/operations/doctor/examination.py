"""`cdc-lake doctor`: the installation, the servers, and what the source silently loses. Without Spark."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from cdc_lake.bronze.topic_run import unread
from cdc_lake.config import Config
from cdc_lake.errors import CdcLakeError
from cdc_lake.lake.lake import Lake
from cdc_lake.operations.doctor import services
from cdc_lake.operations.doctor.connectors import Connector, examine, read_connectors
from cdc_lake.operations.doctor.findings import Diagnosis, Finding, merged, ok, skipped, warn
from cdc_lake.operations.doctor.topics import TopicSample, longest_pause, retention
from cdc_lake.registries.registry import Registry
from cdc_lake.runs.context import PARALLEL_READS, lake_of, latest_reports, select
from cdc_lake.runs.report import Report
from cdc_lake.runs.servers import checked_registry, open_source
from cdc_lake.sources.kafka import Broker
from cdc_lake.sources.logs import Span, TopicLog
from cdc_lake.storage.files import Files

_TIMEOUT_SECONDS = 5.0
_NEWEST = 3
"""How many of the newest records of each partition are read."""
_MAX_AHEAD_SECONDS = 5.0
_MAX_REPORTS = 100
"""How many of the latest reports show how often bronze runs."""


def diagnose(
    config: Config, tables: Sequence[str], connect: str | None = None, connect_login: str | None = None
) -> Diagnosis:
    """Run all checks. A check that fails does not stop the others, and what depends on it is `skipped`.

    Writes nothing except a file with a unique name in the lake, which it removes again.

    Args:
        tables: topic names or globs.
        connect: the URL of Kafka Connect's REST API, or `embedded`; by default `embedded` if Kafka is embedded.
        connect_login: names the secret to log in there with, `user:password` or a token.
    """
    connect = connect or ("embedded" if config.kafka.is_embedded else None)
    return _Examination(_with_short_timeouts(config), tables, connect, connect_login).run()


def _with_short_timeouts(config: Config) -> Config:
    sections = {}
    for name in ("kafka", "registry", "catalog"):
        section = getattr(config, name)
        sections[name] = section.model_copy(
            update={"timeout_seconds": min(section.timeout_seconds, _TIMEOUT_SECONDS)}
            | ({"attempts": 1} if name == "registry" else {})
        )
    return config.model_copy(update=sections)


class _Examination:
    """The checks, in order. Later ones use what earlier ones found."""

    def __init__(self, config: Config, tables: Sequence[str], connect: str | None, connect_login: str | None) -> None:
        self._config = config
        self._tables = tables
        self._connect, self._connect_login = connect, connect_login
        self._broker: Broker | None = None
        self._logs: Mapping[str, TopicLog] = {}
        self._registry: Registry | None = None
        self._connectors: Sequence[Connector] = ()
        self._findings: list[Finding] = []

    def run(self) -> Diagnosis:
        config = self._config
        checks: Mapping[str, Callable[[], Iterable[Finding]]] = {
            "java": services.java,
            "spark": services.spark,
            "jars": partial(services.jars, config.lake),
            "lake": partial(services.lake, config.lake),
            "catalog": partial(services.catalog, config.catalog),
            "kafka": self._check_kafka,
            "topics": self._check_topics,
            "registry": self._check_registry,
            "connect": self._check_connect,
            "schema-ids": self._check_records,
            "retention": self._check_retention,
            "database": self._check_databases,
        }
        for name, check in checks.items():
            self._add(name, check)
        return Diagnosis(findings=merged(self._findings))

    def _add(self, name: str, check: Callable[[], Iterable[Finding]]) -> None:
        """Add the findings of a check, and its error as another one."""
        try:
            for finding in check():
                self._findings.append(finding)
        except CdcLakeError as error:
            what = f"{error.where}: {error.what}"
            self._findings.append(Finding(check=name, status="fail", what=what, cure=error.cure))

    def _check_kafka(self) -> Iterator[Finding]:
        if self._config.files.root:
            yield skipped("kafka", "records come from `files.root`")
            return
        for warning in self._config.kafka.warnings:
            yield warn("kafka", warning, "remove this setting")
        broker = open_source(self._config, _no_session)
        assert isinstance(broker, Broker)
        number = len(broker.topics())
        self._broker = broker
        yield ok("kafka", f"{broker.name} responds; topics: {number}")

    def _check_topics(self) -> Iterator[Finding]:
        if self._broker is None:
            yield skipped("topics", "there is no broker to ask")
            return
        topics = select(self._tables, self._broker.topics(), "topic", "name a topic of Kafka")
        self._logs = self._broker.logs(topics)
        yield ok("topics", f"selected: {len(topics)}")

    def _check_registry(self) -> Iterator[Finding]:
        self._registry = checked_registry(self._config)
        if self._registry is None:
            yield skipped("registry", "files of `files.root` contain their schemas")
        else:
            yield ok("registry", f"the registry of type {self._config.registry.type} responds")

    def _check_connect(self) -> Iterator[Finding]:
        if self._connect is None:
            yield skipped("connect", "connectors are not checked", "pass `--connect`, the URL of Connect's REST API")
            return
        url = self._config.stack.address("connect") if self._connect == "embedded" else self._connect
        found = read_connectors(url, self._connect_login, _TIMEOUT_SECONDS)
        self._connectors = [one for one in found if any(map(one.is_of, self._tables))]
        yield ok("connect", f"it responds; Debezium connectors of these topics: {len(self._connectors)}")
        for connector in self._connectors:
            topics = [topic for topic in self._logs if topic.startswith(f"{connector.prefix}.")]
            envelopes = [self._config.table(topic).envelope for topic in topics]
            findings = examine(connector, [one for n, one in enumerate(envelopes) if one not in envelopes[:n]])
            yield from findings or [ok("tasks", "it runs, and its configuration loses nothing", connector.name)]

    def _check_records(self) -> Iterator[Finding]:
        if self._broker is None or self._registry is None or not self._logs:
            yield skipped("schema-ids", "no topic can be read, or the registry is not available")
            return
        registry, newest = self._registry, self._broker.newest_records(list(self._logs.values()), _NEWEST)
        samples = [
            TopicSample(
                topic,
                self._config.table(topic),
                sorted(records, key=lambda record: record.timestamp()[1]),
                next((one for one in self._connectors if topic.startswith(f"{one.prefix}.")), None),
            )
            for topic, records in newest.items()
            if records
        ]
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            found = [one for some in pool.map(lambda sample: list(sample.examine(registry)), samples) for one in some]
        yield from found
        if not any(finding.check == "schema-ids" for finding in found):
            yield ok("schema-ids", f"the newest records decode; topics: {len(samples)}")
        times = [sample.records[-1].timestamp()[1] / 1000 for sample in samples]
        ahead = max(times, default=0.0) - time.time()
        if ahead > _MAX_AHEAD_SECONDS:
            what = f"the newest record in Kafka is {ahead:.0f} s in the future, so freshness and lag are wrong"
            yield warn("clock", what, "synchronize the clocks of this machine and of the producer with NTP")

    def _check_retention(self) -> Iterator[Finding]:
        broker = self._broker
        if broker is None or not self._logs:
            yield skipped("retention", "no topic can be read")
            return
        if any((one.check, one.status) == ("lake", "fail") for one in self._findings):
            yield skipped("retention", "the lake cannot be read")
            return
        lake, files = lake_of(self._config), services.lake_files(self._config.lake.root)
        settings, reports = broker.topic_settings(list(self._logs)), latest_reports(files, lake, _MAX_REPORTS)
        check = partial(self._retention, broker, lake, files, reports)
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            found = [one for some in pool.map(check, self._logs.values(), settings.values()) for one in some]
        yield from found or [ok("retention", "Kafka keeps what bronze has not read")]

    def _retention(
        self,
        broker: Broker,
        lake: Lake,
        files: Files,
        reports: Sequence[Report],
        log: TopicLog,
        settings: Mapping[str, str],
    ) -> list[Finding]:
        """The findings of one topic."""
        newest, start = lake.newest_bronze(files, log.name), self._config.table(log.name).read.start
        if newest is None and (start != "earliest" or lake.holds(files, "bronze", log.name)):
            return []  # a new table that does not need the first records, or one that only Spark can read
        progress = newest.progress if newest else None
        left = unread(log, progress.offsets.get(log.id, {}) if progress else {})
        waits = {
            "the oldest unread record is {} old": _oldest_age(broker, log, left),
            "bronze did not run for {}": longest_pause(reports, log.name),
        }
        deleted_before = {partition: span for partition, span in log.partitions.items() if 0 < span.start < span.end}
        is_limited = int(settings.get("retention.bytes", -1)) >= 0
        kept_seconds = _oldest_age(broker, log, deleted_before) if is_limited and deleted_before else math.inf
        return list(retention(log, progress, settings, waits, kept_seconds))

    def _check_databases(self) -> Iterator[Finding]:
        prefixes, topics = list(self._config.databases), list(self._logs)
        if topics:
            prefixes = [one for one in prefixes if any(topic.startswith(f"{one}.") for topic in topics)]
        if self._config.kafka.is_embedded:
            prefixes += [one.prefix for one in self._connectors if one.kind == "postgresql"]
        if not prefixes:
            cure = "set `databases.<prefix>.url` to check replica identities, partitions and slots"
            yield skipped("database", "the source database is not checked", cure)
        for prefix in dict.fromkeys(prefixes):
            self._add("database", partial(self._check_database, prefix))

    def _check_database(self, prefix: str) -> Iterator[Finding]:
        try:
            from cdc_lake.operations.doctor.database import examine_database
        except ModuleNotFoundError as exc:
            yield skipped("database", f"{exc.name} is not installed", "run `pip install 'cdc-lake[reconcile]'`")
            return
        tables = {topic: self._config.table(topic) for topic in self._logs if topic.startswith(f"{prefix}.")}
        connectors = [one for one in self._connectors if one.prefix == prefix]
        yield from examine_database(self._config.database_url(prefix), prefix, tables, connectors)


def _oldest_age(broker: Broker, log: TopicLog, spans: Mapping[int, Span]) -> float:
    """The age in seconds of the oldest of the first records of these spans; 0 without one."""
    firsts = {partition: span.start for partition, span in spans.items()}
    times = broker.timestamps_ms(log.name, firsts).values() if firsts else ()
    return time.time() - min(times) / 1000 if times else 0.0


def _no_session() -> Any:
    raise AssertionError("Kafka needs no session")

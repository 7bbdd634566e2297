"""What a Debezium connector loses, by its configuration and state in Kafka Connect.

Sources: Debezium's `ExtractNewRecordState`, `DefaultDeleteHandlingStrategy` and `EnforceRecordSize` (3.6), Connect's
`JsonConverter` and `RecordIsTombstone`, Confluent's and Apicurio's `AvroConverter`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdc_lake.config import EnvelopeConfig, check_privacy
from cdc_lake.errors import ConfigError
from cdc_lake.operations.doctor.findings import Finding, fail, warn
from cdc_lake.registries.credentials import Anonymous, login
from cdc_lake.registries.http_client import Endpoint, HttpClient
from cdc_lake.spark.versions import number

POSITIONS: Mapping[str, Sequence[Sequence[str]]] = {
    "postgresql": (("lsn",), ("sequence",)),
    "mysql": (("server_id", "file", "pos"), ("gtid",)),
    "mariadb": (("server_id", "file", "pos"), ("gtid",)),
    "sqlserver": (("commit_lsn",),),
    "oracle": (("commit_scn",), ("scn",)),
    "mongodb": (("rs", "ord"),),
    "db2": (("commit_lsn",),),
    "informix": (("commit_lsn",),),
}
"""The fields of `source` that form a position, by the connector's package: any one of these groups. Recommended first.
See docs/reference/connectors.md.
"""
NO_POSITION = (
    "flattened records lack the source position: silver may take an event that a restarted connector sends again for a "
    "newer one, or drop a newer one if the source's clock was set back"
)
_CONNECTOR = re.compile(r"io\.debezium\.connector\.(\w+)\.(?!\w*Sink)\w+")
_FLATTENS = ("ExtractNewRecordState", "ExtractNewDocumentState")
_TOMBSTONES = ("tombstone", "delete-to-tombstone")
_SEND_TRUNCATE = ("postgresql", "mysql", "mariadb", "oracle", "informix")
"""Packages of connectors that can send TRUNCATE."""
_OPERATIONS = {"c": "inserts", "u": "updates", "d": "deletes"}
_EXCEPTION = re.compile(r"(?:\A|^Caused by: )(?:[\w$]+\.)+([\w$]+)", re.MULTILINE)


@dataclass(frozen=True)
class Transform:
    """A transform of a connector.

    Attributes:
        type: the class without its package.
        options: the options without `transforms.<alias>.`.
    """

    alias: str
    type: str
    options: Mapping[str, str]

    def option(self, name: str) -> str:
        """The full name of an option."""
        return f"transforms.{self.alias}.{name}"


@dataclass(frozen=True)
class Connector:
    """A Debezium source connector.

    Attributes:
        config: its configuration, which may have passwords: messages show values of known options only.
        version: Debezium's; empty if unknown.
        states: `connector` and `task <id>` -> state, such as RUNNING.
        traces: the same for failed ones -> Java's stack trace.
    """

    name: str
    config: Mapping[str, str] = field(repr=False)
    version: tuple[int, ...] = ()
    states: Mapping[str, str] = field(default_factory=dict)
    traces: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def kind(self) -> str:
        """The package of its class, such as `postgresql`; empty if it is not a source connector of Debezium."""
        match = _CONNECTOR.fullmatch(self.config.get("connector.class", ""))
        return match[1] if match else ""

    @property
    def prefix(self) -> str:
        """The prefix of its topics; `database.server.name` before Debezium 2."""
        return self.config.get("topic.prefix") or self.config.get("database.server.name", "")

    @property
    def transforms(self) -> list[Transform]:
        found = []
        for alias in filter(None, map(str.strip, self.config.get("transforms", "").split(","))):
            start = f"transforms.{alias}."
            options = {name.removeprefix(start): value for name, value in self.config.items() if name.startswith(start)}
            found.append(Transform(alias, options.get("type", "").rpartition(".")[2].partition("$")[0], options))
        return found

    @property
    def unwrap(self) -> Transform | None:
        """The transform that flattens envelopes; None without one."""
        return next((transform for transform in self.transforms if transform.type in _FLATTENS), None)

    def converter(self, side: str) -> str:
        """The class of the converter of keys or values; empty if the worker's is used, which Connect does not show."""
        return self.config.get(f"{side}.converter", "")

    def is_of(self, pattern: str) -> bool:
        """Whether a topic that a name or glob matches may be this connector's."""
        literal, own = re.split(r"[*?\[]", pattern)[0], f"{self.prefix}."
        return literal.startswith(own) or (own.startswith(literal) and literal != pattern)


def read_connectors(url: str, login_reference: str | None, timeout_seconds: float) -> list[Connector]:
    """The Debezium source connectors of a Connect cluster.

    Args:
        url: the URL of its REST API.
        login_reference: names the secret to log in with; see `login`.

    Raises:
        ConfigError: it rejects the login, which may be missing, or is another server.
        InfrastructureError: it does not respond.
    """
    if login_reference:
        check_privacy("--connect", url)
    cure = "pass `--connect-login`, a reference to `user:password` or to a token that may read connectors"
    endpoint = Endpoint(url.rstrip("/"), timeout_seconds, attempts=1, name="Kafka Connect", login_cure=cure)
    http = HttpClient(endpoint, login(login_reference) if login_reference else Anonymous())
    plugins = http.get_json("connector-plugins")
    connectors = http.get_json("connectors?expand=status&expand=info")
    try:
        versions = {plugin["class"]: number(plugin.get("version")) for plugin in plugins}
        found = [_connector(name, content, versions) for name, content in sorted(connectors.items())]
    except (KeyError, TypeError, AttributeError) as exc:
        what = "its response is not Kafka Connect's: it may be another server"
        raise ConfigError(f"{endpoint.name} at {endpoint.url}", what, "check `--connect`") from exc
    return [connector for connector in found if connector.kind]


def _connector(name: str, content: Any, versions: Mapping[str, tuple[int, ...]]) -> Connector:
    config, status = content["info"]["config"], content["status"]
    parts = {"connector": status["connector"], **{f"task {task['id']}": task for task in status["tasks"]}}
    return Connector(
        name,
        config,
        versions.get(config.get("connector.class"), ()),
        {part: state["state"] for part, state in parts.items()},
        {part: state["trace"] for part, state in parts.items() if state.get("trace")},
    )


def examine(connector: Connector, envelopes: Sequence[EnvelopeConfig] = ()) -> list[Finding]:
    """What the connector loses.

    Args:
        envelopes: the settings of its tables.
    """
    findings = [finding for check in _CHECKS for finding in check(connector)]
    return findings + [finding for envelope in envelopes for finding in _names(connector, envelope)]


def _tasks(connector: Connector) -> Iterator[Finding]:
    restart = "see `trace` in Connect's /connectors/<name>/status, fix the cause, and restart the connector"
    states = connector.states
    for part, state in states.items():
        if state == "FAILED":
            error = _EXCEPTION.findall(connector.traces.get(part, ""))  # not the messages, which may have values
            why = f" ({error[-1]})" if error else ""
            yield fail("tasks", f"{part} failed{why}, so changes do not arrive", restart, connector.name)
    if states == {"connector": "RUNNING"}:
        yield fail("tasks", "it has no task, so changes do not arrive", restart, connector.name)
    if waiting := {state.lower() for state in states.values()} - {"running", "failed"}:
        resume = f"resume it: PUT /connectors/{connector.name}/resume"
        yield warn("tasks", f"it is {min(waiting)}, so changes do not arrive", resume, connector.name)


def _position(connector: Connector) -> Iterator[Finding]:
    unwrap, groups = connector.unwrap, POSITIONS.get(connector.kind)
    if unwrap is None or groups is None:
        return
    given = [name.strip() for name in unwrap.options.get("add.fields", "").split(",") if name.strip()]
    added = {name.partition(":")[0] for name in given}
    plain = {name.removeprefix("source.") for name in added}
    if any(plain.issuperset(group) for group in groups):
        return
    missing = [name for name in (*groups[0], "source.ts_ms") if name not in (added if "." in name else plain)]
    cure = f"set {unwrap.option('add.fields')}={','.join([*given, *missing])}"
    yield warn("position", NO_POSITION, cure, connector.name)


def _deletes(connector: Connector) -> Iterator[Finding]:
    unwrap = connector.unwrap
    if unwrap is None:
        return
    mode, cure = _delete_mode(connector, unwrap), f"set {unwrap.option('delete.tombstone.handling.mode')}=rewrite"
    if mode == "drop":
        yield fail("deletes", f"{unwrap.type} drops deletes, so deleted rows stay in silver", cure, connector.name)
    elif mode in _TOMBSTONES and (dropping := _tombstone_filter(connector, unwrap)):
        what = f"deletes become tombstones, which the transform `{dropping}` drops, so deleted rows stay in silver"
        yield fail("tombstones", what, cure, connector.name)
    elif mode in _TOMBSTONES:
        former = unwrap.options.get("delete.handling.mode")
        ignored = f" (since 3.2, Debezium ignores delete.handling.mode={former})" if former else ""
        what = (
            f"flattened deletes are tombstones{ignored}, without position and time: a replay that stops before one "
            "shows the deleted row until it continues"
        )
        yield warn("tombstones", what, cure, connector.name)


def _delete_mode(connector: Connector, unwrap: Transform) -> str:
    """The mode in effect: `drop`, `rewrite…`, or one that makes tombstones."""
    options = unwrap.options
    if mode := options.get("delete.tombstone.handling.mode"):
        return mode.lower()
    if () < connector.version < (3, 2):
        former = options.get("delete.handling.mode", "drop").lower()
        keeps_tombstones = options.get("drop.tombstones", "true").lower() == "false"
        return "tombstone" if former == "none" or (former == "drop" and keeps_tombstones) else former
    return "tombstone"


def _tombstone_filter(connector: Connector, unwrap: Transform) -> str | None:
    """The alias of a transform after `unwrap` that drops tombstones; None without one."""
    for transform in connector.transforms[connector.transforms.index(unwrap) + 1 :]:
        predicate = connector.config.get(f"predicates.{transform.options.get('predicate')}.type", "")
        is_negated = transform.options.get("negate", "false").lower() == "true"
        if transform.type == "Filter" and predicate.endswith(".RecordIsTombstone") and not is_negated:
            return transform.alias
    return None


def _operations(connector: Connector) -> Iterator[Finding]:
    skipped = {name.strip().lower() for name in connector.config.get("skipped.operations", "t").split(",")}
    if lost := [words for op, words in _OPERATIONS.items() if op in skipped]:
        what = f"{' and '.join(lost)} are not sent, so silver differs from the source"
        yield fail("operations", what, "set skipped.operations=none", connector.name)
    if connector.kind not in _SEND_TRUNCATE:
        return
    if connector.unwrap:
        what = f"{connector.unwrap.type} drops TRUNCATE, so truncated rows stay in silver"
        cure = "delete rows instead of TRUNCATE, or send envelopes with skipped.operations=none"
        yield warn("operations", what, cure, connector.name)
    elif "t" in skipped:
        what = "TRUNCATE is not sent, so truncated rows stay in silver"
        yield warn("operations", what, "set skipped.operations=none", connector.name)


def _dereference(connector: Connector) -> Iterator[Finding]:
    sides = [side for side in ("key", "value") if connector.converter(side).startswith("io.apicurio.")]
    options = [f"{side}.converter.apicurio.registry.dereference-schema" for side in sides]
    if missing := [option for option in options if connector.config.get(option, "").lower() != "true"]:
        what = "for 30 seconds after an ALTER TABLE, records silently lack the values of new columns"
        yield warn("dereference", what, f"set {' and '.join(f'{option}=true' for option in missing)}", connector.name)


def _record_size(connector: Connector) -> Iterator[Finding]:
    for transform in connector.transforms:
        if transform.type == "EnforceRecordSize":
            what = f"it cuts the texts and bytes of rows above {transform.options.get('max.bytes', '?')} bytes unmarked"
            cure = f"remove `{transform.alias}` from `transforms`, and raise producer.override.max.request.size instead"
            yield warn("record-size", what, cure, connector.name)


def _errors(connector: Connector) -> Iterator[Finding]:
    if connector.config.get("errors.tolerance", "none").lower() == "all":
        what = "records that a transform or converter rejects are skipped, so silver lacks these changes"
        yield fail("errors", what, "set errors.tolerance=none", connector.name)
    mode = "event.processing.failure.handling.mode"
    if connector.config.get(mode, "fail").lower() != "fail":
        what = "events that Debezium cannot process are skipped, so silver lacks these changes"
        yield fail("errors", what, f"set {mode}=fail", connector.name)


def _names(connector: Connector, envelope: EnvelopeConfig) -> Iterator[Finding]:
    unwrap = connector.unwrap
    prefix = unwrap.options.get("add.fields.prefix", "__") if unwrap else envelope.add_fields_prefix
    if prefix != envelope.add_fields_prefix:
        what = "silver does not recognize the position, operation and time of flattened records by their names"
        yield fail("names", what, f"set `envelope.add_fields_prefix: {prefix}`", connector.name)
    placeholder = connector.config.get("unavailable.value.placeholder", "__debezium_unavailable_value")
    if placeholder != envelope.unavailable_value_placeholder:
        what = "silver stores the placeholder of unchanged values, instead of keeping the value"
        cure = f"set `envelope.unavailable_value_placeholder: {placeholder}`"
        yield fail("names", what, cure, connector.name)


_CHECKS: Sequence[Callable[[Connector], Iterator[Finding]]] = (
    *(_tasks, _position, _deletes, _operations, _dereference, _record_size, _errors),
)


def null_defaults(columns: Sequence[str], topic: str, connector: Connector | None) -> Iterator[Finding]:
    """Whether nulls of nullable columns with a default arrive as the default.

    Args:
        columns: such columns of the topic's newest schema.
        connector: None if unknown.
    """
    options, unwrap = dict[str, str](), connector and connector.unwrap
    converter = connector.converter("value") if connector else ""
    if converter.endswith("JsonConverter"):
        options["value.converter.replace.null.with.default"] = "false"
    elif converter.startswith("io.confluent."):
        options["value.converter.ignore.default.for.nullables"] = "true"
    if unwrap and connector and _delete_mode(connector, unwrap).startswith("rewrite"):
        options[unwrap.option("replace.null.with.default")] = "false"
    has_option = not converter.startswith("io.apicurio.")
    config = connector.config if connector else {}
    missing = [f"{name}={value}" for name, value in options.items() if config.get(name, "").lower() != value]
    if not columns or (has_option and converter and not missing):
        return
    cure = f"set {' and '.join(missing)}"
    if not converter:
        cure = "set replace.null.with.default=false on JsonConverter, ignore.default.for.nullables=true on Confluent's"
    elif not has_option:
        cure = "drop these defaults in the source, because Apicurio's converter has no option for it"
    what = f"null in {', '.join(columns)} arrives as the column's default"
    yield warn("null-defaults", what, cure, topic)

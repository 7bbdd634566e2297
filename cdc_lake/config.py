"""The settings of a run: one YAML file, checked before anything starts.

Precedence: flag > environment (`CDC_LAKE__KAFKA__BOOTSTRAP_SERVERS=…`) > file > default. The file is `--config`, else
`CDC_LAKE_CONFIG`, else `conf/cdc-lake.yml` in the working directory, else the one of the checkout this package runs
from. Relative paths in it start at the folder that holds the file. Instead of a file it may be a parameter of AWS'
Parameter Store, `ssm:NAME`; then they start at `conf` in the working directory, where a job has the package's conf/.
"""

import difflib
import json
import os
import re
import socket
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal, Self, TypeVar, get_args
from urllib.parse import quote, urlsplit

import yaml
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from cdc_lake import aws
from cdc_lake.errors import ConfigError, UnsupportedError
from cdc_lake.partitioning import PartitionField

CHECKOUT = Path(__file__).resolve().parents[1]
EMBEDDED = "embedded"
"""As an address: the server of that kind that `cdc-lake stack up` started."""
Framing = Literal["auto", "id4", "id8", "glue", "glue-zlib", "single-object", "bare", "json", "csv", "string"]
Limit = Annotated[str, Field(pattern=r"^(\d+|\d{1,2}(\.\d+)?%|100%)$", coerce_numbers_to_str=True)]
"""A number of records, or a share of them."""
Name = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]


JAVA_PRODUCER_SETTINGS = frozenset(
    {"batch.size", "buffer.memory", "compression.type", "delivery.timeout.ms", "linger.ms", "max.request.size"}
)
"""Of those, what only a producer knows."""
ALLOWED_CLIENT_SETTINGS: Mapping[str, frozenset[str]] = {
    "java": JAVA_PRODUCER_SETTINGS
    | {
        *("check.crcs", "client.dns.lookup", "client.id", "client.rack", "connections.max.idle.ms"),
        *("default.api.timeout.ms", "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes"),
        *("max.partition.fetch.bytes", "max.poll.records", "metadata.max.age.ms", "receive.buffer.bytes"),
        *("reconnect.backoff.max.ms", "reconnect.backoff.ms", "request.timeout.ms", "retry.backoff.ms"),
        *("send.buffer.bytes", "socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms"),
        *("ssl.cipher.suites", "ssl.enabled.protocols", "ssl.protocol"),
    },
    "librdkafka": frozenset(
        {
            *("broker.address.family", "broker.address.ttl", "client.dns.lookup", "client.id", "client.rack"),
            *("connections.max.idle.ms", "metadata.max.age.ms", "reconnect.backoff.max.ms", "reconnect.backoff.ms"),
            *("socket.connection.setup.timeout.ms", "socket.keepalive.enable", "socket.max.fails"),
            *("socket.nagle.disable", "socket.receive.buffer.bytes", "socket.send.buffer.bytes", "socket.timeout.ms"),
            *("ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list"),
        }
    ),
}
"""What a user may set of each Kafka client: tuning. Not what reads files, calls addresses, loads classes or says who
asks (CVE-2023-25194, CVE-2025-27817), nor what bronze's order and completeness rest on."""
_SSM = "ssm:"
_REFERENCES = ("env:", "file:", _SSM, "secretsmanager:")


def is_reference(value: str) -> bool:
    """Whether a setting says where a secret is, and is not the value itself."""
    return value.startswith(_REFERENCES)


def _reference(value: str) -> str:
    if not is_reference(value) or value in _REFERENCES:
        raise ValueError(
            "write where the secret is, not the secret: `env:NAME` for a variable, `file:PATH` for a file, `ssm:NAME` "
            "or `secretsmanager:NAME` for one that AWS keeps"
        )
    return value


_METADATA_HOSTS = frozenset(
    {
        *("instance-data", "instance-data.ec2.internal", "metadata", "metadata.azure.internal", "metadata.goog"),
        *("metadata.google.internal", "metadata.internal"),
    }
)
_METADATA_ADDRESSES = frozenset(map(ip_address, ("100.100.100.200", "192.0.0.192", "fd00:ec2::23", "fd00:ec2::254")))
"""Of clouds whose metadata services are not link-local."""
_HOLD_IPV4 = tuple(map(ip_network, ("::/96", "64:ff9b::/96")))
"""Networks of IPv6 whose last 32 bits are an address of IPv4."""


def _http_url(value: str) -> str:
    url = urlsplit(value)
    if url.scheme not in ("http", "https") or not url.hostname or "," in value:
        raise ValueError("write one address, `https://host` or `http://host:port`")
    if "@" in url.netloc:
        raise ValueError("an address must not hold a user or a password: see `registry.auth`")
    if url.query or url.fragment:
        raise ValueError("an address ends with its path: leave out what follows `?` or `#`")
    if _is_of_this_machine_only(url.hostname):
        raise ValueError("a link-local address or a metadata service is a machine's own, such as its cloud credentials")
    return value


def _is_of_this_machine_only(host: str) -> bool:
    """Whether a host is link-local or a cloud's metadata service, in any way of writing that resolvers take."""
    try:
        address = ip_address(host)
    except ValueError:
        try:
            address = IPv4Address(socket.inet_aton(host))  # 2852039166, 0xa9.254.43518
        except OSError:
            return host.rstrip(".").lower() in _METADATA_HOSTS
    if isinstance(address, IPv6Address) and (address.ipv4_mapped or any(address in net for net in _HOLD_IPV4)):
        address = IPv4Address(int(address) & 0xFFFFFFFF)
    return address.is_link_local or address in _METADATA_ADDRESSES


def _registry_url(value: str) -> str:
    return value if value == EMBEDDED else _http_url(value)


def _header(value: str) -> str:
    if not value.isascii() or not value.isprintable():
        raise ValueError("a header holds printable ASCII only")
    return value


def _header_name(value: str) -> str:
    if not value.replace("-", "").isalnum():
        raise ValueError("a header's name holds letters, digits and hyphens only")
    if value.lower() in ("authorization", "proxy-authorization", "cookie"):
        raise ValueError("credentials are no headers of yours: see `registry.auth` and `registry.proxy`")
    return _header(value)


def _proxy(value: str) -> str:
    if is_reference(value):
        return _reference(value)
    if "@" in urlsplit(value).netloc:
        raise ValueError("a proxy's address with a password is a secret: write `env:NAME` or `file:PATH`")
    return _http_url(value)


def _database(value: str) -> str:
    return value if value == EMBEDDED else _reference(value)


SecretReference = Annotated[str, AfterValidator(_reference)]
"""Where a secret is: `env:NAME`, `file:PATH`, `ssm:NAME` or `secretsmanager:NAME`; `secret` looks it up."""
HttpUrl = Annotated[str, AfterValidator(_http_url)]


class Model(BaseModel):
    """Settings are read once and never changed; a key that is not known is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


Settings = TypeVar("Settings", bound=Model)


class BasicAuth(Model):
    """A user and a password, or an API key and its secret."""

    user: str = Field(description="Or the API key.")
    password: SecretReference = Field(description="A reference.")


class BearerAuth(Model):
    """A token that someone else keeps fresh."""

    token: SecretReference = Field(description="A reference; read again when the registry refuses it.")


class OAuth(Model):
    """Client credentials: tokens from an identity provider, renewed before they expire."""

    token_url: HttpUrl = Field(description="The provider's token endpoint.")
    client_id: str
    client_secret: SecretReference = Field(description="A reference.")
    scope: str | None = Field(default=None, description="Several are separated by spaces.")


class RegistryAuth(Model):
    """How the registry knows who asks: one of these."""

    basic: BasicAuth | None = None
    bearer: BearerAuth | None = None
    oauth: OAuth | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError("write one of `basic`, `bearer` and `oauth`")
        return self


class TlsConfig(Model):
    """Certificates, as PEM files."""

    ca: str | None = Field(default=None, description="Who signed the server's certificate, if no public authority did.")
    cert: str | None = Field(default=None, description="The client's own, for a server that asks for one.")
    key: str | None = Field(default=None, description="Its private key, without a password; may be in `cert` instead.")

    @model_validator(mode="after")
    def _key_has_certificate(self) -> Self:
        if self.key and not self.cert:
            raise ValueError("`key` is the private key of a certificate: set `cert` too")
        return self


class KerberosConfig(Model):
    """A Kerberos principal."""

    principal: str = Field(min_length=1)
    keytab: str = Field(min_length=1, description="Its file, at the same path on the driver and on every executor.")
    service: str = Field(default="kafka", min_length=1, description="The name the brokers run under.")


class KafkaTls(TlsConfig):
    """TLS to the brokers. A certificate is a PEM file, or a reference to its text, `env:KAFKA_CA`; a key is PKCS #8."""

    enabled: bool = Field(default=True, description="false: a login goes over an open line, which each report says.")
    verify_hostname: bool = Field(
        default=True, description="false: any host with a certificate of `ca` is believed, which each report says."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.enabled and (self.ca or self.cert or not self.verify_hostname):
            raise ValueError("without TLS there are no certificates: leave all else out, or `enabled`")
        return self


KafkaAuth = Literal[
    "none", "plain", "scram_sha_256", "scram_sha_512", "oauthbearer", "gssapi", "aws_msk_iam", "azure_event_hubs"
]
_LOGIN_SETTINGS: Mapping[KafkaAuth, tuple[str, ...]] = {
    "none": (),
    "plain": ("user", "password"),
    "scram_sha_256": ("user", "password"),
    "scram_sha_512": ("user", "password"),
    "oauthbearer": ("oauth",),
    "gssapi": ("kerberos",),
    "aws_msk_iam": (),
    "azure_event_hubs": ("connection_string",),
}
"""What each login needs; another has no use for it."""
ClientSettings = dict[str, str | int | float | bool]


class KafkaConfig(Model):
    """The brokers, and how they know who asks (docs/how-to/brokers.md)."""

    bootstrap_servers: str = Field(default=EMBEDDED, description="host:port, comma separated, or `embedded`.")
    auth: KafkaAuth = Field(default="none", description="The kind of login.")
    user: str | None = Field(default=None, min_length=1, description="Of plain and scram.")
    password: SecretReference | None = Field(default=None, description="Of plain and scram: a reference.")
    oauth: OAuth | None = Field(default=None, description="Of oauthbearer.")
    kerberos: KerberosConfig | None = Field(default=None, description="Of gssapi.")
    connection_string: SecretReference | None = Field(default=None, description="Of azure_event_hubs: a reference.")
    region: str | None = Field(
        default=None, description="Of aws_msk_iam, where it is not in the name of the first broker."
    )
    tls: KafkaTls | None = Field(
        default=None, description="Every login is over TLS; without one, brokers that want TLS."
    )
    java: ClientSettings = Field(
        default_factory=dict, description="More settings of Java's client, inside Spark; the allowed ones only."
    )
    librdkafka: ClientSettings = Field(
        default_factory=dict, description="More settings of librdkafka, in the driver; the allowed ones only."
    )
    timeout_seconds: float = Field(default=10.0, gt=0, description="How long a broker may take to answer one question.")

    @model_validator(mode="after")
    def _login_is_whole(self) -> Self:
        needed = _LOGIN_SETTINGS[self.auth]
        if missing := [f"`kafka.{name}`" for name in needed if getattr(self, name) is None]:
            raise ValueError(f"`auth: {self.auth}` needs {' and '.join(missing)}")
        others = {name for names in _LOGIN_SETTINGS.values() for name in names if name not in needed}
        if useless := sorted(name for name in others if getattr(self, name) is not None):
            raise ValueError(f"`auth: {self.auth}` has no use for `kafka.{useless[0]}`")
        if self.auth == "aws_msk_iam" and self.msk_region is None:
            raise ValueError("no name of a broker of Amazon MSK says its region: set `region`")
        if self.auth in ("aws_msk_iam", "azure_event_hubs") and self.tls and not self.tls.enabled:
            raise ValueError(f"`auth: {self.auth}` is over TLS only: leave `kafka.tls.enabled` out")
        if self.auth == "none" and self.tls and not self.tls.enabled:
            raise ValueError("without a login there is no TLS unless `kafka.tls` asks for it: leave it out")
        return self

    @field_validator("java", "librdkafka")
    @classmethod
    def _may_be_set(cls, given: ClientSettings, about: ValidationInfo) -> ClientSettings:
        allowed = ALLOWED_CLIENT_SETTINGS[str(about.field_name)]
        for name in given:
            if name not in allowed:
                near = difflib.get_close_matches(name, allowed, n=1)
                hint = f"did you mean `{near[0]}`?" if near else "those that may are listed in docs/how-to/brokers.md"
                raise ValueError(f"`{name}` is not among the settings that may be set here; {hint}")
        return given

    @property
    def msk_region(self) -> str | None:
        """The region of the brokers, where they are Amazon's."""
        found = re.search(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com", self.bootstrap_servers)
        return self.region or (found and found[1])

    @property
    def is_encrypted(self) -> bool:
        """Whether the line to the brokers is."""
        return self.tls.enabled if self.tls else self.auth != "none"

    @property
    def warnings(self) -> list[str]:
        """What is switched off that protects the line, for each report."""
        found = []
        if self.tls and not self.tls.enabled:
            found.append("kafka.tls.enabled: false: the login and all records go over an open line")
        if self.tls and not self.tls.verify_hostname:
            found.append(
                "kafka.tls.verify_hostname: false: whoever has a certificate of kafka.tls.ca can be the broker"
            )
        return found


class FilesConfig(Model):
    """Files of a sink connector, to read instead of Kafka (docs/how-to/files.md)."""

    root: str | None = Field(
        default=None, description="Folder or URL of the topics' folders; if nothing is said, Kafka is read."
    )


class RegistryConfig(Model):
    """The schema registry that framed records point to."""

    type: Literal["apicurio", "confluent", "ccompat", "glue"] = Field(
        default="apicurio", description="ccompat: another registry that answers as Confluent's does."
    )
    url: Annotated[str, AfterValidator(_registry_url)] = Field(
        default=EMBEDDED,
        description="Of apicurio without `/apis`, or up to `/apis/registry/v2` or `v3`; of ccompat up to "
        "`/apis/ccompat/v6` or `v7`; `embedded`: the embedded stack's, and for glue AWS' own.",
    )
    ids: Literal["auto", "content", "global"] = Field(
        default="auto", description="What a bare number in a frame is in Apicurio. Others have one kind of id."
    )
    context: str | None = Field(
        default=None, pattern=r"^[\w-][\w.-]*$", description="Confluent's schema context that the ids are of."
    )
    auth: RegistryAuth | None = None
    tls: TlsConfig = TlsConfig()
    headers: dict[Annotated[str, AfterValidator(_header_name)], Annotated[str, AfterValidator(_header)]] = Field(
        default_factory=dict, description="Sent along, such as Confluent Cloud's `target-sr-cluster`. No secrets."
    )
    proxy: Annotated[str, AfterValidator(_proxy)] | None = Field(
        default=None, description="Its address, or a reference to it if it holds a password."
    )
    region: str | None = Field(default=None, description="Of glue; AWS' usual places when there is none.")
    timeout_seconds: float = Field(default=10.0, gt=0, description="For one request.")
    attempts: int = Field(default=4, ge=1, description="Requests in all before the registry counts as down.")

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if self.context and self.type != "confluent":
            raise ValueError("only registries of type `confluent` have a `context`")
        if self.auth and self.type == "glue":
            raise ValueError("glue takes its credentials from AWS' usual places: leave `auth` out")
        return self


class LakeConfig(Model):
    """Where the tables are."""

    root: str = Field(
        default="../.cdc_lake/lake", description="Folder or URL; tables are <root>/<layer>/<prefix>/<schema>/<table>."
    )


class GoldConfig(Model):
    """The tables that are made from silver by SQL."""

    models: str = Field(default="gold", description="Folder of their models, a file <name>.sql for each.")
    schemas: str = Field(
        default="schemas", description="Folder of the topics' schemas that are written by hand: <subject>.avsc."
    )


def _metastore(value: str) -> str:
    servers = value.split(",")
    if value != EMBEDDED and not all(re.fullmatch(r"thrift://[^\s/:@]+:\d+", server) for server in servers):
        raise ValueError("write `thrift://host:port`, several separated by commas, or `embedded`")
    return value


def _template(*names: str) -> AfterValidator:
    def check(value: str) -> str:
        try:
            asked = {name for _, name, _, _ in Formatter().parse(value) if name is not None}
        except ValueError as exc:
            raise ValueError(f"this is not a template ({exc})") from exc
        if unknown := asked - set(names):
            raise ValueError(
                f"there is no {{{min(unknown)}}}: it may have {', '.join(f'{{{name}}}' for name in names)}"
            )
        return value

    return AfterValidator(check)


Layer = Literal["bronze", "silver", "gold"]


class CatalogConfig(Model):
    """Where other engines find the tables by name."""

    type: Literal["none", "hive", "glue"] = Field(
        default="none", description="hive: a Hive metastore, or what a cluster has in its place; glue: AWS Glue."
    )
    uri: Annotated[str, AfterValidator(_metastore)] | None = Field(
        default=None,
        description="Of hive: `thrift://host:port`, several separated by commas, or `embedded`; if nothing is said, "
        "what the cluster's hive-site.xml says.",
    )
    region: str | None = Field(default=None, description="Of glue; AWS' usual places when there is none.")
    endpoint: HttpUrl | None = Field(default=None, description="Of glue, where it is not AWS' own.")
    timeout_seconds: float = Field(default=10.0, gt=0, description="For one question.")
    layers: tuple[Layer, ...] = Field(
        default=("bronze", "silver", "gold"), description="Whose tables the catalog is told of."
    )
    database: Annotated[str, _template("prefix", "schema", "layer")] = Field(
        default="{prefix}_{layer}", description="Of a topic's tables: {prefix}, {schema}, {layer}."
    )
    table: Annotated[str, _template("prefix", "schema", "table", "layer")] = Field(
        default="{schema}_{table}",
        description="The name of a topic's table there: {prefix}, {schema}, {table}, {layer}. If nothing is said, "
        "tables that the catalog lists as {table}, the default of version 0.1, keep that name.",
    )
    gold_database: str = Field(default="gold", min_length=1, description="Of the gold tables, named as their models.")
    delta_columns: bool = Field(
        default=True,
        description="Of glue: list the columns of Delta tables, as Lake Formation and views need it; without, one "
        "column that stands for all, and readers look into the table's log.",
    )

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if self.uri and self.type != "hive":
            raise ValueError("only a catalog of type `hive` has a `uri`")
        if (self.region or self.endpoint) and self.type != "glue":
            raise ValueError("only a catalog of type `glue` has a `region` or an `endpoint`")
        return self


class DatabaseConfig(Model):
    """A source database, which `cdc-lake reconcile` reads."""

    url: Annotated[str, AfterValidator(_database)] = Field(
        default=EMBEDDED,
        description="A reference to its address, `postgresql://user:password@host/database`; `embedded`: the database "
        "of the prefix's name in the embedded stack's Postgres.",
    )


class StackConfig(Model):
    """The embedded servers of `cdc-lake stack` and `cdc-lake demo`."""

    folder: str = Field(default="../.cdc_lake/stack", description="Their data, logs and addresses.")


_PROPERTIES: Mapping[str, frozenset[str]] = {
    "delta": frozenset(
        {
            *("delta.checkpointInterval", "delta.dataSkippingNumIndexedCols", "delta.deletedFileRetentionDuration"),
            *("delta.enableChangeDataFeed", "delta.enableDeletionVectors", "delta.logRetentionDuration"),
            *("delta.autoOptimize.autoCompact", "delta.autoOptimize.optimizeWrite", "delta.targetFileSize"),
        }
    ),
    "hudi": frozenset(
        {
            *("hoodie.clean.commits.retained", "hoodie.keep.max.commits", "hoodie.keep.min.commits"),
            *("hoodie.clustering.inline", "hoodie.clustering.inline.max.commits"),
            *("hoodie.compact.inline", "hoodie.compact.inline.max.delta.commits"),
            *("hoodie.parquet.compression.codec", "hoodie.parquet.max.file.size", "hoodie.parquet.small.file.limit"),
        }
    ),
}
"""What of an engine's own settings a table may have otherwise: nothing that decides which rows are right, as Hudi's
index does once there are any."""


Kind = Literal["delta", "hudi_cow", "hudi_mor"]


class SilverTable(Model):
    """What a silver table is held in."""

    format: Literal["delta", "hudi"] = "delta"
    type: Literal["cow", "mor"] | None = Field(
        default=None, description="Of hudi: copy-on-write, if nothing is said, or merge-on-read."
    )
    partition_by: tuple[str, ...] = Field(
        default=(),
        description="What to partition by: a column, year, month, day or hour of one, bucket(n, column). Cannot be "
        "changed once there is a table.",
    )
    buckets: int | None = Field(
        default=None,
        gt=0,
        description="Of hudi: so many file groups a partition, a row's told by its key (Hudi's bucket index), where no "
        "row can change its partition. Cannot be changed once there is a table.",
    )
    table_version: Literal[6] | None = Field(
        default=None,
        description="Of hudi: 6 for readers from before Hudi 1.0, such as Athena's; if nothing is said, the newest "
        "that the Hudi in use writes. Cannot be changed once there is a table.",
    )
    properties: dict[str, str] = Field(
        default_factory=dict, description="The engine's own settings of the table, from a list."
    )

    @model_validator(mode="after")
    def _fits_its_format(self) -> Self:
        if self.format == "delta" and self.type is not None:
            raise ValueError("only tables of format hudi have a `type`")
        if self.format == "delta" and (self.buckets, self.table_version) != (None, None):
            raise ValueError("only tables of format hudi have `buckets` and a `table_version`")
        if len({field.name for field in self.partitions}) < len(self.partition_by):
            raise ValueError("`partition_by` says the same twice")
        for name in self.properties.keys() - _PROPERTIES[self.format]:
            near = difflib.get_close_matches(name, sorted(_PROPERTIES[self.format]), n=1, cutoff=0.5)
            meant = f" (did you mean `{near[0]}`?)" if near else ""
            raise ValueError(f"`{name}` is no property that a table of format {self.format} may have{meant}")
        return self

    @property
    def partitions(self) -> tuple[PartitionField, ...]:
        """What `partition_by` says."""
        return tuple(map(PartitionField.parse, self.partition_by))

    @property
    def kind(self) -> Kind:
        """Its format and type in a word."""
        if self.format == "delta":
            return "delta"
        return "hudi_mor" if self.type == "mor" else "hudi_cow"


TableType = Literal["delta", "hudi-cow", "hudi-mor"]
TABLE_TYPES: Mapping[TableType, SilverTable] = {
    "delta": SilverTable(),
    "hudi-cow": SilverTable(format="hudi", type="cow"),
    "hudi-mor": SilverTable(format="hudi", type="mor"),
}
"""All there are, by a short name."""


class Expectation(Model):
    """What rows are expected to be."""

    name: Name
    holds: str = Field(description="An SQL condition; a row meets it unless it is false.")
    on_fail: Literal["warn", "reject", "stop"] = Field(
        default="warn",
        description="What a row does that does not meet it: it is counted, left out, or nothing is written (exit 30).",
    )


def _start(value: Any) -> Any:
    if isinstance(value, int | float):
        raise ValueError("a number alone says no partition: write `0: 1200`, or a time as in 2026-11-23T12:00:00Z")
    return value


StartPosition = Annotated[
    Literal["earliest", "latest"] | dict[int, Annotated[int, Field(ge=0)]] | AwareDatetime, BeforeValidator(_start)
]
"""A place in each partition of a topic: its first record there is, behind its last, the offset by partition (where none
is named, the first), or the first record written then or later."""
Evolution = Literal["evolve", "add_only", "freeze"]
"""What may become of silver's columns when the source's change."""


class TableConfig(Model):
    """How one table is treated. Nothing of it must be set."""

    silver: tuple[SilverTable, ...] = Field(
        default=(SilverTable(),),
        min_length=1,
        description="What silver is held in: one table, or several side by side. Readers such as gold take the first.",
    )
    deletes: Literal["soft", "hard"] = Field(
        default="soft", description="soft: the row stays with `__deleted = true`; hard: it goes."
    )
    soft_delete_values: Literal["last", "null"] = Field(
        default="last", description="What a soft-deleted row holds outside its key: its last real values, or nulls."
    )
    truncates: Literal["as_deletes", "hard", "soft", "refuse"] = Field(
        default="as_deletes",
        description="What a TRUNCATE does to the rows before it: what `deletes` says, a hard or a soft delete of each; "
        "or the run stops.",
    )
    truncates_across_partitions: bool = Field(
        default=False,
        description="Apply truncates of topics with several partitions too, where Kafka's time alone says what came "
        "before.",
    )
    remove_missing_after_snapshot: bool = Field(
        default=False,
        description="Delete the rows that a completed new snapshot of the whole table no longer has.",
    )
    delete_memory_days: float = Field(
        default=30.0, gt=0, description="How long a hard delete, a truncate or a moved row's values are remembered."
    )
    on_log_reset: Literal["stop", "warn"] = Field(
        default="stop",
        description="When the source's log positions went back on many keys while its clock went on (a restore).",
    )
    null_means_keep: tuple[str, ...] = Field(
        default=(),
        description="Columns whose null in an update means `not sent`: types the connector has no placeholder for.",
    )
    start: StartPosition = Field(
        default="earliest",
        description="Where bronze begins to read a topic: earliest, latest, a time, or `partition: offset`. From then "
        "on its own progress counts; see `cdc-lake seek`.",
    )
    max_rows: int = Field(
        default=1_000_000,
        gt=0,
        description="Records per batch. Bronze takes a whole file of `files.root` although it has more, silver a whole "
        "batch of bronze.",
    )
    max_batch_bytes: int | None = Field(
        default=None,
        gt=0,
        description="Bytes of keys, values and headers that a batch has at most (whole bronze batches in silver), "
        "unless one record has more. Default: an eighth of the heap of the driver or of an executor, the smaller one, "
        "divided by the tables side by side.",
    )
    min_batch_bytes: int = Field(
        default=0,
        ge=0,
        description="With --continuous: records wait until about so many bytes of keys and values are there, so that "
        "files are not small.",
    )
    max_latency_seconds: float = Field(
        default=300.0, gt=0, description="But no record waits longer than this for others."
    )
    unavailable_value: str = Field(
        default="__debezium_unavailable_value", description="The connector's `unavailable.value.placeholder`."
    )
    key_framing: Framing = Field(
        default="auto", description="How keys name their schema; auto: told by headers and first bytes."
    )
    value_framing: Framing = Field(default="auto", description="The same of values.")
    key_schemas: tuple[str, ...] = Field(
        default=(), description="Files of Avro schemas of keys that name none (bare), or name a fingerprint."
    )
    value_schemas: tuple[str, ...] = Field(default=(), description="The same of values.")
    key_columns: tuple[str, ...] = Field(
        default=(), description="The key's column where keys are text (key_framing: string, csv), its types in columns."
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Types, in Spark's words, by column: of CSV, text, and JSON without a schema.",
    )
    mode: Literal["merge", "append"] = Field(
        default="merge",
        description="append: silver has a row for each event, and nothing is merged; no key is needed.",
    )
    derive: dict[str, str] = Field(
        default_factory=dict,
        description="Of append: further columns of silver, SQL expressions by name, on the event's own columns and "
        "`meta.kafka`.",
    )
    keys: tuple[str, ...] = Field(
        default=(),
        description="The row's columns that make its key, where Kafka's keys do not: they are not looked at.",
    )
    sequence_by: str | None = Field(
        default=None,
        description="The row's column that says which of two events is newer, a whole number, date or timestamp, where "
        "the source's log does not.",
    )
    apply_as_deletes: str | None = Field(
        default=None, description="An SQL condition; an event whose row meets it deletes the row."
    )
    evolution: Evolution = Field(
        default="evolve",
        description="What a change of the source's columns does to silver's: evolve adds, widens, and puts values of "
        "another type beside; add_only adds, and else the run stops; freeze stops at any change.",
    )
    except_columns: tuple[str, ...] = Field(default=(), description="The source's columns that silver does not have.")
    rename: dict[str, str] = Field(
        default_factory=dict, description="Silver's names of columns, by the source's; several may become one in turn."
    )
    cast: dict[str, str] = Field(
        default_factory=dict,
        description="Types that silver's columns have whatever comes, in Spark's words; a value that does not go into "
        "one stops the run.",
    )
    record_names: tuple[str, ...] = Field(
        default=(),
        description="Globs of what the topic's records are named after, where that is not the topic itself.",
    )
    metadata_prefix: str = Field(
        default="__", description="What the unwrap transform puts before the fields it adds (add.fields.prefix)."
    )
    metadata_fields: dict[str, str] = Field(
        default_factory=dict,
        description="Fields that the unwrap transform was told to rename, ours to the name sent; all, where the "
        "prefix is empty.",
    )
    max_record_bytes: int = Field(
        default=16 << 20, gt=0, description="A larger key or value is quarantined, and its bytes are not kept."
    )
    decoded: bool = Field(
        default=False, description="Bronze holds typed `before` and `after` beside the bytes, for people who read it."
    )
    expectations: tuple[Expectation, ...] = Field(
        default=(),
        description="What rows are to be. Each event is judged for itself before it is folded into silver; one that "
        "tells nothing of a column (a placeholder) meets what is said of it.",
    )
    on_error: Literal["quarantine", "stop", "log"] = Field(
        default="quarantine",
        description="What a record that cannot be read does: it is set aside; the run stops before it commits; or it "
        "is logged and waits for nobody, its bytes in bronze all the same.",
    )
    dead_letter_topic: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")] | None = Field(
        default=None,
        description="A Kafka topic that records in quarantine are sent to, too, with Connect's `__connect.errors` "
        "headers.",
    )
    max_quarantined: Limit = Field(
        default="100%",
        description="More records of a run in quarantine than this (a number, or a share: 0.1%) end it with exit "
        "code 30, after the commit.",
    )

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        kinds = [table.kind for table in self.silver]
        if len(set(kinds)) < len(kinds):
            raise ValueError("`silver` names the same format and type twice")
        if self.keys and (self.key_columns or self.key_schemas):
            raise ValueError("`keys` takes the key from the row, so that `key_columns` and `key_schemas` say nothing")
        if len({one.name for one in self.expectations}) < len(self.expectations):
            raise ValueError("two of `expectations` have the same name")
        return self

    @property
    def key_of_rows(self) -> tuple[str, ...] | None:
        """The columns of the row that make its key; empty where Kafka's key does, none where rows have no key."""
        return None if self.mode == "append" else self.keys

    def check(self, topic: str) -> None:
        """See that what one setting needs of another is there, all of a topic's together.

        Raises:
            ConfigError: it is not.
        """
        for side in ("key", "value"):
            framing = getattr(self, f"{side}_framing")
            if framing in ("bare", "single-object") and not getattr(self, f"{side}_schemas"):
                raise ConfigError(
                    f"{topic}: {side}_framing: {framing}",
                    "such records do not carry their schema, and the settings name none",
                    f"name the files of their Avro schemas in `{side}_schemas`",
                )
        is_append = self.mode == "append"
        needless = (
            ("keys", "sequence_by", "apply_as_deletes", "remove_missing_after_snapshot") if is_append else ("derive",)
        )
        if given := [name for name in needless if getattr(self, name)]:
            raise ConfigError(
                f"{topic}: {given[0]}", f"it says nothing with `mode: {self.mode}`", "take one of them out"
            )
        if is_append and any(table.format != "delta" for table in self.silver):
            raise ConfigError(f"{topic}: mode: append", "such tables are held in delta", "mend `silver` of this table")
        if self.value_framing in ("csv", "string") and not self.columns:
            raise ConfigError(
                f"{topic}: value_framing: {self.value_framing}",
                "such records do not say their columns, and the settings name none",
                "name them with their types in `columns`, in the order of the text",
            )
        for name in (*self.keys, *([self.sequence_by] if self.sequence_by else ())):
            if name in self.except_columns:
                raise ConfigError(
                    f"{topic}: except_columns: {name}",
                    "`keys` or `sequence_by` needs the column",
                    "take it out of one of them",
                )


class LeaseConfig(Model):
    """A table is written by one run at a time; the others find its lease and end before they work."""

    enabled: bool = Field(
        default=True,
        description="Let one run at a time write a table. Required for a lake on S3; keep it on for Hudi tables.",
    )
    seconds: float = Field(default=60.0, gt=0, description="A lease not renewed for so long is free to take.")


class RunConfig(Model):
    """How a run goes about its tables."""

    parallel: int = Field(default=4, ge=1, description="Tables worked on side by side in one application.")
    retry_seconds: float = Field(
        default=0.0,
        ge=0,
        description="How long what fails because a server does not answer is tried again, with growing waits; then the "
        "run ends with exit code 10, as it does at once without.",
    )
    report_days: int = Field(
        default=30, ge=1, description="How many days to keep the reports of runs in `<lake.root>/_runs`."
    )


class MetricsConfig(Model):
    """Who is told the numbers of each run (docs/how-to/monitoring.md)."""

    prometheus_folder: str | None = Field(
        default=None, description="Folder for a file per table, which Prometheus' node exporter collects."
    )
    statsd: Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$")] | None = Field(
        default=None, description="host:port of a StatsD server."
    )


def _s3(value: str) -> str:
    if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]+(/[\w.=-]+)*/?", value):
        raise ValueError("write `s3://bucket/prefix`, of letters, digits and `-_.=`")
    return value.rstrip("/")


def _release(value: str) -> str:
    found = re.fullmatch(r"emr-7\.(\d+)\.\d+", value)
    if not found or int(found[1]) < 11:
        raise ValueError(
            "cdc_lake runs on emr-7.11.0 and later of 7: others have another Spark or Hudi (emr-spark-8 has Spark 4.0)"
        )
    return value


S3Url = Annotated[str, AfterValidator(_s3)]
RoleArn = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+$")]
_EMR_SETS = frozenset(
    {
        *("spark.jars", "spark.archives", "spark.files", "spark.submit.pyFiles", "spark.submit.deployMode"),
        *("spark.sql.extensions", "spark.sql.catalog.spark_catalog", "spark.serializer", "spark.kryo.registrator"),
        *("spark.driver.cores", "spark.driver.memory", "spark.executor.cores", "spark.executor.memory"),
        "spark.dynamicAllocation.maxExecutors",
    }
)


class EmrSize(Model):
    """How large a driver is."""

    cores: int = Field(default=2, ge=1, description="Of EMR Serverless: 1, 2, 4, 8 or 16.")
    memory: str = Field(
        default="6g", pattern=r"^\d+g$", description="Of the JVM; a tenth is added for what is beside it."
    )


class EmrExecutors(EmrSize):
    """How large an executor is, and how many there are."""

    cores: int = Field(default=4, ge=1, description="Of EMR Serverless: 1, 2, 4, 8 or 16.")
    memory: str = Field(
        default="8g", pattern=r"^\d+g$", description="Of the JVM; a tenth is added for what is beside it."
    )
    most: int = Field(default=4, ge=1, description="So many at most; Spark asks for as many as there is work for.")


class EmrCluster(Model):
    """EMR on EC2: a cluster that is there, or what a new one is to be."""

    id: str | None = Field(default=None, pattern=r"^j-[A-Z0-9]+$", description="The cluster that steps are sent to.")
    runtime_roles: bool = Field(
        default=True,
        description="Each step has its layer's role, which the cluster's security configuration has to allow; without, "
        "all have the instance profile.",
    )
    on_failure: Literal["CONTINUE", "CANCEL_AND_WAIT", "TERMINATE_CLUSTER"] = Field(
        default="CONTINUE", description="What the cluster does with the other steps when one fails."
    )
    service_role: str | None = Field(default=None, description="Of a new cluster: EMR's own role.")
    instance_profile: str | None = Field(default=None, description="Of a new cluster: its machines' instance profile.")
    subnet: str | None = Field(default=None, pattern=r"^subnet-\w+$", description="Of a new cluster.")
    security_configuration: str | None = Field(default=None, description="Of a new cluster: its name.")
    primary: str = Field(default="m6i.xlarge", description="Of a new cluster: an instance type with x86-64 processors.")
    core: str = Field(default="m6i.xlarge", description="The same of the machines that work.")
    core_count: int = Field(default=2, ge=1, description="How many of them.")
    parallel_steps: int = Field(default=1, ge=1, le=256, description="Of a new cluster: steps side by side.")
    idle_seconds: int = Field(
        default=3600, ge=60, le=604800, description="A new cluster without work for so long ends."
    )
    bootstrap: tuple[S3Url, ...] = Field(
        default=(), description="Of a new cluster: more scripts that each machine runs when it starts."
    )
    classifications: dict[str, dict[str, str]] = Field(
        default_factory=dict, description="Of a new cluster: EMR's configuration classifications, on top of ours."
    )


class EmrServerless(Model):
    """EMR Serverless: an application that is there, with x86-64 processors."""

    application: str = Field(pattern=r"^[0-9a-z]{1,64}$", description="Its id.")


class EmrRoles(Model):
    """The IAM role that each layer's jobs run as."""

    bronze: RoleArn | None = None
    silver: RoleArn | None = None
    gold: RoleArn | None = None
    maintain: RoleArn | None = None


class EmrConfig(Model):
    """Where and how the jobs run on Amazon EMR; read by `cdc-lake emr` only, not by the jobs."""

    name: str = Field(default="cdc-lake", pattern=r"^[a-zA-Z0-9-]+$", description="What steps and job runs begin with.")
    region: str = Field(pattern=r"^[a-z0-9-]+$")
    release: Annotated[str, AfterValidator(_release)] = Field(default="emr-7.13.0", description="EMR's release label.")
    artifacts: S3Url = Field(description="Where packages are: the files of one are below <artifacts>/<version>.")
    logs: S3Url | None = Field(default=None, description="Where EMR writes the logs of clusters and job runs.")
    config: Annotated[str, Field(pattern=r"^ssm:.+$")] | None = Field(
        default=None, description="Where the jobs find their settings; `ssm:/<name>/config` if nothing is said."
    )
    cluster: EmrCluster | None = None
    serverless: EmrServerless | None = None
    roles: EmrRoles = EmrRoles()
    driver: EmrSize = EmrSize()
    executor: EmrExecutors = EmrExecutors()
    spark: dict[str, str] = Field(default_factory=dict, description="More of Spark's settings. Anybody can read them.")
    tags: dict[str, str] = Field(default_factory=dict, description="Of clusters and job runs.")

    @field_validator("spark")
    @classmethod
    def _no_secrets(cls, spark: dict[str, str]) -> dict[str, str]:
        for key in spark:
            if not key.startswith("spark."):
                raise ValueError(f"`{key}` is no setting of Spark's: they begin with `spark.`")
            if key in _EMR_SETS:
                raise ValueError(f"`{key}` is set by cdc_lake")
            if re.search(r"(?i)password|secret|token|credential|jaas|access.?key", key):
                raise ValueError(f"`{key}` would be for everyone to read: secrets are references in the jobs' settings")
        return spark

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if (self.cluster is None) == (self.serverless is None):
            raise ValueError("write one of `cluster` (EMR on EC2) and `serverless` (EMR Serverless)")
        return self


class Config(BaseSettings):
    """Everything a run is told. Built by `load_config`."""

    model_config = SettingsConfigDict(
        env_prefix="CDC_LAKE__",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    kafka: KafkaConfig = KafkaConfig()
    files: FilesConfig = FilesConfig()
    registry: RegistryConfig = RegistryConfig()
    lake: LakeConfig = LakeConfig()
    gold: GoldConfig = GoldConfig()
    catalog: CatalogConfig = CatalogConfig()
    databases: dict[str, DatabaseConfig] = Field(
        default_factory=dict, description="The source databases, by their topics' prefix."
    )
    stack: StackConfig = StackConfig()
    lease: LeaseConfig = LeaseConfig()
    run: RunConfig = RunConfig()
    metrics: MetricsConfig = MetricsConfig()
    emr: EmrConfig | None = Field(default=None, description="Amazon EMR; see docs/how-to/emr.md.")
    defaults: TableConfig = TableConfig()
    tables: dict[str, TableConfig] = Field(
        default_factory=dict,
        description="By topic name or glob; later entries win, and what is left out comes from `defaults`.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over what `load_config` read from the file; there is no .env file."""
        return env_settings, init_settings

    @model_validator(mode="after")
    def _has_leases_on_s3(self) -> Self:
        if not self.lease.enabled and urlsplit(self.lake.root).scheme in aws.S3_SCHEMES:
            raise ValueError(
                "`lease.enabled`: on S3 two commits of Delta at once would overwrite each other; leave it on"
            )
        return self

    @property
    def max_record_bytes(self) -> int:
        """The largest `max_record_bytes` of any table."""
        own = [table.max_record_bytes for table in self.tables.values() if "max_record_bytes" in table.model_fields_set]
        return max([self.defaults.max_record_bytes, *own])

    def table(self, name: str) -> TableConfig:
        """The settings of the table of topic `name`: the defaults, then each glob that fits, in the file's order."""
        settings = self.defaults.model_dump()
        for glob, own in self.tables.items():
            if fnmatchcase(name, glob):
                settings |= own.model_dump(exclude_unset=True)
        return TableConfig(**settings)


def config_path(path: str | Path | None = None) -> Path:
    """The configuration file in effect.

    Raises:
        ConfigError: it does not exist.
    """
    asked = path or os.environ.get("CDC_LAKE_CONFIG")
    candidates = [Path(asked)] if asked else [Path("conf/cdc-lake.yml"), CHECKOUT / "conf/cdc-lake.yml"]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    raise ConfigError(
        str(candidates[0]), "there is no such configuration file", "give one with --config or CDC_LAKE_CONFIG"
    )


def load_config(path: str | Path | None = None) -> Config:
    """Read and check the configuration file; make its paths absolute and its `embedded` addresses real.

    Args:
        path: of the file, or `ssm:NAME`, a parameter of AWS' Parameter Store.

    Raises:
        ConfigError: the file is missing, is not YAML, or holds an unknown key or a wrong value; or the lake of a
            parameter's settings is a local folder.
        InstallationError: boto3 is not installed.
        InfrastructureError: AWS does not answer.
    """
    asked = str(path or os.environ.get("CDC_LAKE_CONFIG", ""))
    if asked.startswith(_SSM):
        where, folder, text = asked, Path("conf").resolve(), aws.parameter(asked.removeprefix(_SSM))
    else:
        file = config_path(path)
        where, folder, text = str(file), file.parent, file.read_text(encoding="utf-8")
    try:
        content = yaml.safe_load(text) or {}
    except yaml.YAMLError as exc:
        raise ConfigError(where, f"this is not YAML: {exc}", "mend the file") from exc
    if not isinstance(content, dict):
        raise ConfigError(where, "the file must hold keys and values", "see docs/reference/settings.md")
    try:
        config = Config(**content)
    except ValidationError as exc:
        raise ConfigError(
            where, in_words(exc, Config), "mend the file, or the CDC_LAKE__ variable of that name"
        ) from exc
    if asked.startswith(_SSM) and "://" not in config.lake.root:
        what = "`lake.root` is a local folder, and the machine that reads these settings will be gone"
        raise ConfigError(where, what, "write an address, such as s3://bucket/lake")
    return _resolved(config, folder)


def _resolved(config: Config, folder: Path) -> Config:
    lake = config.lake.model_copy(update={"root": _absolute(config.lake.root, folder)})
    gold = config.gold.model_copy(
        update={name: _absolute(getattr(config.gold, name), folder) for name in ("models", "schemas")}
    )
    stack = config.stack.model_copy(update={"folder": _absolute(config.stack.folder, folder)})
    kafka, registry = _kafka_resolved(config.kafka, folder), _registry_resolved(config.registry, folder)
    databases = {
        prefix: own.model_copy(update={"url": _reference_resolved(own.url, folder)})
        for prefix, own in config.databases.items()
    }
    tables = {
        "defaults": _with_files(config.defaults, folder),
        "tables": {glob: _with_files(own, folder) for glob, own in config.tables.items()},
    }
    files = config.files
    if files.root:
        files = files.model_copy(update={"root": _absolute(files.root, folder)})
    servers = {"files": files, "stack": stack, "kafka": kafka, "registry": registry, "databases": databases}
    metrics = config.metrics
    if metrics.prometheus_folder:
        metrics = metrics.model_copy(update={"prometheus_folder": _absolute(metrics.prometheus_folder, folder)})
    return config.model_copy(update={"lake": lake, "gold": gold, "metrics": metrics} | servers | tables)


def _with_files(settings: TableConfig, folder: Path) -> TableConfig:
    """The settings with the paths of schema files made absolute."""
    found = {name: getattr(settings, name) for name in ("key_schemas", "value_schemas")}
    return settings.model_copy(
        update={name: tuple(_absolute(file, folder) for file in files) for name, files in found.items() if files}
    )


def _kafka_resolved(kafka: KafkaConfig, folder: Path) -> KafkaConfig:
    update: dict[str, Any] = {}
    if kafka.tls:
        update["tls"] = _tls_resolved(kafka.tls, folder)
    if kafka.oauth:
        update["oauth"] = _secrets_resolved(kafka.oauth, folder)
    if kafka.kerberos:
        update["kerberos"] = kafka.kerberos.model_copy(update={"keytab": _absolute(kafka.kerberos.keytab, folder)})
    return _secrets_resolved(kafka, folder).model_copy(update=update)


def _registry_resolved(registry: RegistryConfig, folder: Path) -> RegistryConfig:
    update: dict[str, Any] = {"tls": _tls_resolved(registry.tls, folder)}
    if registry.proxy:
        update["proxy"] = _reference_resolved(registry.proxy, folder)
    if registry.auth:
        (name,) = registry.auth.model_dump(exclude_none=True)
        way = _secrets_resolved(getattr(registry.auth, name), folder)
        update["auth"] = registry.auth.model_copy(update={name: way})
    return registry.model_copy(update=update)


def _tls_resolved(tls: Settings, folder: Path) -> Settings:
    """The settings with the paths of certificates made absolute."""
    given = {name: value for name in ("ca", "cert", "key") if (value := getattr(tls, name))}
    return tls.model_copy(
        update={
            name: _reference_resolved(value, folder) if is_reference(value) else _absolute(value, folder)
            for name, value in given.items()
        }
    )


def _secrets_resolved(login: Settings, folder: Path) -> Settings:
    """The settings with the paths of files that hold their secrets made absolute."""
    names = ("password", "token", "client_secret", "connection_string")
    given = {name: reference for name in names if (reference := getattr(login, name, None))}
    return login.model_copy(update={name: _reference_resolved(value, folder) for name, value in given.items()})


def _reference_resolved(reference: str, folder: Path) -> str:
    kind, _, place = reference.partition(":")
    return f"file:{_absolute(place, folder)}" if kind == "file" else reference


def _absolute(path: str, folder: Path) -> str:
    return path if "://" in path else str((folder / path).resolve())


_LOOK_UP: Mapping[str, Callable[[str], str]] = {
    "env": lambda name: os.environ[name],
    "file": lambda path: Path(path).read_text(encoding="utf-8"),
    "ssm": aws.parameter,
    "secretsmanager": aws.managed_secret,
}


def secret(reference: str) -> SecretStr:
    """What a reference stands for, looked up now.

    Raises:
        ConfigError: there is nothing.
        InstallationError: it is AWS' to keep, and boto3 is not installed.
        InfrastructureError: AWS does not answer.
    """
    kind, _, place = reference.partition(":")
    try:
        value = _LOOK_UP[kind](place)
    except KeyError as exc:
        raise ConfigError(reference, "the environment has no such variable", "set it for this run") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(reference, f"it cannot be read ({type(exc).__name__})", "see that it is there") from exc
    value = value.rstrip("\r\n")
    if not value:
        raise ConfigError(reference, "it is empty", "put the secret there")
    return SecretStr(value)


def kafka_address(config: Config) -> str:
    """The bootstrap servers, with `embedded` looked up."""
    return _address(config, config.kafka.bootstrap_servers, "kafka")


def registry_address(config: Config) -> str:
    """The registry's URL without a trailing slash, with `embedded` looked up."""
    url = _address(config, config.registry.url, "registry").rstrip("/")
    return f"{url}/apis/ccompat/v7" if (config.registry.url, config.registry.type) == (EMBEDDED, "ccompat") else url


def metastore_address(config: Config) -> str | None:
    """The metastore's addresses, with `embedded` looked up; none where the cluster's own settings say."""
    return config.catalog.uri and _address(config, config.catalog.uri, "metastore")


def database_url(config: Config, prefix: str) -> SecretStr:
    """The address of the source database of a topic prefix, with `embedded` and references looked up.

    Raises:
        ConfigError: nothing says where it is.
        UnsupportedError: it is no Postgres.
        InstallationError, InfrastructureError: see `secret`.
    """
    setting = config.databases.get(prefix, DatabaseConfig()).url
    if setting == EMBEDDED:
        server = urlsplit(_address(config, setting, "postgres"))
        return SecretStr(server._replace(path=f"/{quote(prefix)}").geturl())
    url = secret(setting)
    scheme, _, rest = url.get_secret_value().partition("://")
    if rest and scheme not in ("postgresql", "postgres"):
        raise UnsupportedError(
            f"databases.{prefix}.url",
            "it is not the address of a Postgres, the only kind of database that can be compared with",
            "give one that begins with `postgresql://`",
        )
    return url


def endpoints_file(stack_folder: str | Path) -> Path:
    """Where a running embedded stack writes its addresses, as one JSON object of strings."""
    return Path(stack_folder) / "endpoints.json"


def _address(config: Config, value: str, server: str) -> str:
    if value != EMBEDDED:
        return value
    file = endpoints_file(config.stack.folder)
    if not file.is_file():
        raise ConfigError(
            f"{server}: embedded",
            f"no embedded servers have been started in {config.stack.folder}",
            "run `cdc-lake stack up`, or set the address in the configuration file",
        )
    address: str | None = json.loads(file.read_text(encoding="utf-8")).get(server)
    if address is None:
        raise ConfigError(
            f"{server}: embedded",
            f"the embedded servers in {config.stack.folder} were started without one",
            f"run `cdc-lake stack down`, then `cdc-lake stack up --{server}`",
        )
    return address


def in_words(exc: ValidationError, model: type[BaseModel]) -> str:
    """What is wrong, key by key; one that is not known with the nearest that is.

    Args:
        exc: what pydantic found.
        model: what was to be made.
    """
    return "; ".join(_one_in_words(model, error["type"], error["loc"], error["msg"]) for error in exc.errors())


def _one_in_words(model: type[BaseModel], kind: str, loc: tuple[int | str, ...], message: str) -> str:
    key = ".".join(map(str, loc))
    if kind != "extra_forbidden":
        return f"`{key}`: {message.removeprefix('Value error, ')}"
    near = difflib.get_close_matches(str(loc[-1]), _known_keys(model, loc[:-1]), n=1)
    return f"`{key}` is not a known key" + (f" (did you mean `{near[0]}`?)" if near else "")


def _known_keys(root: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    model: Any = root
    for step in loc:
        fields: Mapping[str, Any] = getattr(model, "model_fields", {})
        if step in fields:
            annotation = fields[str(step)].annotation
            inner = [kind for kind in get_args(annotation) if kind is not type(None)]
            model = inner[-1] if inner else annotation
    return list(getattr(model, "model_fields", {}))

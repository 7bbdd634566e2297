"""The servers that run in a JVM: Kafka, Kafka Connect, Apicurio Registry, and Hive's metastore."""

import shutil
import socket
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JJavaError

from cdc_lake.demo.servers.server import HOST, Server, answers, properties
from cdc_lake.spark.conf import spark_home

MAX_RECORD_BYTES = 32 << 20
"""Kafka's default of 1 MiB is too small for rows with documents. Bronze has its own limit, `read.max_record_bytes`."""
_CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
_API_VERSIONS_REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""Length, api key, api version, correlation id, no client id."""
_KAFKA_HEAP, _CONNECT_HEAP, _REGISTRY_HEAP, _METASTORE_HEAP = "384m", "512m", "320m", "256m"


class Kafka(Server):
    """Kafka in one process, as broker and controller."""

    name = "kafka"

    @property
    def address(self) -> str:
        return self.site.address("kafka")

    def prepare(self) -> None:
        self._conf = self.site.write("server.properties", properties(self._settings()))
        if not (self._data / "meta.properties").is_file():
            tool = ["kafka.tools.StorageTool", "format", "--standalone", "--cluster-id", _CLUSTER_ID]
            self.site.run(self.name, [*self._jvm(), *tool, *self._users(), "--config", str(self._conf)])

    def command(self) -> list[str]:
        return [*self._jvm(), "kafka.Kafka", str(self._conf)]

    def is_ready(self) -> bool:
        # The port opens well before Kafka handles requests.
        try:
            with socket.create_connection((HOST, self.site.ports["kafka"]), timeout=1) as connection:
                connection.sendall(_API_VERSIONS_REQUEST)
                return len(connection.recv(4)) > 0
        except OSError:
            return False

    def _jvm(self) -> list[str]:
        return self.site.jvm_of_part("kafka", _KAFKA_HEAP, "kafka.server.KafkaRaftServer")

    def _users(self) -> list[str]:
        """Flags to create initial users; none, because the broker needs no login."""
        return []

    @property
    def _data(self) -> Path:
        return self.site.folder / "kafka"

    def _settings(self) -> dict[str, object]:
        controller = self.site.address("kafka_controller")
        listeners = f"PLAINTEXT://{self.address},CONTROLLER://{controller}"
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": controller,
            "controller.listener.names": "CONTROLLER",
            "listeners": listeners,
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": self._data,
            "auto.create.topics.enable": "true",
            "num.partitions": 1,
            "message.max.bytes": MAX_RECORD_BYTES,
            "log.retention.ms": -1,
            "log.retention.bytes": -1,
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
            "num.network.threads": 2,
            "num.io.threads": 2,
        }


class Connect(Server):
    """A distributed worker of Kafka Connect with Debezium's Postgres connector and Apicurio's Avro converter."""

    name = "connect"
    after = "kafka"

    @property
    def address(self) -> str:
        return f"http://{self.site.address('connect')}"

    def prepare(self) -> None:
        plugins = self.site.folder / "plugins"
        shutil.rmtree(plugins, ignore_errors=True)
        for jar in self.site.jar_files("apicurio-converter"):
            _link(plugins / "apicurio-converter" / jar.name, jar)
        _link(plugins / "debezium", self.site.archive("debezium"))
        self._conf = self.site.write("connect.properties", properties(self._settings(plugins)))

    def command(self) -> list[str]:
        jvm = self.site.jvm_of_part("connect", _CONNECT_HEAP)
        return [*jvm, "org.apache.kafka.connect.cli.ConnectDistributed", str(self._conf)]

    def is_ready(self) -> bool:
        return answers(f"{self.address}/health")

    def _settings(self, plugins: Path) -> dict[str, object]:
        return {
            "bootstrap.servers": self.site.address("kafka"),
            "listeners": self.address,
            "rest.advertised.host.name": HOST,
            "group.id": "cdc_lake",
            "config.storage.topic": "_connect_configs",
            "config.storage.replication.factor": 1,
            "offset.storage.topic": "_connect_offsets",
            "offset.storage.replication.factor": 1,
            "offset.storage.partitions": 1,
            "status.storage.topic": "_connect_status",
            "status.storage.replication.factor": 1,
            "status.storage.partitions": 1,
            "offset.flush.interval.ms": 500,
            "producer.max.request.size": MAX_RECORD_BYTES,
            "producer.buffer.memory": 2 * MAX_RECORD_BYTES,
            "scheduled.rebalance.max.delay.ms": 0,
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "plugin.path": plugins,
            # Scanning all classes instead takes 15 s and 400 MB more.
            "plugin.discovery": "service_load",
        }


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


class Apicurio(Server):
    """Apicurio Registry, with its schemas in a file so that ids survive restarts."""

    name = "registry"

    @property
    def address(self) -> str:
        return f"http://{self.site.address('registry')}"

    def prepare(self) -> None:
        self.site.archive("apicurio")

    def command(self) -> list[str]:
        (program,) = self.site.archive("apicurio").glob("*-runner.jar")
        options = [
            f"-Dquarkus.http.host={HOST}",
            f"-Dquarkus.http.port={self.site.ports['registry']}",
            f"-Dapicurio.datasource.url=jdbc:h2:file:{self.site.folder}/registry/db",
        ]
        return [*self.site.jvm(_REGISTRY_HEAP, *options), "-jar", str(program)]

    def is_ready(self) -> bool:
        return answers(f"{self.address}/health/ready")


class Metastore(Server):
    """A Hive metastore from PySpark's jars, with its content in a file. It is optional."""

    name = "metastore"

    @property
    def address(self) -> str:
        return f"thrift://{self.site.address(self.name)}"

    @property
    def note(self) -> str:
        return "Hive's metastore has no authentication, and listens on all network interfaces"

    def prepare(self) -> None:
        self.site.write("metastore/hive-site.xml", _hadoop_xml(self._settings()))
        self._create_lock_tables()

    def command(self) -> list[str]:
        return [*self._jvm(), "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self.site.ports[self.name])]

    def is_ready(self) -> bool:
        try:
            with socket.create_connection((HOST, self.site.ports[self.name]), timeout=1):
                return True
        except OSError:
            return False

    def _jvm(self) -> list[str]:
        classpath = f"{self.site.folder / 'conf' / 'metastore'}:{spark_home() / 'jars'}/*"
        options = [f"-Dderby.stream.error.file={self.site.log('metastore-derby')}", "-cp", classpath]
        return self.site.jvm(_METASTORE_HEAP, *options)

    def _create_lock_tables(self) -> None:
        """Create the tables of Hive's locks, which Iceberg needs, by Hive's own function; no program of it does so."""
        command = [*self._jvm(), "py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
        pipe = subprocess.PIPE
        with (
            self.site.log(self.name).open("ab") as log,
            subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd="/") as java,
        ):
            assert java.stdout is not None
            port, token = int(java.stdout.readline()), java.stdout.readline().strip()
            gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
            hive = gateway.jvm.org.apache.hadoop.hive
            try:
                hive.metastore.txn.TxnDbUtil.prepDb(hive.conf.HiveConf())
            except Py4JJavaError as exc:
                if "already exists" not in str(exc):
                    raise
            finally:
                gateway.close()

    def _settings(self) -> dict[str, str]:
        folder = self.site.folder / "metastore"
        return {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder / 'db'};create=true",
            "hive.metastore.warehouse.dir": str(folder / "warehouse"),
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            # Hive's default, BoneCP, is not among the jars of PySpark 4.
            "datanucleus.connectionPoolingType": "HikariCP",
            # It needs a class that PySpark does not include.
            "hive.async.log.enabled": "false",
        }


def _hadoop_xml(values: Mapping[str, str]) -> str:
    pairs = (f"<name>{name}</name><value>{escape(value)}</value>" for name, value in values.items())
    lines = (f"  <property>{pair}</property>" for pair in pairs)
    return "\n".join(["<configuration>", *lines, "</configuration>", ""])

"""Kafka in one process, as broker and controller."""

import socket
import struct
from pathlib import Path

from cdc_lake.embedded.server import HOST, Server, properties

_HEAP = "384m"
MAX_RECORD_BYTES = 32 << 20
"""Kafka's default of 1 MiB is too small for rows with documents. Bronze has its own limit, `read.max_record_bytes`."""
_CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
_API_VERSIONS_REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""Length, api key, api version, correlation id, no client id."""


class Kafka(Server):
    """The broker."""

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
        return self.site.jvm_of_part("kafka", _HEAP, "kafka.server.KafkaRaftServer")

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

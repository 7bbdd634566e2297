"""Kafka Connect with Debezium's Postgres connector and Apicurio's Avro converter."""

import shutil
from pathlib import Path

from cdc_lake.embedded.kafka import MAX_RECORD_BYTES
from cdc_lake.embedded.server import HOST, Server, answers, properties

_HEAP = "512m"


class Connect(Server):
    """A distributed worker."""

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
        jvm = self.site.jvm_of_part("connect", _HEAP)
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

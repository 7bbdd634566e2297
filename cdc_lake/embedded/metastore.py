"""A Hive metastore from PySpark's jars, with its content in a file."""

import socket
from collections.abc import Mapping
from xml.sax.saxutils import escape

from cdc_lake.embedded.server import HOST, Server
from cdc_lake.spark.conf import spark_home

_HEAP = "256m"


class Metastore(Server):
    """The catalog, which is optional."""

    name = "metastore"

    @property
    def address(self) -> str:
        return f"thrift://{self.site.address(self.name)}"

    @property
    def note(self) -> str:
        return "Hive's metastore has no authentication, and listens on all network interfaces"

    def prepare(self) -> None:
        self.site.write("metastore/hive-site.xml", _configuration(self._settings()))

    def command(self) -> list[str]:
        folder = self.site.folder
        classpath = f"{folder / 'conf' / 'metastore'}:{spark_home() / 'jars'}/*"
        options = [f"-Dderby.stream.error.file={self.site.log('metastore-derby')}", "-cp", classpath]
        main = "org.apache.hadoop.hive.metastore.HiveMetaStore"
        return [*self.site.jvm(_HEAP, *options), main, "-p", str(self.site.ports[self.name])]

    def is_ready(self) -> bool:
        try:
            with socket.create_connection((HOST, self.site.ports[self.name]), timeout=1):
                return True
        except OSError:
            return False

    def _settings(self) -> dict[str, str]:
        folder = self.site.folder / "metastore"
        return {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder / 'db'};create=true",
            "hive.metastore.warehouse.dir": str(folder / "warehouse"),
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            # It needs a class that PySpark does not include.
            "hive.async.log.enabled": "false",
        }


def _configuration(values: Mapping[str, str]) -> str:
    """Hadoop's XML."""
    pairs = (f"<name>{name}</name><value>{escape(value)}</value>" for name, value in values.items())
    lines = (f"  <property>{pair}</property>" for pair in pairs)
    return "\n".join(["<configuration>", *lines, "</configuration>", ""])

"""Apicurio Registry, with its schemas in a file so that ids survive restarts."""

from cdc_lake.embedded.server import HOST, Server, answers

_HEAP = "320m"


class Apicurio(Server):
    """The schema registry."""

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
        return [*self.site.jvm(_HEAP, *options), "-jar", str(program)]

    def is_ready(self) -> bool:
        return answers(f"{self.address}/health/ready")

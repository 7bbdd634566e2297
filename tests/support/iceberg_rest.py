"""A REST catalog of Iceberg tables, and a proxy before it that records requests and loses answers."""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from cdc_lake.demo.servers.server import HOST, Server, Site, answers, choose_ports
from cdc_lake.spark.conf import spark_home
from cdc_lake.spark.fetch import fetch
from cdc_lake.spark.jars import Jar, cache_folder, lock_file, read_lock
from cdc_lake.spark.java import find_java
from support.one_server import running, serving

TOKEN_PATH = "/v1/oauth/tokens"
_MAIN = "org.apache.iceberg.rest.RESTCatalogServer"


def jars_of(part: str) -> tuple[Jar, ...]:
    """The jars of a part of conf/jars/iceberg-catalogs.lock; downloaded if they are missing."""
    jars = tuple(jar for jar in read_lock(lock_file("iceberg-catalogs")) if part in jar.parts)
    fetch(jars, cache_folder())
    return jars


class RestCatalog(Server):
    """Iceberg's reference server, with its catalog in memory; a client's login is not checked.

    Args:
        classpath: comes first in its class path, for example Hadoop's settings of an object store.
    """

    name = "iceberg-rest"

    def __init__(self, site: Site, classpath: str) -> None:
        super().__init__(site)
        self._classpath = classpath

    @property
    def address(self) -> str:
        return f"http://{self.site.address('registry')}"

    def prepare(self) -> None:
        """See `Server`. It has no files."""

    def command(self) -> list[str]:
        settings = {
            "CATALOG__IMPL": "org.apache.iceberg.inmemory.InMemoryCatalog",
            "IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
            "WAREHOUSE": str(self.site.folder / "warehouse"),
            "REST_PORT": str(self.site.ports["registry"]),
        }
        jars = (*map(str, self.site.jar_files("server")), f"{spark_home() / 'jars'}/*")
        java = self.site.jvm("256m", "-cp", ":".join((self._classpath, *jars)))
        return ["env", *(f"CATALOG_{name}={value}" for name, value in settings.items()), *java, _MAIN]

    def is_ready(self) -> bool:
        return answers(f"{self.address}/v1/config")


@contextmanager
def rest_catalog(folder: Path, classpath: str = "") -> Iterator[str]:
    """The address of a running REST catalog."""
    folder.mkdir(exist_ok=True)
    jars = jars_of("server")
    server = RestCatalog(Site(folder, choose_ports(folder), find_java(), jars, cache_folder()), classpath)
    with running(server):
        yield server.address


@dataclass(frozen=True)
class Request:
    """A request that the proxy has passed on."""

    method: str
    path: str
    headers: Message
    body: str


class Proxy(ThreadingHTTPServer):
    """A server that passes requests on to a REST catalog.

    Attributes:
        requests: all requests.
        loses: the answer to the next request with this text in its body is lost, after the catalog has executed it.
        status: the status that replaces a lost answer; None ends the connection instead.
    """

    daemon_threads = True

    def __init__(self, address: str) -> None:
        super().__init__((HOST, 0), _Handler)
        self.target = urlsplit(address)
        self.requests: list[Request] = []
        self.loses: str | None = None
        self.status: int | None = None

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that disconnects does not fail the test."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append(Request(self.command, self.path, self.headers, body.decode()))
        target = http.client.HTTPConnection(self.server.target.netloc, timeout=60)
        # Without compression, the answer can be passed on as it is.
        headers = {name: value for name, value in self.headers.items() if name.lower() != "accept-encoding"}
        target.request(self.command, self.path, body, headers)
        answer = target.getresponse()
        content, status = answer.read(), answer.status
        target.close()
        if self.server.loses is not None and self.server.loses in body.decode():
            self.server.loses = None
            if self.server.status is None:
                return
            status, content = self.server.status, b""
        self.send_response(status)
        self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def proxy(address: str) -> Iterator[Proxy]:
    """A running proxy before a REST catalog."""
    with serving(Proxy(address)) as server:
        yield server

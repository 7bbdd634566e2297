"""Fixtures that several folders of tests share."""

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from moto.server import ThreadedMotoServer
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cdc_lake.demo.jobs import SMALL_JVM
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.spark.session import build_session

pytest_plugins = ("support.costs", "support.results")


def pytest_configure(config: pytest.Config) -> None:
    """PySpark leaves the loopback socket of each `collect` to the garbage collector; ignore only this warning."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket.*raddr=.'127.0.0.1':ResourceWarning")


@pytest.fixture(autouse=True)
def log_level() -> None:
    """Each test sees the log's warnings: a command that ran before in this process, like the demo, may hide them."""
    logging.getLogger("cdc_lake").setLevel(logging.NOTSET)


_MANY_FILES = 20
_OPTIMIZED = "-XX:TieredStopAtLevel=4"
"""A JVM for more files of tests compiles hot code again, optimized, so that planning takes half as long. After about
100 CPU seconds, that has saved more than it costs.
"""


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The product's session on two cores, shared by all tests that use it."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    files = {item.path for item in request.session.items if "spark" in getattr(item, "fixturenames", ())}
    compiler = _OPTIMIZED if len(files) > _MANY_FILES else ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv(
            "PYSPARK_SUBMIT_ARGS",
            # Thousands of small plans: compiling each to bytecode takes longer than running it. (The processes that
            # tests/jobs, tests/servers and `cdc-lake demo` start do compile.)
            f"--master local[2] --conf spark.sql.warehouse.dir={warehouse} "
            "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN "
            f"--conf 'spark.driver.extraJavaOptions={SMALL_JVM} {compiler}' "
            "pyspark-shell",
        )
        session = build_session("cdc_lake tests", has_user_sql=False)
    yield session
    session.stop()
    gateway = SparkContext._gateway  # PySpark does not end its JVM; end it with the tests
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The real servers, started once for all tests that use them. They end with the tests, however those end."""
    stack = Stack(tmp_path_factory.mktemp("stack"))
    stack.start(detach=False)
    yield stack
    stack.delete()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk for the lake's small files: their drafts are links to /dev/full."""

    def draft(path: str) -> str:
        link = Path(f"{path}.{uuid.uuid4().hex}.tmp")
        link.symlink_to("/dev/full")
        return str(link)

    monkeypatch.setattr("cdc_lake.storage.files.draft_of", draft)


@pytest.fixture
def aws_of_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Invalid AWS credentials instead of those of the user who runs the tests."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")


@pytest.fixture
def aws(aws_of_nobody: None) -> Iterator[str]:
    """The URL of moto's AWS server, without any content."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    requests.post(f"{url}/moto-api/reset", timeout=10)  # the server's state belongs to the process
    yield url
    server.stop()

"""Servers of a single test: an embedded one without the stack and its keeper, or one in the test's process."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer
from threading import Thread
from typing import TypeVar

from cdc_lake.demo.servers.server import Server

_START_SECONDS = 120
S = TypeVar("S", bound=Server)
InProcess = TypeVar("InProcess", bound=BaseServer)


def started(server: Server) -> "subprocess.Popen[bytes]":
    """Start a server in its site's folder; it is ready when this returns, and the caller must end it."""
    log = server.site.log(server.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    server.prepare()
    with log.open("ab") as said:
        process = subprocess.Popen(
            server.command(), stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=server.site.folder
        )
    end = time.monotonic() + _START_SECONDS
    while not server.is_ready():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            process.wait()
            raise AssertionError(f"the server did not start: {log.read_text()}")
        time.sleep(0.2)
    return process


@contextmanager
def running(server: S) -> Iterator[S]:
    """The server, which runs inside the context."""
    process = started(server)
    try:
        yield server
    finally:
        process.kill()
        process.wait()


@contextmanager
def serving(server: InProcess) -> Iterator[InProcess]:
    """The server of this process, which serves inside the context."""
    with server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()

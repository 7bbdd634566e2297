"""A single embedded server, without the stack and its keeper."""

import subprocess
import time

from cdc_lake.demo.servers.server import Server

_START_SECONDS = 120


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

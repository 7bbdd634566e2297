"""Choose free ports for the embedded servers, and reuse them at the next start."""

import json
import random
import socket
import time
from pathlib import Path

from cdc_lake.embedded.server import HOST
from cdc_lake.embedded.state import write_json
from cdc_lake.errors import InfrastructureError

PORTS = ("postgres", "kafka", "kafka_controller", "registry", "connect", "metastore")

_RANGE = range(20_000, 32_000)
"""Below the kernel's range for outgoing connections, which could take the port of a stopped server."""
_WAIT_SECONDS = 5.0


def choose_ports(folder: Path) -> dict[str, int]:
    """Free ports for the servers of a stack, if possible those of its last start."""
    file = folder / "ports.json"
    ports: dict[str, int] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    deadline = time.monotonic() + _WAIT_SECONDS  # servers that were just killed release their ports
    while not all(map(_is_free, ports.values())) and time.monotonic() < deadline:
        time.sleep(0.1)
    chosen: dict[str, int] = {}
    for name in PORTS:
        port = ports.get(name)
        chosen[name] = port if port and _is_free(port) else _any_free(taken={*ports.values(), *chosen.values()})
    write_json(file, chosen)
    return chosen


def _any_free(taken: set[int]) -> int:
    for port in random.sample(_RANGE, k=1000):
        if port not in taken and _is_free(port):
            return port
    raise InfrastructureError(
        HOST,
        f"no free port between {_RANGE.start} and {_RANGE.stop - 1}",
        "stop programs that use them",
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True

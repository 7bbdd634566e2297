"""When this process started."""

import os
import time
from pathlib import Path


def seconds_before(moment: float) -> float | None:
    """How long before a moment the job started: this process, or the spark-submit that started it.

    Args:
        moment: seconds since 1970.

    Returns:
        None where the system does not say: it is not Linux.
    """
    pid = os.getppid() if "PYSPARK_GATEWAY_PORT" in os.environ else os.getpid()
    try:
        uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        started = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    age = uptime - started / os.sysconf("SC_CLK_TCK")
    return round(max(age - (time.time() - moment), 0.0), 3)

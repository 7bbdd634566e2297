"""The start time of this process."""

import os
import time
from pathlib import Path


def seconds_before(moment: float) -> float | None:
    """Seconds between the start of the job (this process, or its spark-submit) and a time.

    Args:
        moment: the time, in seconds since 1970.

    Returns:
        None if the system is not Linux.
    """
    pid = os.getppid() if "PYSPARK_GATEWAY_PORT" in os.environ else os.getpid()
    try:
        uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        started = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    age = uptime - started / os.sysconf("SC_CLK_TCK")
    return round(max(age - (time.time() - moment), 0.0), 3)

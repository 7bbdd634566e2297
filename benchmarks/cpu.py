"""CPU seconds of a process and of all that it started."""

import psutil


def cpu_seconds(pid: int | None = None) -> float:
    """User and system time of a process and its descendants, with those that have ended and been waited for.

    Args:
        pid: of the process; this one if left out.
    """
    process = psutil.Process(pid)
    found = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found += times.user + times.system + times.children_user + times.children_system
    return found

"""CPU seconds of a process and its descendants."""

import psutil


def cpu_seconds(pid: int | None = None) -> float:
    """User and system time of a process and its descendants, including ended ones that were waited for.

    Args:
        pid: of the process; default: this one.
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

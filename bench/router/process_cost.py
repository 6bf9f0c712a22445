"""What a process costs, with all its threads and children: CPU seconds to the nanosecond, and resident memory.

Linux only: the kernel's own clock of each process (``clock_getcpuclockid``), where ``/proc/PID/stat`` counts in ticks
of ten milliseconds, which is thirty requests.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ProcessCost"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_PROC = Path("/proc")
_KIB = 1024


class ProcessCost:
    """Of the process ``pid`` and what it started."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def cpu_seconds(self) -> float:
        """User and system time of every thread that is or was, in processes that are still there."""
        return sum(map(_cpu_seconds, _family(self._pid)))

    def resident_bytes(self) -> int:
        """Resident memory; pages that processes share count once for each."""
        return sum(map(_resident_bytes, _family(self._pid)))


def _family(pid: int) -> Iterator[int]:
    yield pid
    for children in (_PROC / str(pid) / "task").glob("*/children"):
        for child in children.read_text().split():
            yield from _family(int(child))


def _cpu_seconds(pid: int) -> float:
    clock = ctypes.c_int()
    error = _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise OSError(error, f"no CPU clock of process {pid}: {os.strerror(error)}")
    return time.clock_gettime(clock.value)


def _resident_bytes(pid: int) -> int:
    lines = (_PROC / str(pid) / "status").read_text().splitlines()
    return next(_KIB * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

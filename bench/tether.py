"""Runs a command that cannot outlive the process that asked for it: ``python -m bench.tether PARENT_PID COMMAND...``.

The kernel is told to kill this process when its parent ends, however it ends, and then the command takes this
process's place. Linux only; elsewhere the command runs untethered and relies on being stopped.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["main", "tethered"]

PR_SET_PDEATHSIG = 1


def tethered(command: Sequence[str]) -> list[str]:
    """The command line that runs ``command`` tied to this process's life."""
    return [sys.executable, "-m", "bench.tether", str(os.getpid()), *command]


def main(argv: Sequence[str]) -> None:
    """Tie this process to its parent and become the command."""
    parent, command = int(argv[0]), list(argv[1:])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was told
        sys.exit(f"parent {parent} has ended")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])

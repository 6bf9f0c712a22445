"""How a running program is told to end."""

from __future__ import annotations

import asyncio
import signal

__all__ = ["on_stop_signals"]


def on_stop_signals() -> asyncio.Event:
    """Set by SIGTERM and SIGINT from now on; to be called in a running event loop, on the main thread."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop

"""Where each worker records to: a trace has one writer, so each has a file of its own (``trace merge`` joins them)."""

from __future__ import annotations

from pathlib import Path

from router.config import RouterConfig
from router.trace.writer import TraceWriter

__all__ = ["check_traces", "own_trace"]


def own_trace(trace_out: str, place: int) -> str:
    """``fleet.kvtrace`` is ``fleet.0.kvtrace`` for the worker in place 0; nothing stays nothing."""
    if not trace_out:
        return ""
    path = Path(trace_out)
    return str(path.with_name(f"{path.stem}.{place}{path.suffix}"))


def check_traces(config: RouterConfig) -> None:
    """Open every worker's trace once, so that one process says what is wrong with one.

    Raises:
        TraceFileError: one cannot be written.
    """
    if config.trace_out:
        for place in range(config.workers):
            TraceWriter(Path(own_trace(config.trace_out, place))).close()

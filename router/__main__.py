"""``kvsteer-router``: the command line. ``serve`` is what it does when no command is named."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import uvloop

from router.choice.file_tokenizer import TokenizerFileError
from router.choice.texts import Tokenizer
from router.choice.tokenization import named_tokenizer
from router.config import RouterConfig
from router.conformance.command import run_conformance
from router.conformance.flags import CONFORMANCE, parse_conformance
from router.console.check import run_check
from router.console.flags import CHECK, TOP, parse_check, parse_top
from router.console.top import run_top
from router.flags import BAD_FLAGS_STATUS, PROGRAM, REPLAY, SERVE, parse_replay, parse_serve
from router.front.server import BindError
from router.replay import run_replay
from router.service import serving
from router.trace.chunk import TraceFileError
from router.trace.flags import TRACE, run_trace
from router.trace.recorder import Recorder, recording

__all__ = ["main"]

_LOG = logging.getLogger("router")

GARBAGE_THRESHOLD = 20_000
"""New objects that stay, before some of them are looked through for cycles."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status. 2: the command line makes no sense, in one line on stderr."""
    _fill_standard_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments.pop(0) if arguments and arguments[0] in _COMMANDS else SERVE
    return _COMMANDS[command](arguments)


def _fill_standard_streams() -> None:
    """Open what we were started without: uvloop aborts the process when it closes a socket that took such a number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    SERVE: lambda argv: _serve(parse_serve(argv)),
    REPLAY: lambda argv: run_replay(parse_replay(argv)),
    CHECK: lambda argv: run_check(parse_check(argv)),
    TOP: lambda argv: run_top(parse_top(argv)),
    CONFORMANCE: lambda argv: run_conformance(parse_conformance(argv)),
    TRACE: run_trace,
}


def _serve(config: RouterConfig) -> int:
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        tokenizer = named_tokenizer(config.tokenizer)
    except TokenizerFileError as error:
        return _complain(f"--tokenizer: {error}", BAD_FLAGS_STATUS)
    _spare_the_collector()
    try:
        with _recording(config) as recorder:
            uvloop.run(_run(config, tokenizer, recorder))
    except (BindError, TraceFileError) as error:
        return _complain(str(error), 1)
    return 0


def _spare_the_collector() -> None:
    """What a router starts with stays, and a request leaves no cycles: looking for them takes a tenth of its time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


def _recording(config: RouterConfig) -> AbstractContextManager[Recorder | None]:
    if not config.trace_out:
        return nullcontext()
    return recording(
        Path(config.trace_out),
        source=f"{PROGRAM} {SERVE}",
        failed=lambda error: _LOG.error("recording ends: %s", error),
    )


async def _run(config: RouterConfig, tokenizer: Tokenizer | None, recorder: Recorder | None) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(config, tokenizer=tokenizer, recorder=recorder) as url:
        print(f"{PROGRAM} ready {url}", flush=True)
        await stop.wait()


def _complain(message: str, status: int) -> int:
    print(f"{PROGRAM}: error: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())

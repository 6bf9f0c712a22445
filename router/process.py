"""What one router process does around serving: its log, its garbage collector, its signals, its recording."""

from __future__ import annotations

import gc
import logging
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import uvloop

from program.compiled_cores import say_what_is_plain
from program.stop_signals import on_stop_signals
from router.choice.texts import Tokenizer
from router.choice.tokenization import named_tokenizer
from router.config import RouterConfig
from router.cores import CORES
from router.flags import PROGRAM, SERVE
from router.service import serving
from router.trace.recorder import Recorder, recording

__all__ = ["log_to_stderr", "recorded", "say_ready", "serve", "spare_the_collector"]

_LOG = logging.getLogger("router")

GARBAGE_THRESHOLD = 20_000
"""New objects that stay, before some of them are looked through for cycles."""


def serve(config: RouterConfig) -> None:
    """Be a router until SIGTERM or SIGINT.

    Raises:
        TokenizerFileError: the config names a tokenizer that cannot be read.
        BindError: the address cannot be listened on.
        TraceFileError: the trace file cannot be written.
    """
    log_to_stderr(config)
    tokenizer = named_tokenizer(config.tokenizer)
    spare_the_collector()
    with recorded(config) as recorder:
        uvloop.run(_run(config, tokenizer, recorder))


def log_to_stderr(config: RouterConfig, *, name: str = "") -> None:
    """Log as the config says; ``name`` tells the processes of one router apart."""
    who = f" {name}" if name else ""
    logging.basicConfig(level=config.log_level.upper(), format=f"%(asctime)s{who} %(levelname)s %(name)s: %(message)s")
    say_what_is_plain(_LOG, CORES)


def spare_the_collector() -> None:
    """What a router starts with stays, and a request leaves no cycles: looking for them takes a tenth of its time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)


def say_ready(url: str) -> None:
    """Tell whoever started the router where it listens."""
    print(f"{PROGRAM} ready {url}", flush=True)


def recorded(config: RouterConfig) -> AbstractContextManager[Recorder | None]:
    """The recorder that the config asks for, if it does.

    Raises:
        TraceFileError: its file cannot be written.
    """
    if not config.trace_out:
        return nullcontext()
    return recording(
        Path(config.trace_out),
        source=f"{PROGRAM} {SERVE}",
        failed=lambda error: _LOG.error("recording ends: %s", error),
    )


async def _run(config: RouterConfig, tokenizer: Tokenizer | None, recorder: Recorder | None) -> None:
    stop = on_stop_signals()
    async with serving(config, tokenizer=tokenizer, recorder=recorder) as url:
        say_ready(url)
        await stop.wait()

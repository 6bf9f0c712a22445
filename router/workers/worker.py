"""One worker's process. The parent starts it; nobody else has a use for it."""

from __future__ import annotations

import asyncio
import logging
import sys

import uvloop

from program.stop_signals import on_stop_signals
from router.choice.tokenization import named_tokenizer
from router.process import log_to_stderr, recorded, spare_the_collector
from router.service import serving
from router.trace.chunk import TraceFileError
from router.workers.lifeline import Lifeline
from router.workers.messages import Listening

__all__: list[str] = []


async def _run() -> None:
    """Serve until SIGTERM or SIGINT, or until the parent is gone."""
    stop = on_stop_signals()
    try:
        lifeline = await Lifeline.open()
    except EOFError:
        return
    config = lifeline.hello.config
    log_to_stderr(config, name=f"worker {lifeline.hello.place}")
    tokenizer = named_tokenizer(config.tokenizer)
    spare_the_collector()
    with recorded(config) as recorder:
        async with serving(config, tokenizer=tokenizer, recorder=recorder, lifeline=lifeline) as url:
            lifeline.tell(Listening(url))
            waiting = [asyncio.create_task(event.wait()) for event in (stop, lifeline.lost)]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()


if __name__ == "__main__":
    try:
        uvloop.run(_run())
    except TraceFileError as error:
        logging.getLogger(__name__).error("%s", error)  # and the parent says that this worker has ended
        sys.exit(1)

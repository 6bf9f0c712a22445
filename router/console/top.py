"""``kvsteer-router top URL``: a router's ``/replicas``, live in a terminal. Ends at ``q`` or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator

import msgspec
import uvloop
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from program.stop_signals import on_stop_signals
from router.console.reader import ReadError, RouterReader, reading
from router.console.tables import console, fleet_frame

__all__ = ["TopOptions", "run_top"]

ANSWER_SECONDS = 5.0


class TopOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``interval`` in seconds between two looks; ``once`` prints one frame and ends."""

    url: str
    api_key: str
    interval: float
    once: bool


def run_top(options: TopOptions) -> int:
    """Show the fleet until told to end; into a pipe, one frame. The exit status: 1 for a frame without a router."""
    once = options.once or not sys.stdout.isatty()
    return uvloop.run(_once(options) if once else _live(options))


async def _once(options: TopOptions) -> int:
    async with reading(options.api_key) as session:
        router = RouterReader(session, options.url, seconds=ANSWER_SECONDS)
        try:
            console().print(fleet_frame(await router.fleet(), title=options.url), soft_wrap=True)
        except ReadError as error:
            print(f"kvsteer-router top: {error}", file=sys.stderr)
            return 1
    return 0


async def _live(options: TopOptions) -> int:
    stop = on_stop_signals()
    async with reading(options.api_key) as session:
        router = RouterReader(session, options.url, seconds=ANSWER_SECONDS)
        with _quit_key(stop), Live(console=console(), screen=True, auto_refresh=False) as live:
            while not stop.is_set():
                live.update(await _frame(router), refresh=True)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), options.interval)
    return 0


async def _frame(router: RouterReader) -> RenderableType:
    """The fleet now; a router that is away may come back, so that is shown and no end."""
    try:
        return fleet_frame(await router.fleet(), title=f"{router.url}   q: quit")
    except ReadError as error:
        return Text(str(error), style="bold red")


@contextlib.contextmanager
def _quit_key(stop: asyncio.Event) -> Iterator[None]:
    """Set ``stop`` when somebody presses q at the terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import termios  # not on every system; only a terminal needs them
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    loop = asyncio.get_running_loop()

    def pressed() -> None:
        if sys.stdin.read(1) in ("q", "Q", ""):
            stop.set()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, pressed)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)

"""A rank process cannot outlive the engine it belongs to, whatever either of them is doing. Linux.

Two ties hold it. The kernel kills it when its parent ends, which holds even while it is stopped. And a thread of its
own ends it when the connection to the engine ends, which holds from another machine too.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading

from engine.parallel.channel import Channel

__all__ = ["LOST_ENGINE_STATUS", "end_with_engine", "end_with_parent", "hung_up"]

LOST_ENGINE_STATUS = 3
_PR_SET_PDEATHSIG = 1
_HANG_UP = select.POLLRDHUP | select.POLLHUP | select.POLLERR


def end_with_parent(number: signal.Signals, *, parent: int) -> None:
    """Have the kernel send ``number`` when the thread that started this process ends; ``parent`` is its process."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the kernel was told
        sys.exit(LOST_ENGINE_STATUS)


def end_with_engine(channel: Channel, *, last_words: str = "") -> None:
    """End this process at once when the engine hangs up, with ``last_words`` on standard error."""
    poll = hung_up(channel)

    def wait() -> None:
        poll.poll()
        os.write(2, last_words.encode())
        os._exit(LOST_ENGINE_STATUS)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def hung_up(*channels: Channel) -> select.poll:
    """A poll that returns once the other side of one of ``channels`` is gone, leaving frames unread."""
    poll = select.poll()
    for channel in channels:
        poll.register(channel, _HANG_UP)
    return poll

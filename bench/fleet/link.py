"""The way of event batches from one engine to one router: late, and now and then not at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from bench.fleet.clock import VirtualClock
from contract.framing import Frame

__all__ = ["Link"]


class Link:
    """Keeps the order of what arrives; a share ``loss`` of it does not, by the chance of ``random``."""

    def __init__(
        self, clock: VirtualClock, *, lag: float, loss: float, random: Random, receive: Callable[[Frame], None]
    ) -> None:
        self._clock = clock
        self._lag = lag
        self._loss = loss
        self._random = random
        self._receive = receive
        self.lost = 0

    def send(self, frame: Frame) -> None:
        """Let a batch arrive in ``lag`` seconds, if it does."""
        if self._loss and self._random.random() < self._loss:
            self.lost += 1
        elif self._lag:
            self._clock.after(self._lag, partial(self._receive, frame))
        else:
            self._receive(frame)

"""The protocol between a test and an engine that it drives: one JSON request a line in, one JSON answer a line out.

Runs inside an engine's own environment, so it imports nothing but the standard library. What engines print goes to
stderr: the answers keep standard output to themselves.

    {"open": {...}}  -> {"endpoint": ..., ...}   an engine with an empty cache, and its publisher
    {"step": {}}     -> {"seq": ..., ...}        one step; what was published last, and what the cache then holds
    {"close": {}}    -> {}
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Engine", "PromptFamily", "serve"]


class Engine(Protocol):
    """One engine under test."""

    def hello(self) -> dict[str, Any]:
        """Where it publishes."""

    def step(self) -> dict[str, Any]:
        """Do something, publish it, and tell the truth."""

    def close(self) -> None:
        """Stop publishing."""


def serve(make: Callable[[dict[str, Any]], Engine]) -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    engine: Engine | None = None
    for line in sys.stdin:
        ((verb, arguments),) = json.loads(line).items()
        answer: dict[str, Any] = {}
        if verb == "open":
            engine = make(arguments)
            answer = engine.hello()
        elif verb == "step":
            answer = engine.step()
        elif verb == "close":
            engine.close()
        print(json.dumps(answer), file=answers, flush=True)


class PromptFamily:
    """Prompts that share prefixes: each is new, or goes on from some point of one before it, or is one again.

    The first is two whole blocks long and comes twice at once, so that every run has a duplicate.
    """

    def __init__(self, rng: random.Random, *, width: int, most_blocks: int = 9) -> None:
        self._rng = rng
        self._width = width
        self._most = most_blocks * width
        self._opening = 2
        self.prompts = [self._tokens(2 * width)]

    def namespace(self, prompt: int, count: int) -> int:
        """One of ``count`` namespaces: mostly the prompt's own, and always for the first prompt."""
        return prompt % count if prompt == 0 or self._rng.random() < 0.7 else self._rng.randrange(count)

    def pick(self) -> int:
        """The number of the next prompt."""
        if self._opening:
            self._opening -= 1
            return 0
        draw = self._rng.random()
        if draw < 0.3:
            return self._rng.randrange(len(self.prompts))
        shared = self._shared() if draw < 0.85 else []
        self.prompts.append(self._whole(shared + self._tokens(self._rng.randint(1, self._most))))
        return len(self.prompts) - 1

    def _whole(self, prompt: list[int]) -> list[int]:
        """Often a prompt of whole blocks: engines compute at least one token again, and with it a block twice."""
        odd = len(prompt) % self._width
        return prompt[:-odd] if 0 < odd < len(prompt) and self._rng.random() < 0.5 else prompt

    def _shared(self) -> list[int]:
        """A prefix of an earlier prompt; often of whole blocks, which is where engines split and share."""
        whole = self._rng.choice(self.prompts)
        cut = self._rng.randint(0, len(whole))
        return whole[: cut - cut % self._width if self._rng.random() < 0.6 else cut]

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(50_000) for _ in range(count)]

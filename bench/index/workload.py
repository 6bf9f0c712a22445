"""The seeded workload of the index bench: conversations that share prefixes, and prompts that continue them.

A conversation is one of 50 prefixes of 64 blocks and 448 blocks of its own, all on one lane. It arrives as the prefix,
in one event, unless the lane holds that already, and then in turns of 16 blocks whose parent is the block before;
conversations take turns, 64 at a time. They are added until enough (lane, block) entries are stored. An engine's hash
of a block is 63 random bits, the same on all lanes that hold it. A prompt is the start of some conversation, and fresh
random ids from there on. Token ids are uniform below 128,000.

Runs in any Python that has numpy, since the peers' drivers use it too.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

__all__ = ["PROMPT_TOKENS", "Prompted", "Stored", "Workload", "plain_ids"]

SEED = 20260101
VOCABULARY = 128_000
PREFIXES, PREFIX_BLOCKS = 50, 64
OWN_BLOCKS, TURN_BLOCKS = 448, 16
AT_ONCE = 64
PROMPT_TOKENS = 8192

Tokens = npt.NDArray[np.uint32]


class _Stream(IntEnum):
    """Independent streams of random numbers."""

    PREFIX_TOKENS = 1
    PREFIX_NAMES = 2
    OWN_TOKENS = 3
    OWN_NAMES = 4
    FRESH_TOKENS = 5
    PLAIN_TOKENS = 9


@dataclass(frozen=True)
class Stored:
    """One event: blocks that a lane now holds."""

    lane: int
    parent: int | None
    names: Sequence[int]
    tokens: Tokens


@dataclass(frozen=True)
class Prompted:
    """A prompt, and the blocks of it that ``lane`` holds and no other lane holds more of."""

    tokens: list[int]
    lane: int
    blocks: int


@dataclass
class _Conversation:
    lane: int
    tokens: Tokens
    names: Sequence[int]
    parent: int
    told: int = field(default=0)


def _tokens(stream: _Stream, number: int, count: int) -> Tokens:
    return np.random.default_rng([SEED, stream, number]).integers(0, VOCABULARY, count, dtype=np.uint32)


def _names(stream: _Stream, number: int, count: int) -> list[int]:
    names: list[int] = np.random.default_rng([SEED, stream, number]).integers(1, 2**63 - 1, count).tolist()
    return names


def plain_ids(count: int) -> list[int]:
    """So many token ids of nobody's prompt."""
    ids: list[int] = _tokens(_Stream.PLAIN_TOKENS, count, count).tolist()
    return ids


class Workload:
    """``total`` is the number of (lane, block) entries that all events together store, at least ``entries``."""

    def __init__(self, *, lanes: int, block: int, entries: int) -> None:
        self.lanes = lanes
        self.block = block
        self.total = 0
        self._plan: list[tuple[int, int]] = []  # (prefix, lane) of each conversation
        chance, told = random.Random(SEED), set()
        while self.total < entries:
            place = (chance.randrange(PREFIXES), chance.randrange(lanes))
            self.total += OWN_BLOCKS + (0 if place in told else PREFIX_BLOCKS)
            told.add(place)
            self._plan.append(place)

    def events(self) -> Iterator[Stored]:
        """All events, in order."""
        told: set[tuple[int, int]] = set()
        waiting = collections.deque(enumerate(self._plan))
        live: collections.deque[_Conversation] = collections.deque()
        while live or waiting:
            while waiting and len(live) < AT_ONCE:
                number, place = waiting.popleft()
                if place not in told:
                    told.add(place)
                    yield self._prefix(*place)
                live.append(self._conversation(number))
            conversation = live.popleft()
            yield self._turn(conversation)
            if conversation.told < OWN_BLOCKS:
                live.append(conversation)

    def _prefix(self, prefix: int, lane: int) -> Stored:
        return Stored(lane, None, _names(_Stream.PREFIX_NAMES, prefix, PREFIX_BLOCKS), self._prefix_tokens(prefix))

    def _prefix_tokens(self, prefix: int) -> Tokens:
        return _tokens(_Stream.PREFIX_TOKENS, prefix, PREFIX_BLOCKS * self.block)

    def _own_tokens(self, number: int) -> Tokens:
        return _tokens(_Stream.OWN_TOKENS, number, OWN_BLOCKS * self.block)

    def _conversation(self, number: int) -> _Conversation:
        prefix, lane = self._plan[number]
        parent = _names(_Stream.PREFIX_NAMES, prefix, PREFIX_BLOCKS)[-1]
        names = _names(_Stream.OWN_NAMES, number, OWN_BLOCKS)
        return _Conversation(lane, self._own_tokens(number), names, parent)

    def _turn(self, conversation: _Conversation) -> Stored:
        start, end = conversation.told, conversation.told + TURN_BLOCKS
        names, parent = conversation.names[start:end], conversation.parent
        conversation.told, conversation.parent = end, names[-1]
        return Stored(conversation.lane, parent, names, conversation.tokens[start * self.block : end * self.block])

    def prompts(self, *, held: float, count: int) -> list[Prompted]:
        """Prompts of which the share ``held`` lies on one lane, rounded down to blocks."""
        chance, blocks = random.Random(SEED + round(held * 100)), int(PROMPT_TOKENS * held) // self.block
        return [self._prompt(chance.randrange(len(self._plan)), number, blocks) for number in range(count)]

    def _prompt(self, conversation: int, number: int, blocks: int) -> Prompted:
        prefix, lane = self._plan[conversation]
        kept = np.concatenate([self._prefix_tokens(prefix), self._own_tokens(conversation)])[: blocks * self.block]
        fresh = _tokens(_Stream.FRESH_TOKENS, number, PROMPT_TOKENS - len(kept))
        return Prompted(np.concatenate([kept, fresh]).tolist(), lane, blocks)

"""One prompt held against one lane after the other: what is held there, and what a rule is told of the lane.

Knows what does not change from lane to lane: the prompt, the time, who holds how much by the index. Asks the lane for
the rest. Without an index the memory of what was sent is all there is, and counts as held and as predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

from router.choice.candidate import Candidate
from router.choice.memory import MARK_TOKENS, mark_step
from router.choice.residence import Residences
from router.choice.sight import LaneState, Sight
from router.intake.index import NO_MATCH, BlockIndex, Holding, Match
from router.prompt import Prompt

__all__ = ["Judging"]

L = TypeVar("L", bound=LaneState)

_GPU_ONLY: Mapping[str, int] = {}


class Judging(Generic[L]):
    """``prompt`` is None where its ids are unknown. ``holdings``: the index's answer for it, of all lanes.

    ``home`` is where its session was served last; to go elsewhere costs ``away_seconds``.
    """

    def __init__(
        self,
        prompt: Prompt | None,
        *,
        prompt_tokens: int,
        now: float,
        index: BlockIndex | None,
        residences: Residences,
        home: tuple[str, int] | None = None,
        away_seconds: float = 0.0,
    ) -> None:
        self.holdings: Sequence[Holding] = () if index is None or prompt is None else index.holdings(prompt)
        self.prompt = prompt
        self.prompt_tokens = prompt_tokens
        self.now = now
        self._index = index
        self._residences = residences
        self._home = home
        self._away_seconds = away_seconds
        self._beyond: dict[tuple[int, int], int | None] = {}

    def sight(self, lane: L) -> Sight:
        """What is held there of the prompt."""
        if self.prompt is None:
            return Sight(lane.width, NO_MATCH, 0)
        if self._index is None:
            return self._by_memory(self.prompt, lane)
        width, match = lane.width, self._index.held(lane.handle, self.holdings)
        held = match.tokens if width is None else self._coming(self.prompt, lane, self._index, match.tokens, width)
        return Sight(width, match, held)

    def _coming(self, prompt: Prompt, lane: L, index: BlockIndex, held: int, width: int) -> int:
        """Leading tokens that will be there when all that waits there has been brought, of those held there now.

        Where others send too, nobody here knows what will be dropped next: any prefix then loses its share.
        """
        shared, residence = lane.load.is_shared(self.now), self._residences.of(lane.handle, width=width)
        if shared and held and residence is not None and residence.is_full:
            room = index.gpu_tokens(lane.handle)
            held = int(held * max(1.0 - lane.load.queued_tokens / room, 0.0)) if room else held
        key = self.key_beyond(held, width=width)
        if key is not None and key in lane.recent:
            held = max(held, lane.recent.match(prompt.keys(width=width), width=width, now=self.now, known=held))
        if shared or not held or residence is None:
            return held
        residence.foresee(lane.load.tokens_behind, holds=partial(self.there, lane), now=self.now)
        return residence.staying(prompt.keys(width=width, pairs=index.pairs(lane.handle)), held)

    def there(self, lane: L, key: int) -> bool:
        """Whether a block is held there, or on its way."""
        assert self._index is not None, "asked only of what events tell"
        return self._index.holds(lane.handle, key) or key in lane.recent

    def _by_memory(self, prompt: Prompt, lane: L) -> Sight:
        """A lane's width may be unknown without events; any will do then, since nobody else's keys are compared."""
        width = lane.width or MARK_TOKENS
        held = lane.recent.match(prompt.keys(width=width), width=width, now=self.now)
        return Sight(width, Match(held, {"GPU": held} if held else {}), held)

    def key_beyond(self, held: int, *, width: int) -> int | None:
        """The key at the first mark beyond so many tokens, if the prompt reaches so far."""
        if (width, held) not in self._beyond:
            assert self.prompt is not None, "asked only where the ids are known"
            keys, step = self.prompt.keys(width=width), mark_step(width)
            place = (held // width // step + 1) * step - 1
            self._beyond[width, held] = keys[place] if place < len(keys) else None
        return self._beyond[width, held]

    def key_unheld(self, *, width: int) -> int | None:
        """The key at the first mark beyond what anybody holds: siblings of a new prefix have it in common."""
        return self.key_beyond(max([holding.tokens for holding in self.holdings], default=0), width=width)

    def candidate(self, lane: L, sight: Sight) -> Candidate:
        """The lane as a rule sees it."""
        now, load, pace = self.now, lane.load, lane.speed.pace(self.now)
        backlog, surplus, tiers = load.backlog(pace=pace, now=now), load.surplus(now), sight.match.tiers
        return Candidate(
            held_tokens=sight.held,
            uncached_tokens=self.prompt_tokens - sight.held,
            tiers=_GPU_ONLY if len(tiers) == ("GPU" in tiers) else tiers,
            waiting_tokens=backlog.waiting,
            running_tokens=backlog.running,
            decoding=load.decoding,
            in_flight=load.in_flight + surplus.decoding,
            foreign_tokens=surplus.tokens,
            foreign_decoding=surplus.decoding,
            cache_used=surplus.cache_used,
            regret=self._residences.regret(lane.handle, now),
            seconds_per_token=pace,
            away_seconds=self._away(lane) if self._home is not None else 0.0,
        )

    def _away(self, lane: L) -> float:
        return 0.0 if self._home == (lane.url, lane.dp_rank) else self._away_seconds

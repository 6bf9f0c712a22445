"""A rule that is the router's own chooser: the same code, books and memories as behind HTTP."""

from __future__ import annotations

from bench.fleet.rule import Surroundings
from bench.fleet.unit_index import BlockPrompt
from bench.workloads.request import Ask
from router.choice.candidate import Policy
from router.choice.chooser import Chooser
from router.choice.dispatch import Dispatch
from router.choice.load import EngineLoad, LaneLoad
from router.choice.memory import Memory
from router.choice.pool import Pool
from router.choice.speed import FleetSpeed, ReplicaSpeed
from router.intake.index import LaneHandle

__all__ = ["ChooserRule", "SimLane"]


class SimLane:
    """One replica as a router knows it. ``width`` is the workload's, in tokens."""

    def __init__(self, *, place: int, handle: LaneHandle, width: int, speed: ReplicaSpeed, recent: Memory) -> None:
        self.url = f"replica {place}"
        self.dp_rank = 0
        self.place = place
        self.handle = handle
        self.load = LaneLoad()
        self.recent = recent
        self.speed = speed
        self._width = width

    @property
    def width(self) -> int | None:
        """Tokens a block."""
        return self._width


class ChooserTrip:
    """A request's books, and what is known of it before its end."""

    def __init__(self, ask: Ask, dispatch: Dispatch, *, replica: int, predicted_tokens: int) -> None:
        self.replica = replica
        self.predicted_tokens = predicted_tokens
        self._ask = ask
        self._dispatch = dispatch

    def first_token(self, *, now: float) -> None:
        """See `Trip`."""
        self._dispatch.first_token(now=now)

    def finished(self, *, cached_tokens: int, now: float) -> None:
        """See `Trip`."""
        self._dispatch.learn(
            prompt_tokens=self._ask.tokens,
            cached_tokens=cached_tokens,
            answer_tokens=self._ask.output_tokens,
            streamed=True,
            now=now,
        )
        self._dispatch.end()

    def lost(self) -> None:
        """See `Trip`."""
        self._dispatch.end()


class ChooserRule:
    """``believes_events``: what lanes hold is asked of the index; if not, of what was sent to them (``memories``).

    ``looks`` is unset for policies that do not care what a prompt is.
    """

    def __init__(
        self,
        around: Surroundings,
        policy: Policy,
        memories: list[Memory],
        *,
        believes_events: bool = True,
        looks: bool = True,
        remembers: bool = True,
    ) -> None:
        speed = FleetSpeed()
        self._block_tokens = around.block_tokens
        self._looks = looks
        self._remembers = remembers
        self._chooser = Chooser(around.index if believes_events else None, policy, seed=around.seed, now=0.0)
        self._lanes = [
            SimLane(place=place, handle=handle, width=around.block_tokens, speed=speed.replica(), recent=memory)
            for place, (handle, memory) in enumerate(zip(around.handles, memories, strict=True))
        ]
        self._up = Pool(self._lanes)

    def send(self, ask: Ask, *, now: float) -> ChooserTrip:
        """See `Rule`."""
        prompt = BlockPrompt(ask, block_tokens=self._block_tokens) if self._looks else None
        chosen = self._chooser.choose(prompt, prompt_tokens=ask.tokens, lanes=self._up, now=now).chosen
        remembered = prompt if self._remembers else None
        dispatch = Dispatch(
            chosen.lane, remembered, width=chosen.width, uncached_tokens=chosen.uncached_tokens, now=now
        )
        return ChooserTrip(ask, dispatch, replica=chosen.lane.place, predicted_tokens=chosen.matched_tokens)

    def left(self, replica: int) -> None:
        """See `Rule`."""
        self._lanes[replica].recent.clear()
        self._up.discard(self._lanes[replica])

    def back(self, replica: int) -> None:
        """See `Rule`."""
        self._up.add(self._lanes[replica])

    def reported(self, replica: int, load: EngineLoad, *, now: float) -> None:
        """See `Rule`."""
        self._lanes[replica].load.report(load, now=now)

"""One request's books on its lane, from the moment the lane is chosen until the answer has ended.

Booked as load, remembered as what the lane will hold in a moment, and in the end a lesson about the lane's speed. Knows
no HTTP, no answer and no clock: times are handed in, all from the same clock.
"""

from __future__ import annotations

from router.choice.chooser import LaneState
from router.choice.memory import Remembered
from router.prompt import Prompt

__all__ = ["Dispatch"]


class Dispatch:
    """A request that is sent to ``lane`` now, with ``uncached_tokens`` to prefill there.

    ``width`` is the lane's as the choice knew it; ``prompt`` is None where the token ids are unknown.
    """

    def __init__(
        self, lane: LaneState, prompt: Prompt | None, *, width: int | None, uncached_tokens: int, now: float
    ) -> None:
        self._lane = lane
        self._sent_at = now
        self._first_after: float | None = None
        self._sent = _remember(lane, prompt, width, now)
        self._ahead = lane.load.backlog(pace=lane.speed.line(now).pace, now=now).tokens
        self._booking = lane.load.book(uncached_tokens, now=now)

    @property
    def first_after(self) -> float | None:
        """Seconds from sending to the first token; None while there is none."""
        return self._first_after

    def expected(self) -> float:
        """Seconds to the first token by the speed learnt so far."""
        return self._lane.speed.line(self._sent_at).at(self._ahead + self._booking.tokens)

    def prefilled(self, *, now: float) -> None:
        """The prompt is computed, or must be by now where no first token can be seen."""
        self._booking.prefilled(now=now)

    def first_token(self, *, now: float) -> None:
        """The answer has begun, or is there at once: the engine has computed the prompt."""
        self._first_after = now - self._sent_at
        self._booking.prefilled(now=now)
        if self._sent is not None:
            self._sent.prefilled(now=now)

    def end(self) -> None:
        """Take it off the books; called once, whatever ended it."""
        self._booking.end()
        if self._first_after is None and self._sent is not None:
            self._sent.forget()

    def learn(
        self, *, prompt_tokens: int, cached_tokens: int, answer_tokens: int | None, streamed: bool, now: float
    ) -> None:
        """The answer is complete, and so many of the prompt's tokens had been cached: what that says of the speed."""
        assert self._first_after is not None, "an answer cannot end before it has begun"
        speed, seconds = self._lane.speed, self._first_after
        tokens = self._ahead + prompt_tokens - cached_tokens
        if not streamed:
            speed.observe_whole(tokens=tokens, answer_tokens=answer_tokens, seconds=seconds, now=now)
            return
        speed.observe(tokens=tokens, seconds=seconds, now=now)
        if answer_tokens is not None:
            speed.observe_decoding(tokens=answer_tokens - 1, seconds=now - self._sent_at - seconds)


def _remember(lane: LaneState, prompt: Prompt | None, width: int | None, now: float) -> Remembered | None:
    if prompt is None or width is None:
        return None
    return lane.recent.remember(prompt.keys(width=width), width=width, now=now)

"""A lane as it stands, in values: what its diagnoses are made from. Reads no clock and no socket."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from router.intake.first_blocks import FirstBlocks
from router.proof.tally import LaneTally, Outcome

__all__ = ["LaneFacts"]

SETTLE_SECONDS = 1.0
"""Events and answers come over two connections: what an answer says is held against events only after this."""


class LaneFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Widths are block widths in tokens.

    ``no_events`` says why there is nothing to subscribe to (None: there is). ``emitted_widths`` are all widths that the
    events had, the latest last. ``batches`` and ``lost`` count event batches. ``complete``: all that the engine ever
    announced was seen. ``now`` is by the clock that outcomes were recorded with.
    """

    dp_rank: int
    engine: str
    endpoint: str | None
    no_events: str | None
    stream_state: str
    stream_reason: str | None
    batches: int
    lost: int
    complete: bool
    advertised_width: int | None
    emitted_widths: Sequence[int]
    tally: LaneTally
    first_blocks: FirstBlocks
    now: float

    @property
    def width(self) -> int | None:
        """What prompts are hashed at."""
        return self.emitted_widths[-1] if self.emitted_widths else self.advertised_width

    @property
    def checked(self) -> list[Outcome]:
        """Requests of the window of which both sides' counts are known."""
        if not self.tally.ever_reported:
            return []
        return [outcome for outcome in self.tally.window if outcome.counted_tokens is not None]

    @property
    def settled(self) -> list[Outcome]:
        """Requests of the window whose events must have come by now, if any do."""
        return [outcome for outcome in self.tally.window if self.now - outcome.at >= SETTLE_SECONDS]

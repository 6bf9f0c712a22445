"""A lane's stream behind a part of its recording that cannot be read."""

from __future__ import annotations

from contract.framing import Frame
from router.intake.stream import Action, LaneStream

__all__ = ["ResumedStream"]


class ResumedStream(LaneStream):
    """Nothing is known of what went before, and nobody can be asked: the recorder asked for nothing at this place.

    So the first batch is taken as it comes, and the lane is untrusted, as after any loss, until a batch or a recorded
    replay makes everything known again.
    """

    def __init__(self, why: str, *, can_replay: bool) -> None:
        super().__init__(can_replay=can_replay)
        self._resumes = True
        self._distrust(why)

    def live(self, frame: Frame, *, now: float) -> list[Action]:
        """See `LaneStream`."""
        if not self._resumes:
            return super().live(frame, now=now)
        self._resumes, self._last_event_time = False, now
        return self._take(frame, may_ask=False)

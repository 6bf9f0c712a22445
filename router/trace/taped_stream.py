"""A lane's stream whose every input is recorded before it is acted upon, and the subscriber that feeds it."""

from __future__ import annotations

from contract.descriptor import LaneAddress
from contract.framing import Frame
from router.intake.index import BlockIndex, LaneHandle
from router.intake.stream import Action, AskReplay, LaneStream
from router.intake.subscriber import Subscriber
from router.trace.recorder import Recorder
from router.trace.records import FrameHeard, StreamJoined, StreamLeft, StreamTurned, Turn

__all__ = ["TapedStream", "TapedSubscriber"]


class TapedStream(LaneStream):
    """The same decisions from the same inputs, which can be taken again from the tape."""

    def __init__(self, recorder: Recorder, lane: int, *, can_replay: bool) -> None:
        super().__init__(can_replay=can_replay)
        self._recorder = recorder
        self._lane = lane

    def connected(self) -> list[Action]:
        """See `LaneStream`."""
        self._turned(Turn.CONNECTED)
        return super().connected()

    def check(self) -> list[Action]:
        """See `LaneStream`."""
        self._turned(Turn.CHECK)
        return super().check()

    def live(self, frame: Frame, *, now: float) -> list[Action]:
        """See `LaneStream`."""
        self._heard(frame, at=now, replayed=False)
        return super().live(frame, now=now)

    def replay_again(self) -> AskReplay | None:
        """See `LaneStream`."""
        self._turned(Turn.REPLAY_AGAIN)
        return super().replay_again()

    def replayed(self, frame: Frame) -> list[Action]:
        """See `LaneStream`."""
        self._heard(frame, at=self._recorder.clock(), replayed=True)
        return super().replayed(frame)

    def replay_ended(self) -> list[Action]:
        """See `LaneStream`."""
        self._turned(Turn.REPLAY_ENDED)
        return super().replay_ended()

    def replay_failed(self, why: str) -> list[Action]:
        """See `LaneStream`."""
        self._turned(Turn.REPLAY_FAILED, why)
        return super().replay_failed(why)

    def _turned(self, turn: Turn, why: str = "") -> None:
        self._recorder.note(StreamTurned(at=self._recorder.clock(), lane=self._lane, turn=turn, why=why))

    def _heard(self, frame: Frame, *, at: float, replayed: bool) -> None:
        self._recorder.note(
            FrameHeard(
                at=at, lane=self._lane, replayed=replayed, topic=frame.topic, seq=frame.seq, payload=frame.payload
            )
        )


class TapedSubscriber(Subscriber):
    """A `Subscriber` whose lane is recorded from joining to leaving."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        url: str,
        address: LaneAddress,
        topic: str,
        index: BlockIndex,
        handle: LaneHandle,
    ) -> None:
        self._recorder = recorder
        self._lane: int | None = recorder.lane(url, address.dp_rank)
        can_replay = address.replay_endpoint is not None
        recorder.note(
            StreamJoined(
                at=recorder.clock(),
                lane=self._lane,
                endpoint=address.endpoint,
                topic=topic,
                can_replay=can_replay,
                block_size=index.width(handle),
            )
        )
        super().__init__(
            address=address,
            topic=topic,
            index=index,
            handle=handle,
            stream=TapedStream(recorder, self._lane, can_replay=can_replay),
        )

    async def close(self) -> None:
        """See `Subscriber`."""
        await super().close()
        lane, self._lane = self._lane, None
        if lane is not None:
            self._recorder.note(StreamLeft(at=self._recorder.clock(), lane=lane))

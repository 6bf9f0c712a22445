"""Splits a stream into the lives of the publishers behind it, and says what history of each is known.

Numbers begin at 0 with every publisher process, so a number that goes back is another life. Within a life the live
batches and the replayed ones are one history, by number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from contract.events import AllBlocksCleared, EventDecodeError, decode_batch
from contract.framing import Frame, FramingError, parse_live, parse_replay_reply
from router.conformance.observation import Asked, Observation, ReplaySession
from router.conformance.rules import Ledger, Rule

__all__ = ["Life", "begins_cleared", "parse_lives", "replayed_frames"]


class Life:
    """One publisher process as seen: batches by number, as they came ``live`` and as they were ``replayed``.

    ``places`` and ``connections`` say of each live batch which message it was and what connection brought it.
    ``snapshot`` is a replayed batch that stands for all up to it, where there was one, and ``last`` the highest number
    that came live, -1 before any.
    """

    def __init__(self) -> None:
        self.live: dict[int, Frame] = {}
        self.places: dict[int, int] = {}
        self.connections: dict[int, int] = {}
        self.replayed: dict[int, Frame] = {}
        self.snapshot: Frame | None = None
        self.last = -1

    @property
    def first(self) -> int:
        """The first number that came live."""
        return next(iter(self.live))

    @property
    def complete(self) -> bool:
        """Whether its history is known from the start."""
        return 0 in self.live or 0 in self.replayed or self.snapshot is not None

    def knows(self, seq: int) -> bool:
        """Whether a batch was seen, or lies in what a snapshot stands for."""
        covered = self.snapshot is not None and seq <= self.snapshot.seq
        return covered or seq in self.live or seq in self.replayed

    def history(self) -> Iterator[Frame]:
        """All batches by number, from the start, or from the snapshot where the start is not known."""
        frames = self.replayed | self.live
        floor = -1
        if 0 not in frames and self.snapshot is not None:
            floor = self.snapshot.seq
            yield self.snapshot
        yield from (frames[seq] for seq in sorted(frames) if seq > floor)


class _Place(msgspec.Struct, frozen=True):
    index: int
    connection: int


def parse_lives(seen: Observation, ledger: Ledger) -> list[Life]:
    """The lives behind the live messages, and judgement of frames, numbers and restarts. At least one life."""
    lives: list[Life] = [Life()]
    for index, message in enumerate(seen.live):
        try:
            frame = parse_live(message.frames)
        except FramingError as error:
            ledger.broken(Rule.FRAMES, f"message {index}: {error}")
            continue
        ledger.held(Rule.FRAMES)
        _take(lives, frame, _Place(index, message.connection), ledger)
    _add_replays(lives, seen)
    return lives


def _take(lives: list[Life], frame: Frame, place: _Place, ledger: Ledger) -> None:
    life, seq = lives[-1], frame.seq
    if seq <= life.last:
        if seq in life.live and life.live[seq].payload == frame.payload:
            ledger.broken(Rule.NUMBERING, f"batch {seq} came twice")
            return
        if seq not in life.live and seq > life.first:
            ledger.broken(Rule.NUMBERING, f"batch {seq} came after batch {life.last}")
        else:
            life = Life()
            _judge_restart(lives[-1], seq, place, ledger)
            lives.append(life)
    life.live[seq], life.last = frame, max(seq, life.last)
    life.places[seq], life.connections[seq] = place.index, place.connection
    ledger.held(Rule.NUMBERING)


def _judge_restart(before: Life, seq: int, place: _Place, ledger: Ledger) -> None:
    """A first number above 0 is a fault only where nothing can have been missed: on an unbroken connection."""
    if seq == 0:
        ledger.held(Rule.RESTART)
    elif place.connection == max(before.connections.values()):
        ledger.broken(Rule.RESTART, f"after batch {before.last} came another batch {seq} on the same connection")


def _add_replays(lives: list[Life], seen: Observation) -> None:
    history, everything = seen.session(Asked.HISTORY), seen.session(Asked.ALL)
    if history is not None:
        frames = replayed_frames(history)
        if _contradicts(frames, lives[0]):
            lives.insert(0, Life())  # it was replaced before its first live batch came
        _add_replay(lives[0], frames)
    if everything is not None:
        _add_replay(lives[-1], replayed_frames(everything))


def _contradicts(frames: Sequence[Frame], life: Life) -> bool:
    known = [(frame, life.live[frame.seq]) for frame in frames[_snapshots(frames) :] if frame.seq in life.live]
    return any(frame.payload != live.payload for frame, live in known)


def _snapshots(frames: Sequence[Frame]) -> int:
    """How many batches at the head of a replay stand for all before them: 1 or 0."""
    return 1 if frames and frames[0].seq > 0 and begins_cleared(frames[0].payload) else 0


def _add_replay(life: Life, frames: Sequence[Frame]) -> None:
    snapshots = _snapshots(frames)
    for frame in frames[:snapshots]:
        life.snapshot = frame
    for frame in frames[snapshots:]:
        life.replayed.setdefault(frame.seq, frame)


def replayed_frames(session: ReplaySession) -> list[Frame]:
    """The batches of a session; what is no answer of the protocol is left out."""
    found = []
    for frames in session.replies:
        try:
            frame = parse_replay_reply(frames)
        except FramingError:
            continue
        if frame is not None:
            found.append(frame)
    return found


def begins_cleared(payload: bytes) -> bool:
    """Whether a batch says all there is, so that nothing before it matters."""
    try:
        events = decode_batch(payload).events
    except EventDecodeError:
        return False
    return bool(events) and isinstance(events[0], AllBlocksCleared)

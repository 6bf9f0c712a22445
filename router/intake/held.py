"""Live batches that wait while a replay runs, within a bound."""

from __future__ import annotations

from contract.framing import Frame

__all__ = ["HeldFrames"]


class HeldFrames:
    """Frames in order of arrival. Those held before the last ``mark`` are *covered*: the replay asked for then must
    contain them, if its engine is the one that sent them.

    Past the bound the newest are dropped: the replay, or the hole they leave behind it, brings them back.
    """

    def __init__(self, *, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._frames: list[Frame] = []
        self._bytes = 0
        self.covered = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frame: Frame) -> None:
        """Hold a frame, or drop it where the bound is reached."""
        if len(self._frames) >= self._most or self._bytes + len(frame.payload) > self._most_bytes:
            self.dropped += 1
            return
        self._frames.append(frame)
        self._bytes += len(frame.payload)

    def mark(self) -> None:
        """A replay is asked for now."""
        self.covered = len(self._frames)

    def drop(self) -> None:
        """Drop everything held."""
        self.dropped += len(self._frames)
        self.take()

    def take(self) -> tuple[list[Frame], list[Frame]]:
        """Hand out everything: the covered frames, and the later ones."""
        frames, covered = self._frames, self.covered
        self._frames, self._bytes, self.covered = [], 0, 0
        return frames[:covered], frames[covered:]

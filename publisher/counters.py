"""What a publisher counts, so that nothing it leaves out is left out silently."""

from __future__ import annotations

import msgspec

__all__ = ["PublisherCounters"]


class PublisherCounters(msgspec.Struct, kw_only=True):
    """Running totals of one publisher, in batches unless said otherwise.

    Each total has one writer: ``published`` and ``skipped`` change under the outbox's lock, ``encode_errors`` under the
    encoder's, all others in the sender thread only.
    """

    published: int = 0
    """Batches numbered and put in the log."""
    sent: int = 0
    """Batches handed to the live socket; ``published - sent - skipped`` still wait."""
    skipped: int = 0
    """Batches that the live stream left out because too many waited; replay still has them for a while."""
    encode_errors: int = 0
    """Events, not batches, that the wire could not carry."""
    replays: int = 0
    """Replay requests answered to the end."""
    replayed: int = 0
    """Batches sent in replays, snapshots included."""
    replay_missing: int = 0
    """Batches that a replay asked for and the log no longer had."""
    replays_dropped: int = 0
    """Replays given up: the reader left, or accepted nothing for too long."""
    malformed_requests: int = 0
    """Replay requests, not batches, that could not be read and were not answered."""
    snapshots: int = 0
    """Replays that began with a snapshot."""
    snapshot_errors: int = 0
    """Replays that should have begun with a snapshot and had to do with what the log had."""

"""``kvsteer-router replay FILE``: recorded frames through the router's own stream tracking and index, offline.

The file is JSON lines (``trace.frame_lines``). There is no replay endpoint behind a file: a hole in the numbers is
lost, and a number that goes back, with another payload, is a restart. A payload that is no event batch counts as a
rejected event of the lane whose turn it is, and its number passes.

What comes out is the engine's cache as its events tell it, to be laid beside what the engine really held.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from contract.events import BlockHash
from contract.framing import Frame
from contract.hashing import TokenIdError
from router.intake.index import BlockIndex, BlockRow, LaneHandle
from router.intake.stream_report import StreamStatus
from router.prompt import Prompt
from router.trace.followed_lane import FollowedLane
from router.trace.frame_lines import Ranks, RecordingError, read_recording

__all__ = [
    "LaneRecord",
    "Recording",
    "add_replay_command",
    "cannot_print",
    "lane_record",
    "read_recording",
    "run_replay",
]


class LaneRecord(msgspec.Struct, frozen=True):
    """One lane as printed."""

    last_seq: int
    gaps: int
    lost: int
    rejected_events: int
    blocks: Sequence[dict[str, str | int | None]]


class ReplayRecord(msgspec.Struct, frozen=True):
    """One printed line: the state after frame ``seq`` (None: after no frame), lanes by rank."""

    seq: int | None
    lanes: dict[str, LaneRecord]
    matched_tokens: int


class Recording:
    """The lanes of one recording, fed frame by frame."""

    def __init__(self, *, block_size: int | None = None) -> None:
        """``block_size`` stands in for a descriptor's."""
        self._index = BlockIndex()
        self._lanes: dict[int, FollowedLane] = {}
        self._block_size = block_size
        self._seq: int | None = None
        self._ranks = Ranks()

    def feed(self, frame: Frame) -> None:
        """Take in the next frame of the file."""
        self._seq = frame.seq
        rank = self._ranks.of(frame)
        lane = self._lanes.get(rank)
        if lane is None:
            lane = self._lanes[rank] = FollowedLane(self._index, can_replay=False, block_size=self._block_size)
        lane.perform(lane.stream.live(frame, now=0.0))

    def record(self, prompt: Prompt | None = None) -> ReplayRecord:
        """The state now, and how much of a prompt the best lane holds."""
        lanes = {
            str(rank): lane_record(self._index, lane.handle, lane.stream.status)
            for rank, lane in sorted(self._lanes.items())
        }
        return ReplayRecord(self._seq, lanes, 0 if prompt is None else self._matched_tokens(prompt))

    def _matched_tokens(self, prompt: Prompt) -> int:
        found = self._index.match(prompt, [lane.handle for lane in self._lanes.values()])
        return max((match.tokens for match in found.values()), default=0)


def lane_record(index: BlockIndex, handle: LaneHandle, status: StreamStatus) -> LaneRecord:
    """A lane as printed: what its stream has seen, and every block that it holds, in a fixed order."""
    return LaneRecord(
        last_seq=status.last_seq,
        gaps=status.gaps,
        lost=status.lost,
        rejected_events=index.stats(handle).rejected_events + status.rejected_batches,
        blocks=[_block(row) for row in sorted(index.blocks(handle), key=_order)],
    )


def _block(row: BlockRow) -> dict[str, str | int | None]:
    return {"hash": _text(row.hash), "tier": row.tier, "group": row.group, "copies": row.copies}


def _text(name: BlockHash) -> str:
    """Hashes as text: the unsigned decimal number, or the digest in hex."""
    return str(name) if isinstance(name, int) else name.hex()


def _order(row: BlockRow) -> tuple[bool, int, str, str, int]:
    number, digest = (row.hash, "") if isinstance(row.hash, int) else (0, row.hash.hex())
    return bool(digest), number, digest, row.tier, -1 if row.group is None else row.group


def add_replay_command(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the ``replay`` subcommand; its parsed arguments go to ``run_replay`` (also set as ``args.run``)."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "replay",
        help="feed recorded KV events through the index and print what it holds",
        description="Feed recorded KV events through the router's stream tracking and index, and print one JSON line.",
    )
    parser.add_argument("file", type=Path, help='JSON lines of recorded frames: {"topic", "seq", "payload_b64"}')
    parser.add_argument("--each", action="store_true", help="print a line after every frame, not only at the end")
    parser.add_argument("--prompt", type=token_ids, metavar="IDS", help="JSON list of token ids to look up")
    parser.add_argument(
        "--block-size", type=_positive, metavar="N", help="the width a descriptor would have advertised"
    )
    parser.set_defaults(run=run_replay)
    return parser


def run_replay(args: argparse.Namespace) -> int:
    """Carry out the subcommand; the exit status, 1 where the recording cannot be read."""
    recording = Recording(block_size=args.block_size)
    try:
        for frame in read_recording(args.file):
            recording.feed(frame)
            if args.each:
                _print(recording.record(args.prompt))
        if not args.each:
            _print(recording.record(args.prompt))
    except RecordingError as error:
        print(f"kvsteer-router replay: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        return cannot_print("replay", error)
    return 0


def cannot_print(command: str, error: OSError) -> int:
    """The status of a command whose output nobody reads: quietly the end where a pipe was closed, as ``head`` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter tries once more as it exits
    if not isinstance(error, BrokenPipeError):
        print(f"kvsteer-router {command}: cannot print: {error.strerror}", file=sys.stderr)
    return 1


def _print(record: ReplayRecord) -> None:
    print(msgspec.json.encode(record).decode(), flush=True)


def token_ids(text: str) -> Prompt:
    """A prompt of a command line, for ``argparse``."""
    try:
        return Prompt(msgspec.json.decode(text, type=list[int]))
    except (msgspec.MsgspecError, TokenIdError) as error:
        raise argparse.ArgumentTypeError(f"not a JSON list of token ids: {error}") from None


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")
    return int(text)

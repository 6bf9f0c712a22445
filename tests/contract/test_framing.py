from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from contract.framing import (
    END_SEQ,
    Frame,
    FramingError,
    parse_live,
    parse_replay_reply,
    parse_replay_request,
    pub_frames,
    replay_end,
    replay_reply,
    replay_request,
)

FRAME = Frame(b"kv-events", 258, b"payload")


def unpack(frames: list[str]) -> list[bytes]:
    return [base64.b64decode(frame) for frame in frames]


def exchanges(golden_dir: Path) -> list[dict[str, Any]]:
    recorded = [json.loads(path.read_text()) for path in sorted(golden_dir.glob("*.replay.json"))]
    legacy = [json.loads(path.read_text())["replay"] for path in sorted(golden_dir.glob("sglang-legacy*.meta.json"))]
    return [exchange for item in recorded for exchange in item.get("exchanges", [item])] + legacy


def test_live_frames_are_topic_sequence_payload() -> None:
    assert pub_frames(FRAME) == [b"kv-events", b"\0\0\0\0\0\0\x01\x02", b"payload"]
    assert parse_live(pub_frames(FRAME)) == FRAME


@pytest.mark.parametrize(
    "frames", [[], [b"t", b"\0" * 8], [b"t", b"\0" * 8, b"p", b"x"], [b"t", b"\0" * 7, b"p"], [b"t", END_SEQ, b"p"]]
)
def test_live_frames_of_another_shape_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(FramingError):
        parse_live(frames)


def test_recorded_replay_requests_and_replies_are_understood(golden_dir: Path) -> None:
    shapes = set()
    for exchange in exchanges(golden_dir):
        if exchange.get("socket", "DEALER") != "DEALER" or not exchange.get("start_seq", -1) >= 0:
            continue
        assert unpack(exchange["request_frames_b64"]) == replay_request(exchange["start_seq"])
        replies = [unpack(f) for f in exchange.get("reply_frames_b64") or exchange["response_frames_b64"]]
        shapes |= {len(frames) for frames in replies}
        parsed = [parse_replay_reply(frames) for frames in replies]
        assert parsed[-1] is None
        seqs = [frame.seq for frame in parsed[:-1] if frame is not None]
        assert seqs == list(range(exchange["start_seq"], exchange["start_seq"] + len(seqs)))
    assert shapes == {3, 4}


def test_replies_are_written_in_todays_four_frames() -> None:
    assert replay_reply(FRAME) == [b"", b"kv-events", b"\0\0\0\0\0\0\x01\x02", b"payload"]
    assert parse_replay_reply(replay_reply(FRAME)) == FRAME
    assert replay_end() == [b"", b"", b"\xff" * 8, b""]
    assert parse_replay_reply(replay_end()) is None


@pytest.mark.parametrize("frames", [[], [b"", b"\0" * 8], [b"x", b"t", b"\0" * 8, b"p"], [b"", b"t", b"\0", b"p"]])
def test_replies_of_another_shape_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(FramingError):
        parse_replay_reply(frames)


def test_a_request_is_read_with_the_routers_identity_in_front() -> None:
    assert parse_replay_request([b"id", *replay_request(258)]) == (b"id", 258)
    assert parse_replay_request([b"id", b"", b""]) == (b"id", 0)
    assert parse_replay_request([b"id", b"", b"\x01\x00"]) == (b"id", 256)


@pytest.mark.parametrize("frames", [[b"id", b"\0" * 8], [b"id", b"x", b"\0" * 8], [b"id", b"", b"\0" * 9]])
def test_requests_of_another_shape_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(FramingError):
        parse_replay_request(frames)

"""A stream passes as it came, less only what the client did not ask for, however it is cut into chunks."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.proof.report import Report, read_report
from router.proof.sse import MAX_EVENT_BYTES, EventTap

USAGE = {"prompt_tokens": 13, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 6}}


def event(value: object, *, gap: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + gap


def chunk(text: str) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": text}], "usage": None}


def openai_stream(gap: bytes = b"\n\n") -> tuple[bytes, bytes]:
    """A stream as the engine sends it when usage is asked for, and as it is without."""
    texts = [event(chunk(text), gap=gap) for text in ("ein", " Löwe", ' "prompt_tokens"\n', "")]
    usage = event({"choices": [], "usage": USAGE}, gap=gap)
    done = b"data: [DONE]" + gap
    return b"".join([b": hello" + gap, *texts, usage, done]), b"".join([b": hello" + gap, *texts, done])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("gap", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@given(places=st.lists(st.integers(0, 10_000), max_size=40))
def test_a_usage_event_that_nobody_asked_for_is_taken_out_wherever_chunks_are_cut(
    gap: bytes, places: list[int]
) -> None:
    sent, wanted = openai_stream(gap)
    tap = EventTap(strip_usage=True)
    out = b"".join(tap.feed(part) for part in cut(sent, places)) + tap.finish()
    assert out == wanted
    assert tap.report == Report(13, 6, 2)


@given(places=st.lists(st.integers(0, 10_000), max_size=40))
def test_a_stream_with_nothing_to_take_out_passes_chunk_by_chunk(places: list[int]) -> None:
    sent, _ = openai_stream()
    tap = EventTap(strip_usage=False)
    for part in cut(sent, places):
        assert tap.feed(part) == part
    assert tap.finish() == b""
    assert tap.report == Report(13, 6, 2)


def test_an_event_leaves_as_soon_as_it_is_complete() -> None:
    tap = EventTap(strip_usage=True)
    first = event(chunk("a"))
    assert tap.feed(first + b"data: {") == first
    assert tap.feed(b'"choices":[{}]}\n') == b""
    assert tap.feed(b"\n") == b'data: {"choices":[{}]}\n\n'


def test_usage_beside_choices_belongs_to_the_client() -> None:
    """An engine that puts counts on its last text chunk does so unasked; the text must not go with them."""
    last = event({"choices": [{"text": "x"}], "usage": USAGE})
    tap = EventTap(strip_usage=True)
    assert tap.feed(last) == last
    assert tap.report == Report(13, 6, 2)


def test_the_last_of_sglangs_running_reports_counts() -> None:
    tap = EventTap(strip_usage=False)
    for cached in (0, 4, 8):
        tap.feed(event({"text": "", "meta_info": {"prompt_tokens": 20, "cached_tokens": cached}}))
    assert tap.report == Report(20, 8)


def test_a_stream_that_ends_without_a_gap_loses_nothing() -> None:
    tap = EventTap(strip_usage=True)
    assert tap.feed(b"data: [DO") == b""
    assert tap.finish() == b"data: [DO"


def test_a_client_left_inside_an_event_is_known() -> None:
    tap = EventTap(strip_usage=False)
    tap.feed(event(chunk("a")))
    assert not tap.broken_off
    tap.feed(b'data: {"choi')
    assert tap.broken_off
    held = EventTap(strip_usage=True)
    held.feed(b'data: {"choi')
    assert not held.broken_off


@pytest.mark.parametrize("strip", [True, False])
def test_an_endless_event_is_passed_on_and_not_hoarded(strip: bool) -> None:
    tap, part, out = EventTap(strip_usage=strip), b"x" * 65536, 0
    for _ in range(64):
        out += len(tap.feed(part))
        assert len(tap._rest) <= MAX_EVENT_BYTES
    assert out + len(tap.finish()) == 64 * len(part)


@pytest.mark.parametrize(
    ("answer", "report"),
    [
        (b'{"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":3}}}', Report(7, 3)),
        (b'{"usage":{"prompt_tokens":7,"prompt_tokens_details":null}}', Report(7, None)),
        (b'{"usage":{"prompt_tokens":7}}', Report(7, None)),
        (b'{"meta_info":{"prompt_tokens":7,"cached_tokens":0}}', Report(7, 0)),
        (b'{"meta_info":{"prompt_tokens":7}}', Report(7, None)),
        (b'{"choices":[]}', None),
        (b'{"usage":{"prompt_tokens":"many"}}', None),
        (b'[{"meta_info":{"prompt_tokens":7}}]', None),
        (b'\xff\xfe{"usage":', None),
        (b"", None),
        (b'{"usage":' + b"[" * 100_000, None),
    ],
)
def test_reports_are_read_where_they_are_and_missed_where_they_are_not(answer: bytes, report: Report | None) -> None:
    assert read_report(answer) == report

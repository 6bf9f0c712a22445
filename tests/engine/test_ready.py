"""Ready messages: what versions of them tell each other, and what a server advertises of several engines."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from contract.agreement import Agreement
from engine.ready import ReadyMessage, advertised_width, decode_ready, encode_ready, engine_message

WIDE, NARROW = (encode_ready(ReadyMessage(block_width=width)) for width in (4224, 1056))


class NewerReady(msgspec.Struct, kw_only=True):
    """A version that says more."""

    block_width: int | None = None
    reason: str | None = None
    attention_groups: dict[str, int] = {}


class OlderReady(msgspec.Struct, kw_only=True):
    """A version that did not know of widths."""

    num_blocks: int = 0


def test_a_message_says_what_was_said() -> None:
    for message in (ReadyMessage(), ReadyMessage(block_width=6), ReadyMessage(reason="no attention at all")):
        assert decode_ready(encode_ready(message)) == message


def test_versions_that_know_more_or_fewer_fields_read_each_other() -> None:
    newer = NewerReady(block_width=6, attention_groups={"full": 6})
    assert decode_ready(msgspec.msgpack.encode(newer)) == ReadyMessage(block_width=6)
    assert msgspec.msgpack.decode(WIDE, type=NewerReady) == NewerReady(block_width=4224)
    older = msgspec.msgpack.encode(OlderReady(num_blocks=7))
    assert decode_ready(older) == ReadyMessage()
    assert msgspec.msgpack.decode(WIDE, type=OlderReady) == OlderReady()


@pytest.mark.parametrize("payload", [b"", b"READY", msgspec.msgpack.encode("ready"), WIDE[:-1], WIDE + b"x"], ids=repr)
def test_what_cannot_be_read_counts_as_no_width_and_says_so(payload: bytes) -> None:
    message = decode_ready(payload)
    assert message.block_width is None
    assert "cannot be read" in str(message.reason)


@pytest.mark.parametrize("value", [-1, 0, "6", 6.5, True, [6]])
def test_a_width_that_is_none_counts_as_none(value: object) -> None:
    assert decode_ready(msgspec.msgpack.encode({"block_width": value})).block_width is None


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ({0: WIDE, 1: WIDE}, Agreement(4224)),
        ({0: WIDE, 1: NARROW}, Agreement(None, "engines disagree (rank 0: 4224, rank 1: 1056)")),
        ({0: WIDE, 1: None}, Agreement(None, "no value from rank 1: it sent no ready message")),
        ({0: WIDE, 1: b"\x80"}, Agreement(None, "no value from rank 1")),
        (
            {0: encode_ready(ReadyMessage(reason="there is only mamba")), 1: WIDE},
            Agreement(None, "no value from rank 0: there is only mamba"),
        ),
        ({}, Agreement(None, "no engine is present")),
    ],
)
def test_a_width_is_advertised_only_while_all_present_engines_report_it(
    messages: Mapping[int, bytes | None], expected: Agreement
) -> None:
    assert advertised_width(messages) == expected


def test_an_engine_that_leaves_stops_counting() -> None:
    messages: dict[int, bytes | None] = {0: WIDE, 1: NARROW, 2: WIDE}
    assert advertised_width(messages).value is None
    del messages[1]
    assert advertised_width(messages) == Agreement(4224)


def test_an_engine_reports_the_width_that_its_cache_and_all_its_ranks_have() -> None:
    own = Agreement(4224)
    assert engine_message(own, []) == ReadyMessage(block_width=4224)
    assert engine_message(own, [WIDE, WIDE]) == ReadyMessage(block_width=4224)
    reason = "ranks store blocks of 1056 tokens, the engine counts 4224"
    assert engine_message(own, [NARROW, NARROW]) == ReadyMessage(reason=reason)
    assert engine_message(own, [WIDE, NARROW]).reason == "engines disagree (rank 0: 4224, rank 1: 1056)"
    assert engine_message(own, [WIDE, b"\x80"]).reason == "no value from rank 1"
    assert engine_message(Agreement(None, "why"), [WIDE]) == ReadyMessage(reason="why")

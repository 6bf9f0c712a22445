"""ZMTP from bytes: messages come whole and in order however they were cut, and a peer of another kind is named."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zmtp_peer import greeting, ready, written

from router.intake import zmtp as zmtp_module
from router.intake.zmtp import Zmtp, ZmtpError, encode_message, subscription

MOST = 2_000


def conversation(*, kind: str = "SUB", peer: str = "PUB") -> Zmtp:
    """One whose handshake is done."""
    zmtp = Zmtp(kind, most_bytes=MOST)
    assert zmtp.receive(greeting() + ready(peer)) == b""
    assert zmtp.ready
    return zmtp


_MESSAGES = st.lists(st.lists(st.binary(max_size=400), min_size=1, max_size=4), max_size=6)


def heard(data: bytes, cuts: Sequence[int], *, compiled: bool = True) -> tuple[list[list[bytes]], bytes, str]:
    """Messages, answers and the complaint that such bytes lead to, in such pieces."""
    zmtp, answers, at = Zmtp("SUB", most_bytes=MOST), b"", 0
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(zmtp_module, "_CUT", None)
        try:
            for length in [*cuts, len(data)]:
                if data[at : at + length]:
                    answers += zmtp.receive(data[at : at + length])
                at += length
        except ZmtpError as error:
            return list(zmtp.messages), answers, str(error)
    return list(zmtp.messages), answers, ""


_CUTS = st.lists(st.integers(1, 700), max_size=40)


@given(messages=_MESSAGES, cuts=_CUTS)
def test_messages_come_whole_however_the_bytes_are_cut(messages: list[list[bytes]], cuts: Sequence[int]) -> None:
    data = greeting() + ready("XPUB") + b"".join(map(encode_message, messages))
    assert heard(data, cuts) == (messages, b"", "")


_FRAMES = st.builds(
    lambda body, more, command, flags: (
        bytes([written(body, more=more, command=command)[0] | flags]) + written(body, more=more, command=command)[1:]
    ),
    st.binary(max_size=300) | st.just(b"\x04PING\x00\x01x") | st.just(bytes(900)),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 0, 0, 2, 8, 64]),
)


@pytest.mark.skipif(zmtp_module._CUT is None, reason="the compiled core was not built, or is left out")
@given(frames=st.lists(_FRAMES, max_size=80), cuts=_CUTS, tail=st.binary(max_size=12))
def test_the_compiled_core_takes_what_the_python_takes(
    frames: Sequence[bytes], cuts: Sequence[int], tail: bytes
) -> None:
    data = greeting() + ready("PUB") + b"".join(frames) + tail
    assert heard(data, cuts) == heard(data, cuts, compiled=False)


def test_the_bytes_are_those_that_the_specification_shows() -> None:
    opening = Zmtp("SUB", most_bytes=MOST).opening
    assert opening[:34] == b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(18)
    assert opening[64:] == b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
    assert encode_message(subscription("kv")) == b"\x00\x03\x01kv"
    assert encode_message([b"", b"x" * 256]) == b"\x01\x00\x02" + (256).to_bytes(8, "big") + b"x" * 256


def test_a_ping_is_answered_with_its_own_words_and_other_commands_are_nothing() -> None:
    zmtp = conversation()
    assert zmtp.receive(written(b"\x04PING\x00\x0ahello", command=True)) == b"\x04\x0a\x04PONGhello"
    assert zmtp.receive(written(b"\x09SUBSCRIBEkv", command=True) + written(b"", command=True)) == b""
    assert zmtp.receive(encode_message([b"one"])) == b""
    assert list(zmtp.messages) == [[b"one"]]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n".ljust(64), "does not speak ZMTP: it begins with b'HTTP/1.1 400 Bad'"),
        (greeting(major=1), "speaks ZMTP 1, which is older than 3"),
        (greeting(mechanism=b"CURVE"), "wants the security mechanism b'CURVE'"),
        (greeting() + ready("PULL"), "is a 'PULL' socket, not PUB or XPUB"),
        (greeting() + written(b"\x05READY", command=True), "is a '' socket, not PUB or XPUB"),
        (greeting() + written(b"\x05ERROR\x04full", command=True), "refuses: b'full'"),
        (greeting() + encode_message([b"early"]), "a message before the handshake is done"),
    ],
)
def test_a_peer_that_cannot_be_talked_to_is_named(data: bytes, complaint: str) -> None:
    zmtp = Zmtp("SUB", most_bytes=MOST)
    with pytest.raises(ZmtpError, match=complaint):
        zmtp.receive(data)
    assert not zmtp.ready


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"\x02" + b"\xff" * 8, f"a message of {2**64 - 1} bytes, above {MOST}"),
        (
            written(b"x" * 1_500, more=True) + b"\x02" + (501).to_bytes(8, "big"),
            f"a message of 2001 bytes, above {MOST}",
        ),
        (written(b"", more=True) * 64, "a message of more than 64 frames"),
    ],
)
def test_a_message_without_measure_ends_the_connection_before_it_is_kept(data: bytes, complaint: str) -> None:
    zmtp = conversation()
    with pytest.raises(ZmtpError, match=complaint):
        zmtp.receive(data)
    assert not zmtp.messages


@given(data=st.binary(max_size=300), greeted=st.booleans())
def test_any_bytes_are_taken_or_refused(data: bytes, greeted: bool) -> None:
    zmtp = Zmtp("DEALER", most_bytes=MOST)
    with contextlib.suppress(ZmtpError):
        zmtp.receive((greeting() + ready("ROUTER") if greeted else b"") + data)
    assert all(sum(map(len, message)) <= MOST for message in zmtp.messages)

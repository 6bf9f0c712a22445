"""What an engine says of itself once it is ready, and what a server may advertise of several engines.

A ready message travels between processes that need not be of one version: ranks of other machines send it to their
engine, engines to the server in front of them. So it is a map in which unknown fields are passed over and missing ones
say nothing. The rule is vLLM's (0.31.0 and later): a width is advertised only while all present engines report it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from contract.agreement import Agreement, agree

__all__ = ["ReadyMessage", "advertised_width", "decode_ready", "encode_ready", "engine_message"]


class ReadyMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``block_width`` is what the engine's KV events carry as their block size; ``reason`` says why there is none."""

    block_width: Annotated[int, msgspec.Meta(ge=1)] | None = None
    reason: str | None = None


def encode_ready(message: ReadyMessage) -> bytes:
    """The message as it travels."""
    return msgspec.msgpack.encode(message)


def decode_ready(payload: bytes | None) -> ReadyMessage:
    """The message that came, if one did (None: not). What cannot be read says nothing but that."""
    if payload is None:
        return ReadyMessage(reason="it sent no ready message")
    try:
        return msgspec.msgpack.decode(payload, type=ReadyMessage)
    except msgspec.MsgspecError as error:
        return ReadyMessage(reason=f"its ready message cannot be read ({error})")


def advertised_width(messages: Mapping[int, bytes | None]) -> Agreement:
    """What the engines that are present, by rank, all report; otherwise none, and why."""
    said = {rank: decode_ready(message) for rank, message in messages.items()}
    agreement = agree({rank: message.block_width for rank, message in said.items()})
    reasons = dict.fromkeys(message.reason for message in said.values() if message.reason and not message.block_width)
    if agreement.value is not None or not reasons:
        return agreement
    return Agreement(None, f"{agreement.reason}: {'; '.join(reasons)}")


def engine_message(own: Agreement, ranks: Sequence[bytes]) -> ReadyMessage:
    """What an engine reports whose cache has the width ``own``, and whose rank processes (none: threads) sent these."""
    if own.value is None:
        return ReadyMessage(reason=own.reason)
    theirs = advertised_width(dict(enumerate(ranks))) if ranks else own
    if theirs.value is None:
        return ReadyMessage(reason=theirs.reason)
    if theirs != own:
        return ReadyMessage(reason=f"ranks store blocks of {theirs.value} tokens, the engine counts {own.value}")
    return ReadyMessage(block_width=own.value)

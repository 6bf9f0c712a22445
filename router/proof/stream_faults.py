"""Diagnoses of the contract and the event stream: what the lane says of itself against what its events say. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from router.proof.facts import LaneFacts
from router.proof.fault import Code, Fault

__all__ = ["agreement_missing", "events_silent", "stream_lost", "stream_untrusted", "width_mismatch"]

SILENT_STORES = 16


def agreement_missing(reason: str) -> Fault:
    """Several engines stand behind one address and no width, or no stream, holds for all of them."""
    return Fault(
        code=Code.AGREEMENT_MISSING,
        dp_rank=None,
        detail=f"the replica advertises nothing that holds for all of its engines: {reason}",
        advice="start every engine behind this address with the same page and DCP sizes and with events on, "
        "or give each an address of its own",
        evidence={"reason": reason},
    )


def width_mismatch(facts: LaneFacts) -> Iterator[Fault]:
    """The events have another width than was advertised."""
    advertised = facts.advertised_width
    others = [width for width in facts.emitted_widths if width != advertised]
    if advertised is None or not others:
        return
    yield Fault(
        code=Code.WIDTH_MISMATCH,
        dp_rank=facts.dp_rank,
        detail=f"rank {facts.dp_rank} advertises block_size {advertised} and its events carry "
        f"{', '.join(map(str, others))}; prompts are hashed at {facts.emitted_widths[-1]}",
        advice=f"hits are found here all the same; a router that trusts the {advertised} finds none: upgrade the "
        "engine to a version that advertises page size times DCP size",
        evidence={"advertised": advertised, "emitted": list(others), "hashed_at": facts.emitted_widths[-1]},
    )


def events_silent(facts: LaneFacts) -> Iterator[Fault]:
    """Requests that must have stored blocks, and not a word of it."""
    stores = facts.tally.silent_stores(facts.batches)
    if stores < SILENT_STORES:
        return
    why = facts.no_events or f"nothing came from {facts.endpoint}: wrong port, or events are off on the engine"
    since = "" if not facts.batches else f" since batch {facts.batches}"
    yield Fault(
        code=Code.EVENTS_SILENT,
        dp_rank=facts.dp_rank,
        detail=f"rank {facts.dp_rank}: no events from this lane{since}, although {stores} requests since must have "
        f"stored blocks; {why}",
        advice=_how_to_publish(facts),
        evidence={"requests": stores, "batches": facts.batches, "endpoint": facts.endpoint},
    )


_EVENT_FLAGS = {
    "vllm": '--kv-events-config \'{"enable_kv_cache_events":true,"publisher":"zmq"}\'',
    "sglang": '--kv-events-config \'{"publisher":"zmq"}\'',
}


def _how_to_publish(facts: LaneFacts) -> str:
    if facts.endpoint is not None:
        return f"check that the engine publishes on {facts.endpoint} and that no firewall is between"
    flag = _EVENT_FLAGS.get(facts.engine, _EVENT_FLAGS["sglang"])
    return f"start the engine with {flag}, or name its event endpoint in the router's --config file"


def stream_lost(facts: LaneFacts) -> Iterator[Fault]:
    """Batches that never came."""
    if facts.lost:
        yield Fault(
            code=Code.STREAM_LOST,
            dp_rank=facts.dp_rank,
            detail=f"rank {facts.dp_rank}: {facts.lost} event batches never came and could not be replayed; "
            "its index may be incomplete",
            advice="set replay_endpoint in the engine's kv-events-config, or raise buffer_steps and hwm",
            evidence={"lost": facts.lost, "batches": facts.batches},
        )


def stream_untrusted(facts: LaneFacts) -> Iterator[Fault]:
    """The index may hold what the engine does not."""
    if facts.stream_state == "untrusted":
        yield Fault(
            code=Code.STREAM_UNTRUSTED,
            dp_rank=facts.dp_rank,
            detail=f"rank {facts.dp_rank}: its index may be incomplete: {facts.stream_reason}",
            advice="check that the replay endpoint answers; the router tries again by itself",
            evidence={"reason": facts.stream_reason, "lost": facts.lost, "batches": facts.batches},
        )

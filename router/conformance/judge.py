"""The judgement: everything that was seen of a publisher, held to every rule. Pure."""

from __future__ import annotations

from contract.events import EventDecodeError, decode_batch
from contract.framing import Frame
from router.conformance.blocks import BlockJudge
from router.conformance.lives import Life, parse_lives
from router.conformance.numbering import judge_numbering
from router.conformance.observation import Observation
from router.conformance.replay_rules import judge_replays
from router.conformance.rules import Finding, Ledger, Rule

__all__ = ["judge"]


def judge(seen: Observation, *, advertised_width: int | None = None) -> list[Finding]:
    """A finding for every rule. ``advertised_width`` is what the server says a block holds, where it was asked."""
    ledger = Ledger()
    ledger.check(Rule.REACHABLE, seen.reached, lambda: "no connection came about")
    lives = parse_lives(seen, ledger)
    judge_numbering(lives, seen, ledger)
    judge_replays(lives, seen, ledger)
    ranks: list[int] = []
    for life in lives:
        _judge_life(life, ranks, ledger, advertised_width=advertised_width)
    return ledger.findings()


def _judge_life(life: Life, ranks: list[int], ledger: Ledger, *, advertised_width: int | None) -> None:
    blocks = BlockJudge(ledger, complete=life.complete)
    before: int | None = None
    for frame in life.history():
        if before is not None and frame.seq != before + 1:
            blocks.skipped()
        before = frame.seq
        _judge_batch(frame, blocks, ranks, ledger)
    blocks.finish()
    if advertised_width is not None and blocks.width is not None:
        width = f"events carry {blocks.width}, the server advertises {advertised_width}"
        ledger.check(Rule.ADVERTISED_WIDTH, blocks.width == advertised_width, lambda: width)


def _judge_batch(frame: Frame, blocks: BlockJudge, ranks: list[int], ledger: Ledger) -> None:
    try:
        batch = decode_batch(frame.payload)
    except EventDecodeError as error:
        ledger.broken(Rule.BATCH, f"batch {frame.seq}: {error}")
        blocks.skipped()
        return
    ledger.held(Rule.BATCH)
    _judge_rank(frame.seq, batch.dp_rank, ranks, ledger)
    blocks.take(frame.seq, batch)


def _judge_rank(seq: int, rank: int | None, ranks: list[int], ledger: Ledger) -> None:
    """The rank that a batch names, where it names one; ``ranks`` holds the first one named."""
    if rank is None:
        return
    if not ranks:
        ranks.append(rank)
    ledger.check(
        Rule.RANK, rank == ranks[0], lambda: f"batch {seq} is of rank {rank}, one before it of rank {ranks[0]}"
    )

"""Holds replay sessions to the rules: frames, the end marker, order, completeness, and what is asked in vain."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from contract.framing import END_SEQ, FramingError, parse_replay_reply
from router.conformance.lives import Life, begins_cleared, replayed_frames
from router.conformance.observation import Asked, Observation, ReplaySession
from router.conformance.rules import Ledger, Rule

__all__ = ["judge_replays"]


def judge_replays(lives: Sequence[Life], seen: Observation, ledger: Ledger) -> None:
    """Judge every session; those that ask for batches also against what came live."""
    for session in seen.sessions:
        _judge_answer(session, ledger)
        if session.asked is Asked.BEYOND_END:
            _judge_empty(session, ledger, Rule.REPLAY_BEYOND_END)
        elif session.asked is Asked.MALFORMED:
            _judge_empty(session, ledger, Rule.REPLAY_MALFORMED)
        else:
            _judge_order(session, ledger)
            _judge_complete(session, lives, ledger)
            _judge_overlap(session, lives, ledger)


def _judge_answer(session: ReplaySession, ledger: Ledger) -> None:
    """Shapes of the frames, and the end marker behind them."""
    shapes = {len(frames) for frames in session.replies}
    if len(shapes) > 1:
        ledger.broken(Rule.REPLAY_ANSWER, f"{session.asked}: one answer has messages of {sorted(shapes)} frames")
    for place, frames in enumerate(session.replies):
        try:
            parse_replay_reply(frames)
        except FramingError as error:
            ledger.broken(Rule.REPLAY_ANSWER, f"{session.asked}: message {place}: {error}")
        else:
            kept = not _is_end(frames) or not frames[-1]
            ledger.check(Rule.REPLAY_ANSWER, kept, lambda: f"{session.asked}: the end marker carries a payload")
    if session.silent:
        what = f"{len(session.replies)} messages" if session.replies else "nothing"
        ledger.broken(Rule.REPLAY_ANSWER, f"{session.asked}: {what}, and then no end marker in time")


def _is_end(frames: Sequence[bytes]) -> bool:
    return len(frames) >= 2 and frames[-2] == END_SEQ


def _judge_empty(session: ReplaySession, ledger: Ledger, rule: Rule) -> None:
    """A session that must bring the end marker and nothing else."""
    kept = len(session.replies) == 1 and _is_end(session.replies[0])
    ledger.check(rule, kept, lambda: f"{len(session.replies)} messages where one end marker was due")


def _judge_order(session: ReplaySession, ledger: Ledger) -> None:
    numbers = [frame.seq for frame in replayed_frames(session)]
    if numbers:
        # A snapshot is numbered as the last batch it reflects, which may be before what was asked for.
        early = numbers[0] < session.start and not begins_cleared(replayed_frames(session)[0].payload)
        first = f"{session.asked}: asked from {session.start}, the first batch is {numbers[0]}"
        ledger.check(Rule.REPLAY_ORDER, not early, lambda: first)
    for before, after in itertools.pairwise(numbers):
        ledger.check(
            Rule.REPLAY_ORDER,
            before < after,
            lambda: f"{session.asked}: batch {after} came after batch {before}",  # noqa: B023
        )


def _judge_complete(session: ReplaySession, lives: Sequence[Life], ledger: Ledger) -> None:
    """Every live batch that had come before the request must be in the answer, from the first one there on."""
    life = _life_of(session, lives)
    numbers = {frame.seq for frame in replayed_frames(session)}
    due = [seq for seq, place in life.places.items() if place < session.live_before and seq >= session.start]
    if not numbers:
        kept, why = not due, f"batch {max(due, default=0)} had come live, and the replay is empty"
    else:
        left_out = [seq for seq in due if seq >= min(numbers) and seq not in numbers]
        kept = not left_out
        why = f"{len(left_out)} batches had come live and are left out, batch {min(left_out, default=0)} first"
    if due or numbers:
        ledger.check(Rule.REPLAY_COMPLETE, kept, lambda: f"{session.asked}: {why}")


def _judge_overlap(session: ReplaySession, lives: Sequence[Life], ledger: Ledger) -> None:
    life = _life_of(session, lives)
    for place, frame in enumerate(replayed_frames(session)):
        live = life.live.get(frame.seq)
        if live is None or (place == 0 and live.payload != frame.payload and begins_cleared(frame.payload)):
            continue
        ledger.check(
            Rule.REPLAY_OVERLAP,
            live.payload == frame.payload,
            lambda: f"{session.asked}: batch {frame.seq} is another one than the live batch {frame.seq}",  # noqa: B023
        )


def _life_of(session: ReplaySession, lives: Sequence[Life]) -> Life:
    return lives[0] if session.asked is Asked.HISTORY else lives[-1]

"""A workload from files, whose format is told by what their first line holds; or made up, where there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from bench.workloads import agent_texts, claude_sessions
from bench.workloads.agent_texts import Cut, by_bytes, by_tokenizer, read_agent_texts, read_chat_texts
from bench.workloads.blocks import resizes
from bench.workloads.claude_sessions import BlockSize, read_claude_sessions
from bench.workloads.generated import Shape, generate
from bench.workloads.mooncake import BLOCK_TOKENS, read_mooncake
from bench.workloads.rag_segments import read_rag_segments
from bench.workloads.request import Ask, Rereadable, Workload
from bench.workloads.tempo import timed
from bench.workloads.token_ids import read_token_ids
from router.trace.lines import TraceError, read_lines

__all__ = ["Reading", "generated_workload", "open_workload"]

FREE_BLOCK = 16
"""Where the source has tokens, so that blocks may be of any size."""

TEMPO_SEED = 1
_Fields = dict[str, msgspec.Raw]


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """How files are read. ``block_tokens``: None for the source's own, or 16 where it has none.

    ``encode`` makes ids of texts; without it four bytes are a token. ``shared_heads``: coding sessions with tool
    definitions and system prompts of equal lengths begin alike.
    """

    block_tokens: int | None = None
    encode: Callable[[str], Sequence[int]] | None = None
    shared_heads: bool = True

    def cut(self, block_tokens: int) -> Cut:
        """How texts become blocks."""
        if self.encode is None:
            return by_bytes(block_tokens=block_tokens)
        return by_tokenizer(self.encode, block_tokens=block_tokens)


class _Format(msgspec.Struct, frozen=True):
    """``fields`` of the first line tell it. ``own_block`` finds the tokens a block in them, where blocks are given."""

    name: str
    fields: frozenset[str]
    own_block: Callable[[_Fields], int | None]
    read: Callable[[Sequence[Path], int, Reading], Iterator[Ask]]
    many_files: bool = False


def open_workload(paths: Sequence[Path], reading: Reading) -> Workload:
    """The requests of one file; of agents' texts, of several.

    Raises:
        TraceError: a file cannot be read, is of no known format, or cannot be cut into such blocks. While the requests
            are read: also for a bad line.
    """
    chosen, own = _format(paths[0])
    if len(paths) > 1 and not chosen.many_files:
        raise TraceError(f"{paths[1]}: a workload of {chosen.name} is one file, {paths[0]} is given too")
    block_tokens = reading.block_tokens or own or FREE_BLOCK
    if own is not None and not resizes(own, block_tokens):
        raise TraceError(f"{paths[0]}: its blocks of {own} tokens do not make blocks of {block_tokens}")
    name = "+".join(path.name.split(".")[0] for path in paths)
    return Workload(name, block_tokens, Rereadable(lambda: chosen.read(paths, block_tokens, reading)))


def generated_workload(shape: Shape, *, seed: int) -> Workload:
    """Made-up requests."""
    return Workload("generated", shape.block_tokens, Rereadable(lambda: generate(shape, seed=seed)))


def _format(path: Path) -> tuple[_Format, int | None]:
    number, line = next(read_lines(path), (0, b""))
    if not line:
        raise TraceError(f"{path} is empty")
    try:
        fields = msgspec.json.decode(line, type=_Fields)
        for one in _FORMATS:
            if one.fields <= fields.keys():
                return one, one.own_block(fields)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path}, line {number}: {error}") from None
    known = ", ".join(one.name for one in _FORMATS)
    raise TraceError(f"{path}, line {number}: fields {', '.join(fields):.80} are of no known format ({known})")


def _mooncake(paths: Sequence[Path], block_tokens: int, reading: Reading) -> Iterator[Ask]:
    return read_mooncake(paths[0], block_tokens=block_tokens)


def _rag(paths: Sequence[Path], block_tokens: int, reading: Reading) -> Iterator[Ask]:
    return read_rag_segments(paths[0], block_tokens=block_tokens)


def _sessions(paths: Sequence[Path], block_tokens: int, reading: Reading) -> Iterator[Ask]:
    sessions = read_claude_sessions(paths[0], block_tokens=block_tokens, shared_heads=reading.shared_heads)
    return timed(sessions, mean_gap=claude_sessions.MEAN_GAP, seed=TEMPO_SEED)


def _agents(paths: Sequence[Path], block_tokens: int, reading: Reading) -> Iterator[Ask]:
    sessions = read_agent_texts(paths, reading.cut(block_tokens))
    return timed(sessions, mean_gap=agent_texts.AGENT_GAP, seed=TEMPO_SEED)


def _chats(paths: Sequence[Path], block_tokens: int, reading: Reading) -> Iterator[Ask]:
    chats = read_chat_texts(paths[0], reading.cut(block_tokens))
    return timed(chats, mean_gap=agent_texts.CHAT_GAP, seed=TEMPO_SEED)


def _token_ids(paths: Sequence[Path], block_tokens: int, reading: Reading) -> Iterator[Ask]:
    return read_token_ids(paths[0], block_tokens=block_tokens)


def _block_size(fields: _Fields) -> int:
    return msgspec.json.decode(fields["block_size"], type=BlockSize)


def _no_blocks(fields: _Fields) -> None:
    return None


_FORMATS = (
    _Format("Mooncake's rows", frozenset({"hash_ids", "input_length", "timestamp"}), lambda _: BLOCK_TOKENS, _mooncake),
    _Format("RAGPulse's segments", frozenset({"segment_token_length"}), _no_blocks, _rag),
    _Format("coding sessions", frozenset({"block_size", "requests"}), _block_size, _sessions),
    _Format("agents' texts", frozenset({"session_id", "keep", "append"}), _no_blocks, _agents, many_files=True),
    _Format("token ids", frozenset({"arrival_time_ns", "input_tok_ids"}), _no_blocks, _token_ids),
    _Format("chats", frozenset({"input", "output_length"}), _no_blocks, _chats),
)

"""Other recordings as the records of a trace: frames in JSON lines, and Mooncake-format workloads.

Beside a file ``X.jsonl`` of frames there may be an ``X.meta.json``, which says what engine was recorded and how wide
its blocks are. A workload has requests and no lanes: its blocks' ids stand as keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import msgspec

from contract.events import EventDecodeError, decode_batch
from contract.framing import Frame
from contract.geometry import block_width
from router.fleet.health import State
from router.fleet.identity import Engine
from router.trace.frame_lines import Ranks, parse_frame
from router.trace.lines import TraceError, read_lines
from router.trace.mooncake import BLOCK_TOKENS, TraceRow, read_trace
from router.trace.recorder import PROGRAM
from router.trace.records import (
    Began,
    FrameHeard,
    LaneNamed,
    PrefixKeys,
    Record,
    ReplicaSeen,
    Routed,
    Served,
    StreamJoined,
    pack_keys,
)

__all__ = ["records_of_lines"]


class _Meta(msgspec.Struct):
    """What is read of an ``X.meta.json``. vLLM says its block size of one rank, SGLang its block width."""

    sglang_version: str | None = None
    vllm_version: str | None = None
    block_size: int | None = None
    decode_context_parallel_size: int = 1

    @property
    def width(self) -> int | None:
        if self.block_size is None:
            return None
        return block_width(page_size=self.block_size, dcp_size=self.decode_context_parallel_size)


def records_of_lines(path: Path) -> Iterator[Record]:
    """A file's lines as records, whatever kind they are of.

    Raises:
        TraceError, RecordingError: the file cannot be read, or a line is neither a frame nor a request.
    """
    first = next(read_lines(path), None)
    if first is None:
        raise TraceError(f"{path} has no lines")
    return _reader(path, first[1])(path)


def _reader(path: Path, line: bytes) -> Callable[[Path], Iterator[Record]]:
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        fields = {}
    if "payload_b64" in fields:
        return _frames
    if "hash_ids" in fields:
        return _workload
    raise TraceError(f"{path}, line 1: neither a .kvtrace, nor a recorded frame, nor a request with hash_ids")


def _began(at: float, path: Path) -> Began:
    return Began(at=at, program=PROGRAM, version=version("kvsteer"), source=f"converted from {path.name}")


def _frames(path: Path) -> Iterator[Record]:
    """Live frames of lanes of one replica, at the times that their batches say."""
    meta, ranks, known, at = _read_meta(path), Ranks(), set[int](), 0.0
    for number, line in read_lines(path):
        frame = parse_frame(line, where=f"{path}:{number}")
        rank, at = ranks.of(frame), _time(frame, at)
        if not known:
            yield _began(at, path)
            yield _replica(path, meta, at)
        if rank not in known:
            known.add(rank)
            yield LaneNamed(lane=rank, url=path.name, dp_rank=rank)
            yield StreamJoined(
                at=at,
                lane=rank,
                endpoint=str(path),
                topic=frame.topic.decode(errors="replace"),
                can_replay=False,
                block_size=meta.width,
            )
        yield FrameHeard(at=at, lane=rank, replayed=False, topic=frame.topic, seq=frame.seq, payload=frame.payload)


def _replica(path: Path, meta: _Meta, at: float) -> ReplicaSeen:
    return ReplicaSeen(
        at=at,
        url=path.name,
        state=State.HEALTHY,
        engine=Engine.VLLM if meta.vllm_version else Engine.SGLANG if meta.sglang_version else None,
        version=meta.vllm_version or meta.sglang_version,
        models=(),
        dp_size=1,
        block_size=meta.width,
        no_events=None,
        trouble=None,
    )


def _read_meta(path: Path) -> _Meta:
    beside = path.with_suffix("").with_suffix(".meta.json")
    try:
        return msgspec.json.decode(beside.read_bytes(), type=_Meta)
    except FileNotFoundError:
        return _Meta()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TraceError(f"{beside}: {error}") from None


def _time(frame: Frame, before: float) -> float:
    try:
        return decode_batch(frame.payload).ts
    except EventDecodeError:
        return before


def _workload(path: Path) -> Iterator[Record]:
    for number, row in enumerate(read_trace(path)):
        at = row.timestamp / 1000
        if not number:
            yield _began(at, path)
        yield _asked(path, number, row, at)
        yield Served(
            at=at, request=number, first_after=None, prompt_tokens=None, reported=None, output_tokens=row.output_length
        )


def _asked(path: Path, number: int, row: TraceRow, at: float) -> Routed:
    try:
        keys = pack_keys(row.hash_ids)
    except OverflowError:
        raise TraceError(f"{path}, request {number + 1}: hash id {max(row.hash_ids)} does not fit 64 bits") from None
    return Routed(
        at=at,
        request=number,
        lane=None,
        lanes=(),
        model=None,
        prompt_tokens=row.input_length,
        prompts=1,
        stream=True,
        predicted=0,
        pending=0,
        namespaced=False,
        prefixes=(PrefixKeys(BLOCK_TOKENS, False, keys),),
    )

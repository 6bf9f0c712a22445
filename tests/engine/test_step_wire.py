"""A step on the wire: what is read is what was written, and block ids travel once."""

from __future__ import annotations

import random
from array import array

import msgspec
import pytest

from engine.request import SamplingParams
from engine.runner.base import Chunk
from engine.runner.step_wire import StepReader, StepWriter

SAMPLING = SamplingParams(temperature=0.5, seed=7, stop=("x",), stop_token_ids=(3,))


def chunk(request_id: int, table: list[int], *, tokens: int = 1, sampling: SamplingParams | None = SAMPLING) -> Chunk:
    return Chunk(
        request_id=request_id,
        tokens=array("Q", range(tokens)),
        context_length=5,
        block_table=table,
        sampling=sampling,
    )


def plain(chunks: list[Chunk]) -> bytes:
    """What chunks say, whether their sequences are lists, tuples or arrays."""
    return msgspec.json.encode(chunks, enc_hook=list)


def test_what_is_read_is_what_was_written() -> None:
    chunks = [chunk(1, [4, 5], tokens=9), chunk(2, [], sampling=None)]
    assert plain(StepReader().read(StepWriter().write(chunks))) == plain(chunks)


def test_tables_that_grow_shrink_change_and_pause_are_read_back_step_by_step() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    writer, reader = StepWriter(), StepReader()
    tables: dict[int, list[int]] = {request: [] for request in range(6)}
    for _ in range(300):
        for table in tables.values():
            match rng.randrange(6):
                case 0:  # preempted, and somewhere else afterwards
                    table[:] = [rng.randrange(1000) for _ in range(rng.randrange(8))]
                case 1 | 2:
                    table += [rng.randrange(1000) for _ in range(rng.randrange(3))]
        step = [chunk(request, list(tables[request])) for request in rng.sample(range(6), rng.randrange(1, 6))]
        assert plain(reader.read(writer.write(step))) == plain(step)


def test_a_table_that_the_scheduler_goes_on_changing_is_not_remembered_by_reference() -> None:
    writer, reader = StepWriter(), StepReader()
    live = [1, 2]
    for block in (3, 4, 5):
        assert reader.read(writer.write([chunk(1, live)]))[0].block_table == live
        live.append(block)


def test_a_decode_step_costs_few_bytes_however_long_its_contexts_are() -> None:
    writer = StepWriter()
    table = list(range(100_000, 104_000))
    first = writer.write([chunk(request, table) for request in range(8)])
    second = writer.write([chunk(request, [*table, request]) for request in range(8)])
    assert len(first) > 8 * len(table)
    assert len(second) < 8 * 50


def test_bytes_that_are_no_step_are_refused() -> None:
    with pytest.raises(msgspec.MsgspecError):
        StepReader().read(b"\x91\x01")

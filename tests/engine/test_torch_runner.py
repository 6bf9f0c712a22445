"""The torch runner: the same greedy answers on every layout, repeatable chance, failures that name the rank."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count

import pytest
import torch
from naive_llama import naive_logits

from contract.geometry import Geometry
from engine.model.byte_tokenizer import ByteTokenizer
from engine.model.config import TINY
from engine.model.source import ModelSource
from engine.parallel.device import DeviceError, resolve_device
from engine.parallel.layout import Layout, LayoutError
from engine.parallel.world import RankFailedError
from engine.request import SamplingParams
from engine.runner.base import Chunk, Runner
from engine.runner.process_runner import ProcessRunner
from engine.runner.rank_plan import RankPlan
from engine.runner.sampling import Draw, draws_of, sample
from engine.runner.torch_runner import TorchRunner

CPU = torch.device("cpu")
NUM_BLOCKS = 600
GREEDY = SamplingParams(temperature=0.0)
ANSWER = 16
# Lengths 1, 2, 7, 46 and 161; greedy margins of all answers are far above rounding errors.
TEXTS = ["", "x", "On rank", "The weather in Brussels is often grey, but it", "A long prompt, " * 10 + "and an end"]
PROMPTS = [ByteTokenizer().encode(text) for text in TEXTS]


def runner(*, tp_size: int = 1, dcp_size: int = 1, page_size: int = 3) -> TorchRunner:
    return TorchRunner(
        source=ModelSource(config=TINY),
        layout=Layout(tp_size=tp_size, dcp_size=dcp_size),
        geometry=Geometry(page_size=page_size, dcp_size=dcp_size),
        num_blocks=NUM_BLOCKS,
        device=CPU,
    )


def process_runner(*, tp_size: int, dcp_size: int, page_size: int = 3) -> ProcessRunner:
    plan = RankPlan(
        source=ModelSource(config=TINY),
        layout=Layout(tp_size=tp_size, dcp_size=dcp_size),
        geometry=Geometry(page_size=page_size, dcp_size=dcp_size),
        num_blocks=NUM_BLOCKS,
        device="cpu",
    )
    return ProcessRunner(plan)


class Request:
    """One sequence on its way through a runner."""

    ids = count()

    def __init__(self, prompt: Sequence[int], table: Sequence[int], *, cached: int = 0) -> None:
        self.request_id = next(self.ids)
        self.tokens = list(prompt)
        self.done = cached
        self._table = table
        self._prompt = len(prompt)

    def chunk(self, limit: int = 4096, sampling: SamplingParams = GREEDY) -> Chunk:
        stop = min(self.done + limit, len(self.tokens))
        return Chunk(
            request_id=self.request_id,
            tokens=self.tokens[self.done : stop],
            context_length=self.done,
            block_table=self._table,
            sampling=sampling if stop == len(self.tokens) else None,
        )

    def advance(self, chunk: Chunk, token: int | None) -> None:
        self.done += len(chunk.tokens)
        if token is not None:
            self.tokens.append(token)

    @property
    def answer(self) -> list[int]:
        return self.tokens[self._prompt :]


def answers(running: Runner, requests: Sequence[Request], *, limit: int = 4096) -> list[list[int]]:
    while unfinished := [request for request in requests if len(request.answer) < ANSWER]:
        chunks = [request.chunk(limit) for request in unfinished]
        for request, chunk, token in zip(unfinished, chunks, running.run(chunks), strict=True):
            request.advance(chunk, token)
    return [request.answer for request in requests]


def requests_of(geometry: Geometry) -> list[Request]:
    tables = iter(range(NUM_BLOCKS - 1, -1, -1))
    return [
        Request(prompt, [next(tables) for _ in range(geometry.blocks_for(len(prompt) + ANSWER))]) for prompt in PROMPTS
    ]


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """Greedy answers by full attention, without any cache."""
    made = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        for _ in range(ANSWER):
            tokens.append(int(naive_logits(tokens)[-1].argmax()))
        made.append(tokens[len(prompt) :])
    return made


@pytest.fixture
def one_rank() -> Iterator[TorchRunner]:
    with closing(runner()) as running:
        yield running


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize(("tp_size", "dcp_size"), [(1, 1), (2, 1), (2, 2), (3, 3), (4, 2), (4, 4)])
def test_greedy_answers_are_those_of_full_attention(
    tp_size: int, dcp_size: int, page_size: int, expected: list[list[int]]
) -> None:
    with closing(runner(tp_size=tp_size, dcp_size=dcp_size, page_size=page_size)) as running:
        check_answers(running, Geometry(page_size=page_size, dcp_size=dcp_size), expected)


@pytest.mark.parametrize(("tp_size", "dcp_size"), [(2, 2), (4, 2), (4, 4)])
def test_greedy_answers_of_rank_processes_are_the_same(tp_size: int, dcp_size: int, expected: list[list[int]]) -> None:
    """Two of the prompts are shorter than ``dcp_size``: some ranks hold none of their tokens."""
    with closing(process_runner(tp_size=tp_size, dcp_size=dcp_size)) as running:
        check_answers(running, Geometry(page_size=3, dcp_size=dcp_size), expected)


def check_answers(running: Runner, geometry: Geometry, expected: list[list[int]]) -> None:
    together = requests_of(geometry)
    assert answers(running, together) == expected, "batched"
    assert answers(running, requests_of(geometry), limit=5) == expected, "in chunks of 5"
    alone = [answers(running, [request])[0] for request in requests_of(geometry)]
    assert alone == expected, "alone"
    assert answers(running, [on_cached_prefix(geometry, together[-1])]) == expected[-1:], "prefix cached"


def on_cached_prefix(geometry: Geometry, first: Request) -> Request:
    """The same prompt again, on the whole blocks of the first one and blocks of its own after them."""
    prompt = PROMPTS[-1]
    blocks = geometry.full_blocks(len(prompt) - 1)
    own = range(geometry.blocks_for(len(prompt) + ANSWER) - blocks)
    return Request(prompt, [*first._table[:blocks], *own], cached=blocks * geometry.block_width)


def test_only_chunks_that_end_the_known_tokens_sample(one_rank: TorchRunner) -> None:
    request = Request(PROMPTS[3], range(50))
    assert one_rank.run([request.chunk(limit=10)]) == [None]
    assert one_rank.run([]) == []


def test_a_rank_that_fails_while_the_other_waits_for_it_ends_the_runner() -> None:
    """Both tokens belong to rank 0, which misses the block; rank 1 has nothing to do but wait for the collective."""
    before = set(threading.enumerate())
    running = TorchRunner(
        source=ModelSource(config=TINY),
        layout=Layout(tp_size=2, dcp_size=2),
        geometry=Geometry(page_size=4, dcp_size=2, interleave=4),
        num_blocks=5,
        device=CPU,
    )
    with closing(running):
        with pytest.raises(RankFailedError, match=r"^rank 0 failed: IndexError"):
            running.run([Request([1, 2], [5]).chunk()])
        with pytest.raises(RankFailedError, match=r"^rank 0 failed"):
            running.run([Request([1, 2], [0]).chunk()])
    assert set(threading.enumerate()) <= before


def test_heads_that_do_not_divide_are_refused_before_any_rank_starts() -> None:
    before = threading.active_count()
    with pytest.raises(LayoutError, match="4 attention heads do not divide over 3 groups"):
        runner(tp_size=3)
    assert threading.active_count() == before


def test_a_closed_runner_runs_nothing(one_rank: TorchRunner) -> None:
    one_rank.close()
    with pytest.raises(RankFailedError, match="closed"):
        one_rank.run([Request([1], [0]).chunk()])


def test_auto_is_the_gpu_where_there_is_one() -> None:
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert resolve_device("cpu") == CPU


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "cpuu", ""])
def test_a_device_that_is_not_there_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(DeviceError, match=f"device '{name}' is") as caught:
        resolve_device(name)
    assert "\n" not in str(caught.value)


def drawn(chances: Sequence[float], **params: float) -> list[int]:
    """Tokens for probabilities 0.5, 0.3, 0.15 and 0.05, of the ids 2, 0, 3 and 1."""
    logits = torch.tensor([0.3, 0.05, 0.5, 0.15]).log().expand(len(chances), 4)
    draws = [Draw(params=SamplingParams(**params), chance=chance) for chance in chances]  # type: ignore[arg-type]
    return sample(logits, draws)


def test_chance_picks_by_cumulated_probability() -> None:
    assert drawn([0.0, 0.49, 0.51, 0.79, 0.81, 0.94, 0.96, 0.999999]) == [2, 2, 0, 0, 3, 3, 1, 1]


def test_temperature_sharpens_and_at_zero_takes_the_likeliest() -> None:
    assert drawn([0.6, 0.999], temperature=0.25) == [2, 3]
    assert drawn([0.999999], temperature=0) == [2]


def test_top_k_and_top_p_cut_the_tail() -> None:
    assert drawn([0.999], top_k=1) == [2]
    assert drawn([0.62, 0.63], top_k=2) == [2, 0]
    assert drawn([0.999], top_p=0.5) == [2]
    assert drawn([0.999], top_p=0.51) == [0]
    assert drawn([0.999], top_p=0.0) == [2]
    assert drawn([0.999], top_p=0.9, top_k=2) == [0]


def test_each_row_is_drawn_by_its_own_parameters() -> None:
    logits = torch.tensor([[0.0, 5.0, 4.9]]).expand(3, 3)
    params = [GREEDY, SamplingParams(top_k=1), SamplingParams()]
    assert sample(logits, [Draw(params=one, chance=0.9) for one in params]) == [1, 1, 2]


def test_a_draw_depends_on_seed_and_position_or_on_request_and_position() -> None:
    def chance(*, request_id: int, context: int, seed: int | None) -> float:
        chunk = Chunk(
            request_id=request_id,
            tokens=[1],
            context_length=context,
            block_table=[],
            sampling=SamplingParams(seed=seed),
        )
        return draws_of([chunk])[0].chance

    seeded = {chance(request_id=n, context=5, seed=8) for n in range(3)}
    assert len(seeded) == 1
    assert len(seeded | {chance(request_id=0, context=6, seed=8), chance(request_id=0, context=5, seed=9)}) == 3
    assert len({chance(request_id=n, context=5, seed=None) for n in range(3)}) == 3


def test_seeded_answers_do_not_depend_on_the_layout() -> None:
    params = SamplingParams(temperature=1.0, seed=11)
    tokens = []
    for tp_size, dcp_size in ((1, 1), (2, 2)):
        with closing(runner(tp_size=tp_size, dcp_size=dcp_size)) as running:
            tokens.append(running.run([Request(prompt, range(99)).chunk(sampling=params) for prompt in PROMPTS[-2:-1]]))
    assert tokens[0] == tokens[1]

"""A scheduler stepped by hand over a runner that keeps what each slot of the cache would hold, so that errors show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from contract.geometry import Geometry
from engine.cache.states import StateRoom
from engine.request import Namespace, Output, SamplingParams
from engine.runner.base import Chunk
from engine.scheduler import Limits, Scheduler

GEOMETRY = Geometry(page_size=3, dcp_size=2)
WIDTH = GEOMETRY.block_width
VOCABULARY = 3
ROOMY = Limits(context_length=1000, max_running=8, max_waiting=100, prefill_tokens=1000)


def after(state: int, token: int) -> int:
    """What a slot of the cache holds for ``token`` behind a prefix with ``state``."""
    return hash((state, token))


def next_token(state: int) -> int:
    return state % VOCABULARY


class SlotRunner:
    """Computes on what the blocks really hold: each slot stores a value of its token and of the whole prefix before it.

    A wrong block, a block given to two requests, or context that nobody computed therefore changes the answer. Slots
    of states hold the same values: what a state says of the context must be what the blocks say.
    """

    def __init__(self) -> None:
        self.slots: dict[tuple[int, int], int] = {}
        self.states: dict[int, int] = {}
        self.computed = 0

    def run(self, chunks: Sequence[Chunk]) -> list[int | None]:
        for chunk in chunks:  # all sources are read before anything is saved
            self._check_source(chunk)
        targets = [slot for chunk in chunks if chunk.states for _, slot in chunk.states.saves]
        assert len(targets) == len(set(targets)), "two states of one step go to one slot"
        return [self._compute(chunk) for chunk in chunks]

    def close(self) -> None:
        self.slots.clear()

    def _check_source(self, chunk: Chunk) -> None:
        if chunk.states is None:
            return
        assert (chunk.states.source is None) == (chunk.context_length == 0)
        if chunk.states.source is not None:
            assert self.states[chunk.states.source] == self._slot(chunk, chunk.context_length - 1), "a foreign state"

    def _compute(self, chunk: Chunk) -> int | None:
        end = chunk.context_length + len(chunk.tokens)
        assert len(chunk.block_table) == GEOMETRY.blocks_for(end)
        state = self._slot(chunk, chunk.context_length - 1) if chunk.context_length else 0
        behind = []  # the state behind each token
        for position, token in enumerate(chunk.tokens, start=chunk.context_length):
            state = after(state, token)
            self.slots[self._place(chunk, position)] = state
            behind.append(state)
        if chunk.states is not None:
            counts = [count for count, _ in chunk.states.saves]
            assert counts == sorted(counts)
            assert counts[-1] == len(chunk.tokens)
            self.states |= {slot: behind[count - 1] for count, slot in chunk.states.saves}
        self.computed += len(chunk.tokens)
        return None if chunk.sampling is None else next_token(state)

    def _slot(self, chunk: Chunk, position: int) -> int:
        return self.slots[self._place(chunk, position)]

    def _place(self, chunk: Chunk, position: int) -> tuple[int, int]:
        return chunk.block_table[GEOMETRY.block_index(position)], position % WIDTH


def expected_answer(prompt: Sequence[int], sampling: SamplingParams, *, eos: int | None) -> tuple[list[int], str]:
    """The answer by a direct reading of the rules: no cache, no chunks, no other requests."""
    state, answer = 0, []
    for token in prompt:
        state = after(state, token)
    while len(answer) < sampling.max_new_tokens:
        answer.append(next_token(state))
        if answer[-1] in sampling.stop_token_ids or (answer[-1] == eos and not sampling.ignore_eos):
            return answer, "stop"
        state = after(state, answer[-1])
    return answer, "length"


class Engine:
    """A scheduler and its runner, stepped by hand."""

    def __init__(
        self, *, total_blocks: int, limits: Limits = ROOMY, eos: int | None = None, states: StateRoom | None = None
    ) -> None:
        self.scheduler = Scheduler(
            geometry=GEOMETRY,
            total_blocks=total_blocks,
            limits=limits,
            eos_token_ids=() if eos is None else (eos,),
            states=states,
        )
        self.runner = SlotRunner()
        self.answers: dict[int, list[int]] = {}
        self.last: dict[int, Output] = {}
        self.steps: list[list[Chunk]] = []

    def add(self, request_id: int, prompt: Sequence[int], *, new: int = 1, namespace: Namespace | None = None) -> None:
        sampling = SamplingParams(max_new_tokens=new, ignore_eos=True)
        self.scheduler.add(request_id, prompt, sampling, namespace or Namespace())

    def step(self) -> dict[int, Output]:
        chunks = self.scheduler.schedule()
        self.steps.append(chunks)
        return self.take(self.scheduler.commit(self.runner.run(chunks)))

    def take(self, outputs: dict[int, Output]) -> dict[int, Output]:
        for request_id, output in outputs.items():
            assert self.last.get(request_id) is None or self.last[request_id].finish_reason is None
            self.answers.setdefault(request_id, []).extend(output.token_ids)
            self.last[request_id] = output
        self.scheduler.check_invariants()
        return outputs

    def run(self) -> None:
        for _ in range(10_000):
            if self.scheduler.idle:
                return
            self.step()
        raise AssertionError("requests do not finish")

    def serve(self, request_id: int, prompt: Sequence[int], *, new: int = 1) -> Output:
        self.add(request_id, prompt, new=new)
        self.run()
        return self.last[request_id]


def tokens_of(*letters: int, loose: int = 0) -> list[int]:
    return [letter for letter in letters for _ in range(WIDTH)] + [9] * loose


def lengths(step: Sequence[Chunk]) -> dict[int, int]:
    return {chunk.request_id: len(chunk.tokens) for chunk in step}


def fold(held: Counter[object], events: Sequence[Event]) -> Counter[object]:
    copies = Counter(held)
    for event in events:
        match event:
            case AllBlocksCleared():
                copies.clear()
            case BlockStored():
                copies.update(event.block_hashes)
            case BlockRemoved():
                copies.subtract(event.block_hashes)
                assert min(copies.values()) >= 0
    return +copies

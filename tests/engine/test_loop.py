"""The loop's thread runs steps only when there is work, tells everybody who waits, and leaves nobody hanging."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from queue import SimpleQueue

import pytest
from patience import PATIENCE

from contract.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from contract.geometry import Geometry
from engine.loop import EngineDead, EngineLoop, EngineOverloaded, Output
from engine.request import Namespace, RequestError, SamplingParams
from engine.runner.base import Chunk
from engine.scheduler import Limits, Scheduler

GEOMETRY = Geometry(page_size=3, dcp_size=2)
WIDTH = GEOMETRY.block_width
SHARED = Namespace()


class PositionRunner:
    """The token at each position is the position. Steps can be held back by a gate, and can fail on demand."""

    def __init__(self) -> None:
        self.steps: list[Sequence[Chunk]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Semaphore(0)
        self.fault: Exception | None = None

    def run(self, chunks: Sequence[Chunk]) -> list[int | None]:
        self.steps.append(chunks)
        self.started.release()
        assert self.gate.wait(PATIENCE)
        if self.fault is not None:
            raise self.fault
        return [None if c.sampling is None else c.context_length + len(c.tokens) for c in chunks]

    def close(self) -> None:
        self.steps.clear()


class Client:
    """Asks for one answer and reads it on the test's thread."""

    def __init__(self, loop: EngineLoop, prompt: Sequence[int], *, new: int = 3) -> None:
        self.outputs: SimpleQueue[Output] = SimpleQueue()
        self.request_id = loop.submit(prompt, SamplingParams(max_new_tokens=new), SHARED, self.outputs.put)

    def read(self) -> Output:
        return self.outputs.get(timeout=PATIENCE)

    def rest(self) -> tuple[list[int], Output]:
        """All tokens that are still to come, and the last output."""
        tokens: list[int] = []
        while True:
            output = self.read()
            tokens += output.token_ids
            if output.finish_reason is not None:
                return tokens, output


class Lane:
    """A loop, its runner, and what it published: the batches in order, as a publisher would number them."""

    def __init__(self, *, total_blocks: int = 100, max_running: int = 4, max_waiting: int = 4) -> None:
        self.runner = PositionRunner()
        self.batches: list[list[Event]] = []
        limits = Limits(context_length=500, max_running=max_running, max_waiting=max_waiting, prefill_tokens=2 * WIDTH)
        self.loop = EngineLoop(
            scheduler=Scheduler(geometry=GEOMETRY, total_blocks=total_blocks, limits=limits),
            runner=self.runner,
            publish=lambda events: self.batches.append(list(events)),
        )

    @property
    def last_seq(self) -> int:
        return len(self.batches) - 1

    def settled(self) -> None:
        """Wait until the loop has done everything asked so far."""
        self.loop.call(lambda: None).result(PATIENCE)


@pytest.fixture
def lane() -> Iterator[Lane]:
    lane = Lane()
    lane.loop.start()
    yield lane
    lane.runner.gate.set()
    lane.loop.close()


def held(batches: Sequence[Sequence[Event]]) -> Counter[object]:
    copies: Counter[object] = Counter()
    for event in (event for batch in batches for event in batch):
        match event:
            case AllBlocksCleared():
                copies.clear()
            case BlockStored():
                copies.update(event.block_hashes)
            case BlockRemoved():
                copies.subtract(event.block_hashes)
    return +copies


def test_the_first_batch_says_that_the_cache_is_empty(lane: Lane) -> None:
    lane.settled()
    assert lane.batches == [[AllBlocksCleared()]]


def test_answers_come_token_by_token(lane: Lane) -> None:
    tokens, last = Client(lane.loop, [7] * 4, new=3).rest()
    assert tokens == [4, 5, 6]
    assert (last.finish_reason, last.error) == ("length", None)


def test_requests_of_many_threads_are_all_answered(lane: Lane) -> None:
    answers: dict[int, list[int]] = {}

    def ask(length: int) -> None:
        answers[length] = Client(lane.loop, [length] * length, new=2).rest()[0]

    threads = [threading.Thread(target=ask, args=(length,)) for length in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert answers == {length: [length, length + 1] for length in range(1, 9)}


def test_events_of_a_step_are_published_as_one_batch_before_its_outputs(lane: Lane) -> None:
    seen: list[int] = []
    done = threading.Event()

    def look(output: Output) -> None:
        seen.append(len(lane.batches))
        if output.finish_reason is not None:
            done.set()

    lane.loop.submit([5] * (4 * WIDTH), SamplingParams(max_new_tokens=1), SHARED, look)
    assert done.wait(PATIENCE)
    assert seen == [3]
    assert [len(event.block_hashes) for batch in lane.batches[1:] for event in batch] == [2, 2]


def test_an_idle_loop_computes_nothing(lane: Lane) -> None:
    Client(lane.loop, [1]).rest()
    steps = len(lane.runner.steps)
    lane.settled()
    assert len(lane.runner.steps) == steps
    assert len(lane.batches) == 1


def test_an_abort_takes_effect_at_the_next_step_and_is_told(lane: Lane) -> None:
    lane.runner.gate.clear()
    client = Client(lane.loop, [1] * WIDTH, new=400)
    assert lane.runner.started.acquire(timeout=PATIENCE)
    lane.loop.abort(client.request_id)
    lane.loop.abort(client.request_id)
    lane.runner.gate.set()
    tokens, last = client.rest()
    assert (last.finish_reason, last.error) == ("abort", None)
    assert len(tokens) <= 1
    load = lane.loop.load()
    assert (load.running, load.waiting, load.used_tokens, load.pending_prefill_tokens) == (0, 0, 0, 0)


def test_what_an_aborted_request_computed_is_announced_without_a_further_step(lane: Lane) -> None:
    lane.runner.gate.clear()
    client = Client(lane.loop, [1] * (WIDTH + 1), new=400)
    lane.loop.abort(client.request_id)
    lane.runner.gate.set()
    tokens, _ = client.rest()
    assert len(lane.runner.steps) == len(tokens)
    assert held(lane.batches).total() == len(tokens)


def test_aborting_after_the_end_does_nothing(lane: Lane) -> None:
    client = Client(lane.loop, [1])
    client.rest()
    lane.loop.abort(client.request_id)
    lane.settled()
    assert client.outputs.empty()


def test_calls_run_on_the_loops_thread_between_steps_with_all_events_published(lane: Lane) -> None:
    lane.runner.gate.clear()
    client = Client(lane.loop, [5] * (2 * WIDTH), new=1)
    assert lane.runner.started.acquire(timeout=PATIENCE)
    call = lane.loop.call(lambda: (threading.current_thread().name, len(lane.batches)))
    lane.runner.gate.set()
    assert call.result(PATIENCE) == ("engine-loop", 2)
    client.rest()


def test_a_call_that_raises_fails_its_caller_only(lane: Lane) -> None:
    def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        lane.loop.call(fail).result(PATIENCE)
    assert Client(lane.loop, [1], new=1).rest()[0] == [1]


def test_a_cancelled_call_is_skipped(lane: Lane) -> None:
    lane.runner.gate.clear()
    client = Client(lane.loop, [1], new=1)
    assert lane.runner.started.acquire(timeout=PATIENCE)
    ran: list[int] = []
    assert lane.loop.call(lambda: ran.append(1)).cancel()
    lane.runner.gate.set()
    client.rest()
    lane.settled()
    assert ran == []


def test_a_flush_is_published_before_it_is_answered(lane: Lane) -> None:
    Client(lane.loop, [5] * (2 * WIDTH)).rest()
    assert lane.loop.flush().result(PATIENCE)
    assert lane.batches[-1] == [AllBlocksCleared()]
    assert lane.loop.load().evictable_tokens == 0


def test_a_flush_is_refused_while_a_request_is_here(lane: Lane) -> None:
    lane.runner.gate.clear()
    client = Client(lane.loop, [5], new=3)
    flushed = lane.loop.flush()
    lane.runner.gate.set()
    assert not flushed.result(PATIENCE)
    client.rest()


def test_a_snapshot_in_the_middle_is_what_the_batches_before_it_say(lane: Lane) -> None:
    client = Client(lane.loop, [5] * (5 * WIDTH), new=30)
    for _ in range(3):
        client.read()
        holding = lane.loop.snapshot(lambda: lane.last_seq).result(PATIENCE)
        assert held([holding.events]) == held(lane.batches[: holding.seq + 1])
    client.rest()
    assert held(lane.batches).total() > 0


def test_the_load_is_settled_when_the_last_output_arrives(lane: Lane) -> None:
    Client(lane.loop, [5] * (2 * WIDTH), new=2).rest()
    load = lane.loop.load()
    assert (load.running, load.waiting, load.used_tokens) == (0, 0, 0)
    assert load.evictable_tokens == 2 * WIDTH
    assert lane.loop.busy_seconds > 0


def test_impossible_requests_are_refused_where_they_are_asked(lane: Lane) -> None:
    with pytest.raises(RequestError, match="499 prompt tokens and 3 new ones"):
        Client(lane.loop, [1] * 499)
    with pytest.raises(RequestError, match="-4"):
        Client(lane.loop, [-4])
    lane.settled()


def test_more_requests_than_may_wait_are_refused(lane: Lane) -> None:
    lane.runner.gate.clear()
    clients = [Client(lane.loop, [1]) for _ in range(8)]
    with pytest.raises(EngineOverloaded, match="8 requests are in the engine, its limit is 8"):
        Client(lane.loop, [1])
    lane.runner.gate.set()
    for client in clients:
        client.rest()
    Client(lane.loop, [1]).rest()


def test_a_step_that_fails_ends_the_loop_and_everybody_is_told(lane: Lane) -> None:
    lane.runner.gate.clear()
    clients = [Client(lane.loop, [1], new=5) for _ in range(6)]
    call = lane.loop.call(lambda: None)
    assert lane.runner.started.acquire(timeout=PATIENCE)
    late = lane.loop.call(lambda: None)
    lane.runner.fault = RuntimeError("out of memory")
    lane.runner.gate.set()
    for client in clients:
        _, last = client.rest()
        assert last.finish_reason == "abort"
        assert last.error == "a step failed: RuntimeError: out of memory"
    for future in (call, late):
        error = future.exception(PATIENCE)
        assert error is None or isinstance(error, EngineDead)
    assert isinstance(late.exception(PATIENCE), EngineDead)
    assert lane.loop.failed is lane.runner.fault
    with pytest.raises(EngineDead, match="out of memory"):
        Client(lane.loop, [1])
    with pytest.raises(EngineDead, match="out of memory"):
        lane.loop.call(lambda: None)
    lane.loop.abort(clients[0].request_id)


def test_a_runner_that_is_lost_between_steps_ends_an_idle_loop(lane: Lane) -> None:
    lost = RuntimeError("rank 1 was killed")
    lane.loop.fail(lost)
    with pytest.raises(EngineDead, match="rank 1 was killed"):
        lane.settled()
    assert lane.loop.failed is lost
    lane.loop.fail(RuntimeError("and once more"))
    with pytest.raises(EngineDead, match="rank 1 was killed"):
        Client(lane.loop, [1])


def test_a_publisher_that_fails_ends_the_loop_and_the_call_that_met_it_fails() -> None:
    lane = Lane()
    lane.loop.start()
    lane.settled()
    lane.batches = None  # type: ignore[assignment]  # the next batch cannot be published
    flushed = lane.loop.flush()
    assert isinstance(flushed.exception(PATIENCE), EngineDead)
    lane.loop.close()
    assert isinstance(lane.loop.failed, AttributeError)


def test_a_listener_that_raises_costs_only_its_own_request(lane: Lane) -> None:
    called = threading.Event()

    def broken(_: Output) -> None:
        called.set()
        raise OSError("my event loop is closed")

    lane.loop.submit([1], SamplingParams(max_new_tokens=400), SHARED, broken)
    assert called.wait(PATIENCE)
    assert Client(lane.loop, [1] * 3, new=2).rest()[0] == [3, 4]
    lane.settled()
    assert lane.loop.listener_errors == 1
    assert lane.loop.load().running == 0


def test_closing_aborts_what_is_here_after_the_step_in_progress() -> None:
    lane = Lane()
    lane.loop.start()
    lane.runner.gate.clear()
    client = Client(lane.loop, [1], new=400)
    assert lane.runner.started.acquire(timeout=PATIENCE)
    closer = threading.Thread(target=lane.loop.close)
    closer.start()
    while closer.is_alive():  # steps are let through one by one: the request cannot end before the loop does
        lane.runner.gate.set()
        lane.runner.gate.clear()
        closer.join(0.001)
    assert client.rest()[1].error == "the engine was closed"
    assert lane.loop.failed is None
    lane.loop.close()
    with pytest.raises(EngineDead, match="the engine was closed"):
        Client(lane.loop, [1])


def test_closing_before_the_start_leaves_nobody_waiting() -> None:
    lane = Lane()
    client = Client(lane.loop, [1])
    call = lane.loop.call(lambda: None)
    lane.loop.close()
    assert client.rest()[1].finish_reason == "abort"
    assert isinstance(call.exception(PATIENCE), EngineDead)

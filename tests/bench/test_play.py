"""Playing a workload: turns quote real answers, concurrency is bounded, traces keep their time."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from bench.chat import ChatShape, Conversation, Turn, make_conversations
from bench.client import CHAT_PATH, COMPLETIONS_PATH, Reply, RequestError
from bench.mooncake import prompt_tokens
from bench.play import TraceTempo, play_chats, play_trace
from bench.tally import Ask, Tally
from router.trace.mooncake import BLOCK_TOKENS, TraceRow

SHAPE = ChatShape(tenants=2, conversations=4, turns=3, system_length=20, user_length=10, answer_tokens=5)


class Server:
    """Stands where a client would: answers in memory, and remembers who was there at once."""

    def __init__(self, answer: Callable[[dict[str, Any]], str] = lambda body: "answer") -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: set[str] = set()
        self.most_at_once = 0
        self.arrivals: list[float] = []
        self._answer = answer
        self._now = 0

    async def ask(self, path: str, body: bytes) -> Reply:
        self.paths.add(path)
        request = json.loads(body)
        self.bodies.append(request)
        self.arrivals.append(asyncio.get_running_loop().time())
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            for _ in range(3):  # let the others in
                await asyncio.sleep(0)
            text = self._answer(request)
        finally:
            self._now -= 1
        return Reply(
            replica="a", text=text, prompt_tokens=1, cached_tokens=0, completion_tokens=1, ttft=None, elapsed=0.1
        )


def asking(server: Server) -> Ask:
    return Ask(server, Tally(), lambda: None)  # type: ignore[arg-type]


async def test_every_turn_is_sent_with_all_that_was_said_before() -> None:
    conversations = make_conversations(SHAPE, seed=1)
    server = Server(lambda body: f"reply {len(body['messages'])}")
    await play_chats(conversations, asking(server), model="m", concurrency=3, seed=1)
    assert server.paths == {CHAT_PATH}
    assert len(server.bodies) == 12
    longest = [body["messages"] for body in server.bodies if len(body["messages"]) == 6]
    assert len(longest) == 4
    for messages in longest:
        assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 2, "user"]
        assert [messages[2]["content"], messages[4]["content"]] == ["reply 2", "reply 4"]


async def test_a_fresh_turn_starts_over_and_without_a_system_prompt_there_is_none() -> None:
    turns = [
        Turn(text, max_tokens=1, stream=False, fresh=fresh) for text, fresh in (("a", True), ("b", True), ("c", False))
    ]
    server = Server()
    await play_chats([Conversation(0, "", tuple(turns))], asking(server), model="m", concurrency=1, seed=0)
    assert [[message["content"] for message in body["messages"]] for body in server.bodies] == [
        ["a"],
        ["b"],
        ["b", "answer", "c"],
    ]


async def test_no_more_chats_are_under_way_than_allowed_and_as_many_as_allowed() -> None:
    server = Server()
    await play_chats(make_conversations(SHAPE, seed=2), asking(server), model="m", concurrency=2, seed=2)
    assert server.most_at_once == 2


async def test_a_chat_that_lost_an_answer_says_no_more() -> None:
    def answer(body: dict[str, Any]) -> str:
        if len(body["messages"]) == 4:
            raise RequestError("lost")
        return "answer"

    server, conversations = Server(answer), make_conversations(SHAPE, seed=3)
    ask = asking(server)
    await play_chats(conversations, ask, model="m", concurrency=4, seed=3)
    assert (len(ask.tally.replies), len(ask.tally.failures)) == (4, 4)


async def test_streams_ask_for_usage_and_answers_run_to_their_full_length() -> None:
    server = Server()
    await play_chats(make_conversations(SHAPE, seed=4), asking(server), model="m", concurrency=1, seed=4)
    assert {body["stream"] for body in server.bodies} == {True, False}
    assert all(("stream_options" in body) == body["stream"] for body in server.bodies)
    assert all(body["ignore_eos"] and body["max_tokens"] == 5 and body["temperature"] == 0 for body in server.bodies)


ROWS = [TraceRow(1000 + 400 * i, BLOCK_TOKENS + i, 3 * i, [0, i]) for i in range(1, 4)]
TEMPO = TraceTempo(speedup=4.0, max_output=7, concurrency=8, seed=9)


async def test_a_trace_is_sent_as_token_ids_with_answers_cut_to_the_limit() -> None:
    server = Server()
    await play_trace(ROWS, asking(server), model="m", tempo=TEMPO)
    assert server.paths == {COMPLETIONS_PATH}
    assert [body["prompt"] for body in server.bodies] == [prompt_tokens(row, seed=9) for row in ROWS]
    assert [body["max_tokens"] for body in server.bodies] == [3, 6, 7]


async def test_a_trace_keeps_its_time_divided_by_the_speedup() -> None:
    server = Server()
    await play_trace(ROWS, asking(server), model="m", tempo=TEMPO)
    first, *rest = server.arrivals
    assert [moment - first >= due - 0.02 for moment, due in zip(rest, (0.1, 0.2), strict=True)] == [True, True]


async def test_a_request_that_found_no_place_left_late_and_that_is_noted() -> None:
    free = asyncio.Event()

    class Slow(Server):
        async def ask(self, path: str, body: bytes) -> Reply:
            if not self.bodies:
                asyncio.get_running_loop().call_later(0.3, free.set)
                self.bodies.append({})
                await free.wait()
            return await super().ask(path, body)

    ask = asking(Slow())
    await play_trace(ROWS, ask, model="m", tempo=TraceTempo(speedup=1000.0, max_output=1, concurrency=1, seed=0))
    assert ask.tally.late_seconds >= 0.25
    assert len(ask.tally.replies) == 3

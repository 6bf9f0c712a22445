"""``/v1/completions`` and ``/v1/chat/completions`` over real HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from engine_client import Client

from engine.model.byte_tokenizer import ByteTokenizer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def text_of(events: list[Any]) -> str:
    return "".join(choice["text"] for event in events for choice in event["choices"])


async def test_a_completion_has_openai_s_shape_and_counts(client: Client) -> None:
    status, answer = await client.post(COMPLETIONS, {"model": "sim", "prompt": "shape", "max_tokens": 4})
    assert status == 200
    choice = answer["choices"][0]
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "sim"
    assert (choice["index"], len(choice["text"]), choice["finish_reason"]) == (0, 4, "length")
    assert answer["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 4,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_completion_has_16_tokens_unless_asked_otherwise(client: Client) -> None:
    _, answer = await client.post(COMPLETIONS, {"prompt": "default"})
    assert answer["usage"]["completion_tokens"] == 16


async def test_a_repeated_prompt_is_reported_cached_in_whole_blocks(client: Client) -> None:
    prompt = {"prompt": list(range(100, 120)), "max_tokens": 1, "data_parallel_rank": 1}
    counts = []
    for _ in range(2):
        _, answer = await client.post(COMPLETIONS, prompt)
        counts.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert counts == [0, 18]  # 20 tokens are 3 whole blocks of 6


async def test_texts_and_their_ids_are_the_same_prompt(client: Client) -> None:
    ids = ByteTokenizer().encode("same prompt")
    answers = []
    for prompt in ("same prompt", ids, ["same prompt"], [ids]):
        _, answer = await client.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 5})
        answers.append(answer["choices"][0]["text"])
    assert len(set(answers)) == 1


async def test_a_list_of_prompts_gets_a_choice_each_in_order(client: Client) -> None:
    prompts = ["first", "second one", "third"]
    alone = [(await client.post(COMPLETIONS, {"prompt": prompt}))[1]["choices"][0]["text"] for prompt in prompts]
    _, answer = await client.post(COMPLETIONS, {"prompt": prompts})
    assert [choice["text"] for choice in answer["choices"]] == alone
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == sum(len(prompt) + 1 for prompt in prompts)


async def test_a_stream_adds_up_to_the_whole_answer(client: Client) -> None:
    body = {"prompt": "to be streamed", "max_tokens": 7}
    _, whole = await client.post(COMPLETIONS, body)
    events = await client.stream(COMPLETIONS, body)
    assert text_of(events) == whole["choices"][0]["text"]
    assert len({event["id"] for event in events}) == 1
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["length"]
    assert all(event["usage"] is None for event in events)


async def test_a_stream_ends_with_the_counts_where_asked(client: Client) -> None:
    body = {"prompt": "counted stream", "max_tokens": 3, "stream_options": {"include_usage": True}}
    events = await client.stream(COMPLETIONS, body)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 3
    assert "cached_tokens" in events[-1]["usage"]["prompt_tokens_details"]


async def test_a_stream_of_several_prompts_names_each_choice(client: Client) -> None:
    body = {"prompt": ["one", "another"], "max_tokens": 3}
    _, whole = await client.post(COMPLETIONS, body)
    events = await client.stream(COMPLETIONS, body)
    for index in (0, 1):
        mine = [event for event in events if event["choices"][0]["index"] == index]
        assert text_of(mine) == whole["choices"][index]["text"]


async def test_a_stop_text_ends_the_answer_before_it(client: Client) -> None:
    body = {"prompt": "stop here", "max_tokens": 40}
    _, whole = await client.post(COMPLETIONS, body)
    text = whole["choices"][0]["text"]
    stop = text[10:13]
    _, cut = await client.post(COMPLETIONS, body | {"stop": ["never seen", stop]})
    assert cut["choices"][0]["text"] == text[: text.index(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert text_of(await client.stream(COMPLETIONS, body | {"stop": stop})) == text[: text.index(stop)]


async def test_a_stop_token_ends_the_answer_with_it(client: Client) -> None:
    body = {"prompt": "stop at a token", "max_tokens": 40}
    _, whole = await client.post(COMPLETIONS, body)
    text = whole["choices"][0]["text"]
    _, cut = await client.post(COMPLETIONS, body | {"stop_token_ids": [ord(text[5])]})
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["choices"][0]["text"] == text[: text.index(text[5]) + 1]


async def test_a_chat_completion_has_openai_s_shape(client: Client) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    status, answer = await client.post(CHAT, {"messages": messages, "max_tokens": 4})
    assert status == 200
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion"
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 4
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == len(ByteTokenizer().apply_chat(messages))


async def test_a_chat_stream_starts_with_the_role_and_ends_with_the_reason(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "max_completion_tokens": 3}
    _, whole = await client.post(CHAT, body)
    events = await client.stream(CHAT, body | {"stream_options": {"include_usage": True}})
    *chunks, usage = events
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == whole["choices"][0]["message"]["content"]
    assert deltas[-1] == {}
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3


async def test_the_newer_name_of_the_answer_limit_wins(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "max_completion_tokens": 2}
    _, answer = await client.post(CHAT, body)
    assert answer["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_an_id_that_the_client_gives_is_kept(client: Client, path: str) -> None:
    prompt = {"prompt": "x"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "x"}]}
    _, answer = await client.post(path, prompt | {"rid": "mine", "max_tokens": 1})
    assert answer["id"] == "mine"


async def test_a_salt_separates_equal_prompts(client: Client) -> None:
    cached = {}
    for salt in ("a", "b", "a"):
        body = {"prompt": "a salted prompt", "max_tokens": 1, "cache_salt": salt, "data_parallel_rank": 0}
        _, answer = await client.post(COMPLETIONS, body)
        cached.setdefault(salt, []).append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == {"a": [0, 12], "b": [0]}


async def test_neutral_values_of_what_is_not_built_are_accepted(client: Client) -> None:
    body = {
        "prompt": "neutral",
        "max_tokens": 1,
        "n": 1,
        "best_of": 1,
        "echo": False,
        "logprobs": None,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "suffix": None,
        "user": "somebody",
        "temperature": 0,
        "top_p": 1,
        "top_k": 0,
        "seed": 7,
    }
    status, answer = await client.post(COMPLETIONS, body)
    assert status == 200, answer

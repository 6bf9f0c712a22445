"""``/generate``, ``/tokenize`` and ``/detokenize`` over real HTTP."""

from __future__ import annotations

from itertools import pairwise

import pytest
from engine_client import Client

from engine.model.byte_tokenizer import BOS, ByteTokenizer

RANK = {"routed_dp_rank": 1}


def params(**fields: object) -> dict[str, object]:
    return {"max_new_tokens": 4, **fields}


async def test_generate_answers_in_sglang_s_shape(client: Client) -> None:
    status, answer = await client.post("/generate", {"text": "hello", "sampling_params": params(), "rid": "mine"})
    assert status == 200
    meta = answer["meta_info"]
    assert meta.pop("e2e_latency") > 0
    assert meta.pop("dp_rank") in (0, 1)
    assert meta == {
        "id": "mine",
        "finish_reason": {"type": "length", "length": 4},
        "prompt_tokens": 6,
        "completion_tokens": 4,
        "cached_tokens": 0,
    }
    assert answer["text"] == ByteTokenizer().decode(answer["output_ids"])
    assert len(answer["output_ids"]) == 4


async def test_text_and_input_ids_are_the_same_prompt(client: Client) -> None:
    ids = ByteTokenizer().encode("either way")
    _, text = await client.post("/generate", {"text": "either way", "sampling_params": params()})
    _, tokens = await client.post("/generate", {"input_ids": ids, "sampling_params": params()})
    assert text["output_ids"] == tokens["output_ids"]


async def test_a_simulated_model_takes_the_token_ids_of_any_other(client: Client) -> None:
    """Traces of real models are played on it."""
    prompt = [128_009, 2**32 - 1, *range(100_000, 100_020)]
    for cached in (0, 18):
        status, answer = await client.post("/generate", {"input_ids": prompt, "sampling_params": params()} | RANK)
        assert (status, answer["meta_info"]["cached_tokens"]) == (200, cached)
    assert (await client.post("/detokenize", {"tokens": [128_009, 97]}))[1]["prompt"] == "a"


async def test_a_batch_gets_a_list_of_answers_in_order(client: Client) -> None:
    each = [params(max_new_tokens=2), params(max_new_tokens=3)]
    body = {"text": ["one", "two"], "sampling_params": each, "rid": ["a", "b"]}
    _, answers = await client.post("/generate", body)
    assert [answer["meta_info"]["id"] for answer in answers] == ["a", "b"]
    assert [len(answer["output_ids"]) for answer in answers] == [2, 3]
    _, single = await client.post("/generate", {"input_ids": [[1, 2, 3]], "sampling_params": params()})
    assert len(single) == 1


async def test_a_stream_is_cumulative(client: Client) -> None:
    body = {"text": "streamed", "sampling_params": params(max_new_tokens=5)}
    _, whole = await client.post("/generate", body)
    events = await client.stream("/generate", body)
    texts = [event["text"] for event in events]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert texts[-1] == whole["text"]
    assert events[-1]["output_ids"] == whole["output_ids"]
    assert [event["meta_info"]["finish_reason"] is None for event in events] == [True] * (len(events) - 1) + [False]


async def test_a_batch_can_be_streamed(client: Client) -> None:
    body = {"text": ["one", "two"], "sampling_params": params()}
    _, whole = await client.post("/generate", body)
    events = await client.stream("/generate", body)
    last = {event["index"]: event["text"] for event in events}
    assert last == {index: answer["text"] for index, answer in enumerate(whole)}


async def test_what_stopped_an_answer_is_named(client: Client) -> None:
    _, whole = await client.post("/generate", {"text": "named", "sampling_params": params(max_new_tokens=20)})
    token, stop = whole["output_ids"][3], whole["text"][4:6]
    sampling = params(max_new_tokens=20, stop_token_ids=[token])
    _, by_token = await client.post("/generate", {"text": "named", "sampling_params": sampling})
    assert by_token["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}
    _, by_text = await client.post(
        "/generate", {"text": "named", "sampling_params": params(stop=stop, max_new_tokens=20)}
    )
    assert by_text["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


async def test_no_new_tokens_fills_the_cache_and_answers_nothing(client: Client) -> None:
    body = {"input_ids": list(range(30, 43)), "sampling_params": params(max_new_tokens=0), "data_parallel_rank": 0}
    _, first = await client.post("/generate", body)
    assert first["output_ids"] == []
    _, second = await client.post("/generate", body)
    assert second["meta_info"]["cached_tokens"] == 12


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": "a", "input_ids": [1]},
        {"text": ""},
        {"text": []},
        {"text": ["a", ""]},
        {"input_ids": []},
        {"input_ids": [[]]},
        {"input_ids": [1, [2]]},
        {"input_ids": [1.0]},
        {"input_ids": [True]},
        {"input_ids": [-1]},
        {"input_ids": [2**32]},
        {"text": ["a", "b"], "rid": ["x"]},
        {"text": ["a", "b"], "sampling_params": [{}]},
        {"text": "a", "sampling_params": {"n": 2}},
        {"text": "a", "sampling_params": {"regex": "x"}},
        {"text": "a", "sampling_params": {"temperature": -0.1}},
        {"text": "a", "return_logprob": True},
        {"text": "a", "cache_salt": ""},
    ],
)
async def test_bad_bodies_are_refused(client: Client, body: dict[str, object]) -> None:
    status, answer = await client.post("/generate", body)
    assert status == 400
    assert set(answer["error"]) == {"message", "type", "param", "code"}


async def test_tokenize_gives_the_ids_that_a_completion_would_have(client: Client) -> None:
    tokenizer = ByteTokenizer()
    status, answer = await client.post("/tokenize", {"prompt": "hé"})
    assert (status, answer) == (200, {"tokens": tokenizer.encode("hé"), "count": 4, "max_model_len": 16384})
    _, plain = await client.post("/tokenize", {"text": "hé", "add_special_tokens": False})
    assert plain["tokens"] == [token for token in tokenizer.encode("hé") if token != BOS]
    messages = [{"role": "user", "content": "x"}]
    _, chat = await client.post("/tokenize", {"messages": messages})
    assert chat["tokens"] == tokenizer.apply_chat(messages)


async def test_detokenize_undoes_it(client: Client) -> None:
    status, answer = await client.post("/detokenize", {"tokens": ByteTokenizer().encode("hé")})
    assert (status, answer) == (200, {"prompt": "hé", "text": "hé"})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "text": "a"}),
        ("/tokenize", {"messages": [{"role": "nobody", "content": "x"}]}),
        ("/detokenize", {"tokens": [2**32]}),
        ("/detokenize", {"tokens": ["a"]}),
    ],
)
async def test_tokenizer_routes_refuse_what_they_cannot_read(
    client: Client, path: str, body: dict[str, object]
) -> None:
    status, answer = await client.post(path, body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"

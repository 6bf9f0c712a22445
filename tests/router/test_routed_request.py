"""Bodies: what is read of them, what is refused, and what of them an engine gets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from router.choice.texts import Chat
from router.front.errors import ApiError
from router.front.request import ANY_ID, RoutedRequest, parse_any, parse_request
from router.front.route import Route
from router.front.upstream import upstream_body

MAX_IDS = 100
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def parse(route: Route, body: Any, pinned: str | None = None) -> RoutedRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse_request(route, raw, max_ids=MAX_IDS, pinned=pinned)


def ids_of(request: RoutedRequest) -> list[int] | None:
    return None if request.tokens is None else list(request.tokens)


def refused(route: Route, body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(route, body)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("body", "tokens", "text", "prompts"),
    [
        ({"prompt": "abc"}, None, "abc", 1),
        ({"prompt": ["abc", "d"]}, None, "abc", 2),
        ({"prompt": [1, 2, 3]}, [1, 2, 3], None, 1),
        ({"prompt": [[1, 2], [3]]}, [1, 2], None, 2),
    ],
)
def test_the_four_shapes_of_a_completion_prompt(body: Any, tokens: Any, text: Any, prompts: int) -> None:
    request = parse(Route.COMPLETIONS, {"model": "m", **body})
    assert (ids_of(request), request.text, request.prompts, request.model) == (tokens, text, prompts, "m")


def test_generate_takes_text_or_ids_and_names_no_model() -> None:
    request = parse(Route.GENERATE, {"model": "ignored", "input_ids": [1, 2], "text": None, "lora_path": "tuned"})
    assert (ids_of(request), request.model, request.lora_name) == ([1, 2], None, "tuned")
    assert parse(Route.GENERATE, {"text": "abc"}).text == "abc"


def test_a_chat_keeps_its_messages_as_json() -> None:
    request = parse(Route.CHAT, CHAT | {"tools": [{"type": "function"}], "chat_template_kwargs": None})
    assert isinstance(request.text, Chat)
    assert json.loads(bytes(request.text.messages)) == CHAT["messages"]
    assert json.loads(bytes(request.text.tools)) == [{"type": "function"}]
    assert bytes(request.text.template_kwargs) == b""


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        (Route.COMPLETIONS, {"prompt": [1, -2]}, "prompt"),
        (Route.COMPLETIONS, {"prompt": [1, 2.0]}, "prompt"),
        (Route.COMPLETIONS, {"prompt": [1, True]}, "prompt"),
        (Route.COMPLETIONS, {"prompt": [1, None]}, "prompt"),
        (Route.COMPLETIONS, {"prompt": [2**31]}, "prompt"),
        (Route.COMPLETIONS, {"prompt": [2**70]}, "prompt"),
        (Route.COMPLETIONS, {"prompt": [1, "a"]}, "prompt"),
        (Route.COMPLETIONS, {"prompt": [[1], 2]}, "prompt"),
        (Route.COMPLETIONS, {"prompt": []}, "prompt"),
        (Route.COMPLETIONS, {"prompt": [[1], []]}, "prompt"),
        (Route.COMPLETIONS, {"prompt": ""}, "prompt"),
        (Route.COMPLETIONS, {"prompt": {"text": "a"}}, "prompt"),
        (Route.COMPLETIONS, {"prompt": 3}, "prompt"),
        (Route.COMPLETIONS, {"prompt": None}, "prompt"),
        (Route.COMPLETIONS, {}, "prompt"),
        (Route.CHAT, {}, "messages"),
        (Route.CHAT, {"messages": []}, "messages"),
        (Route.CHAT, {"messages": "hello"}, "messages"),
        (Route.CHAT, {"messages": [{"content": "no role"}]}, "messages"),
        (Route.GENERATE, {}, "text"),
        (Route.GENERATE, {"text": "a", "input_ids": [1]}, "text"),
        (Route.GENERATE, {"text": [1, 2]}, "text"),
        (Route.GENERATE, {"input_ids": "abc"}, "input_ids"),
        (Route.GENERATE, {"input_ids": ["a"]}, "input_ids"),
    ],
)
def test_what_no_engine_could_answer_is_refused_by_the_name_of_its_field(route: Route, body: Any, param: str) -> None:
    assert refused(route, body).param == param


@pytest.mark.parametrize("body", [b"", b"{nope", b"\xff\xfe", b'{"prompt": "a"', b"{" * 100_000, b"[" * 100_000])
def test_what_is_no_json_is_said_to_be_none(body: bytes) -> None:
    assert refused(Route.COMPLETIONS, body).code in {"invalid_json", "invalid_value"}


@pytest.mark.parametrize("body", [b"[]", b"3", b"null", {"prompt": "a", "model": 3}, {"prompt": "a", "stream": "yes"}])
def test_json_of_another_shape_is_refused(body: Any) -> None:
    assert refused(Route.COMPLETIONS, body).code == "invalid_value"


def test_the_error_has_openais_shape() -> None:
    error = json.loads(refused(Route.COMPLETIONS, {}).encode())["error"]
    assert error == {
        "message": "prompt is missing",
        "type": "invalid_request_error",
        "param": "prompt",
        "code": "missing_prompt",
    }


def test_the_route_of_an_explained_body_is_told_by_its_fields() -> None:
    routes = [
        parse_any(json.dumps(body).encode(), max_ids=MAX_IDS).route for body in (CHAT, {"prompt": "a"}, {"text": "a"})
    ]
    assert routes == [Route.CHAT, Route.COMPLETIONS, Route.GENERATE]
    with pytest.raises(ApiError, match="one of prompt, messages, text and input_ids"):
        parse_any(b"{}", max_ids=MAX_IDS)


def test_what_separates_caches_is_read_and_what_events_cannot_tell_matches_nothing() -> None:
    """C11: SGLang's extra_key is in no event, so a prompt that has one must not match plain blocks."""
    salts = [
        parse(Route.COMPLETIONS, {"prompt": "a", **more}).cache_salt
        for more in (
            {},
            {"cache_salt": ""},
            {"cache_salt": "s"},
            {"extra_key": "s"},
            {"extra_key": "s", "cache_salt": "t"},
        )
    ]
    assert salts[:3] == [None, None, "s"]
    assert len(set(salts)) == 4


@pytest.mark.parametrize(
    ("pinned", "body", "rank"),
    [
        (None, {}, None),
        ("2", {"routed_dp_rank": 1}, 2),
        (None, {"routed_dp_rank": 1}, 1),
        (None, {"data_parallel_rank": 3}, 3),
        (None, {"routed_dp_rank": True}, None),
        (None, {"routed_dp_rank": -1}, None),
        ("x", {}, None),
    ],
)
def test_a_rank_the_client_insists_on(pinned: str | None, body: dict[str, Any], rank: int | None) -> None:
    assert parse(Route.COMPLETIONS, {"prompt": "a", **body}, pinned).dp_rank == rank


def test_a_body_goes_on_byte_for_byte_where_nothing_is_added() -> None:
    raw = b'{ "prompt":[1, 2] ,"temperature":1.00, "stream" : true, "stream_options":{"include_usage":true}}'
    request = parse(Route.COMPLETIONS, raw)
    assert upstream_body(request, dp_rank=3) is request.body


def test_counts_are_asked_for_where_a_stream_would_have_none() -> None:
    raw = b'{"prompt":[1, 2],"temperature":1.00,"stream":true,"stream_options":{"x":1,"include_usage":false}}'
    request = parse(Route.COMPLETIONS, raw)
    assert request.wants_counts_added
    body = upstream_body(request, dp_rank=None)
    assert b'"temperature":1.00' in body
    assert b'"prompt":[1, 2]' in body
    assert json.loads(body)["stream_options"] == {"x": 1, "include_usage": True}
    plain = upstream_body(parse(Route.CHAT, CHAT | {"stream": True, "stream_options": None}), dp_rank=None)
    assert json.loads(plain)["stream_options"] == {"include_usage": True}


def test_counts_are_asked_for_behind_a_body_that_says_nothing_of_them() -> None:
    raw = b' {"prompt" : [1, 2],"stream":true, "x": {"stream_options": 1} }\r\n'
    body = upstream_body(parse(Route.COMPLETIONS, raw), dp_rank=None)
    assert body.startswith(raw.rstrip()[:-1])
    assert json.loads(body) == {**json.loads(raw), "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("given", [{}, {"routed_dp_rank": 1}, {"routed_dp_rank": None}])
def test_a_rank_stands_in_a_body_once(given: dict[str, Any]) -> None:
    request = parse(Route.GENERATE, {"input_ids": [1], **given})
    body = upstream_body(request, dp_rank=2)
    assert body.count(b"routed_dp_rank") == 1
    assert json.loads(body) == {"input_ids": [1], "routed_dp_rank": 2}


def test_ids_take_the_place_of_a_text_and_the_rest_stays() -> None:
    raw = b'{"text":"ab","stream":true,"temperature":1.00}'
    body = upstream_body(parse(Route.GENERATE, raw), dp_rank=3, tokens=[7, 8])
    assert b'"temperature":1.00' in body
    assert json.loads(body) == {
        "input_ids": [7, 8],
        "stream": True,
        "temperature": 1.0,
        "routed_dp_rank": 3,
    }


def test_a_guess_at_the_vocabulary_is_noted_where_it_holds_and_changes_nothing_else() -> None:
    raw = json.dumps({"prompt": [5, 9, 7]}).encode()
    held = parse_request(Route.COMPLETIONS, raw, max_ids=MAX_IDS, ids_below=10)
    broken = parse_request(Route.COMPLETIONS, raw, max_ids=MAX_IDS, ids_below=9)
    assert (held.ids_below, broken.ids_below) == (10, ANY_ID)
    assert ids_of(held) == ids_of(broken) == [5, 9, 7]


@pytest.mark.parametrize("shape", [lambda ids: ids, lambda ids: [ids[:3], ids[3:]]])
def test_more_ids_than_a_request_may_have_are_refused_by_their_count(shape: Callable[[list[int]], Any]) -> None:
    assert parse(Route.COMPLETIONS, {"prompt": shape([1] * MAX_IDS)}).prompts
    error = refused(Route.COMPLETIONS, {"prompt": shape([1] * (MAX_IDS + 1))})
    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
    assert str(MAX_IDS) in str(error)
    assert str(MAX_IDS + 1) in str(error)


def test_commas_in_a_text_are_no_ids() -> None:
    assert parse(Route.COMPLETIONS, {"prompt": "," * 3 * MAX_IDS}).text
    assert parse(Route.COMPLETIONS, {"prompt": ["," * 3 * MAX_IDS, "a"]}).prompts == 2


def test_a_rank_travels_in_the_body_of_generate_only() -> None:
    request = parse(Route.GENERATE, {"input_ids": [1], "stream": True})
    assert not request.wants_counts_added
    assert json.loads(upstream_body(request, dp_rank=2)) == {"input_ids": [1], "stream": True, "routed_dp_rank": 2}
    assert upstream_body(request, dp_rank=None) is request.body
    assert msgspec.json.decode(upstream_body(parse(Route.COMPLETIONS, {"prompt": "a"}), dp_rank=2)) == {"prompt": "a"}


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"prompt":[1,2],"prompt":[3,4]}', [3, 4]),
        (b'{"x":{"prompt":[1,2]},"prompt":[3,4]}', [3, 4]),
        (b'{"prompt":[3 ,\t4\n] }', [3, 4]),
        (b'{"prompt":[-0,3,4]}', [0, 3, 4]),
    ],
)
def test_ids_are_those_that_the_body_says_however_it_says_them(body: bytes, tokens: list[int]) -> None:
    assert ids_of(parse(Route.COMPLETIONS, body)) == tokens

"""Text to token ids exactly as the engine has them, or not at all."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from engine.model.byte_tokenizer import ByteTokenizer as EngineByteTokenizer
from engine.model.byte_tokenizer import TokenizerError
from router.choice.byte_tokenizer import ByteTokenizer
from router.choice.file_tokenizer import load_tokenizer
from router.choice.local_tokenizers import PROBE, TokenizerSource
from router.choice.remote_tokenizer import MAX_REMEMBERED, RemoteTokenizer
from router.choice.send_ids import SendIds
from router.choice.texts import Chat, NotTokenizableError, Tokenizer
from router.choice.tokenization import INLINE_CHARS, Tokenization, Tokenized, named_tokenizer

WORDS = ["<s>", "</s>", "<unk>", "<|user|>", "<|end|>", "hello", "world", "you", "are", "kind"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'bad' %}{{ raise_exception('role bad is not known') }}{% endif %}"
    "<|user|> {{ message.content }} <|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|user|>{% endif %}"
)

content = st.one_of(
    st.text(), st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text()}), max_size=3)
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "tool", "assistant"]), "content": content}
    ),
    min_size=1,
    max_size=5,
)


def chat(conversation: Any, **more: Any) -> Chat:
    given = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in more.items()}
    return Chat(messages=msgspec.Raw(json.dumps(conversation).encode()), **given)


@given(st.text())
def test_byte_texts_are_tokenized_as_the_engine_does(text: str) -> None:
    assert ByteTokenizer().encode(text) == EngineByteTokenizer().encode(text)


@given(messages)
def test_byte_conversations_are_tokenized_as_the_engine_does(conversation: list[dict[str, Any]]) -> None:
    assert ByteTokenizer().encode_chat(chat(conversation)) == EngineByteTokenizer().apply_chat(conversation)


@pytest.mark.parametrize(
    "conversation",
    [
        [{"role": "critic", "content": "x"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": None}],
        [{"role": "user"}],
    ],
)
def test_what_the_engine_refuses_gets_no_ids_here(conversation: Any) -> None:
    with pytest.raises(TokenizerError):
        EngineByteTokenizer().apply_chat(conversation)
    with pytest.raises(NotTokenizableError):
        ByteTokenizer().encode_chat(chat(conversation))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder as published: a word-level vocabulary that puts BOS before a prompt, and a chat template."""
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>", "<|user|>", "<|end|>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def ids(*words: str) -> list[int]:
    return [WORDS.index(word) for word in words]


def test_a_text_gets_the_special_tokens_of_its_model(folder: Path) -> None:
    for path in (folder, folder / "tokenizer.json"):
        assert list(load_tokenizer(path).encode("hello kind world")) == ids("<s>", "hello", "kind", "world")


def test_a_conversation_goes_through_the_template_which_brings_its_own_special_tokens(folder: Path) -> None:
    conversation = [{"role": "user", "content": "hello you"}]
    expected = ids("<s>", "<|user|>", "hello", "you", "<|end|>", "<|user|>")
    assert list(load_tokenizer(folder).encode_chat(chat(conversation))) == expected
    one_part = [{"role": "user", "content": [{"type": "text", "text": "hello you"}]}]
    assert list(load_tokenizer(folder).encode_chat(chat(one_part))) == expected
    closed = list(
        load_tokenizer(folder).encode_chat(chat(conversation, template_kwargs={"add_generation_prompt": False}))
    )
    assert closed == expected[:-1]


@pytest.mark.parametrize(
    "conversation",
    [
        [{"role": "bad", "content": "x"}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
    ],
)
def test_a_conversation_the_template_cannot_take_gets_no_ids(folder: Path, conversation: Any) -> None:
    with pytest.raises(NotTokenizableError):
        load_tokenizer(folder).encode_chat(chat(conversation))


def test_the_command_line_names_a_tokenizer(folder: Path) -> None:
    assert named_tokenizer("auto") is None
    assert named_tokenizer("off") is None
    assert isinstance(named_tokenizer("byte"), ByteTokenizer)
    assert list(named_tokenizer(str(folder)).encode("you")) == ids("<s>", "you")  # type: ignore[union-attr]


class TokenizingReplica:
    """A replica's ``/tokenize`` in vLLM's shape, on a real socket; counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.status = 200
        self.encode: Callable[[str], Sequence[int]] = lambda text: [1, *map(ord, text)]
        app = web.Application()
        app.router.add_post("/tokenize", self._tokenize)
        self.server = TestServer(app)

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        tokens = list(self.encode(body.get("prompt") or json.dumps(body.get("messages"))))
        return web.json_response({"tokens": tokens, "count": len(tokens)}, status=self.status)

    @property
    def url(self) -> str:
        return str(self.server.make_url("")).rstrip("/")


async def replica_and_tokenization(session: ClientSession, fixed: Tokenizer | None = None) -> Any:
    replica = TokenizingReplica()
    await replica.server.start_server()
    return replica, Tokenization(fixed=fixed, remote=RemoteTokenizer(session, timeout=5.0))


async def ids_of(tokenization: Tokenization, text: Any, **more: Any) -> list[int] | None:
    found = await tokenization.tokenize(text, **more)
    return None if found is None else found.ids


async def test_without_files_here_a_replica_is_asked_once_for_each_text() -> None:
    async with ClientSession() as session:
        replica, tokenization = await replica_and_tokenization(session)
        sources = [TokenizerSource(replica.url, "/models/not-on-this-host")]
        for _ in range(3):
            assert await ids_of(tokenization, "ab", model="m", sources=sources) == [1, 97, 98]
            assert (await ids_of(tokenization, chat([{"role": "user"}]), model="m", sources=sources))[0] == 1
        assert [body.get("prompt") for body in replica.asked] == ["ab", None]
        assert replica.asked[0] == {"model": "m", "prompt": "ab", "add_special_tokens": True}
        assert replica.asked[1]["add_generation_prompt"] is True
        await replica.server.close()


async def test_a_replica_that_cannot_tokenize_is_left_alone_for_a_while() -> None:
    async with ClientSession() as session:
        replica, tokenization = await replica_and_tokenization(session)
        replica.status = 404
        sources = [TokenizerSource(replica.url, None)]
        for text in ("a", "b", "c"):
            assert await ids_of(tokenization, text, model=None, sources=sources) is None
        assert len(replica.asked) == 1
        assert tokenization.misses == 3
        replica.status = 200
        assert await ids_of(tokenization, chat([{"role": "user"}]), model=None, sources=sources) is not None
        await replica.server.close()


@pytest.mark.parametrize("token", [-1, 2**32, 2**64, "a"])
async def test_what_is_no_token_id_is_taken_from_no_replica(token: Any) -> None:
    async with ClientSession() as session:
        replica, tokenization = await replica_and_tokenization(session)
        replica.encode = lambda text: [1, token, 2]
        sources = [TokenizerSource(replica.url, None)]
        assert await ids_of(tokenization, "a", model=None, sources=sources) is None
        await replica.server.close()


async def test_a_replica_that_is_not_there_costs_no_request() -> None:
    async with ClientSession() as session:
        tokenization = Tokenization(fixed=None, remote=RemoteTokenizer(session, timeout=5.0))
        sources = [TokenizerSource("http://127.0.0.1:1", None)]
        assert await ids_of(tokenization, "a", model=None, sources=sources) is None


async def test_what_a_replica_answered_is_remembered_within_a_bound() -> None:
    async with ClientSession() as session:
        replica, _ = await replica_and_tokenization(session)
        remote = RemoteTokenizer(session, timeout=5.0)
        for number in range(MAX_REMEMBERED + 5):
            remote._remember(b"%d" % number, [number])
        assert len(remote._known) == MAX_REMEMBERED
        remote._remember(b"long", list(range(3_999_000)))
        assert remote._ids <= 4_000_000
        assert b"long" in remote._known
        await replica.server.close()


async def test_a_tokenizer_that_is_here_too_is_used_once_the_replica_has_confirmed_it(folder: Path) -> None:
    """``byte``, or a folder under the same path: one probe is asked, and then nothing more."""
    async with ClientSession() as session:
        for name, local, text in (("byte", ByteTokenizer(), "ab"), (str(folder), load_tokenizer(folder), "you")):
            replica, tokenization = await replica_and_tokenization(session)
            replica.encode = local.encode
            sources = [TokenizerSource(replica.url, name)]
            for _ in range(3):
                found = await tokenization.tokenize(text, model=None, sources=sources)
                assert found == Tokenized(local.encode(text), sendable=True)
            assert [body["prompt"] for body in replica.asked] == [PROBE]
            await replica.server.close()


async def test_a_file_under_the_same_path_that_is_another_one_is_not_used(folder: Path) -> None:
    async with ClientSession() as session:
        replica, tokenization = await replica_and_tokenization(session)
        sources = [TokenizerSource(replica.url, str(folder))]
        assert await ids_of(tokenization, "you", model=None, sources=sources) == [1, *map(ord, "you")]
        await replica.server.close()


async def test_what_no_replica_has_confirmed_is_hashed_and_never_sent(folder: Path) -> None:
    async with ClientSession() as session:
        replica, tokenization = await replica_and_tokenization(session)
        replica.status = 404
        sources = [TokenizerSource(replica.url, str(folder))]
        found = await tokenization.tokenize("you", model=None, sources=sources)
        assert found == Tokenized(array("I", ids("<s>", "you")), sendable=False)
        await replica.server.close()


@pytest.mark.parametrize(("send_ids", "sendable"), [("auto", False), ("always", True), ("never", False)])
async def test_whether_ids_of_a_named_tokenizer_are_sent_is_the_operator_s_choice(
    send_ids: str, sendable: bool
) -> None:
    tokenization = Tokenization(fixed=ByteTokenizer(), remote=None, send_ids=SendIds(send_ids))
    found = await tokenization.tokenize("ab", model=None, sources=[TokenizerSource("http://127.0.0.1:1", None)])
    assert found == Tokenized([256, 97, 98], sendable=sendable)


async def test_a_named_tokenizer_serves_every_model_and_nobody_is_asked() -> None:
    async with ClientSession() as session:
        replica, tokenization = await replica_and_tokenization(session, fixed=ByteTokenizer())
        sources = [TokenizerSource(replica.url, None)]
        long_text = "x" * (INLINE_CHARS + 1)
        assert await ids_of(tokenization, long_text, model="m", sources=sources) == ByteTokenizer().encode(long_text)
        assert (
            await ids_of(tokenization, chat([{"role": "critic", "content": "x"}]), model="m", sources=sources) is None
        )
        assert replica.asked == []
        await replica.server.close()


async def test_off_tokenizes_nothing() -> None:
    tokenization = Tokenization(fixed=None, remote=None)
    assert await ids_of(tokenization, "a", model=None, sources=[TokenizerSource("http://127.0.0.1:1", "byte")]) is None

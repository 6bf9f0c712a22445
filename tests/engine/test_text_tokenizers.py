"""Models' own tokenizers: ids, chats and answers that arrive in parts, exactly as the published files have them."""

from __future__ import annotations

import inspect
import json
import re
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
import transformers
from gguf_models import add_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizer import CHAT_TEMPLATE, CORPUS, SPECIAL, VOCAB, publish_tokenizer, trained
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2_WORDS

from engine.model.config import ModelError
from engine.model.gguf_file import GgufFile
from engine.model.gguf_tokenizer import read_gguf_tokenizer
from engine.model.hf_tokenizer import read_hf_tokenizer
from engine.model.text_tokenizer import TextTokenizer
from engine.model.tokenizer import TokenizerError
from router.choice.file_tokenizer import load_tokenizer
from router.choice.texts import Chat

texts = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(CORPUS), max_size=3).map("".join))
roles = st.sampled_from(["system", "user", "assistant"])
conversations = st.lists(st.fixed_dictionaries({"role": roles, "content": texts}), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    publish_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return read_hf_tokenizer(folder, vocab_size=VOCAB + 10)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(folder)


def chat(conversation: Any, **more: Any) -> Chat:
    given = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in more.items()}
    return Chat(messages=msgspec.Raw(json.dumps(conversation).encode()), **given)


@given(text=texts)
def test_texts_get_the_ids_that_router_and_library_give_them(folder: Path, tokenizer: TextTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids == trained().encode(text).ids
    assert ids == list(load_tokenizer(folder).encode(text))
    assert tokenizer.decode(ids) == "".join(re.split("|".join(map(re.escape, SPECIAL)), text))


@given(conversation=conversations, thinking=st.sampled_from([None, True, False]))
def test_conversations_get_the_ids_that_router_and_transformers_give_them(
    folder: Path,
    tokenizer: TextTokenizer,
    theirs: transformers.PreTrainedTokenizerBase,
    conversation: list[dict[str, str]],
    thinking: bool | None,
) -> None:
    arguments = {} if thinking is None else {"enable_thinking": thinking}
    ids = tokenizer.apply_chat(conversation, arguments=arguments)
    assert ids == list(load_tokenizer(folder).encode_chat(chat(conversation, template_kwargs=arguments)))
    text = theirs.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True, **arguments)
    assert ids == theirs(text, add_special_tokens=False)["input_ids"]


def test_a_conversation_may_be_left_without_an_open_answer(tokenizer: TextTokenizer) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    closed = tokenizer.apply_chat(conversation, open_answer=False)
    opened = tokenizer.apply_chat(conversation)
    assert opened[: len(closed)] == closed
    assert tokenizer.decode(opened[len(closed) :]) == "assistant\n"


def test_text_parts_stand_one_a_line(tokenizer: TextTokenizer) -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    assert tokenizer.apply_chat([{"role": "user", "content": parts}]) == tokenizer.apply_chat(
        [{"role": "user", "content": "ab\nc"}]
    )


@pytest.mark.parametrize(
    ("conversation", "complaint"),
    [
        ([], "messages is empty"),
        ([{"role": "critic", "content": "x"}], "the chat template refuses the conversation: no critics"),
        ([{"content": "x"}], "the chat template refuses the conversation"),
        ([{"role": "user", "content": None}], "the chat template refuses the conversation"),
        ([{"role": "user", "content": 3}], "got int"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "a content part must be"),
        ([{"role": "user", "content": "\ud800"}], "lone surrogate"),
    ],
)
def test_conversations_without_a_form_are_refused_in_one_line(
    tokenizer: TextTokenizer, conversation: list[dict[str, Any]], complaint: str
) -> None:
    with pytest.raises(TokenizerError, match=complaint) as caught:
        tokenizer.apply_chat(conversation)
    assert "\n" not in str(caught.value)


def test_without_a_template_there_are_no_chats(tmp_path: Path) -> None:
    publish_tokenizer(tmp_path, template=None)
    without = read_hf_tokenizer(tmp_path, vocab_size=VOCAB)
    assert without.encode("text")
    with pytest.raises(TokenizerError, match="this model has no chat template"):
        without.apply_chat([{"role": "user", "content": "x"}])


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no .*tokenizer\.json"):
        read_hf_tokenizer(tmp_path, vocab_size=VOCAB)


def test_a_tokenizer_with_ids_that_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    publish_tokenizer(tmp_path)
    with pytest.raises(ModelError, match=rf"its tokenizer has ids up to {VOCAB - 1}, the model only below 100"):
        read_hf_tokenizer(tmp_path, vocab_size=100)


ids = st.lists(st.integers(0, VOCAB + 9), max_size=60)


@settings(max_examples=300)
@given(tokens=ids, cuts=st.sets(st.integers(1, 59)))
def test_parts_add_up_to_the_text_of_all_ids(tokenizer: TextTokenizer, tokens: list[int], cuts: set[int]) -> None:
    """Whatever ids an answer has, bytes that are no text among them, and however it is cut."""
    decoder = tokenizer.decoder()
    bounds = [0, *sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]
    parts = [decoder.feed(tokens[start:stop]) for start, stop in pairwise(bounds)]
    assert "".join([*parts, decoder.finish()]) == tokenizer.decode(tokens)


@given(text=st.text(max_size=60))
def test_no_part_ends_within_a_character(tokenizer: TextTokenizer, text: str) -> None:
    decoder = tokenizer.decoder()
    tokens = tokenizer.encode(text)
    parts = [decoder.feed([token]) for token in tokens]
    assert "\ufffd" not in "".join(parts).replace("\ufffd", "", text.count("\ufffd"))
    assert "".join(parts) + decoder.finish() == tokenizer.decode(tokens)


def test_text_that_is_broken_for_long_is_let_through(tokenizer: TextTokenizer) -> None:
    """Endless bytes of no character: the decoder neither waits for ever nor looks back further and further."""
    (stray,) = (index for token, index in trained().get_vocab().items() if token == "Ģ")  # byte 0x80
    decoder = tokenizer.decoder()
    fed = [decoder.feed([stray]) for _ in range(200)]
    assert len("".join(fed)) > 150
    assert "".join([*fed, decoder.finish()]) == "\ufffd" * 200


def test_an_answer_that_breaks_off_inside_a_character_says_so(tokenizer: TextTokenizer) -> None:
    *tokens, first_half, _ = tokenizer.encode("ab§")
    decoder = tokenizer.decoder()
    assert decoder.feed(tokens) == "ab"
    assert decoder.feed([first_half]) == ""
    assert decoder.finish() == "\ufffd"


def test_special_tokens_are_no_text_and_foreign_ids_are_refused(tokenizer: TextTokenizer) -> None:
    assert tokenizer.decode([1, *tokenizer.encode("hi"), 2, VOCAB + 5]) == "hi"
    with pytest.raises(TokenizerError, match=f"token id {VOCAB + 10} is outside the vocabulary of {VOCAB + 10}"):
        tokenizer.decode([VOCAB + 10])


# --- tokenizers out of GGUF files

LLAMA3_WORDS = inspect.signature(TikTokenConverter).parameters["pattern"].default
PUBLISHED: dict[str, Callable[[], Tokenizer]] = {
    "smollm": trained,
    "gpt-2": lambda: trained(digits=False),
    "qwen2": lambda: trained(QWEN2_WORDS),
    "llama-bpe": lambda: trained(LLAMA3_WORDS),
}


def gguf_with(path: Path, published: Tokenizer, **values: Any) -> GgufFile:
    """A file that carries ``published`` and nothing else; ``values`` change what it says."""
    writer = gguf.GGUFWriter(path, "llama")
    add_tokenizer(writer, published, **values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return GgufFile(path)


@pytest.mark.parametrize("pre", PUBLISHED)
def test_a_tokenizer_out_of_a_gguf_file_gives_the_ids_of_the_published_one(pre: str, tmp_path: Path) -> None:
    published = PUBLISHED[pre]()
    rebuilt = read_gguf_tokenizer(gguf_with(tmp_path / "m.gguf", published, pre=pre), vocab_size=VOCAB)

    @given(text=texts)
    def check(text: str) -> None:
        normal = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        assert rebuilt.encode(text) == published.encode(normal).ids

    check()


def test_digits_after_line_ends_get_the_ids_that_the_model_was_trained_on(tmp_path: Path) -> None:
    """What rebuilding without the Digits step gets wrong."""
    rebuilt = read_gguf_tokenizer(gguf_with(tmp_path / "m.gguf", trained()), vocab_size=VOCAB)
    assert rebuilt.encode("\n\n12") == trained().encode("\n\n12").ids != trained(digits=False).encode("\n\n12").ids


def test_a_gguf_file_may_ask_for_a_first_token_and_bring_a_template(tmp_path: Path) -> None:
    file = gguf_with(
        tmp_path / "m.gguf", trained(), add_bos_token=True, chat_template="{{ bos_token }}" + CHAT_TEMPLATE
    )
    tokenizer = read_gguf_tokenizer(file, vocab_size=VOCAB)
    assert tokenizer.name == str(tmp_path / "m.gguf")
    assert tokenizer.encode("hi") == [1, *trained().encode("hi").ids]
    assert tokenizer.encode("hi", special=False) == trained().encode("hi").ids
    assert tokenizer.apply_chat([{"role": "system", "content": "hi"}])[:2] == [1, 1]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"model": "llama"}, "tokenizer 'llama' is not served, gpt2"),
        ({"model": None}, "tokenizer 'nothing' is not served"),
        ({"pre": "tekken"}, "pre-tokenizer 'tekken' is not served, gpt-2, smollm, llama-bpe, qwen2 are"),
        ({"pre": None}, "pre-tokenizer 'default' is not served"),
        ({"merges": ["no such"]}, "its vocabulary makes no tokenizer"),
        ({"merges": ["one"]}, "its vocabulary makes no tokenizer"),
        ({"chat_template": "{% if %}"}, "chat template"),
    ],
)
def test_a_gguf_file_whose_tokenizer_is_not_served_is_refused_in_one_line(
    tmp_path: Path, values: dict[str, Any], complaint: str
) -> None:
    file = gguf_with(tmp_path / "m.gguf", trained(), **values)
    with pytest.raises(ModelError, match=re.escape(complaint)) as caught:
        read_gguf_tokenizer(file, vocab_size=VOCAB)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)

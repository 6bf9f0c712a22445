"""The byte tokenizer's rules, as the contract gives them, and ids back to text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.byte_tokenizer import ANY_U32, ASSISTANT, BOS, END, EOS, SYSTEM, USER, ByteTokenizer, TokenizerError

TOKENIZER = ByteTokenizer()


def test_markers_have_the_documented_ids() -> None:
    assert (BOS, EOS, SYSTEM, USER, ASSISTANT, END) == (256, 257, 258, 259, 260, 261)
    assert TOKENIZER.vocab_size == 272
    assert TOKENIZER.eos_token_ids == (EOS, END)


def test_a_text_prompt_is_bos_and_its_utf8_bytes() -> None:
    assert TOKENIZER.encode("aé") == [256, 0x61, 0xC3, 0xA9]
    assert TOKENIZER.encode("") == [256]


def test_a_conversation_is_marked_message_by_message_and_ends_where_the_answer_starts() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert TOKENIZER.apply_chat(messages) == [256, 258, ord("s"), 261, 259, ord("u"), 261, 260]


def test_a_longer_conversation_extends_the_shorter_one_plus_its_answer() -> None:
    first = [{"role": "user", "content": "hello"}]
    answer = {"role": "assistant", "content": "hi"}
    prefix = TOKENIZER.apply_chat(first) + TOKENIZER.encode("hi")[1:] + [END]
    assert TOKENIZER.apply_chat([*first, answer, {"role": "user", "content": "more"}])[: len(prefix)] == prefix


@pytest.mark.parametrize(("role", "marker"), [("developer", SYSTEM), ("tool", USER), ("assistant", ASSISTANT)])
def test_other_roles_are_written_as_the_nearest_marker(role: str, marker: int) -> None:
    assert TOKENIZER.apply_chat([{"role": role, "content": ""}]) == [BOS, marker, END, ASSISTANT]


def test_text_parts_are_concatenated_without_separator() -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    whole = TOKENIZER.apply_chat([{"role": "user", "content": "abc"}])
    assert TOKENIZER.apply_chat([{"role": "user", "content": parts}]) == whole


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "messages is empty"),
        ([{"role": "wizard", "content": "x"}], "message role 'wizard' is unknown"),
        ([{"content": "x"}], "message role None is unknown"),
        ([{"role": "user"}], "got NoneType"),
        ([{"role": "user", "content": 3}], "got int"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "a content part must be"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "a content part must be"),
        ([{"role": "user", "content": "\ud800"}], "character 0 of the text is a lone surrogate"),
    ],
)
def test_what_cannot_be_tokenized_is_named_in_one_line(messages: list[dict[str, object]], complaint: str) -> None:
    with pytest.raises(TokenizerError, match=complaint) as caught:
        TOKENIZER.apply_chat(messages)
    assert "\n" not in str(caught.value)


def test_decoding_drops_markers_and_padding() -> None:
    assert TOKENIZER.decode([BOS, USER, ord("h"), 262, ord("i"), 271, END]) == "hi"


@pytest.mark.parametrize("token", [-1, 272])
def test_decoding_refuses_ids_outside_the_vocabulary(token: int) -> None:
    with pytest.raises(TokenizerError, match=f"token id {token} is outside the vocabulary of 272"):
        TOKENIZER.decode([token])


def test_a_wide_vocabulary_takes_the_ids_of_any_model_and_says_nothing_for_them() -> None:
    wide = ByteTokenizer(vocab_size=ANY_U32)
    assert wide.decode([ord("h"), 128_000, 2**32 - 1, ord("i")]) == "hi"
    with pytest.raises(TokenizerError, match="token id 4294967296 is outside"):
        wide.decode([2**32])


@given(st.text())
def test_text_survives_the_round_trip(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.lists(st.integers(min_value=0, max_value=271)), st.data())
def test_streamed_parts_join_to_the_whole_and_never_split_a_character(ids: list[int], data: st.DataObject) -> None:
    decoder = TOKENIZER.decoder()
    parts, rest = [], ids
    while rest:
        size = data.draw(st.integers(min_value=1, max_value=len(rest)))
        parts.append(decoder.feed(rest[:size]))
        rest = rest[size:]
    assert "".join([*parts, decoder.finish()]) == TOKENIZER.decode(ids)


def test_an_unfinished_character_is_kept_back_until_it_is_whole_or_the_answer_ends() -> None:
    decoder = TOKENIZER.decoder()
    head, tail = "€".encode()[:2], "€".encode()[2:]
    assert [decoder.feed(head), decoder.feed(tail), decoder.finish()] == ["", "€", ""]
    assert [decoder.feed(head), decoder.finish()] == ["", "�"]

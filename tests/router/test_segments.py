"""Remembered pieces of text: joined, they are what the whole text is tokenized to, by tokenizers of every kind."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from router.choice import stretches
from router.choice.segment_cache import SegmentCache
from router.choice.segments import SegmentedTokenizer
from router.choice.stretches import Stretches
from router.choice.word_ids import WordIds

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|im_end|>\n", "x<|im_end|>"]
CORPUS = ["Hello world, how are you today? I'm fine.", "  two  spaces\n\nand lines\t12345", "Füße, Öl, Привет, 世界 🎉"]
WORDS = [
    "Hello",
    " world",
    "  ",
    " ",
    "\n",
    "x",
    "1234",
    "é",
    "e\u0301",
    "Ö",
    "世界",
    "🎉",
    "<",
    "|>",
    "tok",
    "IM",
    "▁",
]


def bpe() -> Tokenizer:
    return Tokenizer(models.BPE(unk_token="<s>", byte_fallback=False))


def byte_level(prefix_space: bool) -> Tokenizer:
    tokenizer = bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    return tokenizer


def split_by_pattern() -> Tokenizer:
    """A pattern that looks ahead over white space, as newer models have."""
    tokenizer = bpe()
    words = Regex(r"\p{N}{1,3}| ?[^\s\p{N}]+|\s+(?!\S)|\s+")
    parts = [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return tokenizer


def metaspace(scheme: str) -> Tokenizer:
    tokenizer = bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    return tokenizer


def prepending() -> Tokenizer:
    """Llama 2: the normalizer writes the word marks, there is no pre-tokenizer."""
    tokenizer = bpe()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def normalizing() -> Tokenizer:
    tokenizer = byte_level(False)
    parts = [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()]
    tokenizer.normalizer = normalizers.Sequence(parts)
    return tokenizer


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<s>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": lambda: byte_level(False),
    "byte level, prefix space": lambda: byte_level(True),
    "pattern": split_by_pattern,
    "metaspace first": lambda: metaspace("first"),
    "metaspace always": lambda: metaspace("always"),
    "metaspace never": lambda: metaspace("never"),
    "prepending normalizer": prepending,
    "normalizing": normalizing,
    "word piece": word_piece,
    "unigram": unigram,
}
TRAINERS = {
    models.BPE: trainers.BpeTrainer,
    models.WordPiece: trainers.WordPieceTrainer,
    models.Unigram: trainers.UnigramTrainer,
}


@cache
def trained(kind: str, stripping: bool) -> Tokenizer:
    tokenizer = KINDS[kind]()
    special = [AddedToken(text, special=True) for text in SPECIAL]
    if stripping:
        special.append(AddedToken("<mask>", special=True, lstrip=True, rstrip=True))
        special.append(AddedToken("tok", single_word=True, normalized=False))
    alphabet = pre_tokenizers.ByteLevel.alphabet() if kind in ("byte level", "pattern", "normalizing") else []
    more = {"unk_token": "<s>"} if kind == "unigram" else {}
    trainer = TRAINERS[type(tokenizer.model)](
        vocab_size=400, special_tokens=special, show_progress=False, initial_alphabet=alphabet, **more
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens([AddedToken("IM", normalized=True), AddedToken("▁▁", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", tokenizer.token_to_id("<s>")), ("</s>", 1)]
    )
    return tokenizer


@cache
def segmented(kind: str, stripping: bool) -> SegmentedTokenizer:
    return SegmentedTokenizer(trained(kind, stripping), cache_bytes=1_000_000)


fragments = st.one_of(st.sampled_from([*SPECIAL, *WORDS, "<mask>"]), st.text(max_size=6))
texts = st.lists(fragments, max_size=14).map("".join)


@pytest.mark.parametrize("stripping", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@given(texts, st.booleans())
def test_pieces_join_to_what_the_whole_text_is(kind: str, stripping: bool, text: str, special: bool) -> None:
    whole = trained(kind, stripping).encode(text, add_special_tokens=special).ids
    assert segmented(kind, stripping).encode(text, special=special).tolist() == whole
    assert segmented(kind, stripping).encode(text, special=special).tolist() == whole, "and again, from memory"


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.one_of(fragments, st.sampled_from([" a", "b c", " the end"])), max_size=30).map("".join))
def test_stretches_join_to_what_the_whole_text_is(kind: str, text: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stretches, "STRETCH_CHARS", 3)
        whole = trained(kind, False).encode(text, add_special_tokens=False).ids
        assert segmented(kind, False).encode(text, special=False).tolist() == whole


CUT = {"byte level", "byte level, prefix space", "pattern"}
WORDS_AND_SPACE = st.sampled_from(
    [" a", " the", " end", "b c", " Hello", " world", " I'm", " x1", "a", " ", ", ", "\n"]
)


@pytest.mark.parametrize("kind", sorted(CUT))
@given(st.lists(st.one_of(fragments, WORDS_AND_SPACE), max_size=30).map("".join))
def test_remembered_words_join_to_what_the_whole_text_is(kind: str, text: str) -> None:
    """Met, met again and remembered, and from memory; nothing longer than a word is kept."""
    whole = trained(kind, False).encode(text, add_special_tokens=False).ids
    tokenizer = forgetful(kind)
    assert [tokenizer.encode(text, special=False).tolist() for _ in range(3)] == 3 * [whole]


@cache
def forgetful(kind: str) -> SegmentedTokenizer:
    return SegmentedTokenizer(trained(kind, False), cache_bytes=0)


def lengths(texts: Sequence[str]) -> list[array[int]]:
    """A tokenizer whose ids are words' lengths."""
    return [array("I", [len(word) for word in text.split()]) for text in texts]


def test_a_word_is_tokenized_with_its_neighbours_then_alone_and_then_no_more() -> None:
    asked: list[list[str]] = []

    def encode(texts: Sequence[str]) -> list[array[int]]:
        asked.append(list(texts))
        return lengths(texts)

    words = WordIds(encode)
    for _ in range(4):
        assert words.of([" ab", " c", " def"]) == array("I", [2, 1, 3])
    assert words.of([" c", " new", " newer", " ab", " c"]) == array("I", [1, 3, 5, 2, 1])
    assert words.of([]) == array("I")
    assert asked == [[" ab c def"], [" ab", " c", " def"], [" new newer"]]


def test_words_are_bounded_and_those_in_use_stay() -> None:
    words = WordIds(lengths, max_words=8)
    for number in range(1000):
        assert words.of([" in", " use", f" {number}"]) == array("I", [2, 3, len(str(number))])
        assert words.of([f" {number}"]) == array("I", [len(str(number))])
        assert len(words) <= 16


def test_what_is_long_is_not_remembered() -> None:
    words = WordIds(lengths)
    for _ in range(5):
        assert words.of([" " + 100 * "x"]) == array("I", [100])
    assert len(words) == 0


LONG = " ".join(f"word and {number} more" for number in range(1000))


CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern of tiktoken's cl100k_base, which Llama 3 and Qwen 2 have almost as it is."""


@pytest.mark.parametrize("kind", KINDS)
def test_only_tokenizers_that_allow_it_have_their_texts_cut_between_words(kind: str) -> None:
    assert (len(list(Stretches(trained(kind, False)).of(LONG))) > 1) is (kind in CUT)


def test_a_pattern_that_many_models_have_allows_it() -> None:
    tokenizer = bpe()
    parts = [pre_tokenizers.Split(Regex(CL100K), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    assert len(list(Stretches(tokenizer).of(LONG))) > 1


@pytest.mark.parametrize("pattern", [r"(?<=a) b|\S+|\s", r"\S+ \S+|\S+|\s+", r"^\S+|\s|\S+", r".{1,9}"])
def test_a_pattern_that_looks_back_or_goes_on_behind_a_word_has_its_texts_left_whole(pattern: str) -> None:
    tokenizer = bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    assert list(Stretches(tokenizer).of(LONG)) == [LONG]


def test_an_added_token_of_two_words_is_not_cut_in_two() -> None:
    tokenizer = byte_level(False)
    assert len(list(Stretches(tokenizer).of(LONG))) > 1
    tokenizer.add_tokens([AddedToken("word and", normalized=True)])
    assert list(Stretches(tokenizer).of(LONG)) == [LONG]


def test_a_plain_text_whose_beginning_is_known_costs_its_end() -> None:
    tokenizer = SegmentedTokenizer(trained("byte level", False), cache_bytes=1_000_000)
    tokenizer.encode(LONG, special=True)
    seen = tokenizer.pieces_tokenized
    assert seen > len(LONG) // (2 * stretches.STRETCH_CHARS)
    longer = LONG[: -len(LONG) // 10] + " and another end"
    assert tokenizer.encode(longer, special=True).tolist() == trained("byte level", False).encode(longer).ids
    assert tokenizer.pieces_tokenized == seen + 1


def test_a_conversation_that_grows_costs_only_what_is_new() -> None:
    tokenizer = SegmentedTokenizer(trained("byte level", False), cache_bytes=1_000_000)
    text, seen = "", 0
    for turn in range(10):
        text += f"<|im_start|>user\nturn {turn}, {'Hello world ' * 50}<|im_end|>"
        assert (
            tokenizer.encode(text, special=False).tolist()
            == trained("byte level", False).encode(text, add_special_tokens=False).ids
        )
        new, seen = tokenizer.pieces_tokenized - seen, tokenizer.pieces_tokenized
        assert new <= 3


def test_a_text_whose_cuts_depend_on_their_surroundings_is_not_cut() -> None:
    tokenizer = SegmentedTokenizer(trained("byte level", True), cache_bytes=1_000_000)
    tokenizer.encode("Hello<s> <mask> world", special=False)
    assert tokenizer.pieces_tokenized == 0
    tokenizer.encode("Hello<s> world", special=False)
    assert tokenizer.pieces_tokenized == 2


def test_memory_is_bounded_in_bytes_and_the_longest_unused_goes_first() -> None:
    cache_of_bytes = SegmentCache(max_bytes=10_000)
    for number in range(1000):
        cache_of_bytes.put((1, f"piece {number}"), array("I", range(20)))
        assert cache_of_bytes.get((1, "piece 0")) is not None
    assert cache_of_bytes.bytes_held <= 10_000
    assert 10 < len(cache_of_bytes) < 50
    assert cache_of_bytes.get((1, "piece 500")) is None
    cache_of_bytes.put((1, "long"), array("I", range(5000)))
    assert cache_of_bytes.get((1, "long")) is None

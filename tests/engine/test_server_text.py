"""Stop texts and answers, piece by piece: what is sent is what the whole answer says, cut where it must be."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.model.byte_tokenizer import EOS, ByteTokenizer
from engine.request import Output, SamplingParams
from engine.server.answer import Answer, Ask, Finish
from engine.server.stop_text import StopText

letters = st.text(alphabet="abc", max_size=12)


def answer_to(**sampling: object) -> Answer:
    ask = Ask(rid="r", prompt=[1, 2, 3], sampling=SamplingParams(**sampling))  # type: ignore[arg-type]
    return Answer(ask, index=0, dp_rank=0, decoder=ByteTokenizer().decoder(), started=0.0)


def output(ids: list[int], finish: str | None = None) -> Output:
    return Output(token_ids=ids, cached_tokens=2, finish_reason=finish)  # type: ignore[arg-type]


@given(pieces=st.lists(letters), stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3))
def test_stop_text_lets_through_what_comes_before_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    matcher = StopText(stops)
    sent, fed = "", ""
    for piece in pieces:
        fed += piece
        sent += matcher.feed(piece)
        assert fed.startswith(sent)
        if matcher.matched is not None:
            break
    else:
        sent += matcher.finish()
    ends = [fed.find(stop) for stop in stops if stop in fed]
    assert sent == (fed[: min(ends)] if ends else fed)
    assert (matcher.matched is None) == (not ends)


@given(pieces=st.lists(letters, min_size=1))
def test_only_an_end_that_may_become_a_stop_is_held_back(pieces: list[str]) -> None:
    matcher = StopText(["cab"])
    fed = "".join(pieces)
    sent = "".join(map(matcher.feed, pieces)) if "cab" not in fed else fed
    assert fed.removeprefix(sent) in ("", "c", "ca")


@given(text=st.text(max_size=30), cuts=st.sets(st.integers(0, 120)))
def test_pieces_add_up_to_the_text_of_all_ids(text: str, cuts: set[int]) -> None:
    ids = list(text.encode())
    bounds = [0, *sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
    answer = answer_to()
    pieces = [answer.feed(output(ids[a:b]), now=1.0) for a, b in pairwise(bounds)]
    pieces.append(answer.feed(output([EOS], "stop"), now=2.0))
    assert "".join(pieces) == answer.text == ByteTokenizer().decode(ids) == text
    assert answer.finish == Finish("stop", EOS)
    assert answer.output_ids == [*ids, EOS]


def test_a_stop_text_cuts_text_and_ids_even_inside_one_output() -> None:
    answer = answer_to(stop=["lo w"])
    assert answer.feed(output(list(b"hello world")), now=1.0) == "hel"
    assert answer.finish == Finish("stop", "lo w")
    assert bytes(answer.output_ids) == b"hello w"


def test_an_answer_that_breaks_off_inside_a_character_says_so() -> None:
    answer = answer_to()
    assert answer.feed(output(list("é".encode())[:1], "length"), now=1.0) == "\ufffd"
    assert answer.finish == Finish("length")


def test_text_held_back_for_a_stop_that_never_came_is_sent_at_the_end() -> None:
    answer = answer_to(stop=["xyz"])
    assert answer.feed(output(list(b"abxy")), now=1.0) == "ab"
    assert answer.feed(output(list(b"!"), "length"), now=1.0) == "xy!"


def test_the_first_token_s_time_is_kept() -> None:
    answer = answer_to()
    answer.feed(output([65]), now=3.0)
    answer.feed(output([66]), now=4.0)
    assert answer.first_token_at == 3.0

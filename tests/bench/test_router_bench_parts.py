"""What the bench of routers is made of: messages, its language, mock workers, requests, and what processes cost."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.client import RequestError
from bench.router.cases import Case, Form, every_case, make_requests
from bench.router.lexicon import TURN, Lexicon, write_lexicon
from bench.router.load import hits
from bench.router.messages import Message, MessageError, MessageReader
from bench.router.mock_cache import BLOCK_WIDTH, PrefixCache
from bench.router.process_cost import ProcessCost
from bench.router.routers import KVSTEER, SMG, VLLM_ROUTER, Fleet, Ports, Replica, Router, command, missing
from bench.router.samples import Sample, figures
from contract.events import AllBlocksCleared, BlockStored

HEAD = b"HTTP/1.1 200 OK\r\n"


def by_length(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def in_chunks(parts: list[bytes]) -> bytes:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part)
    return HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


@given(st.lists(st.lists(st.binary(max_size=20), max_size=3), max_size=4), st.data())
def test_messages_come_out_whole_however_their_bytes_arrive(bodies: list[list[bytes]], data: st.DataObject) -> None:
    framed = [data.draw(st.sampled_from([by_length(b"".join(parts)), in_chunks(parts)])) for parts in bodies]
    wire, reader, messages = b"".join(framed), MessageReader(), list[Message]()
    while wire:
        size = data.draw(st.integers(1, len(wire)))
        messages += reader.feed(wire[:size])
        wire = wire[size:]
    assert [message.body for message in messages] == [b"".join(parts) for parts in bodies]
    assert all(message.head.startswith(HEAD) for message in messages)


@pytest.mark.parametrize(
    ("wire", "complaint"),
    [
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nworm\r\n", "b'worm' is no chunk size"),
        (HEAD + b"Content-Length: 99999999999\r\n\r\n", "a body of 99999999999 bytes is above"),
        (b"x" * 70_000, "no head ends within 65536 bytes"),
    ],
)
def test_what_is_no_message_is_named(wire: bytes, complaint: str) -> None:
    with pytest.raises(MessageError, match=complaint):
        MessageReader().feed(wire)


@pytest.fixture(scope="module")
def lexicon(tmp_path_factory: pytest.TempPathFactory) -> Lexicon:
    folder = tmp_path_factory.mktemp("lexicon")
    write_lexicon(folder)
    return Lexicon(folder)


def test_words_are_one_token_each_and_known_without_the_tokenizer(lexicon: Lexicon) -> None:
    words = [*lexicon.words[:500], TURN, *lexicon.words[500:]]
    text = lexicon.text(words)
    assert len(lexicon.ids(text)) == len(words)
    assert lexicon.ids(text) == lexicon._tokenizer.encode(text).ids


def test_a_text_of_other_words_is_tokenized(lexicon: Lexicon) -> None:
    text = "Hello, world"
    assert lexicon.ids(text) == lexicon._tokenizer.encode(text).ids


def test_a_mock_worker_tells_what_it_stores_and_reports_what_it_found() -> None:
    cache, ids = PrefixCache(), list(range(3 * BLOCK_WIDTH + 5))
    first = cache.take(ids)
    assert first.cached_tokens == 0
    (stored,) = first.events
    assert isinstance(stored, BlockStored)
    assert (list(stored.token_ids), len(stored.block_hashes)) == (ids[: 3 * BLOCK_WIDTH], 3)
    again = cache.take([*ids[: 2 * BLOCK_WIDTH], *range(1000, 1000 + BLOCK_WIDTH)])
    assert again.cached_tokens == 2 * BLOCK_WIDTH
    (more,) = again.events
    assert isinstance(more, BlockStored)
    assert more.parent_block_hash == stored.block_hashes[1]
    whole = cache.take(ids[: 2 * BLOCK_WIDTH])
    assert (whole.cached_tokens, whole.events) == (BLOCK_WIDTH, [])  # the last token is always computed
    assert cache.clear() == [AllBlocksCleared()]
    assert cache.take(ids).cached_tokens == 0


def prompts(requests: list[bytes]) -> list[list[int]]:
    bodies = [json.loads(request.split(b"\r\n\r\n", 1)[1]) for request in requests]
    return [body["prompt"] for body in bodies]


def test_shared_prompts_begin_as_one_of_the_first_and_end_as_none(lexicon: Lexicon) -> None:
    case = Case(tokens=50, form=Form.IDS, stream=False, shared=0.9)
    made = make_requests(case, lexicon, one_by_one=6, at_once=4, seed="1")
    first, later, last = (prompts(list(part)) for part in (made.first, made.one_by_one, made.at_once))
    assert [len(first), len(later), len(last)] == [3, 6, 4]
    assert all(len(prompt) == 50 for prompt in first + later + last)
    families = {tuple(prompt[:45]) for prompt in first}
    assert len(families) == 3
    assert {tuple(prompt[:45]) for prompt in later} == families
    assert len({tuple(prompt) for prompt in first + later + last}) == 13
    assert make_requests(case, lexicon, one_by_one=6, at_once=4, seed="1") == made
    other = make_requests(case, lexicon, one_by_one=6, at_once=4, seed="2")
    assert not families & {tuple(prompt[:45]) for prompt in prompts(list(other.first))}


def test_the_matrix_has_every_length_form_way_and_share() -> None:
    assert len({case.name for case in every_case((200, 8192))}) == 16


def test_reports_are_read_out_of_answers_in_any_spelling() -> None:
    one = b'{"system_fingerprint":"a","usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}'
    two = b'{"usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 1}}, "system_fingerprint": "b"}'
    found = hits([Message(HEAD, one), Message(HEAD, two), Message(HEAD, one)])
    assert (found.rate, found.busiest) == (0.3, 2 / 3)


def test_an_answer_without_its_report_is_a_fault() -> None:
    with pytest.raises(RequestError, match="an answer lost what its worker reported on the way: b'"):
        hits([Message(HEAD, b"{}")])


def test_cpu_of_children_counts_and_is_finer_than_a_tick() -> None:
    spin = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ntime.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout is not None
        process.stdout.readline()
        cost = ProcessCost(process.pid)
        spent, resident = cost.cpu_seconds(), cost.resident_bytes()
        subprocess.run(["kill", "--", f"-{process.pid}"], check=True)
    assert spent > 0.2
    assert spent * 100 != int(spent * 100)
    assert resident > 2 * 1024 * 1024


REPLICA = Replica("http://127.0.0.1:1", "tcp://127.0.0.1:2", "tcp://127.0.0.1:3")
FLEET = Fleet(replicas=[REPLICA], model="m", block_width=64)


def test_only_who_reads_events_is_told_where_they_are() -> None:
    aware, blind = (
        command(Router(product=VLLM_ROUTER, policy=policy), FLEET, Ports(4, 5))
        for policy in ("kv_aware", "round_robin")
    )
    assert aware[-6:] == [
        *("--kv-event-model", "m"),
        *("--kv-event-source", "http://127.0.0.1:1=tcp://127.0.0.1:2"),
        *("--kv-event-replay-source", "http://127.0.0.1:1=tcp://127.0.0.1:3"),
    ]
    assert aware[aware.index("--kv-event-block-size") + 1] == "64"
    assert "--kv-event-source" not in blind


def test_who_is_not_there_is_one_line() -> None:
    assert missing(Router(product=KVSTEER, policy="kv")) is None
    assert missing(Router(product="nobody", policy="p")) == "nobody-p is left out: nobody is not there (`make peers`)"
    assert not Router(product=SMG, policy="cache_aware").takes_ids


def sample(p50: float, cpu: float | None) -> Sample:
    return Sample(p50=p50, p99=2 * p50, hits_one_by_one=0.5, busiest=0.5, rate=1 / p50, cpu=cpu, hits_at_once=0.25)


def test_differences_and_ratios_are_of_one_run_and_values_medians() -> None:
    samples = {
        "direct": [sample(1, None), sample(2, None), sample(3, None)],
        "a": [sample(2, 1), sample(4, 1), sample(7, 1)],
        "b": [sample(3, 2), sample(6, 4), sample(4, 8)],
    }
    found = {(one.subject, one.metric): one.value for one in figures("c", samples, base="direct", rivals=("a", "b"))}
    assert found["direct", "p50"] == 2000
    assert found["a", "added p50"] == 2000
    assert found["b", "added p99"] == 4000
    assert found["a / b", "added p50"] == 0.5
    assert found["a / b", "CPU"] == 0.25
    assert found["b", "CPU"] == 4000

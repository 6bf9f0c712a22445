"""``trace what-if``: other rules on the same requests, and the mission's fault: one width that is not the blocks'."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from made_trace import MadeTrace, store

from router.prompt import Prompt
from router.trace.flags import run_trace
from router.trace.reader import TraceReader
from router.trace.recorded_books import RecordedBooks
from router.trace.recorded_prompt import RecordedPrompt, WidthError
from router.trace.records import Began, PrefixKeys, Routed, pack_ids, pack_keys
from router.trace.replayer import Replayer

A, B = "http://10.0.0.1:30000", "http://10.0.0.2:30000"
TOPICS = [list(range(start, start + 61)) for start in (100, 300)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two replicas that page 3 tokens on each of 2 ranks: blocks of 6. Each topic is held by one, and sent to it."""
    made = MadeTrace(A, B)
    for lane, topic in enumerate(TOPICS):
        made.request(lane, topic, predicted=0, reported=0, widths=(1, 3, 6))
        made.frame(lane, store(topic[:-1]))
    for turn in range(20):
        lane = turn % 3 % 2
        made.request(lane, TOPICS[lane], predicted=60, reported=60, widths=(1, 3, 6))
    return made.write(tmp_path / "a.kvtrace")


def what_if(file: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    """Outcomes by rule, as far as each stands alone, and the whole answer under an empty name."""
    assert run_trace(["what-if", str(file), "--json", *flags]) == 0
    answer = json.loads(capsys.readouterr().out)
    return {"": answer} | {
        one["rule"] + (f"@{one['block_size']}" if one["block_size"] else ""): one for one in answer["outcomes"]
    }


def test_rules_that_look_find_what_is_there_and_others_by_chance(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = what_if(file, capsys)
    assert found["recorded"] == {
        "rule": "recorded",
        "block_size": None,
        "requests": 22,
        "prompt_tokens": 22 * 61,
        "seen": 20 * 60,
        "held": 20 * 60,
        "agreed": 22,
        "busiest": 14 / 22,
    }
    assert (found["overlap"]["seen"], found["overlap"]["held"]) == (1200, 1200)
    assert found["overlap"]["agreed"] >= 20
    assert found["kv"]["seen"] == found["kv"]["held"] >= 1000
    for rule in ("round_robin", "random"):
        assert found[rule]["seen"] == found[rule]["held"]
        assert 0 < found[rule]["held"] < 1200
    assert (found[""]["told"], found[""]["reported"], found[""]["unknown"]) == (22, 1200, 0)


def test_a_router_that_hashes_at_the_physical_page_sees_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = what_if(file, capsys, "--policy", "overlap", "--block-size", "3", "6", "12")
    assert found["overlap@6"]["seen"] == found["overlap"]["seen"] == 1200
    assert found["overlap@3"]["seen"] == 0
    assert found["overlap@12"]["seen"] == 0
    assert found["overlap@3"]["held"] < 1200, "what it does not see it meets by chance only"


def test_a_recorder_whose_clock_was_set_back_is_asked_about_like_any_other(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A router's own clock never goes back, and its averages must not be told that it did."""
    records = list(TraceReader(file))
    half = len(records) // 2
    late = MadeTrace()
    late.records = [
        msgspec.structs.replace(record, at=record.at - 1e6) if place > half and hasattr(record, "at") else record
        for place, record in enumerate(records)
    ]
    found = what_if(late.write(tmp_path / "late.kvtrace"), capsys, "--policy", "overlap", "kv")
    assert (found["overlap"]["seen"], found["overlap"]["held"]) == (1200, 1200)
    assert found["kv"]["requests"] == 22


def test_the_table_says_what_kind_of_answer_it_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_trace(["what-if", str(file), "--policy", "kv"]) == 0
    out = capsys.readouterr().out
    assert "Caches, loads and speeds are as recorded: a first-order answer." in out
    assert "Engines reported 1200 cached tokens (89.4%) of 22 requests." in out


def test_a_width_that_no_recorded_one_divides_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = MadeTrace(A)
    made.request(0, TOPICS[0], predicted=0, reported=0, widths=(2, 6))
    file = made.write(tmp_path / "a.kvtrace")
    assert run_trace(["what-if", str(file), "--block-size", "3"]) == 1
    said = capsys.readouterr().err
    assert said == (
        "kvsteer-router trace what-if: block size 3: prompts were recorded at 2, 6, of which none divides it; "
        "--trace-tokens records what is asked at any\n"
    )


def test_recorded_ids_can_be_asked_at_any_width(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody's blocks are 5 wide; a router that hashes at that finds nothing, and is answered, not refused."""
    made = MadeTrace(A)
    made.frame(0, store(TOPICS[0][:-1]))
    made.request(0, TOPICS[0], predicted=60, reported=60, widths=(6,))
    place, asked = next((place, one) for place, one in enumerate(made.records) if isinstance(one, Routed))
    made.records[place] = msgspec.structs.replace(asked, packed_ids=pack_ids(TOPICS[0][:-1]))
    file = made.write(tmp_path / "a.kvtrace")
    found = what_if(file, capsys, "--policy", "overlap", "--block-size", "5", "6", "12")
    assert [found[f"overlap@{size}"]["seen"] for size in (5, 6, 12)] == [0, 60, 0]
    prompt = RecordedPrompt(made.records[place], hashed_at=5)  # type: ignore[arg-type]
    assert list(prompt.keys(width=6)) == list(Prompt(TOPICS[0][:-1]).keys(width=5))


def test_hits_of_which_no_event_told_are_pointed_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = MadeTrace(A)
    made.request(0, TOPICS[0], predicted=0, reported=60)
    assert run_trace(["what-if", str(made.write(tmp_path / "a.kvtrace")), "--policy", "kv"]) == 0
    assert "No lane's events show any of these: were its streams heard" in capsys.readouterr().out


@pytest.mark.parametrize("size", ["0", "-1", "1000001", "9" * 30])
def test_a_block_size_that_nobody_has_is_refused(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_trace(["what-if", "a.kvtrace", "--block-size", size])
    assert capsys.readouterr().err == f"kvsteer-router: error: --block-size must be in [1, 1000000], got {size}\n"


@pytest.mark.parametrize("command", ["show", "replay", "what-if"])
def test_with_json_a_failure_is_json_too(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_trace([command, str(tmp_path / "none.kvtrace"), "--json"]) == 1
    said = capsys.readouterr()
    assert said.err == f"kvsteer-router trace {command}: {tmp_path}/none.kvtrace: No such file or directory\n"
    assert json.loads(said.out) == {"error": f"{tmp_path}/none.kvtrace: No such file or directory"}


def test_a_trace_without_routed_requests_is_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = MadeTrace(A).write(tmp_path / "a.kvtrace")
    assert run_trace(["what-if", str(file)]) == 1
    assert "has no routed request whose prompt is known" in capsys.readouterr().err


def test_books_follow_the_recorded_requests_and_forget_those_of_a_killed_router() -> None:
    made = MadeTrace(A, B)
    made.request(0, TOPICS[0], predicted=24, reported=24)
    made.request(1, TOPICS[1], predicted=0, reported=0)
    replayer, books, loads = Replayer(), RecordedBooks(), []
    for record in [*made.records, *made.records[7:8], made.records[0]]:
        replayer.feed(record)
        if isinstance(record, Began):
            books.forget()
        if isinstance(record, Routed):
            assert record.lane is not None
            books.book(record, replayer.lane(record.lane), RecordedPrompt(record))
        books.feed(record)
        states = [books.of(lane).by_events for lane in replayer.lanes.values()]
        loads.append([(state.load.queued_tokens, state.load.decoding) for state in states])
    idle = [(0, 0), (0, 0)]
    assert loads[7:] == [
        *([[(37, 0), (0, 0)], [(0, 1), (0, 0)], idle]),
        *([[(0, 0), (61, 0)], [(0, 0), (0, 1)], idle]),
        *([[(37, 0), (0, 0)], idle]),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_recorded_prompts_match_as_the_prompts_themselves(seed: int) -> None:
    chance = Random(seed)
    ids = chance.choices(range(1000), k=chance.randrange(1, 200))
    prompt = Prompt(ids[:-1])
    recorded = RecordedPrompt(
        Routed(
            at=0.0,
            request=0,
            lane=0,
            lanes=[0],
            model=None,
            prompt_tokens=len(ids),
            prompts=1,
            stream=True,
            predicted=0,
            pending=0,
            namespaced=False,
            prefixes=[PrefixKeys(width, False, pack_keys(prompt.keys(width=width))) for width in (4, 6)],
        )
    )
    for width in (4, 6):
        assert list(recorded.keys(width=width)) == list(prompt.keys(width=width))
        assert len(recorded.keys(width=width)) == len(prompt.keys(width=width))
    assert len(recorded) == len(prompt)
    assert not len(recorded.keys(width=5))
    assert not len(recorded.keys(width=6, pairs=True))


def test_stand_in_keys_tell_prefixes_apart_as_real_ones_do() -> None:
    def keys(ids: list[int]) -> list[int]:
        routed = Routed(
            at=0.0,
            request=0,
            lane=0,
            lanes=[0],
            model=None,
            prompt_tokens=len(ids) + 1,
            prompts=1,
            stream=True,
            predicted=0,
            pending=0,
            namespaced=False,
            prefixes=[PrefixKeys(4, False, pack_keys(Prompt(ids).keys(width=4)))],
        )
        with pytest.raises(WidthError, match="block size 6: prompts were recorded at 4"):
            RecordedPrompt(routed, hashed_at=6)
        return list(RecordedPrompt(routed, hashed_at=8).keys(width=4))

    one, other = list(range(30)), [*range(20), 99, *range(21, 30)]
    assert len(keys(one)) == 3
    assert keys(one)[:2] == keys(other)[:2]
    assert keys(one)[2] != keys(other)[2]
    assert set(keys(one)).isdisjoint(Prompt(one).keys(width=8)), "they are nobody's block"

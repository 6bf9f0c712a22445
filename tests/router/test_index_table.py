"""The map that the index is made of: the compiled one against the plain one, over any sequence of calls."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.intake.plain_table import Table as PlainTable

compiled = pytest.importorskip("router.intake._table", reason="the compiled table was not built")

# Few enough that keys meet again; 0 and the largest are words like any other.
words = st.one_of(st.integers(0, 40), st.sampled_from([2**64 - 1, 2**63]), st.integers(0, 2**64 - 1))
lists = st.lists(words, max_size=60)


def as_array(numbers: list[int]) -> Sequence[int]:
    return array("Q", numbers)


class Tables(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.compiled, self.plain = compiled.Table(), PlainTable()

    def both(self, call: Callable[[Any], Any]) -> Any:
        answer = call(self.compiled)
        assert answer == call(self.plain)
        return answer

    @rule(key=words, value=words)
    def set(self, key: int, value: int) -> None:
        self.both(lambda table: table.set(key, value))
        assert self.both(lambda table: table.get(key)) == value

    @rule(key=words)
    def pop(self, key: int) -> None:
        self.both(lambda table: table.pop(key))
        assert not self.both(lambda table: key in table)

    @rule(keys=lists, value=words, form=st.sampled_from([list, tuple, as_array]))
    def fill_with_one(self, keys: list[int], value: int, form: Callable[[list[int]], Sequence[int]]) -> None:
        self.both(lambda table: table.fill(form(keys), value))

    @rule(pairs=st.lists(st.tuples(words, words), max_size=60))
    def fill_with_each(self, pairs: list[tuple[int, int]]) -> None:
        keys, values = [key for key, _ in pairs], as_array([value for _, value in pairs])
        self.both(lambda table: table.fill(keys, values))

    @rule(keys=lists, value=words)
    def drop(self, keys: list[int], value: int) -> None:
        self.both(lambda table: table.drop(keys, value))

    @rule(keys=lists)
    def drop_everything_filled(self, keys: list[int]) -> None:
        self.both(lambda table: table.fill(keys, 7))
        self.both(lambda table: table.drop(as_array(keys), 7))

    @rule(keys=lists, form=st.sampled_from([list, as_array]))
    def take(self, keys: list[int], form: Callable[[list[int]], Sequence[int]]) -> None:
        self.both(lambda table: table.take(form(keys)))

    @rule(keys=lists)
    def get_each(self, keys: list[int]) -> None:
        self.both(lambda table: [table.get(key) for key in keys])

    @rule(keys=st.lists(words, min_size=1, max_size=60), data=st.data())
    def run(self, keys: list[int], data: Any) -> None:
        start = data.draw(st.integers(0, len(keys) - 1))
        self.both(lambda table: table.run(keys, start))

    @rule()
    def clear(self) -> None:
        self.both(lambda table: table.clear())

    @invariant()
    def same(self) -> None:
        assert sorted(self.compiled.items()) == sorted(self.plain.items())
        assert len(self.compiled) == len(self.plain)


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("make", [compiled.Table, PlainTable], ids=["compiled", "plain"])
def test_a_large_table_grows_and_shrinks_and_loses_nothing(make: Callable[[], PlainTable]) -> None:
    table, keys = make(), array("Q", (key * key for key in range(5_000)))
    assert table.fill(keys, keys) == []
    assert [table.get(key) for key in keys] == list(keys)
    assert [table.pop(key) for key in keys[100:]] == list(keys[100:])
    assert [table.get(key) for key in keys[:100]] == list(keys[:100])
    assert table.get(keys[100]) is None


def test_a_table_of_megabytes_holds_what_it_was_given() -> None:
    """Past a size its slots lie in other memory."""
    table, keys = compiled.Table(), array("Q", (key * key for key in range(300_000)))
    assert table.fill(keys, keys) == []
    assert [table.get(key) for key in keys] == list(keys)
    assert table.drop(keys, 4) == [place for place in range(len(keys)) if place != 2]
    table.clear()
    assert table.fill(keys, 1) == []
    assert table.run(keys, 5) == (len(keys), 1)
    assert table.drop(keys, 1) == []
    assert len(table) == 0


@pytest.mark.parametrize("make", [compiled.Table, PlainTable], ids=["compiled", "plain"])
@pytest.mark.parametrize(
    ("keys", "values", "error"),
    [
        ([1, -1], 0, OverflowError),
        ([1, 2**64], 0, OverflowError),
        ([1, b"digest"], 0, TypeError),
        ([1, 2], [1], ValueError),
        ([1, 2], [1, -1], OverflowError),
    ],
)
def test_what_is_no_word_is_refused_and_changes_nothing(
    make: Callable[[], PlainTable], keys: Any, values: Any, error: type[Exception]
) -> None:
    table = make()
    with pytest.raises(error):
        table.fill(keys, values)
    assert len(table) == 0

"""``--kv-events-config``: whose words events are in is a key of ours in SGLang's object."""

from __future__ import annotations

import pytest

from contract.events import Dialect
from contract.kv_events_config import KVEventsConfigError, parse_kv_events_config


def test_events_are_in_sglang_s_words_unless_vllm_s_are_asked_for() -> None:
    assert parse_kv_events_config("{}").dialect is Dialect.SGLANG
    assert parse_kv_events_config('{"dialect": "vllm"}').dialect is Dialect.VLLM


def test_a_dialect_that_nobody_speaks_is_named() -> None:
    with pytest.raises(KVEventsConfigError, match=r"'klingon' - at `\$\.dialect`"):
        parse_kv_events_config('{"dialect": "klingon"}')

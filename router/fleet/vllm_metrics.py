"""The block width in vLLM's ``/metrics``: the one place where it says it over HTTP without a development mode. Pure.

``vllm:cache_config_info`` carries the cache config as text labels, once for each engine behind the address. From 0.31
on ``effective_attention_block_size`` is the block width; before, ``block_size`` is all there is, which under DCP is the
physical page and in hybrid models the smallest of several: a stand-in until the first event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

__all__ = ["advertised_widths"]

_SERIES = re.compile(r"^vllm:cache_config_info\{(.*)\}\s", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SIZES = ("effective_attention_block_size", "block_size")
_MOST_DIGITS = 9


def advertised_widths(exposition: str) -> dict[int, int | None]:
    """Width by engine, None where one names none; empty where the metric is not there.

    An engine that names an effective size is not held against one that names a page: where one does, all must.
    """
    engines = dict(_engines(exposition))
    kind = next((kind for kind in _SIZES if any(_size(labels, kind) for labels in engines.values())), _SIZES[0])
    return {rank: _size(labels, kind) for rank, labels in engines.items()}


def _engines(exposition: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    for series in _SERIES.finditer(exposition):
        labels = dict(_LABEL.findall(series.group(1)))
        engine = labels.get("engine", "0")
        if engine.isdecimal() and len(engine) <= _MOST_DIGITS:
            yield int(engine), labels


def _size(labels: Mapping[str, str], kind: str) -> int | None:
    text = labels.get(kind, "")
    return int(text) or None if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None

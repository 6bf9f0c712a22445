"""The models that the chat demo can be played on: what each needs of a fleet, and how much it may be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.chat import ChatShape
from bench.smollm2 import FOLDER

__all__ = ["MODELS", "SMOLLM2", "TINY", "DemoModel"]


@dataclass(frozen=True, kw_only=True)
class DemoModel:
    """``chars_per_token`` is for English text; ``flags`` are engine flags by name; ``shape`` is what it plays."""

    name: str
    path: str
    chars_per_token: float
    flags: Mapping[str, object] = field(default_factory=dict)
    shape: ChatShape = field(default_factory=ChatShape)
    reads_texts: bool = False


TINY = DemoModel(name="tiny", path="tiny", chars_per_token=1.0)
# A rank of it is a thread: nine processes that load torch would take two cores longer than the demo itself.
SMOLLM2 = DemoModel(
    name="smollm2",
    path=str(FOLDER),
    chars_per_token=4.0,
    flags={"served_model_name": "smollm2", "rank_backend": "threads"},
    shape=ChatShape(tenants=3, conversations=4, turns=6, system_length=1600, user_length=240, answer_tokens=8),
    reads_texts=True,
)
MODELS = {model.name: model for model in (TINY, SMOLLM2)}

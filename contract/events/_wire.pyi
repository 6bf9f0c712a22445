from typing import Any

from contract.events.model import Event

STORED: tuple[str, ...]
REMOVED: tuple[str, ...]

def read_batch(payload: bytes, makers: tuple[Any, ...], /) -> tuple[float, list[Event], int | None] | None: ...

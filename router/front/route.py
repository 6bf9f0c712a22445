"""The routed endpoints."""

from __future__ import annotations

import enum

__all__ = ["Route"]


class Route(enum.StrEnum):
    """Values are paths."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    GENERATE = "/generate"

"""When token ids go to an engine in a text's place."""

from __future__ import annotations

import enum

__all__ = ["SendIds"]


class SendIds(enum.StrEnum):
    """When token ids may go to an engine in a text's place. A named tokenizer may be the wrong one: routing without
    hits shows that, while answers to other tokens than were asked for would not."""

    AUTO = "auto"
    """When the replicas have confirmed them."""
    ALWAYS = "always"
    """Also when they come from a tokenizer named on the command line."""
    NEVER = "never"

"""A seeded multi-turn chat workload: tenants with long system prompts, conversations that share them.

Only what users say is made up here; the assistant's turns are the real answers, filled in while it is played. Text is
plain ASCII words, so a byte-level tokenizer turns one character into one token.
"""

from __future__ import annotations

from random import Random

import msgspec

__all__ = ["ChatShape", "Conversation", "Turn", "make_conversations"]

# fmt: off
WORDS = (
    "account", "address", "answer", "balance", "battery", "because", "before", "between", "branch", "button",
    "calendar", "change", "charge", "check", "city", "coffee", "contract", "corner", "credit", "customer", "date",
    "delivery", "detail", "device", "display", "door", "email", "engine", "error", "evening", "event", "invoice",
    "item", "kitchen", "ladder", "letter", "light", "limit", "list", "manager", "map", "market", "message", "minute",
    "morning", "number", "office", "open", "order", "package", "page", "paper", "parcel", "password", "payment",
    "phone", "plan", "policy", "price", "printer", "problem", "queue", "question", "receipt", "refund", "report",
    "request", "return", "river", "road", "room", "schedule", "screen", "service", "shelf", "ship", "signal", "station",
    "status", "store", "street", "summer", "system", "table", "ticket", "today", "train", "update", "user", "value",
    "version", "voucher", "water", "weather", "week", "window",
)
# fmt: on


class ChatShape(msgspec.Struct, frozen=True, kw_only=True):
    """Size of the workload; lengths in characters, answers in tokens. Tenant k is used 1/(k+1) times as often as 0."""

    tenants: int = 8
    conversations: int = 36
    turns: int = 5
    system_length: int = 1500
    user_length: int = 400
    answer_tokens: int = 16
    streamed_share: float = 0.8


class Turn(msgspec.Struct, frozen=True):
    """What the user says, how long the answer may be, and whether it is streamed. A ``fresh`` one starts over."""

    user: str
    max_tokens: int
    stream: bool
    fresh: bool = False


class Conversation(msgspec.Struct, frozen=True):
    """One chat: a tenant's system prompt (empty: the model's own), and the user's side of every turn."""

    tenant: int
    system: str
    turns: tuple[Turn, ...]


def make_conversations(shape: ChatShape, *, seed: int) -> list[Conversation]:
    """The same shape and seed give the same conversations, on any machine."""
    random = Random(seed)
    systems = [_text(random, shape.system_length) for _ in range(shape.tenants)]
    weights = [1 / (tenant + 1) for tenant in range(shape.tenants)]
    tenants = random.choices(range(shape.tenants), weights, k=shape.conversations)
    return [Conversation(tenant, systems[tenant], _turns(random, shape)) for tenant in tenants]


def _turns(random: Random, shape: ChatShape) -> tuple[Turn, ...]:
    return tuple(
        Turn(
            user=_text(random, random.randint(shape.user_length // 2, shape.user_length * 3 // 2)),
            max_tokens=shape.answer_tokens,
            stream=random.random() < shape.streamed_share,
        )
        for _ in range(shape.turns)
    )


def _text(random: Random, length: int) -> str:
    """Random words, cut at exactly ``length`` characters."""
    words: list[str] = []
    missing = length + 1  # a text has one space less than words
    while missing > 0:
        words.append(random.choice(WORDS))
        missing -= len(words[-1]) + 1
    return " ".join(words)[:length]

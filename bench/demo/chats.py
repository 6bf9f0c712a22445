"""The demo on real forward passes: chats that share prompts, on replicas that each hold only a part of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.chat import ChatShape, Conversation, make_conversations
from bench.demo.models import TINY, DemoModel
from bench.demo.scenario import DCP_SIZE, EngineProcess, engine_command
from bench.play import play_chats
from bench.tally import Ask
from bench.texts import read_conversations
from contract.geometry import block_width

__all__ = ["ChatScenario"]


@dataclass(frozen=True, kw_only=True)
class ChatScenario:
    """Chats on ``model``, real ones if ``texts`` is their file; a cache holds ``cache_share`` of all that is said."""

    model: DemoModel = TINY
    texts: Path | None = None
    replicas: int = 3
    seed: int = 0
    shape: ChatShape = TINY.shape
    concurrency: int = 4
    cache_share: float = 0.4
    page_size: int = 8

    @cached_property
    def conversations(self) -> list[Conversation]:
        """The workload.

        Raises:
            TraceError: the file of texts has none.
        """
        if self.texts is not None:
            return read_conversations(self.texts, self.shape, seed=self.seed)
        return make_conversations(self.shape, seed=self.seed)

    @property
    def width(self) -> int:
        """Tokens a block."""
        return block_width(page_size=self.page_size, dcp_size=DCP_SIZE)

    @property
    def requests(self) -> int:
        """All turns of all conversations."""
        return sum(len(conversation.turns) for conversation in self.conversations)

    @property
    def working_set(self) -> int:
        """Tokens of all that is said, shared system prompts once; template and widths apart."""
        systems = {conversation.system for conversation in self.conversations}
        turns = [turn for conversation in self.conversations for turn in conversation.turns]
        chars = sum(map(len, systems)) + sum(len(turn.user) for turn in turns)
        return int(chars / self.model.chars_per_token) + sum(turn.max_tokens for turn in turns)

    @property
    def cache_tokens(self) -> int:
        """What one replica's cache holds."""
        return int(self.cache_share * self.working_set)

    def setting(self) -> list[str]:
        """Fleet, workload, cache, and what is measured."""
        return [
            f"fleet: {self.replicas} replicas of the {self.model.name} model, tp {DCP_SIZE}, dcp {DCP_SIZE}, "
            f"page size {self.page_size}: {self.width} tokens a block",
            f"workload: {self._workload()}, {self.concurrency} requests at a time, seed {self.seed}",
            f"cache: {self.cache_tokens} tokens a replica, {self.cache_share:.0%} of the about {self.working_set} "
            f"in use ({self.cache_share * self.replicas:.0%} for all replicas together)",
            f"TTFT: at the client, over the streamed answers ({self.shape.streamed_share:.0%}, drawn at random)",
        ]

    def _workload(self) -> str:
        if self.texts is not None:
            return f"the first {len(self.conversations)} sessions ({self.requests} requests) of {self.texts.name}"
        shape = self.shape
        return (
            f"{shape.conversations} conversations of {shape.turns} turns ({self.requests} requests) over "
            f"{shape.tenants} system prompts"
        )

    def engines(self) -> list[EngineProcess]:
        """A process a replica."""
        command = engine_command(
            self.model.path, page_size=self.page_size, cache_tokens=self.cache_tokens, **self.model.flags
        )
        return [EngineProcess(name=f"replica-{index}", command=command) for index in range(self.replicas)]

    async def play(self, ask: Ask) -> None:
        """Play all conversations."""
        await play_chats(self.conversations, ask, model=self.model.name, concurrency=self.concurrency, seed=self.seed)

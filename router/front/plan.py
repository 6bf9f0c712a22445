"""What must be known before a lane is chosen: who may serve a request, and its prompt as token ids."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from router.choice.texts import Chat, Text
from router.choice.tokenization import Tokenization, TokenizerSource
from router.fleet.fleet import Fleet
from router.fleet.lane import Lane
from router.fleet.replica import Replica
from router.front.errors import ApiError, invalid, unavailable
from router.front.request import RoutedRequest
from router.prompt import Prompt

__all__ = ["Plan", "Planner"]

CHARS_PER_TOKEN = 4
"""Length of a prompt that nobody here can tokenize: English text under a usual vocabulary."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A request ready to be sent somewhere.

    ``prompt`` leaves out the last token, which an engine always computes; None where the ids are unknown, and
    ``prompt_tokens`` is then a guess from the text's length. ``lanes`` may all serve it.
    """

    request: RoutedRequest
    prompt: Prompt | None
    prompt_tokens: int
    lanes: Sequence[Lane]


class Planner:
    """Plans requests for one fleet."""

    def __init__(self, fleet: Fleet, tokenization: Tokenization) -> None:
        self._fleet = fleet
        self._tokenization = tokenization

    async def plan(self, request: RoutedRequest) -> Plan:
        """Find lanes and token ids.

        Raises:
            ApiError: 404 for a model nobody serves, 503 where nobody who does is healthy, 400 for a rank nobody has or
                ids outside the vocabulary.
        """
        replicas = self._replicas(request.model)
        tokens = request.tokens
        if tokens is None:
            tokens = await self._tokenize(request, replicas)
            replicas = self._replicas(request.model)  # some may have gone meanwhile
        else:
            _check_vocabulary(tokens, replicas)
        lanes = _lanes(replicas, request.dp_rank)
        if tokens is None:
            return Plan(request=request, prompt=None, prompt_tokens=_guess(request.text), lanes=lanes)
        prompt = Prompt(tokens[:-1], lora_name=_lora_name(request, replicas[0]), cache_salt=request.cache_salt)
        return Plan(request=request, prompt=prompt, prompt_tokens=len(tokens), lanes=lanes)

    def tokenizing_replica(self, model: str | None) -> Replica:
        """A replica whose tokenizer is that of the model.

        Raises:
            ApiError: as for ``plan``.
        """
        return self._replicas(model)[0]

    def _replicas(self, model: str | None) -> list[Replica]:
        """Healthy replicas that serve the model; at least one. Breakers take out some of them, but never the last."""
        everyone = self._fleet.replicas
        serving = [replica for replica in everyone if replica.healthy and replica.serves(model)]
        if serving:
            now = time.monotonic()
            return [replica for replica in serving if replica.breaker.admits(now=now)] or serving
        known_somewhere = any(replica.serves(model) for replica in everyone)
        if known_somewhere or not any(replica.healthy for replica in everyone):
            raise unavailable("no healthy replica can take the request now", code="no_healthy_replica")
        message = f"model {model!r:.200} is served by no replica"
        raise ApiError(message, status=404, param="model", code="model_not_found")

    async def _tokenize(self, request: RoutedRequest, replicas: Sequence[Replica]) -> list[int] | None:
        assert request.text is not None, "a request has token ids or text"
        sources = [
            TokenizerSource(replica.url, replica.identity.tokenizer)
            for replica in replicas
            if replica.identity is not None
        ]
        return await self._tokenization.ids(request.text, model=request.model, sources=sources)


def _lanes(replicas: Sequence[Replica], dp_rank: int | None) -> list[Lane]:
    lanes = [lane for replica in replicas for lane in replica.lanes if dp_rank in (None, lane.dp_rank)]
    if not lanes:
        raise invalid(f"no replica has data-parallel rank {dp_rank}", param="routed_dp_rank")
    return lanes


def _check_vocabulary(tokens: Sequence[int], replicas: Sequence[Replica]) -> None:
    """Refuse ids that none of the engines has, where one of them says how many it has."""
    sizes = [replica.identity.vocab_size for replica in replicas if replica.identity is not None]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes) and known and max(tokens) >= max(known):
        raise invalid(f"token id {max(tokens)} is outside the vocabulary [0, {max(known)})", param="prompt")


def _lora_name(request: RoutedRequest, replica: Replica) -> str | None:
    """The adapter's name in events: the one in the body, or a model name that is an adapter's."""
    if request.lora_name is not None or request.model is None or replica.identity is None:
        return request.lora_name
    model = replica.identity.model(request.model)
    return model.id if model is not None and model.parent else None


def _guess(text: Text | None) -> int:
    size = len(bytes(text.messages)) if isinstance(text, Chat) else len(text or "")
    return max(1, size // CHARS_PER_TOKEN)

"""What must be known before a lane is chosen: who may serve a request, and its prompt as token ids."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from router.choice.texts import Chat, Text
from router.choice.tokenization import Tokenization, Tokenized
from router.fleet.fleet import Fleet
from router.fleet.lane import Lane
from router.fleet.replica import Replica
from router.fleet.served import Served
from router.front.errors import ApiError, invalid, unavailable
from router.front.headers import PIN_HEADER
from router.front.request import ANY_ID, RoutedRequest
from router.front.wishes import Wishes
from router.prompt import Prompt

__all__ = ["Plan", "Planner"]

CHARS_PER_TOKEN = 4
"""Length of a prompt that nobody here can tokenize: English text under a usual vocabulary."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A request ready to be sent somewhere.

    ``prompt`` leaves out the last token, which an engine always computes; None where the ids are unknown, and
    ``prompt_tokens`` is then a guess from the text's length. ``lanes`` may all serve it. ``text_ids`` are the ids of a
    text where an engine may be given them in its place.
    """

    request: RoutedRequest
    prompt: Prompt | None
    prompt_tokens: int
    lanes: Sequence[Lane]
    text_ids: Sequence[int] | None = None
    session: str | None = None


class Planner:
    """Plans requests for one fleet."""

    def __init__(self, fleet: Fleet, tokenization: Tokenization) -> None:
        self._fleet = fleet
        self._tokenization = tokenization
        self.likely_vocabulary = ANY_ID
        """Size of the vocabulary that was asked for last: the next request's is probably the same."""

    async def plan(self, request: RoutedRequest, wishes: Wishes) -> Plan:
        """Find lanes and token ids.

        Raises:
            ApiError: 404 for a model nobody serves, 503 where nobody who does is healthy, 400 for a rank or a replica
                that there is not, or ids outside the vocabulary.
        """
        served = self._served(request.model, pin=wishes.replica)
        tokenized = None
        if request.tokens is None:
            tokenized = await self._tokenize(request, served)
            served = self._served(request.model, pin=wishes.replica)  # some may have gone meanwhile
        else:
            self._check_vocabulary(request, request.tokens, served)
        tokens = request.tokens if tokenized is None else tokenized.ids
        return Plan(
            request=request,
            prompt=None if tokens is None else _prompt(tokens, request, served.first),
            prompt_tokens=_guess(request.text) if tokens is None else len(tokens),
            lanes=_lanes(served, request.dp_rank),
            text_ids=tokenized.ids if tokenized is not None and tokenized.sendable else None,
            session=wishes.session,
        )

    def tokenizing_replica(self, model: str | None) -> Replica:
        """A replica whose tokenizer is that of the model.

        Raises:
            ApiError: as for ``plan``.
        """
        return self._served(model).first

    def _served(self, model: str | None, *, pin: str | None = None) -> Served:
        """Replicas that serve the model; at least one. Breakers take out some of them, but never the last."""
        if pin is None and (served := self._fleet.roster.served(model, now=time.monotonic())):
            return served
        everyone = [replica for replica in self._fleet.replicas if pin in (None, replica.url)]
        if not everyone and pin is not None:
            raise invalid(f"{pin} is no replica of this fleet", param=PIN_HEADER, code="unknown_replica")
        serving = [replica for replica in everyone if replica.healthy and replica.serves(model)]
        if serving:
            return Served(serving, kept=False)
        known_somewhere = any(replica.serves(model) for replica in everyone)
        if known_somewhere or not any(replica.healthy for replica in everyone):
            raise unavailable("no healthy replica can take the request now", code="no_healthy_replica")
        message = f"model {model!r:.200} is served by no replica"
        raise ApiError(message, status=404, param="model", code="model_not_found")

    def _check_vocabulary(self, request: RoutedRequest, tokens: Sequence[int], served: Served) -> None:
        """Refuse ids that none of the engines has, where all of them say how many they have."""
        size = served.vocabulary
        if size is None:
            return
        self.likely_vocabulary = size
        if request.ids_below > size and (largest := max(tokens)) >= size:
            raise invalid(f"token id {largest} is outside the vocabulary [0, {size})", param="prompt")

    async def _tokenize(self, request: RoutedRequest, served: Served) -> Tokenized | None:
        assert request.text is not None, "a request has token ids or text"
        if not request.usual_text:
            return None
        return await self._tokenization.tokenize(request.text, model=request.model, sources=served.tokenizers)


def _prompt(tokens: Sequence[int], request: RoutedRequest, replica: Replica) -> Prompt:
    return Prompt(tokens[:-1], lora_name=_lora_name(request, replica), cache_salt=request.cache_salt)


def _lanes(served: Served, dp_rank: int | None) -> Sequence[Lane]:
    lanes = served.lanes if dp_rank is None else [lane for lane in served.lanes if lane.dp_rank == dp_rank]
    if not lanes:
        raise invalid(f"no replica has data-parallel rank {dp_rank}", param="routed_dp_rank")
    return lanes


def _lora_name(request: RoutedRequest, replica: Replica) -> str | None:
    """The adapter's name in events: the one in the body, or a model name that is an adapter's."""
    if request.lora_name is not None or request.model is None or replica.identity is None:
        return request.lora_name
    model = replica.identity.model(request.model)
    return model.id if model is not None and model.parent else None


def _guess(text: Text | None) -> int:
    size = len(bytes(text.messages)) if isinstance(text, Chat) else len(text or "")
    return max(1, size // CHARS_PER_TOKEN)

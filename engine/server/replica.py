"""One served engine: its lanes and what the routes need around them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from aiohttp import web

from contract.agreement import Agreement
from contract.api_error import ApiError
from contract.kv_events_config import KVEventsConfig
from engine.config import EngineConfig
from engine.model.catalogue import ServedModel
from engine.server.answer import Ask
from engine.server.errors import unavailable
from engine.server.exchange import Exchange
from engine.server.lanes import Lane, Lanes, pinned_rank
from engine.server.mailroom import Mailroom
from engine.server.metrics import RequestMetrics
from engine.server.prompts import PromptReader

__all__ = ["Replica"]

_LOG = logging.getLogger(__name__)


class Replica:
    """What one base URL stands for. ``events`` is the publishers' config with the endpoints they really have."""

    def __init__(
        self,
        config: EngineConfig,
        model: ServedModel,
        *,
        lanes: Sequence[Lane],
        mailroom: Mailroom,
        events: KVEventsConfig | None,
    ) -> None:
        self.config = config
        self.events = events
        self.tokenizer = model.tokenizer
        self.cache_groups = config.cache_groups(model)
        self.prompts = PromptReader(self.tokenizer, limit=config.sequence_limit)
        self.lanes = Lanes(lanes)
        self.metrics = RequestMetrics(self.lanes)
        self.draining = False
        self.started_at = time.time()
        self._mailroom = mailroom
        self._no_width_because: str | None = None
        if events is not None:
            self.advertised_width()

    @property
    def failure(self) -> BaseException | None:
        """Why a lane died, if one did: then the replica is dead."""
        return next((lane.loop.failed for lane in self.lanes if lane.loop.failed is not None), None)

    def advertised_width(self) -> Agreement:
        """The block width that ``/server_info`` may name; the log says once why there is none."""
        width = self.lanes.advertised_width()
        if width.value is None and width.reason != self._no_width_because:
            _LOG.warning("no block width is advertised: %s", width.reason)
        self._no_width_because = width.reason
        return width

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served; no name means the one that is.

        Raises:
            ApiError: 404.
        """
        if name is not None and name != self.config.model_name:
            message = f"model {name!r:.200} is not served here, {self.config.model_name!r} is"
            raise ApiError(message, status=404, param="model", code="model_not_found")

    def exchange(self, request: web.Request, asks: Sequence[Ask], *, pinned: int | None) -> Exchange:
        """The asks of one HTTP request, on their way; ``pinned`` is the rank its body names.

        Raises:
            ApiError: 400, more prompts than could ever be in flight, or no such rank; 503 while shutting down.
        """
        most = self.config.requests_per_lane * self.config.dp_size
        if len(asks) > most:
            raise ApiError(
                f"{len(asks)} prompts in one request, at most {most} can be in flight", code="batch_too_large"
            )
        if self.draining:
            raise unavailable("the engine is shutting down")
        return Exchange(
            asks,
            tokenizer=self.tokenizer,
            lanes=self.lanes,
            pinned=pinned_rank(request, in_body=pinned, dp_size=self.config.dp_size),
            mailroom=self._mailroom,
            metrics=self.metrics,
        )

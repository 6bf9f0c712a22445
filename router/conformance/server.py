"""Asks an engine's server what width its blocks are said to have."""

from __future__ import annotations

import aiohttp

from router.fleet.identity import Engine
from router.fleet.prober import ProbeError, Prober

__all__ = ["ServerError", "advertised_width"]

ANSWER_SECONDS = 5.0


class ServerError(Exception):
    """A server that cannot be asked, or that says that it has no events; in one line."""


async def advertised_width(url: str) -> int | None:
    """Tokens per block as advertised; None from a vLLM that does not say.

    Raises:
        ServerError: it cannot be reached, is no engine, or advertises no events.
    """
    async with aiohttp.ClientSession() as session:
        try:
            found = await Prober(session, timeout=ANSWER_SECONDS).identify(url)
        except ProbeError as error:
            raise ServerError(str(error)) from None
    if found.block_size is None and found.engine != Engine.VLLM:
        why = found.disagreement or found.no_events or "it says nothing of KV events"
        raise ServerError(f"{url} advertises no width: {why}")
    return found.block_size

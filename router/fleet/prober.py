"""Asks a replica over HTTP what it is and how it is. One attempt each; the fleet decides what a failure means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from router.fleet.health import Failure
from router.fleet.identity import Engine, Identity, IdentityError, Model, from_server_info, from_vllm, parse_models
from router.fleet.override import Override
from router.fleet.vllm_metrics import advertised_widths

__all__ = ["ProbeError", "Prober", "tell_failure"]

MAX_ANSWER_BYTES = 16 * 1024 * 1024
_ABSENT = (404, 405, 501)


class ProbeError(Exception):
    """A replica that did not answer as an engine does, in one line."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


def tell_failure(error: Exception) -> Failure:
    """Whether nobody listens there, or somebody does and is ill."""
    return Failure.UNREACHABLE if isinstance(error, aiohttp.ClientConnectorError) else Failure.ILL


class Prober:
    """Probes over a shared session. Every answer must come within ``timeout`` seconds."""

    def __init__(
        self, session: aiohttp.ClientSession, *, timeout: float, overrides: Mapping[str, Override] | None = None
    ) -> None:
        self._session = session
        self._overrides = overrides or {}
        self._timeout = aiohttp.ClientTimeout(total=timeout)

    async def identify(self, url: str) -> Identity:
        """Find out everything about a replica.

        Raises:
            ProbeError: it cannot be reached, is not well, or is no engine that this router knows.
        """
        override = self._overrides.get(url)
        try:
            found = await self._describe(url)
        except IdentityError as error:
            if override is None or not override.whole:
                raise ProbeError(Failure.ILL, f"{url}: {error}") from None
            found = override.identity()
        found = found if override is None else override.applied(found)
        await self._check_health(url, found)
        return found

    async def refresh(self, url: str, known: Identity) -> Identity:
        """A cheap look: is it well, and are its streams where they were? Models are not asked for again.

        Raises:
            ProbeError: as for ``identify``.
        """
        if known.disagreement is not None:
            return await self.identify(url)
        await self._check_health(url, known)
        override = self._overrides.get(url)
        if known.engine == Engine.VLLM or (override is not None and override.whole):
            return known
        info = await self._get(url, "/server_info")
        try:
            found = from_server_info(info, models=known.models, host=urlsplit(url).hostname or "")
        except IdentityError as error:
            raise ProbeError(Failure.ILL, f"{url}: {error}") from None
        return found if override is None else override.applied(found)

    async def _describe(self, url: str) -> Identity:
        """What a replica says of itself.

        Raises:
            IdentityError: nothing that names an engine.
            ProbeError: it cannot be reached, or answers as no engine does.
        """
        host = urlsplit(url).hostname or ""
        info = await self._get(url, "/server_info")
        if isinstance(info, dict) and ("served_model_name" in info or "model_path" in info):
            return from_server_info(info, models=await self._models(url), host=host)
        models = await self._models(url)
        sources = await self._get(url, "/kv_event_sources")
        version = await self._get(url, "/version")
        named = version.get("version") if isinstance(version, dict) else None
        return from_vllm(
            sources,
            models=models,
            version=named if isinstance(named, str) else None,
            host=host,
            widths=await self._advertised_widths(url),
        )

    async def _advertised_widths(self, url: str) -> dict[int, int | None]:
        """By engine; a replica whose ``/metrics`` cannot be read says none."""
        try:
            exposition = await self._bytes(url, "/metrics")
        except ProbeError:
            return {}
        return advertised_widths((exposition or b"").decode(errors="replace"))

    async def _check_health(self, url: str, identity: Identity) -> None:
        # SGLang's /health generates a token each time; its /server_info already asks the scheduler.
        if identity.engine != Engine.SGLANG:
            await self._bytes(url, "/health")

    async def _models(self, url: str) -> tuple[Model, ...]:
        answer = await self._get(url, "/v1/models")
        return () if answer is None else parse_models(answer)

    async def _get(self, url: str, path: str) -> Any:
        """The JSON answer; None where there is no such route."""
        body = await self._bytes(url, path)
        try:
            return None if body is None else msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProbeError(Failure.ILL, f"{url}{path} is not JSON: {error}") from None

    async def _bytes(self, url: str, path: str) -> bytes | None:
        """The answer; None where there is no such route."""
        try:
            async with self._session.get(url + path, timeout=self._timeout, allow_redirects=False) as response:
                if response.status in _ABSENT:
                    return None
                if response.status != 200:
                    raise ProbeError(Failure.ILL, f"{url}{path} answers {response.status}")
                return await _read(response)
        except TimeoutError:
            raise ProbeError(Failure.ILL, f"{url}{path} did not answer within {self._timeout.total:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ProbeError(tell_failure(error), f"{url}{path}: {error or type(error).__name__}") from None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise ProbeError(Failure.ILL, f"{response.url} answers with more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)

"""Asks a replica over HTTP what it is and how it is. One attempt each; the fleet decides what a failure means."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from router.fleet.health import Failure
from router.fleet.identity import Engine, Identity, IdentityError, Model, from_server_info, from_vllm, parse_models

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

    def __init__(self, session: aiohttp.ClientSession, *, timeout: float) -> None:
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout)

    async def identify(self, url: str) -> Identity:
        """Find out everything about a replica.

        Raises:
            ProbeError: it cannot be reached, is not well, or is no engine that this router knows.
        """
        host = urlsplit(url).hostname or ""
        try:
            info = await self._get(url, "/server_info")
            if isinstance(info, dict) and ("served_model_name" in info or "model_path" in info):
                identity = from_server_info(info, models=await self._models(url), host=host)
                await self._check_health(url, identity)
                return identity
            return await self._identify_vllm(url, host)
        except IdentityError as error:
            raise ProbeError(Failure.ILL, f"{url}: {error}") from None

    async def refresh(self, url: str, known: Identity) -> Identity:
        """A cheap look: is it well, and are its streams where they were? Models are not asked for again.

        Raises:
            ProbeError: as for ``identify``.
        """
        await self._check_health(url, known)
        if known.engine == Engine.VLLM:
            return known
        info = await self._get(url, "/server_info")
        try:
            return from_server_info(info, models=known.models, host=urlsplit(url).hostname or "")
        except IdentityError as error:
            raise ProbeError(Failure.ILL, f"{url}: {error}") from None

    async def _identify_vllm(self, url: str, host: str) -> Identity:
        models = await self._models(url)
        sources = await self._get(url, "/kv_event_sources")
        version = await self._get(url, "/version")
        named = version.get("version") if isinstance(version, dict) else None
        identity = from_vllm(sources, models=models, version=named if isinstance(named, str) else None, host=host)
        await self._check_health(url, identity)
        return identity

    async def _check_health(self, url: str, identity: Identity) -> None:
        # SGLang's /health generates a token each time; its /server_info already asks the scheduler.
        if identity.engine != Engine.SGLANG:
            await self._get(url, "/health", parse=False)

    async def _models(self, url: str) -> tuple[Model, ...]:
        answer = await self._get(url, "/v1/models")
        return () if answer is None else parse_models(answer)

    async def _get(self, url: str, path: str, *, parse: bool = True) -> Any:
        """The JSON answer; None where there is no such route."""
        try:
            async with self._session.get(url + path, timeout=self._timeout) as response:
                if response.status in _ABSENT:
                    return None
                if response.status != 200:
                    raise ProbeError(Failure.ILL, f"{url}{path} answers {response.status}")
                body = await _read(response)
                return msgspec.json.decode(body) if parse else None
        except TimeoutError:
            raise ProbeError(Failure.ILL, f"{url}{path} did not answer within {self._timeout.total:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ProbeError(tell_failure(error), f"{url}{path}: {error or type(error).__name__}") from None
        except msgspec.DecodeError as error:
            raise ProbeError(Failure.ILL, f"{url}{path} is not JSON: {error}") from None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise ProbeError(Failure.ILL, f"{response.url} answers with more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)

"""From a request body's prompts to the ``Ask`` of each: its id, its sampling, its place in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from contract.api_error import ApiError
from engine.request import Namespace, SamplingParams
from engine.server.answer import Ask
from engine.server.bodies import GeneratingBody

__all__ = ["asks_of", "one_each"]


def asks_of(
    body: GeneratingBody, prompts: Sequence[Sequence[int]], samplings: Sequence[SamplingParams], *, id_prefix: str
) -> list[Ask]:
    """One ask a prompt; a prompt whose body gives no ``rid`` gets an id of its own behind ``id_prefix``."""
    count = len(prompts)
    salts = one_each(body.cache_salt, count, param="cache_salt")
    extras = one_each(body.extra_key, count, param="extra_key")
    return [
        Ask(rid=rid, prompt=prompt, sampling=sampling, namespace=Namespace(extra, salt))
        for rid, prompt, sampling, extra, salt in zip(
            _ids(body, count, id_prefix), prompts, samplings, extras, salts, strict=True
        )
    ]


def one_each(value: str | list[str] | None, count: int, *, param: str) -> Sequence[str | None]:
    """A value for each of ``count`` prompts: a list as it is, anything else for all.

    Raises:
        ApiError: 400, a list of another length.
    """
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise ApiError(f"{param} has {len(value)} entries for {count} prompts", param=param)
    return value


def _ids(body: GeneratingBody, count: int, prefix: str) -> Sequence[str]:
    if body.rid is None:
        return [f"{prefix}{uuid4().hex}" for _ in range(count)]
    if isinstance(body.rid, str) and count > 1:
        return [f"{body.rid}_{index}" for index in range(count)]
    return [str(rid) for rid in one_each(body.rid, count, param="rid")]

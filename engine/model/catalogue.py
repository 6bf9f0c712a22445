"""What a ``--model-path`` stands for: a built-in model, a clock, a folder, a GGUF file, or a model on the hub.

Reads configs and tokenizers, no weights, and needs no torch. Blocking; a hub id may mean a download of gigabytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.model.byte_tokenizer import ANY_U32, ByteTokenizer
from engine.model.config import TINY, ModelConfig, ModelError
from engine.model.gguf_config import read_gguf_config
from engine.model.gguf_file import GgufFile
from engine.model.gguf_tokenizer import read_gguf_tokenizer
from engine.model.hf_config import read_hf_config
from engine.model.hf_tokenizer import read_hf_tokenizer
from engine.model.hybrid_config import TINY_HYBRID
from engine.model.source import ModelSource
from engine.model.tokenizer import Tokenizer

__all__ = ["BUILT_IN", "SIM", "ServedModel", "find_model"]

SIM = "sim"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """What is served under a model path. ``source`` is None where no forward pass is computed: ``sim``."""

    path: str
    tokenizer: Tokenizer
    eos_token_ids: Collection[int]
    source: ModelSource | None


def find_model(path: str) -> ServedModel:
    """The model that ``path`` names.

    Raises:
        ModelError: there is none, or it is of a kind that is not served.
    """
    if path in BUILT_IN:
        return BUILT_IN[path]()
    place = Path(path)
    if place.is_dir():
        return _folder(path, place.resolve())
    if place.is_file() or place.suffix == ".gguf":
        return _gguf(path, place.resolve())
    if _HUB_ID.fullmatch(path):
        return _folder(path, _from_hub(path))
    known = ", ".join(BUILT_IN)
    raise ModelError(f"--model-path {path!r} is no folder, no .gguf file, no hub id (owner/name) and none of {known}")


def _sim() -> ServedModel:
    tokenizer = ByteTokenizer(vocab_size=ANY_U32)
    return ServedModel(path=SIM, tokenizer=tokenizer, eos_token_ids=tokenizer.eos_token_ids, source=None)


def _drawn(config: ModelConfig) -> Callable[[], ServedModel]:
    return lambda: ServedModel(
        path=config.name,
        tokenizer=ByteTokenizer(),
        eos_token_ids=config.eos_token_ids,
        source=ModelSource(config=config),
    )


BUILT_IN: Mapping[str, Callable[[], ServedModel]] = {
    TINY.name: _drawn(TINY),
    TINY_HYBRID.name: _drawn(TINY_HYBRID),
    SIM: _sim,
}


def _folder(path: str, folder: Path) -> ServedModel:
    config = read_hf_config(folder)
    return ServedModel(
        path=path,
        tokenizer=read_hf_tokenizer(folder, vocab_size=config.vocab_size),
        eos_token_ids=config.eos_token_ids,
        source=ModelSource(config=config, kind="folder", path=str(folder)),
    )


def _gguf(path: str, place: Path) -> ServedModel:
    file = GgufFile(place)
    config = read_gguf_config(file)
    return ServedModel(
        path=path,
        tokenizer=read_gguf_tokenizer(file, vocab_size=config.vocab_size),
        eos_token_ids=config.eos_token_ids,
        source=ModelSource(config=config, kind="gguf", path=str(place)),
    )


def _from_hub(name: str) -> Path:
    """The folder of a model on the hub: from the local cache, or downloaded into it."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ModuleNotFoundError:
        raise ModelError(f"--model-path {name} needs huggingface_hub: pip install 'kvsteer[engine]'") from None
    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES)).resolve()
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        said = " ".join(str(error).split())
        raise ModelError(f"--model-path {name}: no such folder here, and not to be had from the hub: {said}") from None

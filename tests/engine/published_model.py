"""A small random model with a real tokenizer and a chat template: as a published folder, and as a GGUF file."""

from __future__ import annotations

from pathlib import Path

from gguf_models import write_gguf
from hf_models import save_random_model
from safetensors.torch import load_file
from small_tokenizer import CHAT_TEMPLATE, VOCAB, publish_tokenizer, trained

from engine.model.hf_config import read_hf_config

VOCAB_SIZE = VOCAB + 12
"""Models have room for more ids than their tokenizers use."""


def publish_folder(folder: Path) -> Path:
    """Qwen3 with a context of 512 tokens, whose answers end with ``<|im_end|>``."""
    save_random_model(folder, "qwen3", vocab_size=VOCAB_SIZE, eos_token_id=2)
    publish_tokenizer(folder)
    return folder


def publish_gguf(path: Path, folder: Path) -> Path:
    """The model of ``folder`` in one file."""
    write_gguf(
        path,
        "qwen3",
        read_hf_config(folder),
        load_file(folder / "model.safetensors"),
        tokenizer=trained(),
        chat_template=CHAT_TEMPLATE,
    )
    return path

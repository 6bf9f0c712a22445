"""The tokenizer of a Hugging Face folder, read as the contract says."""

from __future__ import annotations

from pathlib import Path

from contract.text.tokenizer_files import TokenizerFileError, read_tokenizer_files
from engine.model.config import ModelError
from engine.model.text_tokenizer import TextTokenizer

__all__ = ["read_hf_tokenizer"]


def read_hf_tokenizer(folder: Path, *, vocab_size: int) -> TextTokenizer:
    """The tokenizer in ``folder``, for a model of so many ids. A folder without a template serves no chats.

    Raises:
        ModelError: a file is missing or cannot be read, or has ids that the model does not have.
    """
    try:
        files = read_tokenizer_files(folder)
    except TokenizerFileError as error:
        raise ModelError(str(error)) from None
    return TextTokenizer(files.tokenizer, files.template, name=str(folder), vocab_size=vocab_size)

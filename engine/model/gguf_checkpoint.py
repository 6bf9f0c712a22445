"""A GGUF file's weights under Hugging Face's names, in Hugging Face's order of rows, dequantized to float32.

A rank dequantizes only the rows it holds, and of those only the blocks that its columns are in.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from engine.model.checkpoint import CheckpointError, check_shape, cut
from engine.model.gguf_config import ROPE_FACTORS, hf_name, reorders_heads
from engine.model.gguf_file import GgufFile

__all__ = ["GgufCheckpoint"]

_REORDERED = ("self_attn.q_proj.", "self_attn.k_proj.")


class GgufCheckpoint:
    """A `Checkpoint` of a model with heads of ``head_dim``.

    Raises:
        ModelError: no such file, or no GGUF that can be read.
    """

    def __init__(self, path: Path, *, head_dim: int) -> None:
        self._file = GgufFile(path)
        self._head_dim = head_dim
        self._names = {hf_name(name): name for name in self._file.tensors if name != ROPE_FACTORS}
        self._reordered = _REORDERED if reorders_heads(self._file) else ()

    @property
    def names(self) -> Collection[str]:
        """All tensors in the file, by Hugging Face's names."""
        return self._names.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """The whole shape of a tensor in the file."""
        return self._file.tensors[self._names[name]].shape

    def read(
        self, name: str, *, shape: Sequence[int], rows: range | None = None, columns: range | None = None
    ) -> Tensor:
        """A part of a tensor, float32. Rows of queries and keys are read by whole heads. See `Checkpoint`."""
        own_name = self._names.get(name)
        found = None if own_name is None else self._file.tensors[own_name].shape
        check_shape(name, found, shape, origin=str(self._file.path))
        assert own_name is not None
        part = _dequantized(self._file, own_name, rows=rows, columns=columns)
        return _half_split(part, self._head_dim) if any(mark in name for mark in self._reordered) else part


def _half_split(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of whole heads from llama.cpp's order, in which the two dimensions of a pair are neighbours."""
    heads = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return heads.transpose(1, 2).flatten(0, 2)


def _dequantized(file: GgufFile, name: str, *, rows: range | None, columns: range | None) -> Tensor:
    """``rows`` and ``columns`` of a tensor, in the file's order."""
    try:
        if len(file.tensors[name].shape) == 1:
            return cut(_matrix_part(file, name, rows=None, columns=None)[0], rows=rows, columns=None)
        return _matrix_part(file, name, rows=rows, columns=columns)
    except (ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{file.path}: tensor {name} cannot be read: {error}") from None


def _matrix_part(file: GgufFile, name: str, *, rows: range | None, columns: range | None) -> Tensor:
    """A tensor's rows are runs of blocks, each of ``block`` values; a vector is one row."""
    tensor = file.tensors[name]
    kind = gguf.GGMLQuantizationType(tensor.type)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    height, width = (1, *tensor.shape)[-2:]
    count = height * width // block * block_bytes
    blocks = np.frombuffer(file.bytes, dtype=np.uint8, count=count, offset=tensor.start)
    blocks = blocks.reshape(height, width // block, block_bytes)
    rows, columns = rows or range(height), columns or range(width)
    first = columns.start // block
    needed = np.ascontiguousarray(blocks[rows.start : rows.stop, first : -(-columns.stop // block)])
    values = gguf.dequantize(needed.reshape(len(rows), -1), kind)
    start = columns.start - first * block
    return torch.from_numpy(np.array(values[:, start : start + len(columns)], dtype=np.float32))

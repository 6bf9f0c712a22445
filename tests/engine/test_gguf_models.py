"""GGUF files: the same model as the Hugging Face folder it was made of, and one clear line for what cannot be read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import gguf
import numpy as np
import pytest
import torch
from chunked_engine import CPU, ChunkedEngine
from gguf_models import write_gguf
from hf_models import LLAMA3, VOCAB, SavedModel, save_random_model
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from contract.geometry import Geometry
from engine.model.checkpoint import CheckpointError
from engine.model.config import ListedRope, ModelError
from engine.model.gguf_checkpoint import GgufCheckpoint
from engine.model.gguf_config import read_gguf_config
from engine.model.gguf_file import GgufFile
from engine.model.hf_config import read_hf_config
from engine.model.source import ModelSource
from engine.model.weights import load_weights
from engine.parallel.layout import Layout

ARCHITECTURES = {
    "llama": "llama",
    "llama-tied-bias-linear": "llama",
    "llama-llama3": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}


def llama3_factors(head_dim: int) -> list[float]:
    """How many times slower each dimension turns, by the formula of Llama 3.1 written out case by case."""
    factors = []
    for index in range(head_dim // 2):
        wavelength = 2 * math.pi * LLAMA3["rope_theta"] ** (2 * index / head_dim)
        turns = LLAMA3["original_max_position_embeddings"] / wavelength
        if turns > LLAMA3["high_freq_factor"]:
            factors.append(1.0)
        elif turns < LLAMA3["low_freq_factor"]:
            factors.append(LLAMA3["factor"])
        else:
            smooth = (turns - LLAMA3["low_freq_factor"]) / (LLAMA3["high_freq_factor"] - LLAMA3["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / LLAMA3["factor"] + smooth))
    return factors


def convert(saved: SavedModel, kind: str, path: Path) -> Path:
    model = read_hf_config(saved.folder)
    write_gguf(
        path,
        ARCHITECTURES[kind],
        model,
        load_file(saved.folder / "model.safetensors"),
        rope_factors=llama3_factors(model.head_dim) if kind == "llama-llama3" else None,
        linear_factor=2.0 if kind.endswith("linear") else None,
    )
    return path


def gguf_source(path: Path) -> ModelSource:
    return ModelSource(config=read_gguf_config(GgufFile(path)), kind="gguf", path=str(path))


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_logits_are_those_of_the_model_it_was_made_of(kind: str, tmp_path: Path) -> None:
    """On six ranks: rows and columns of every tensor are cut."""
    saved = save_random_model(tmp_path / "folder", kind)
    source = gguf_source(convert(saved, kind, tmp_path / "model.gguf"))
    engine = ChunkedEngine(
        source,
        layout=Layout(tp_size=6, dcp_size=2),
        geometry=Geometry(page_size=3, dcp_size=2),
        num_blocks=60,
        reference=saved.logits,
        tolerance=1e-4,
    )
    random = Random(0)
    engine.check([[random.randrange(VOCAB) for _ in range(length)] for length in (1, 40)], random)
    engine.world.close()


def test_a_header_says_what_the_folder_s_config_says(tmp_path: Path) -> None:
    saved = save_random_model(tmp_path / "folder", "llama-llama3")
    path = convert(saved, "llama-llama3", tmp_path / "model.gguf")
    folder, file = read_hf_config(saved.folder), read_gguf_config(GgufFile(path))
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads"):
        assert getattr(folder, name) == getattr(file, name)
    assert (file.head_dim, file.max_context, file.tied_embeddings) == (8, 512, False)
    assert file.eos_token_ids == (2, 5)
    assert isinstance(file.rope_scaling, ListedRope)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "F16", "BF16", "F32"])
def test_any_rows_and_columns_of_a_quantized_tensor_are_those_of_the_whole(kind: str, tmp_path: Path) -> None:
    """Columns that begin and end inside blocks of 32, too."""
    random = np.random.default_rng(0)
    values = random.standard_normal((10, 128), dtype=np.float32)
    quantized = gguf.quantize(values, gguf.GGMLQuantizationType[kind])
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_tensor("blk.0.ffn_down.weight", quantized, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint, name = GgufCheckpoint(path, head_dim=2), "model.layers.0.mlp.down_proj.weight"
    whole = checkpoint.read(name, shape=[10, 128])
    expected = gguf.dequantize(quantized, gguf.GGMLQuantizationType[kind]).reshape(10, 128)
    assert torch.equal(whole, torch.from_numpy(expected.astype(np.float32)))
    part = checkpoint.read(name, shape=[10, 128], rows=range(3, 7), columns=range(41, 97))
    assert torch.equal(part, whole[3:7, 41:97])


def rewritten(path: Path, change: Callable[[bytes], bytes]) -> Path:
    path.write_bytes(change(path.read_bytes()))
    return path


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda data: b"", "cannot be read"),
        (lambda data: b"PK\x03\x04" + data[4:], r"it starts with b'PK\x03\x04', not b'GGUF'"),
        (lambda data: data[:4] + b"\x01\0\0\0" + data[8:], "its version is 1, 2 and 3 can be read"),
        (lambda data: data[:100], "it ends within its header, at byte 100"),
        (lambda data: data[:16] + b"\xff" * 8 + data[24:], "it ends within its header"),
    ],
)
def test_what_is_no_gguf_file_is_one_line(tmp_path: Path, change: Callable[[bytes], bytes], complaint: str) -> None:
    saved = save_random_model(tmp_path / "folder", "qwen3")
    path = rewritten(convert(saved, "qwen3", tmp_path / "model.gguf"), change)
    with pytest.raises(ModelError, match=re.escape(complaint)) as caught:
        GgufFile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tensors_that_are_cut_off_are_named(tmp_path: Path) -> None:
    saved = save_random_model(tmp_path / "folder", "qwen3")
    path = rewritten(convert(saved, "qwen3", tmp_path / "model.gguf"), lambda data: data[:-2000])
    source = gguf_source(path)
    with pytest.raises(CheckpointError, match=r"tensor \S+ cannot be read"):
        load_weights(
            GgufCheckpoint(path, head_dim=source.config.head_dim),
            source.config,
            Layout().weights(source.config, rank=0),
            device=CPU,
            dtype=torch.float32,
        )


def write_header(path: Path, architecture: str, values: Sequence[tuple[str, object]]) -> None:
    """Metadata of a small model, as ``values`` change it (None: left out); one tensor."""
    usual: dict[str, object] = {
        "context_length": 64,
        "embedding_length": 16,
        "block_count": 1,
        "feed_forward_length": 8,
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (usual | dict(values)).items():
        match value:
            case int():
                writer.add_uint32(f"{architecture}.{key}", value)
            case float():
                writer.add_float32(f"{architecture}.{key}", value)
            case str():
                writer.add_string(f"{architecture}.{key}", value)
    writer.add_tensor("token_embd.weight", np.zeros((11, 16), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("architecture", "changes", "complaint"),
    [
        ("gemma3", [], "architecture 'gemma3' is not served, llama, qwen2, qwen3 are"),
        ("llama", [("block_count", None)], "llama.block_count is missing"),
        ("llama", [("block_count", "one")], "llama.block_count: Expected `int`, got `str`"),
        ("llama", [("expert_count", 8)], "llama.expert_count 8 is not served, 0 is"),
        ("llama", [("attention.sliding_window", 32)], "llama.attention.sliding_window 32 is not served, 0 is"),
        ("llama", [("rope.dimension_count", 2)], "llama.rope.dimension_count 2 is not served, 4 is"),
        ("qwen2", [("rope.scaling.type", "yarn")], "rope type 'yarn' is not served, none and linear are"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_in_one_line(
    tmp_path: Path, architecture: str, changes: Sequence[tuple[str, object]], complaint: str
) -> None:
    path = tmp_path / "model.gguf"
    write_header(path, architecture, changes)
    with pytest.raises(ModelError, match=re.escape(complaint)):
        read_gguf_config(GgufFile(path))


def test_a_header_that_says_the_least_is_filled_up(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_header(path, "llama", [])
    model = read_gguf_config(GgufFile(path))
    assert (model.vocab_size, model.head_dim, model.num_kv_heads, model.rope_theta) == (11, 4, 4, 10_000.0)
    assert model.tied_embeddings


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "model.gguf"
    write_header(path, "llama", [("rope.scaling.type", "linear"), ("rope.scaling.factor", 2.0)])
    return path


@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_header_is_read_or_refused_never_worse(small_file: Path, data: st.DataObject) -> None:
    content = bytearray(small_file.read_bytes())
    header = content.index(b"token_embd.weight") + 60
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    damaged = small_file.with_name("damaged.gguf")
    damaged.write_bytes(content[: data.draw(st.one_of(st.none(), st.integers(0, len(content))))])
    with suppress(ModelError):
        read_gguf_config(GgufFile(damaged))

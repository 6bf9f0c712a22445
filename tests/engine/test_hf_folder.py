"""Hugging Face folders: both spellings of a config, sharded files, and one clear line for what cannot be served."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from chunked_engine import CPU
from hf_models import LINEAR, LLAMA3, VOCAB, SavedModel, save_random_model
from safetensors.torch import load_file, save_file

from engine.config import ConfigError, EngineConfig
from engine.model.byte_tokenizer import ByteTokenizer
from engine.model.catalogue import ServedModel
from engine.model.checkpoint import CheckpointError
from engine.model.config import LinearRope, Llama3Rope, ModelError
from engine.model.hf_config import read_hf_config
from engine.model.safetensors_checkpoint import SafetensorsCheckpoint
from engine.model.source import ModelSource
from engine.model.weights import LayerWeights, Weights, load_weights
from engine.parallel.layout import Layout

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def saved(tmp_path: Path) -> SavedModel:
    return save_random_model(tmp_path / "model", "llama")


def rewrite_config(folder: Path, **changes: Any) -> None:
    """Change fields of ``config.json``; None takes one away."""
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))


def rewrite_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def load(folder: Path, *, rank: int = 0, layout: Layout = Layout()) -> Weights[LayerWeights]:  # noqa: B008 - frozen
    model = read_hf_config(folder)
    shard = layout.weights(model, rank=rank)
    return load_weights(SafetensorsCheckpoint(folder), model, shard, device=CPU, dtype=torch.float32)


def test_sizes_are_read_and_what_ends_an_answer(saved: SavedModel) -> None:
    config = read_hf_config(saved.folder)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (VOCAB, 36, 50)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (2, 12, 6, 8)
    assert (config.max_context, config.dtype, config.tied_embeddings) == (512, "float32", False)
    assert config.eos_token_ids == (2, 3)


def test_the_generation_config_has_the_last_word_on_what_ends_an_answer(saved: SavedModel) -> None:
    (saved.folder / "generation_config.json").write_text('{"eos_token_id": 7, "temperature": 0.6}')
    assert read_hf_config(saved.folder).eos_token_ids == (7,)
    (saved.folder / "generation_config.json").unlink()
    assert read_hf_config(saved.folder).eos_token_ids == (2, 3)


@pytest.mark.parametrize("kind", ["rope_type", "type"])
@pytest.mark.parametrize(("scaling", "expected"), [(LINEAR, LinearRope), (LLAMA3, Llama3Rope)])
def test_the_spelling_of_transformers_4_means_the_same(
    saved: SavedModel, kind: str, scaling: dict[str, Any], expected: type
) -> None:
    old = {name: value for name, value in scaling.items() if name not in ("rope_type", "rope_theta")}
    new_folder, old_folder = saved.folder, saved.folder.parent / "old"
    old_folder.mkdir()
    (old_folder / "config.json").write_bytes((new_folder / "config.json").read_bytes())
    rewrite_config(new_folder, rope_parameters=scaling)
    rewrite_config(
        old_folder,
        rope_parameters=None,
        dtype=None,
        torch_dtype="bfloat16",
        rope_theta=scaling["rope_theta"],
        rope_scaling=old | {kind: scaling["rope_type"]},
    )
    new, old_config = read_hf_config(new_folder), read_hf_config(old_folder)
    assert isinstance(new.rope_scaling, expected)
    assert (new.rope_scaling, new.rope_theta) == (old_config.rope_scaling, old_config.rope_theta)
    assert old_config.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"model_type": "gpt2", "hidden_size": None},
            "model_type 'gpt2' is not served, llama, mistral, qwen2, qwen3, minimax are",
        ),
        ({"vocab_size": None}, "Object missing required field `vocab_size`"),
        ({"hidden_size": "many"}, "Expected `int`, got `str` - at `$.hidden_size`"),
        ({"num_hidden_layers": 0}, "Expected `int` >= 1 - at `$.num_hidden_layers`"),
        ({"num_hidden_layers": 10**9}, "Expected `int` <= 4096 - at `$.num_hidden_layers`"),
        ({"rms_norm_eps": -1e-5}, "Expected `float` >= 0.0 - at `$.rms_norm_eps`"),
        ({"rope_theta": 0}, "Expected `float` > 0.0 - at `$.rope_theta`"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "`float` > 0.0 - at `$.rope_parameters.factor`"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not served, silu is"),
        ({"mlp_bias": True}, "mlp_bias is not served"),
        ({"num_key_value_heads": 5}, "12 attention heads are not a multiple of 5 KV heads"),
        ({"head_dim": 7}, "head_dim 7 is odd, rotary positions turn pairs"),
        ({"head_dim": None, "hidden_size": 37}, "hidden_size 37 is not a multiple of 12 attention heads"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types names sliding windows"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layers of type 'chunked_attention' are not served"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers, the model has 2"),
        ({"sliding_window": 0}, "Expected `int` >= 1 - at `$.sliding_window`"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config (awq) is not served"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope type 'yarn' is not served, default, linear and llama3 are"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope type linear lacks some of its numbers"),
        ({"rope_parameters": LLAMA3 | {"high_freq_factor": LLAMA3["low_freq_factor"]}}, "low_freq_factor below high"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_in_one_line(
    saved: SavedModel, changes: dict[str, Any], complaint: str
) -> None:
    rewrite_config(saved.folder, **changes)
    with pytest.raises(ModelError, match=re.escape(complaint)) as caught:
        read_hf_config(saved.folder)
    assert str(saved.folder / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "windowed"),
    [
        ({"model_type": "mistral"}, (0, 1)),
        ({"model_type": "qwen2", "use_sliding_window": False}, ()),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1}, (1,)),
        ({"model_type": "qwen3", "use_sliding_window": True}, ()),  # from layer 28 on
        ({"model_type": "qwen3", "layer_types": ["sliding_attention", "full_attention"]}, (0,)),
    ],
)
def test_windows_are_where_transformers_has_them(
    saved: SavedModel, changes: dict[str, Any], windowed: tuple[int, ...]
) -> None:
    rewrite_config(saved.folder, sliding_window=64, **changes)
    config = read_hf_config(saved.folder)
    assert (config.window, config.windowed_layers) == (64, windowed)


def test_a_window_is_served_up_to_its_width_and_refused_by_name_above(saved: SavedModel) -> None:
    rewrite_config(saved.folder, model_type="mistral", sliding_window=64)
    source = ModelSource(config=read_hf_config(saved.folder), kind="folder", path=str(saved.folder))
    model = ServedModel(path="m", tokenizer=ByteTokenizer(), eos_token_ids=(), source=source)
    sharded = EngineConfig(tp_size=2, dcp_size=2, context_length=64).fitted_to(model)
    assert sharded.cache_groups(model).advertised_width().value == sharded.geometry.block_width
    for tp_size, dcp_size, complaint in (
        (1, 1, "model: sliding windows of 64 tokens are not computed, context_length 512 is more"),
        (2, 2, "model: sliding_window layers (window 64) cannot be sharded over dcp_size 2: a window needs dcp_size 1"),
    ):
        with pytest.raises(ConfigError, match=re.escape(complaint)):
            EngineConfig(tp_size=tp_size, dcp_size=dcp_size).fitted_to(model)


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff", b"[]", b'{"x":' + b"[" * 50_000])
def test_a_config_that_cannot_be_read_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json") as caught:
        read_hf_config(tmp_path)
    assert "\n" not in str(caught.value)


def test_weights_in_several_files_are_the_same_weights(tmp_path: Path) -> None:
    one = save_random_model(tmp_path / "one", "qwen3")
    many = save_random_model(tmp_path / "many", "qwen3", shard_size="20KB")
    assert len(list(many.folder.glob("*.safetensors"))) > 2
    whole, sharded = load(one.folder), load(many.folder)
    assert torch.equal(whole.embedding, sharded.embedding)
    for a, b in zip(whole.layers, sharded.layers, strict=True):
        assert torch.equal(a.qkv, b.qkv)
        assert torch.equal(a.down, b.down)


def test_ranks_read_their_shares_which_make_the_whole(saved: SavedModel) -> None:
    layout = Layout(tp_size=4, dcp_size=2)
    whole, shares = load(saved.folder), [load(saved.folder, rank=rank, layout=layout) for rank in range(4)]
    for index, layer in enumerate(whole.layers):
        parts = [share.layers[index] for share in shares]
        assert torch.equal(torch.cat([part.out for part in parts], dim=1), layer.out)
        assert torch.equal(torch.cat([part.down for part in parts], dim=1), layer.down)
        assert [len(part.gate_up) for part in parts] == [24, 26, 24, 26]
        assert torch.equal(parts[0].qkv, parts[1].qkv)


def test_a_tied_model_s_own_copy_of_the_embedding_is_ignored(saved: SavedModel) -> None:
    rewrite_config(saved.folder, tie_word_embeddings=True)
    weights = load(saved.folder)
    assert torch.equal(weights.head, weights.embedding)


def test_buffers_that_old_exporters_wrote_are_ignored(saved: SavedModel) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite_weights(saved.folder, lambda tensors: tensors.update({name: torch.ones(4)}))
    load(saved.folder)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda tensors: tensors.pop(Q_PROJ), f"tensor {Q_PROJ} is missing, the model needs one of shape [96, 36]"),
        (
            lambda tensors: tensors.update({Q_PROJ: torch.ones(36, 96)}),
            f"tensor {Q_PROJ} has shape [36, 96], the model needs [96, 36]",
        ),
        (
            lambda tensors: tensors.update({"model.layers.1.self_attn.q_proj.bias": torch.ones(96)}),
            "tensor model.layers.1.self_attn.q_proj.bias has no place in model model",
        ),
        (
            lambda tensors: tensors.update({"model.layers.2.mlp.up_proj.weight": torch.ones(50, 36)}),
            "tensor model.layers.2.mlp.up_proj.weight has no place in model model",
        ),
    ],
)
def test_weights_that_do_not_fit_the_config_are_refused_by_name(
    saved: SavedModel, change: Callable[[dict[str, torch.Tensor]], None], complaint: str
) -> None:
    rewrite_weights(saved.folder, change)
    with pytest.raises(CheckpointError, match=re.escape(complaint)) as caught:
        load(saved.folder)
    assert "\n" not in str(caught.value)


def test_a_folder_without_safetensors_says_what_is_looked_for(saved: SavedModel) -> None:
    (saved.folder / "model.safetensors").rename(saved.folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json"):
        load(saved.folder)


def test_a_file_that_is_cut_off_is_one_line(saved: SavedModel) -> None:
    path = saved.folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read") as caught:
        load(saved.folder)
    assert "\n" not in str(caught.value)


def test_an_index_that_leads_nowhere_is_one_line(tmp_path: Path) -> None:
    many = save_random_model(tmp_path / "many", "llama", shard_size="20KB")
    first = min(many.folder.glob("*.safetensors"))
    first.unlink()
    with pytest.raises(CheckpointError, match=f"{first.name} cannot be read"):
        load(many.folder)

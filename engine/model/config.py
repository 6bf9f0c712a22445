"""The shape of a Llama-like model, as numbers. Knows nothing of torch: servers and simulations read it too."""

from __future__ import annotations

import msgspec

from contract.byte_tokenizer import END, EOS, VOCABULARY

__all__ = ["TINY", "LinearRope", "ListedRope", "Llama3Rope", "ModelConfig", "ModelError", "RopeScaling"]


class ModelError(ValueError):
    """A model that cannot be found, read or served; the message is one line that names what is wrong."""


class LinearRope(msgspec.Struct, frozen=True, tag=True):
    """Positions count ``1 / factor`` each (Hugging Face's ``linear``)."""

    factor: float


class Llama3Rope(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Slow dimensions turn ``factor`` times slower, fast ones as before, those between in between (``llama3``).

    A dimension is slow or fast by how often it turns within ``original_context`` tokens: fewer than
    ``low_freq_factor`` times, more than ``high_freq_factor`` times.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


class ListedRope(msgspec.Struct, frozen=True, tag=True):
    """Dimension ``i`` turns ``factors[i]`` times slower, as GGUF files list it; ``head_dim / 2`` factors."""

    factors: tuple[float, ...]


RopeScaling = LinearRope | Llama3Rope | ListedRope


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and constants of a decoder with RMSNorm, rotary positions, grouped queries and SwiGLU.

    ``num_heads`` query heads share ``num_kv_heads`` key/value heads in contiguous runs. ``max_context`` counts tokens,
    prompt and answer together. With ``tied_embeddings`` the embedding is the output projection too. ``qkv_bias``,
    ``out_bias``: whether those projections add a bias; ``qk_norm``: whether each head's queries and keys are normed
    before they are turned. In ``windowed_layers`` a token sees only itself and the ``window - 1`` tokens before it,
    which is not computed, so sequences may be ``window`` tokens long. ``dtype`` is torch's name for what the weights
    are kept in.

    Raises:
        ModelError: sizes that make no such model.
    """

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rms_eps: float = 1e-5
    tied_embeddings: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    window: int | None = None
    windowed_layers: tuple[int, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"{self.num_heads} attention heads are not a multiple of {self.num_kv_heads} KV heads")
        if self.head_dim % 2:
            raise ModelError(f"head_dim {self.head_dim} is odd, rotary positions turn pairs")


TINY = ModelConfig(
    name="tiny",
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_context=16_384,
    eos_token_ids=(EOS, END),
)

"""A gated linear-attention layer, as one rank computes it.

Its states are replicated: every rank computes all heads, so ranks need tell each other nothing before the output
projection, which they share out by columns as they do behind full attention. Knows nothing of how the sum over ranks
is made.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from engine.cache.state_pool import StatePool
from engine.kernels.linear_attention import Decay, linear_decode, linear_extend
from engine.model.config import ModelConfig
from engine.model.hybrid_weights import LinearWeights
from engine.model.linear import Linear
from engine.model.state_plan import StatePlan, StateRun

__all__ = ["LinearAttentionLayer"]

_RMS_EPS = 1e-6  # of the norm behind the heads, whatever the model's other norms have


class LinearAttentionLayer:
    """The ``pool_layer``-th of the layers that have states. ``columns`` are this rank's of all heads' features."""

    def __init__(
        self, pool_layer: int, *, model: ModelConfig, weights: LinearWeights, columns: range, pool: StatePool
    ) -> None:
        self._pool_layer = pool_layer
        self._head_dim = model.head_dim
        self._columns = slice(columns.start, columns.stop)
        self._qkv = Linear(weights.qkv)
        self._gate = Linear(weights.gate)
        self._norm = weights.inner_norm
        self._out = Linear(weights.out)
        self._decay = Decay(weights.slopes)
        self._pool = pool

    def __call__(self, normed: Tensor, plan: StatePlan) -> Tensor:
        """This rank's part of ``[T, hidden]``, of normed states; moves the sequences' states as ``plan`` says."""
        qkv = F.silu(self._qkv(normed)).float()
        queries, keys, values = qkv.view(len(qkv), -1, 3, self._head_dim).unbind(2)  # each [T, heads, head_dim]
        attended = self._attend(queries, keys, values, plan).flatten(1)
        scale = torch.rsqrt(attended.pow(2).mean(dim=-1, keepdim=True) + _RMS_EPS)  # over all heads' features
        own = (attended[:, self._columns] * scale).to(normed.dtype) * self._norm
        return self._out(torch.sigmoid(self._gate(normed)) * own)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, plan: StatePlan) -> Tensor:
        """``[T, heads, head_dim]``."""
        states = self._pool.read(self._pool_layer, plan.sources)  # before any is written: slots may be both
        runs = [self._extend(queries, keys, values, states[run.source], run) for run in plan.runs]
        if count := plan.singles:
            output, behind = linear_decode(
                queries[:count], keys[:count], values[:count], states[:count], decay=self._decay
            )
            self._pool.write(self._pool_layer, plan.targets, behind.index_select(0, plan.saved_singles))
            return torch.cat([output, *runs])
        return torch.cat(runs)

    def _extend(self, queries: Tensor, keys: Tensor, values: Tensor, state: Tensor, run: StateRun) -> Tensor:
        """One run's output, computed piece by piece between its cuts."""
        outputs, saved, start = [], [], run.start
        for cut in run.cuts:
            if cut > start:
                rows = slice(start, cut)
                output, state = linear_extend(queries[rows], keys[rows], values[rows], state, decay=self._decay)
                outputs.append(output)
                start = cut
            saved.append(state)
        self._pool.write(self._pool_layer, run.targets, torch.stack(saved))
        return torch.cat(outputs)

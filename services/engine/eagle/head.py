"""What an EAGLE-3 head computes (Li et al., 2503.01840), for the rows of one step.

A row is a token's embedding beside a feature: of the target's states at the position before it,
or what the head itself put out there. One decoder layer (seldom more) over these rows gives
logits over the draft's vocabulary, and the feature of the next row.

Few operations, as in `services.engine.native.fused_layers`: queries, keys and values are one
product, gate and up another; embeddings are normalised once, at load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from services.engine.eagle.turning import Turning
from services.engine.native import packing
from services.engine.number_formats import NumberFormat, number_format, require_int8
from services.engine.spec import INT8, ModelSpec

if TYPE_CHECKING:
    from services.engine.eagle.layout import HeadConfig

Weights = Callable[[str], Tensor]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""A layer's queries [1, heads, n, d], keys and values [1, kv_heads, n, d] to [n, heads * d]."""
_CHUNK = 8192


class _Packed(nn.Module):
    """Linear modules and vectors of one format, on one device, the former packed for CPUs."""

    def __init__(self, form: NumberFormat, device: str) -> None:
        super().__init__()
        self.form, self.device = form, torch.device(device)
        self.dtype = form.read
        """Of rows."""

    def _linear(self, *weights: Tensor, bias: Sequence[Tensor] = ()) -> nn.Linear:
        """One module of several weights, one below the other."""
        whole = torch.cat([weight.to(self.dtype) for weight in weights])
        made = nn.Linear(whole.shape[1], whole.shape[0], bias=False, device="meta")
        made.weight = nn.Parameter(whole.to(self.device), requires_grad=False)
        if bias:
            joined = torch.cat([one.to(self.dtype) for one in bias]).to(self.device)
            made.bias = nn.Parameter(joined, requires_grad=False)
        return made

    def _vector(self, weight: Tensor) -> nn.Parameter:
        return nn.Parameter(weight.to(self.device, self.dtype), requires_grad=False)

    def _pack(self) -> None:
        """Order the weights as this CPU multiplies them fastest."""
        kind = packing.packing_of(self, self.form)
        if kind is not None:
            packing.pack(self, kind)
            self.dtype = self.form.computed


class Norm(nn.Module):
    """RMS norm (Zhang and Sennrich, 1910.07467)."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self._epsilon = torch.tensor([epsilon], device=weight.device)
        self._share = 1 / len(weight)

    def forward(self, rows: Tensor) -> Tensor:
        """Rows [..., d]; scaled in float32, whatever their dtype."""
        length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self._epsilon, length, length, value=self._share).rsqrt_()
        return (rows * scale).to(rows.dtype) * self.weight


class Fusion(_Packed):
    """The target's states to a feature."""

    def __init__(
        self, config: HeadConfig, states: int, weights: Weights, dtype: str, device: str
    ) -> None:
        super().__init__(number_format(dtype, device, "fusion"), device)
        self.states, self.width = states, config.target_width
        self._whole, self._single = None, nn.ModuleList()
        if config.norm_before_fc:
            self._whole = Norm(self._vector(weights("input_norm.weight")), config.epsilon)
        if config.fc_norm:
            vectors = [self._vector(weights(f"fc_norm.{i}.weight")) for i in range(states)]
            self._single.extend([Norm(vector, config.epsilon) for vector in vectors])
        self.fc = self._linear(weights("fc.weight"))
        self._pack()

    def forward(self, states: Tensor) -> Tensor:
        """States [n, states * width] to features [n, head's width]."""
        rows = states.to(self.device, self.dtype)
        if self._whole is not None:
            rows = self._whole(rows)
        if self._single:
            parts = zip(self._single, rows.chunk(self.states, -1), strict=True)
            rows = torch.cat([norm(part) for norm, part in parts], -1)
        return self.fc(rows)  # type: ignore[no-any-return]


class Layer(_Packed):
    """One decoder layer like Llama's; the first one's attention reads rows twice as wide."""

    def __init__(
        self, config: HeadConfig, number: int, weights: Any, form: NumberFormat, device: str
    ) -> None:
        """`weights`: a `HeadTensors`, or what gives tensors by name and has `optional`."""
        super().__init__(form, device)
        self.number, self._kept = number, config.kv_heads

        def get(name: str) -> Tensor:
            return weights(f"layers.{number}.{name}")  # type: ignore[no-any-return]

        def norm(name: str) -> Norm:
            return Norm(self._vector(get(f"{name}.weight")), config.epsilon)

        asked = [f"self_attn.{name}_proj" for name in "qkv"]
        bias = [get(f"{name}.bias") for name in asked] if config.bias else []
        self.qkv = self._linear(*(get(f"{name}.weight") for name in asked), bias=bias)
        out = weights.optional(f"layers.{number}.self_attn.o_proj.bias")
        self.out = self._linear(get("self_attn.o_proj.weight"), bias=[] if out is None else [out])
        self.gate_up = self._linear(get("mlp.gate_proj.weight"), get("mlp.up_proj.weight"))
        self.down = self._linear(get("mlp.down_proj.weight"))
        # Of each head's queries and keys, as Qwen 3 has them.
        self.normed = [norm(f"self_attn.{n}_norm") for n in "qk"] if config.head_norms else []
        self.before = norm("input_layernorm" if number else "hidden_norm")
        self.between = norm("post_attention_layernorm")

    def forward(
        self, rows: Tensor, stream: Tensor, turn: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """What attention reads [n, ...] and the residual stream [n, d] to the stream behind it."""
        count, kept = len(rows), self._kept
        heads = self.qkv.forward(rows).view(1, count, -1, turn[0].shape[-1])
        turned, values = heads[:, :, :-kept], heads[:, :, -kept:].transpose(1, 2)
        if self.normed:
            parts = zip(self.normed, (turned[:, :, :-kept], turned[:, :, -kept:]), strict=True)
            turned = torch.cat([norm.forward(part) for norm, part in parts], 2)
        asking = _rotated(turned, *turn).transpose(1, 2)
        attended = attend(self.number, asking[:, :-kept], asking[:, -kept:], values)
        stream = _plus(self.out, attended, stream)
        gate, up = self.gate_up.forward(self.between.forward(stream)).chunk(2, -1)
        return _plus(self.down, F.silu(gate).mul_(up), stream)


class Head(_Packed):
    """All but the fusion."""

    def __init__(
        self,
        config: HeadConfig,
        weights: Any,
        embeddings: Tensor,
        columns: Tensor,
        spec: ModelSpec,
    ) -> None:
        """`embeddings`, `columns`: a row for each token that may come, and that it may say."""
        device = spec.device
        if spec.dtype == INT8:
            require_int8(device, spec.model)
        super().__init__(number_format(spec.dtype, device), device)
        self.norm_first = config.norm_before_residual
        """Whether the residual stream begins behind the feature's norm."""
        self._norm_output = config.norm_output
        self._scale = config.logit_scale
        self.layers = nn.ModuleList(
            Layer(config, number, weights, self.form, device) for number in range(config.layers)
        )
        self.norm = Norm(self._vector(weights("norm.weight")), config.epsilon)
        self.lm_head = self._linear(columns)
        first = self._vector(weights("layers.0.input_layernorm.weight"))
        table = _normalised(embeddings.to(self.dtype), Norm(first.cpu(), config.epsilon))
        self.register_buffer("_table", table.to(device), persistent=False)
        self._pack()
        # As a plain tuple: looking into a list of modules takes time in every step.
        self._layers: tuple[Layer, ...] = tuple(self.layers)  # type: ignore[arg-type]
        self._turn = Turning(config.rope, config.head_width, self.device, self.dtype)

    def embed(self, token_ids: Sequence[int]) -> Tensor:
        """Normalised embeddings [n, d]."""
        index = torch.tensor(token_ids, device=self.device)
        return F.embedding(index, self._table).to(self.dtype)  # type: ignore[arg-type]

    def forward(
        self, token_ids: Sequence[int], features: Tensor, positions: Sequence[int], attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """For features [n, d]: what `logits` takes [n, d], and the features of the rows behind."""
        turn = self._turn(positions)
        normed = self._layers[0].before.forward(features)
        stream = normed if self.norm_first else features
        rows = torch.cat((self.embed(token_ids), normed), -1)
        for layer in self._layers:
            taken = layer.before.forward(stream) if layer.number else rows
            stream = layer.forward(taken, stream, turn, attend)
        normed = self.norm.forward(stream)
        return normed, normed if self._norm_output else stream

    def logits(self, rows: Tensor) -> Tensor:
        """Logits float32 [n, draft's vocabulary]."""
        said = self.lm_head.forward(rows).float()
        return said if self._scale == 1.0 else said.mul_(self._scale)


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads [1, n, heads, d] turned by their positions; the first half of `sin` is negative."""
    low, high = heads.chunk(2, -1)
    return torch.cat((high, low), -1).mul_(sin).addcmul_(heads, cos)


def _plus(linear: Any, rows: Tensor, added: Tensor) -> Tensor:
    """A product and `added`, in one call where there is one."""
    if isinstance(linear, packing.PackedLinear):
        return linear.plus(rows, added)
    return linear.forward(rows).add_(added)  # type: ignore[no-any-return]


def _normalised(embeddings: Tensor, norm: Norm) -> Tensor:
    """Embeddings [V, d] behind their norm, a part at a time."""
    table = torch.empty_like(embeddings)
    for start in range(0, len(table), _CHUNK):
        table[start : start + _CHUNK] = norm(embeddings[start : start + _CHUNK])
    return table

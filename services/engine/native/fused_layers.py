"""Decoder layers like Llama's in fewer operations, for the CPU.

At a few rows most operations cost more to call than to compute. Besides products and attention
a layer of transformers makes thirty of them, with dozens of views and calls of modules around
them. Here sixteen do the same arithmetic: queries and keys are rotated as one and in place, K and V
are stored as one, and a product adds to the residual stream itself. What a layer needs is found
once, at load, and what all layers need once a step.

A layer changes its class and nothing else: modules, weights, hooks and copies of it work as
before, except that modules inside of it are not called, nor their hooks. With a sub-layer left
out, or without a packed step (as in the self-check's own pass), it runs what it inherits, which
is transformers' forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from services.engine.native.attending import Scoring
from services.engine.native.packing import PackedLinear, whole_product
from services.engine.threads import GRAIN, shared_evenly

_Window = Callable[[Any], int | None]


def _no_window(attention: Any) -> None:  # noqa: ARG001
    return None


def _window_of_config(attention: Any) -> int | None:
    return getattr(attention.config, "sliding_window", None)


def _window_of_module(attention: Any) -> int | None:
    return attention.sliding_window  # type: ignore[no-any-return]


_WINDOWS: dict[str, _Window] = {
    "transformers.models.llama.modeling_llama.LlamaDecoderLayer": _no_window,
    "transformers.models.mistral.modeling_mistral.MistralDecoderLayer": _window_of_config,
    "transformers.models.qwen2.modeling_qwen2.Qwen2DecoderLayer": _window_of_module,
    "transformers.models.qwen3.modeling_qwen3.Qwen3DecoderLayer": _window_of_module,
    "transformers.models.phi3.modeling_phi3.Phi3DecoderLayer": _window_of_config,
    "transformers.models.gemma2.modeling_gemma2.Gemma2DecoderLayer": _window_of_module,
    "transformers.models.gemma3.modeling_gemma3.Gemma3DecoderLayer": _window_of_module,
}
"""The layers that can be computed so, and where each has its sliding window."""
_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}
"""By what an MLP's gate goes through."""


class _Norm(NamedTuple):
    """RMS norm (Zhang and Sennrich, 1910.07467)."""

    weight: Tensor
    epsilon: Tensor
    share: float
    """Of one column in the mean."""
    late: bool
    """Whether what it gives is rounded behind the weight, not before."""

    @classmethod
    def of(cls, norm: Any) -> _Norm:
        """What transformers' module has; Gemma's weights are what is added to one."""
        late = hasattr(norm, "eps")
        epsilon = torch.tensor([norm.eps if late else norm.variance_epsilon])
        weight = 1.0 + norm.weight.float() if late else norm.weight
        return cls(weight, epsilon, 1 / len(weight), late)

    @classmethod
    def of_heads(cls, attention: Any) -> _Norm:
        """Of queries and keys [..., heads, d] as one."""
        asked = (attention.q_norm, attention.q_proj), (attention.k_norm, attention.k_proj)
        width = attention.head_dim
        each = [cls.of(norm) for norm, own in asked for _ in range(own.out_features // width)]
        weight, epsilon, share, late = zip(*each, strict=True)
        return cls(torch.stack(weight), torch.stack(epsilon), share[0], late[0])

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows [..., d], rounded as transformers does."""
        wide = rows.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self.epsilon, length, length, value=self.share).rsqrt_()
        if rows.dtype is torch.float32:
            return (wide * scale).mul_(self.weight)
        scaled = wide.mul_(scale)
        if self.late:
            return scaled.mul_(self.weight).type_as(rows)
        return scaled.type_as(rows).mul_(self.weight)


class _Turn(NamedTuple):
    """Rotary positions of a step's rows (Su et al., 2104.09864)."""

    embeddings: tuple[Tensor, Tensor]
    """As transformers has them, [1, n, d]."""
    cos: Tensor
    sin: Tensor
    """[n, 1, d]; the first half of the sines is negative."""
    half: int

    @classmethod
    def of(cls, embeddings: tuple[Tensor, Tensor], known: dict[int, Any]) -> _Turn:
        """Made once for all layers that are given the same: see `Layout.once`."""
        found: _Turn | None = known.get(id(embeddings))
        if found is None:
            cos, sin = (each[0][:, None] for each in embeddings)
            low, high = sin.chunk(2, -1)
            found = cls(embeddings, cos, torch.cat((-low, high), -1), low.shape[-1])
            known[id(embeddings)] = found
        return found

    def into(self, turned: Tensor, heads: Tensor) -> None:
        """Heads [n, heads, d], turned; the two may be one."""
        other = heads.roll(self.half, -1).mul_(self.sin)
        torch.addcmul(other, heads, self.cos, out=turned)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a layer computes with, found once: each look into a module costs time as well."""

    attention: Any
    mlp: Any
    qkv: PackedLinear
    out: PackedLinear
    gate_up: PackedLinear
    down: PackedLinear
    norms: tuple[_Norm, _Norm]
    """Before attention and before the MLP."""
    behind: tuple[_Norm, _Norm] | None
    """Of what attention and the MLP add to the residual stream."""
    head_norm: _Norm | None
    """Of queries and keys."""
    kv_heads: int
    gate: Callable[[Tensor], Tensor]
    softcap: float | None

    @classmethod
    def of(cls, layer: Any) -> _Parts | None:
        """Those of a known layer; None unless its weights are packed, siblings as one."""
        attention, mlp = layer.self_attn, layer.mlp
        products = (*_beginnings(attention, mlp), attention.o_proj, mlp.down_proj)
        if not all(isinstance(one, PackedLinear) for one in products):
            return None
        qkv, gate_up, out, down = products
        wide = hasattr(layer, "pre_feedforward_layernorm")
        named = (*_NORMS, *_NORMS_BEHIND) if wide else _NORMS_ALONE
        norms = [_Norm.of(getattr(layer, name)) for name in named]
        kept = qkv.out_features - out.in_features
        return cls(
            attention,
            mlp,
            qkv,
            out,
            gate_up,
            down,
            norms=(norms[0], norms[1]),
            behind=(norms[2], norms[3]) if wide else None,
            head_norm=_Norm.of_heads(attention) if hasattr(attention, "q_norm") else None,
            kv_heads=kept // (2 * attention.head_dim),
            gate=_GATES[_activation(layer)],
            softcap=getattr(attention, "attn_logit_softcapping", None),
        )

    def heads(self, rows: Tensor, turn: _Turn) -> Tensor:
        """Of rows [n, d] queries and keys, turned, and values: [n, heads, head_dim]."""
        every = self.qkv.forward(rows).view(rows.shape[0], -1, turn.cos.shape[-1])
        turned = every[:, : -self.kv_heads]
        asking = turned if self.head_norm is None else self.head_norm(turned)
        turn.into(turned, asking)
        return every

    def attended(self, rows: Tensor, stream: Tensor) -> Tensor:
        """The residual stream [n, d] after attention, which gives rows [n, heads * d]."""
        if self.behind is None:
            return self.out.plus(rows, stream)
        return self.behind[0](self.out.forward(rows)).add_(stream)

    def fed_forward(self, stream: Tensor) -> Tensor:
        """The residual stream [n, d] after the MLP."""
        gate, up = self.gate_up.forward(self.norms[1](stream)).chunk(2, -1)
        rows = _by_whole_rows(self.gate, gate).mul_(up)
        if self.behind is None:
            return self.down.plus(rows, stream)
        return self.behind[1](self.down.forward(rows)).add_(stream)


def _by_whole_rows(compute: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """What `compute` makes of each number of rows [n, d], with the bits that a row has alone.

    PyTorch cuts a large operation anywhere, one piece to a thread, and computes the last few
    numbers of a piece otherwise than those before. So here the cuts are between rows.
    """
    count, width = rows.shape
    threads = 1 if rows.numel() < _UNCUT else torch.get_num_threads()
    if threads == 1:
        return compute(rows)
    if not shared_evenly(threads):
        return _uncut(compute, rows)
    even = count - count % threads
    if width >= _UNCUT or even * width <= (threads - 1) * GRAIN:
        even = 0
    few = max(1, (_UNCUT - 1) // width)
    parts = [compute(rows[:even])] if even else []
    parts += [compute(rows[start : start + few]) for start in range(even, count, few)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _uncut(compute: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """The same in pieces that one thread computes each, where nobody knows how many there are."""
    few = max(1, (_UNCUT - 1) // rows.shape[-1])
    each = [
        [compute(own) for own in torch.split(some, _UNCUT // 2, -1)]
        for some in torch.split(rows, few)
    ]
    return torch.cat([torch.cat(parts, -1) for parts in each])


_UNCUT = 1 << 14
"""Numbers from which on PyTorch cuts GELU; what else only where each thread has `GRAIN`."""
_NORMS_ALONE = ("input_layernorm", "post_attention_layernorm")
_NORMS = ("input_layernorm", "pre_feedforward_layernorm")
_NORMS_BEHIND = ("post_attention_layernorm", "post_feedforward_layernorm")


def _beginnings(attention: Any, mlp: Any) -> tuple[Any, Any]:
    """The products of queries, keys and values, and of gate and up; None for what there is not."""
    if hasattr(attention, "qkv_proj"):
        return attention.qkv_proj, mlp.gate_up_proj
    qkv = whole_product((attention.q_proj, attention.k_proj, attention.v_proj))
    return qkv, whole_product((mlp.gate_proj, mlp.up_proj))


def _activation(layer: Any) -> str:
    config = layer.mlp.config
    return getattr(config, "hidden_activation", None) or config.hidden_act  # type: ignore[no-any-return]


class FusedLayer(nn.Module):
    """What goes before transformers' layer among the bases of a fused one."""

    stock: type[nn.Module]
    """The layer's class in transformers."""
    window: _Window
    """Of an attention module, asked in each step: the self-check shortens it for a while."""
    parts: _Parts

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The residual stream [1, n, d] after this layer."""
        layout, parts = kwargs.get("paceline_layout"), self.parts
        if layout is None or not self._is_whole():
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[no-any-return]
        attention = parts.attention
        turn = _Turn.of(kwargs["position_embeddings"], layout.once)
        stream = hidden_states.squeeze(0)
        heads = parts.heads(parts.norms[0](stream), turn)
        scoring = Scoring(attention.scaling, self.window(attention), parts.softcap)
        rows = layout.attend_heads(attention.layer_idx, heads, parts.kv_heads, scoring)
        return parts.fed_forward(parts.attended(rows, stream)).unsqueeze(0)

    def _is_whole(self) -> bool:
        """Whether no stand-in is in the place of a sub-layer."""
        there, parts = self._modules, self.parts
        return there["self_attn"] is parts.attention and there["mlp"] is parts.mlp


def fuse(model: Any) -> bool:
    """Let every layer that can be computed so be; whether there is one, now or before."""
    for layer in model.modules():
        parts = _Parts.of(layer) if _is_known(layer) else None
        if parts is not None:
            layer.parts, layer.__class__ = parts, _fused(layer.__class__)
    return any(isinstance(module, FusedLayer) for module in model.modules())


def unfuse(model: Any) -> None:
    """Let every layer run as transformers has it."""
    fused = [module for module in model.modules() if isinstance(module, FusedLayer)]
    for layer in fused:
        layer.__class__ = layer.stock  # type: ignore[assignment]
        del layer.parts


def _is_known(module: Any) -> bool:
    if _name(type(module)) not in _WINDOWS or _activation(module) not in _GATES:
        return False
    rope = getattr(module.mlp.config, "rope_parameters", None) or {}
    return rope.get("partial_rotary_factor", 1.0) == 1.0  # type: ignore[no-any-return]


@cache
def _fused(stock: type[nn.Module]) -> type[nn.Module]:
    """The class of such layers."""
    own = {"stock": stock, "window": staticmethod(_WINDOWS[_name(stock)])}
    made: Any = type(f"Fused{stock.__name__}", (FusedLayer, stock), own)
    # transformers wraps it with a question about gradients, asked in each step.
    made.forward = FusedLayer.forward
    return made  # type: ignore[no-any-return]


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"

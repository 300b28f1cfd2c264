"""An EAGLE-3 head (Li et al., 2503.01840) as its training has it.

Row i pairs the feature of position i (states of some target layers, side by side, through `fc`)
with the embedding of token i + 1. One Llama layer over such rows predicts token i + 2, and what
it puts out before its last norm is the head's own feature of position i + 1 for the next step.
Parameters have the names that the stored head has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from services.engine.native.stack import stack_path

#: Spread of parameters that nothing better is known for.
_SPREAD = 0.02
_DEFAULT_THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Sizes of a head. `layers`: those of the target whose input it sees; `tokens`: it knows."""

    layers: tuple[int, ...]
    tokens: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    epsilon: float
    theta: float

    @property
    def state_width(self) -> int:
        """Of the states of one token, side by side."""
        return self.width * len(self.layers)


def shape_of(config: Any, layers: tuple[int, ...], tokens: int) -> HeadShape:
    """The shape of a head for the target of this configuration: about that of its own layers."""
    text = config.get_text_config()
    width, heads = text.hidden_size, text.num_attention_heads
    rope = getattr(text, "rope_parameters", None) or {}
    # As many K/V heads as heads: through them alone a row learns of its token.
    return HeadShape(
        layers,
        tokens,
        width,
        heads,
        kv_heads=heads,
        head_dim=getattr(text, "head_dim", None) or width // heads,
        intermediate=getattr(text, "intermediate_size", None) or 4 * width,
        epsilon=getattr(text, "rms_norm_eps", None) or 1e-5,
        theta=float(rope.get("rope_theta") or _DEFAULT_THETA),
    )


def default_layers(count: int) -> tuple[int, ...]:
    """Of a target of `count` layers a low, a middle and a high one, ascending."""
    return tuple(sorted({min(2, count), count // 2, max(count - 3, 0)}))


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._epsilon = epsilon

    def forward(self, rows: Tensor) -> Tensor:
        """Rows of spread 1, times the weight."""
        return F.rms_norm(rows.float(), self.weight.shape, self.weight, self._epsilon)


class Attention(nn.Module):
    """Projections of an attention whose input is twice as wide as its output."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        inner, outer = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(2 * shape.width, inner, bias=False)
        self.k_proj = nn.Linear(2 * shape.width, outer, bias=False)
        self.v_proj = nn.Linear(2 * shape.width, outer, bias=False)
        self.o_proj = nn.Linear(inner, shape.width, bias=False)


class Layer(nn.Module):
    """The head's one layer, in parts: what is attended to is the learner's to say."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.width, shape.epsilon)
        self.hidden_norm = Norm(shape.width, shape.epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.width, shape.epsilon)
        sizes = LlamaConfig(hidden_size=shape.width, intermediate_size=shape.intermediate)
        self.mlp = LlamaMLP(sizes)

    def rows(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """What the attention sees, [N, 2 x width]."""
        return torch.cat((self.input_layernorm(embeddings), self.hidden_norm(features)), -1)

    def after(self, features: Tensor, attended: Tensor) -> Tensor:
        """The head's own features, from what was attended to [N, heads x head_dim]."""
        residual = features + self.self_attn.o_proj(attended)
        out: Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return out


class EagleHead(nn.Module):
    """A head of this shape, not initialised; see `fresh_head`."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(shape.state_width, shape.width, bias=False)
        self.layers = nn.ModuleList([Layer(shape)])
        self.norm = Norm(shape.width, shape.epsilon)
        self.lm_head = nn.Linear(shape.width, shape.tokens, bias=False)

    @property
    def layer(self) -> Layer:
        """Its one layer."""
        layer = self.layers[0]
        assert isinstance(layer, Layer)
        return layer

    def logits(self, features: Tensor) -> Tensor:
        """Logits float32 [N, tokens] of its own features."""
        out: Tensor = self.lm_head(self.norm(features)).float()
        return out


@torch.no_grad()
def fresh_head(shape: HeadShape, model: Any, head_ids: Tensor, seed: int) -> EagleHead:
    """A head with the target's norm and output rows; the layer's parameters are random."""
    head = EagleHead(shape)
    generator = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, _SPREAD, generator=generator)
    if (final := _final_norm(model)) is not None and final.shape == head.norm.weight.shape:
        head.norm.weight.copy_(final)
    head.lm_head.weight.copy_(model.get_output_embeddings().weight[head_ids])
    return head


def _final_norm(model: Any) -> Tensor | None:
    """The weight of the norm beside the stack, where it has the usual name."""
    body = model.get_submodule(stack_path(model).rpartition(".")[0])
    weight: Tensor | None = getattr(getattr(body, "norm", None), "weight", None)
    return weight

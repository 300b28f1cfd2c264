"""A target of Llama's shape on a GPU: one token for each of many texts, or whole texts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer. `inward`: Q, K and V; `wide`: gate and up."""

    before: Tensor
    inward: Tensor
    outward: Tensor
    between: Tensor
    wide: Tensor
    down: Tensor


class Target:
    """The weights of a `LlamaForCausalLM` in one number format on one device."""

    def __init__(self, model: Any, device: torch.device, dtype: torch.dtype) -> None:
        config = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.layers = config.num_hidden_layers
        self.vocab_size = config.vocab_size
        self.device, self.dtype = device, dtype
        self._epsilon = config.rms_norm_eps
        theta = float(config.rope_parameters["rope_theta"])
        powers = torch.arange(0, self.head_dim, 2, device=device).float() / self.head_dim
        self._frequencies = theta**-powers

        def moved(*parts: Tensor) -> Tensor:
            return torch.cat([part.detach() for part in parts]).to(device, dtype)

        self.embeddings = moved(model.get_input_embeddings().weight)
        self.outputs = moved(model.get_output_embeddings().weight)
        self._norm = moved(model.model.norm.weight)
        self._layers = [
            _Layer(
                moved(layer.input_layernorm.weight),
                moved(*(getattr(layer.self_attn, f"{name}_proj").weight for name in "qkv")),
                moved(layer.self_attn.o_proj.weight),
                moved(layer.post_attention_layernorm.weight),
                moved(layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight),
                moved(layer.mlp.down_proj.weight),
            )
            for layer in model.model.layers
        ]

    def cache(self, texts: int, tokens: int) -> Tensor:
        """K/V of so many texts: [layers, 2, texts, kv_heads, tokens, head_dim]."""
        shape = self.layers, 2, texts, self.kv_heads, tokens, self.head_dim
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def step(self, cache: Tensor, tokens: Tensor, place: int) -> Tensor:
        """Logits [texts, V] after the tokens [texts] at `place`, the next one of all texts."""
        rows = F.embedding(tokens, self.embeddings)
        turn = self._turn(torch.full((1,), place, device=self.device))
        for layer, (keys, values) in zip(self._layers, cache, strict=True):
            q, k, v = self._split(layer, rows, turn)
            keys[:, :, place], values[:, :, place] = k, v
            seen = slice(0, place + 1)
            # The heads that share K and V stand where rows of a text would.
            grouped = q.view(len(q), self.kv_heads, -1, self.head_dim)
            mixed = F.scaled_dot_product_attention(grouped, keys[:, :, seen], values[:, :, seen])
            rows = self._after(layer, rows, mixed.flatten(1))
        return F.rms_norm(rows, self._norm.shape, self._norm, self._epsilon) @ self.outputs.T

    def read(self, tokens: Tensor, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Of texts [B, T]: what goes into `layers` side by side [B, T, n x width], and the last.

        The last is what its norm puts out [B, T, width], for `outputs`.
        """
        rows = F.embedding(tokens, self.embeddings)
        texts, length = tokens.shape
        turn = self._turn(torch.arange(length, device=self.device))
        found: dict[int, Tensor] = {}
        for number, layer in enumerate(self._layers):
            if number in layers:
                found[number] = rows
            q, k, v = self._split(layer, rows.flatten(0, 1), turn, texts)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            mixed = mixed.transpose(1, 2).reshape(texts, length, -1)
            rows = self._after(layer, rows, mixed)
        found.setdefault(self.layers, rows)
        last = F.rms_norm(rows, self._norm.shape, self._norm, self._epsilon)
        return torch.cat([found[layer] for layer in layers], -1), last

    def _turn(self, places: Tensor) -> tuple[Tensor, Tensor]:
        angles = places.float()[:, None] * self._frequencies
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def _split(
        self, layer: _Layer, rows: Tensor, turn: tuple[Tensor, Tensor], texts: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V: [rows, heads, head_dim], of whole texts [texts, heads, tokens, head_dim]."""
        normed = F.rms_norm(rows, layer.before.shape, layer.before, self._epsilon)
        parts = (normed @ layer.inward.T).view(len(rows), -1, self.head_dim)
        if texts:
            parts = parts.view(texts, -1, *parts.shape[1:]).transpose(1, 2)
        q, k, v = torch.split(parts, [self.heads, self.kv_heads, self.kv_heads], 1)
        return _turned(q, turn), _turned(k, turn), v

    def _after(self, layer: _Layer, rows: Tensor, mixed: Tensor) -> Tensor:
        rows = rows + mixed @ layer.outward.T
        normed = F.rms_norm(rows, layer.between.shape, layer.between, self._epsilon)
        gate, up = (normed @ layer.wide.T).chunk(2, -1)
        return rows + (F.silu(gate) * up) @ layer.down.T


def _turned(rows: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding as Llama has it; of [.., heads, head_dim] at one place, or [.., T, dim]."""
    cosine, sine = turn
    one, other = rows.chunk(2, -1)
    return rows * cosine + torch.cat((-other, one), -1) * sine

"""Tiny random heads in both layouts, and what the paper's equations say of them.

`Reference` computes every row anew, by a plain loop over the rows before it on its own path: it
knows nothing of caches, pages, passes or packed products.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

LAYERS = (1, 2, 4)
"""Of a target of four layers, in these tests."""
SHAPE: dict[str, Any] = {
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "num_hidden_layers": 1,
    "vocab_size": 320,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass
class Made:
    """A head: its configuration by plain names, its tensors by the names of `speculators`."""

    shape: dict[str, Any]
    head: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    @property
    def target_width(self) -> int:
        return int(self.head.get("target_hidden_size") or self.shape["hidden_size"])

    @property
    def head_width(self) -> int:
        shape = self.shape
        return int(shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"])


def make(seed: int = 0, *, shape: Mapping[str, Any] = {}, **head: Any) -> Made:
    """A random head; `shape` and `head` change what the two groups of fields say."""
    said = {"draft_vocab_size": 40, "eagle_aux_hidden_state_layer_ids": list(LAYERS)}
    made = Made(SHAPE | dict(shape), said | {"norm_before_residual": True} | head)
    _fill(made, torch.Generator().manual_seed(seed))
    return made


def _fill(made: Made, drawn: torch.Generator) -> None:
    shape, head, tensors = made.shape, made.head, made.tensors
    width, inner, target = shape["hidden_size"], shape["intermediate_size"], made.target_width
    states = len(head["eagle_aux_hidden_state_layer_ids"])
    asked = shape["num_attention_heads"] * made.head_width
    kept = shape["num_key_value_heads"] * made.head_width

    def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        spread = scale / math.sqrt(columns)
        tensors[f"{name}.weight"] = torch.randn(rows, columns, generator=drawn) * spread

    def vector(name: str, size: int) -> None:
        tensors[name] = 1 + 0.3 * torch.randn(size, generator=drawn)

    matrix("embed_tokens", shape["vocab_size"], width, math.sqrt(width))
    matrix("fc", width, states * target)
    matrix("lm_head", head["draft_vocab_size"], width, 3.0)
    vector("norm.weight", width)
    if head.get("norm_before_fc"):
        vector("input_norm.weight", states * target)
    for number in range(states if head.get("fc_norm") else 0):
        vector(f"fc_norm.{number}.weight", target)
    for number in range(shape["num_hidden_layers"]):
        layer = f"layers.{number}"
        taken = width if number else 2 * width
        for name, rows in (("q", asked), ("k", kept), ("v", kept)):
            matrix(f"{layer}.self_attn.{name}_proj", rows, taken, 2.0)
            if shape.get("attention_bias"):
                tensors[f"{layer}.self_attn.{name}_proj.bias"] = torch.randn(rows, generator=drawn)
        matrix(f"{layer}.self_attn.o_proj", width, asked)
        if shape.get("attention_bias"):
            tensors[f"{layer}.self_attn.o_proj.bias"] = torch.randn(width, generator=drawn)
        matrix(f"{layer}.mlp.gate_proj", inner, width)
        matrix(f"{layer}.mlp.up_proj", inner, width)
        matrix(f"{layer}.mlp.down_proj", width, inner)
        vector(f"{layer}.input_layernorm.weight", width)
        vector(f"{layer}.post_attention_layernorm.weight", width)
        if not number:
            vector(f"{layer}.hidden_norm.weight", width)
        for name in "qk" if shape.get("model_type") == "qwen3" else "":
            vector(f"{layer}.self_attn.{name}_norm.weight", made.head_width)
    count = head["draft_vocab_size"]
    if count < shape["vocab_size"]:
        ids = torch.randperm(shape["vocab_size"], generator=drawn)[:count].sort().values
        tensors["d2t"] = ids - torch.arange(count)
        tensors["t2d"] = torch.zeros(shape["vocab_size"], dtype=torch.bool).index_fill_(
            0, ids, True
        )
    if head.get("parallel"):
        tensors["mask_hidden"] = torch.randn(1, 1, states * target, generator=drawn)


# --- On disk --------------------------------------------------------------------------------


def save_speculators(made: Made, folder: Path, **more: Any) -> Path:
    """In the layout of vLLM's `speculators`."""
    head = {name: value for name, value in made.head.items() if name != "parallel"}
    layer = {"model_type": "llama", "hidden_act": "silu", **made.shape}
    method = {"proposal_type": "greedy", "speculative_tokens": made.head.get("parallel") or 3}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "peagle" if made.head.get("parallel") else "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [method],
            "verifier": {"name_or_path": "target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": layer,
        **head,
        **more,
    }
    return write(folder, config, made.tensors)


def save_specforge(made: Made, folder: Path, **more: Any) -> Path:
    """In the layout of SpecForge and of the paper's authors."""
    head = {name: value for name, value in made.head.items() if name != "parallel"}
    eagle = {"eagle_aux_hidden_state_layer_ids": head.pop("eagle_aux_hidden_state_layer_ids")}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        **made.shape,
        **head,
        "eagle_config": eagle,
        **more,
    }
    named = {name.replace("layers.0.", "midlayer."): one for name, one in made.tensors.items()}
    return write(folder, config, named)


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: one.contiguous() for name, one in tensors.items()}, folder / "model.safetensors"
    )
    return folder


# --- The reference --------------------------------------------------------------------------


@dataclass
class Row:
    """One token of a text or tree: the row before it, and what it puts out."""

    token: int
    position: int
    before: Row | None
    state: Tensor | None
    """The target's, at the position before it."""
    soft: bool = False
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    output: Tensor | None = None
    logits: Tensor | None = None
    lives: bool = False


class Reference:
    """The paper's equations, one row at a time, in float64."""

    def __init__(self, made: Made) -> None:
        self.made = made
        self.w = {name: one.double() for name, one in made.tensors.items() if name != "t2d"}

    def norm(self, row: Tensor, name: str) -> Tensor:
        """Of rows [..., d]."""
        scale = (row.square().mean(-1, keepdim=True) + self.made.shape["rms_norm_eps"]).rsqrt()
        scaled: Tensor = row * scale * self.w[name]
        return scaled

    def fused(self, state: Tensor) -> Tensor:
        row, head = state.double(), self.made.head
        if head.get("norm_before_fc"):
            row = self.norm(row, "input_norm.weight")
        if head.get("fc_norm"):
            parts = row.view(-1, self.made.target_width)
            row = torch.cat([self.norm(p, f"fc_norm.{i}.weight") for i, p in enumerate(parts)])
        fused: Tensor = self.w["fc.weight"] @ row
        return fused

    def compute(self, row: Row) -> Row:
        """Fill in what a row puts out, from the rows before it."""
        feature = None
        if row.soft:
            lives = row.state is not None or (row.before is not None and row.before.lives)
            feature = self.fused(self.w["mask_hidden"].flatten()) if lives else None
        elif row.state is not None:
            feature = self.fused(row.state)
        elif row.before is not None and row.before.lives:
            feature = row.before.output
        row.logits = torch.zeros(self.made.head["draft_vocab_size"], dtype=torch.float64)
        if feature is None:
            return row
        row.lives = True
        self._layers(row, feature)
        return row

    def _layers(self, row: Row, feature: Tensor) -> None:
        head = self.made.head
        embedded = self.norm(
            self.w["embed_tokens.weight"][row.token], "layers.0.input_layernorm.weight"
        )
        normed = self.norm(feature, "layers.0.hidden_norm.weight")
        stream = normed if head.get("norm_before_residual") else feature
        taken = torch.cat((embedded, normed))
        for number in range(self.made.shape["num_hidden_layers"]):
            layer = f"layers.{number}"
            if number:
                taken = self.norm(stream, f"{layer}.input_layernorm.weight")
            stream = stream + self._attention(row, number, taken)
            taken = self.norm(stream, f"{layer}.post_attention_layernorm.weight")
            gate = self.w[f"{layer}.mlp.gate_proj.weight"] @ taken
            up = self.w[f"{layer}.mlp.up_proj.weight"] @ taken
            stream = stream + self.w[f"{layer}.mlp.down_proj.weight"] @ (gate * gate.sigmoid() * up)
        normed = self.norm(stream, "norm.weight")
        row.output = normed if head.get("norm_output") else stream
        row.logits = self.w["lm_head.weight"] @ normed * head.get("logit_scale", 1.0)

    def _attention(self, row: Row, number: int, taken: Tensor) -> Tensor:
        shape, width = self.made.shape, self.made.head_width

        def product(name: str) -> Tensor:
            stem = f"layers.{number}.self_attn.{name}_proj"
            return self.w[f"{stem}.weight"] @ taken + self.w.get(f"{stem}.bias", 0.0)

        queries, keys, values = (product(name).view(-1, width) for name in "qkv")
        if shape.get("model_type") == "qwen3":
            queries = self.norm(queries, f"layers.{number}.self_attn.q_norm.weight")
            keys = self.norm(keys, f"layers.{number}.self_attn.k_norm.weight")
        row.keys.append(self._turned(keys, row.position - 1))
        row.values.append(values)
        queries = self._turned(queries, row.position - 1)
        seen = [one for one in _path(row) if one.lives]
        if "layer_types" in shape and shape["layer_types"][number] == "sliding_attention":
            seen = seen[-shape["sliding_window"] :]
        groups = shape["num_attention_heads"] // shape["num_key_value_heads"]
        out = []
        for head, query in enumerate(queries):
            scores = torch.stack([one.keys[number][head // groups] @ query for one in seen])
            share = torch.softmax(scores / math.sqrt(width), 0)
            out.append(
                sum(
                    s * one.values[number][head // groups]
                    for s, one in zip(share, seen, strict=True)
                )
            )
        stem = f"layers.{number}.self_attn.o_proj"
        return self.w[f"{stem}.weight"] @ torch.cat(out) + self.w.get(f"{stem}.bias", 0.0)

    def _turned(self, heads: Tensor, position: int) -> Tensor:
        angles = position * self._frequencies()
        low, high = heads.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

    def _frequencies(self) -> Tensor:
        shape, width = self.made.shape, self.made.head_width
        rope = shape.get("rope_parameters") or {"rope_theta": shape["rope_theta"]}
        out = []
        for pair in range(width // 2):
            one = rope["rope_theta"] ** (-2 * pair / width)
            if rope.get("rope_type") == "llama3":
                one = _llama3(one, rope)
            out.append(one)
        return torch.tensor(out, dtype=torch.float64)


def _llama3(frequency: float, rope: Mapping[str, float]) -> float:
    wave = 2 * math.pi / frequency
    length = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    if wave < length / high:
        return frequency
    if wave > length / low:
        return frequency / rope["factor"]
    share = (length / wave - low) / (high - low)
    return (1 - share) * frequency / rope["factor"] + share * frequency


def _path(row: Row) -> list[Row]:
    found: list[Row] = []
    one: Row | None = row
    while one is not None:
        found.append(one)
        one = one.before
    return found[::-1]


def states(count: int, made: Made, seed: int = 0) -> Tensor:
    """The target's, [count, width], as they come over the wire."""
    width = made.target_width * len(made.head["eagle_aux_hidden_state_layer_ids"])
    drawn = torch.Generator().manual_seed(900 + seed)
    return torch.randn(count, width, generator=drawn).to(torch.bfloat16)


def tokens(count: int, seed: int = 0, vocab: int = 320) -> Sequence[int]:
    drawn = torch.Generator().manual_seed(70 + seed)
    found: list[int] = torch.randint(0, vocab, (count,), generator=drawn).tolist()
    return found

"""Heads as people publish them: each says what transformers' own layers, put together here, say.

Both ways begin with a folder. What a layout means is written here once more: by the classes of
transformers that its trainer or its server takes, and by the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3MLP

from services.engine.eagle.engine import EagleEngine
from services.engine.eagle.loading import load_head
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from tests.engine.eagle import kit
from tests.engine.eagle.kit import Made, make, states, tokens
from tests.models import tiny_model_folder

FAR = 3000
LONG = FAR + 6
DEPTH = 8
YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 512,
    "rope_theta": 5e4,
}
THETA = {"rope_type": "default", "rope_theta": 1e6}


@dataclass
class Layout:
    """`says`: fields of the layers, as a file has them. `means`: as transformers has them."""

    says: Mapping[str, Any] = field(default_factory=dict)
    means: Mapping[str, Any] = field(default_factory=dict)
    head: Mapping[str, Any] = field(default_factory=dict)
    save: Callable[..., Path] = kit.save_speculators
    layers: tuple[int, ...] = kit.LAYERS
    """The states that go in."""
    context: int = 4096

    def made(self) -> Made:
        """The head that is stored."""
        shape = {"hidden_size": 64, "num_attention_heads": 4, **self.says}
        return make(3, shape=shape, **self.head)


def named(name: str) -> Callable[..., Path]:
    """In the layout of SpecForge, by another architecture."""

    def save(made: Made, folder: Path) -> Path:
        return kit.save_specforge(made, folder, architectures=[name])

    return save


def authors(made: Made, folder: Path) -> Path:
    return kit.save_specforge(made, folder, architectures=["LlamaForCausalLM"], eagle_config=None)


def modelopt(made: Made, folder: Path) -> Path:
    eagle = {
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
        "norm_before_residual": True,
    }
    head = {n: v for n, v in made.head.items() if n != "norm_before_residual"}
    return kit.save_specforge(Made(made.shape, head, made.tensors), folder, eagle_config=eagle)


def sliding(**more: Any) -> dict[str, Any]:
    return {"layer_types": ["sliding_attention"], "sliding_window": 700, **more}


LAYOUTS: dict[str, Layout] = {
    "speculators": Layout(),
    "SpecForge, ids of inputs": Layout(
        save=kit.save_specforge,
        head={"eagle_aux_hidden_state_layer_ids": [2, 4, 5]},
        layers=(2, 4, 5),
    ),
    "SpecForge, ids of outputs": Layout(save=kit.save_specforge, layers=(2, 3, 5)),
    "ModelOpt": Layout(save=modelopt, layers=(2, 4, 5)),
    "states behind the last layer": Layout(
        head={"eagle_aux_hidden_state_layer_ids": [1, 4, 8]}, layers=(1, 4, 8)
    ),
    "NeMo": Layout(save=named("LlamaEagle3ForCausalLM"), layers=(2, 3, 5)),
    "vLLM's own": Layout(save=named("Eagle3LlamaForCausalLM"), layers=(2, 3, 5)),
    "the paper's authors": Layout(save=authors, layers=(2, 4, 5)),
    "what was converted from SpecForge": Layout(
        head={"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}, layers=(2, 4, 5)
    ),
    "a window": Layout(sliding(use_sliding_window=True)),
    "a window that is off": Layout({"use_sliding_window": False, "sliding_window": 700}),
    "a window that nobody turned on": Layout({"sliding_window": 700}),
    "rope by the kind of layer": Layout(
        sliding(
            rope_parameters={"full_attention": YARN, "sliding_attention": THETA}, rope_theta=None
        ),
        {"rope_parameters": THETA},
    ),
    "rope said twice": Layout({"rope_parameters": THETA, "rope_scaling": None, "rope_theta": 1e6}),
    "linear rope": Layout({"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "yarn": Layout({"rope_parameters": YARN}),
    "yarn by its own weights": Layout(
        {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0, "beta_fast": 20}}
    ),
    "yarn by its own factor": Layout(
        {"rope_parameters": {**YARN, "attention_factor": 1.5, "truncate": False}}
    ),
    "mrope": Layout(
        {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}, {"rope_scaling": None}
    ),
    "Llama 3's rope": Layout({"rope_parameters": kit.LLAMA3}),
    "Qwen 3's layers": Layout({"model_type": "qwen3", "head_dim": 32}),
    "Qwen 3's layers with a window": Layout(
        sliding(model_type="qwen3", head_dim=16, use_sliding_window=True)
    ),
    "Qwen 2's, whose architecture says Llama": Layout(
        {"model_type": "qwen2"}, save=kit.save_specforge, layers=(2, 3, 5)
    ),
    "Phi 3's, whose architecture says Llama": Layout(
        {"model_type": "phi3"}, save=kit.save_specforge, layers=(2, 3, 5)
    ),
    "trained on shorter texts": Layout({"max_position_embeddings": 2048}),
    "all columns": Layout(head={"draft_vocab_size": 320}),
}
EAGLE3_1 = {"fc_norm": True, "norm_output": True, "norm_before_fc": True}
LAYOUTS["EAGLE-3.1"] = Layout(head=EAGLE3_1)


class Reference(nn.Module):
    """One decoder layer of transformers', between what the paper puts around it."""

    def __init__(self, layout: Layout, made: Made) -> None:
        super().__init__()
        says = {name: one for name, one in made.shape.items() if name != "model_type"}
        qwen = made.shape.get("model_type") == "qwen3"
        kind: Any = Qwen3Config if qwen else LlamaConfig
        told = {"max_position_embeddings": 4096, "attn_implementation": "eager"}
        self.config = kind(**{**says, **told, **layout.means})
        self.made, self.w = made, made.tensors
        width, epsilon = self.config.hidden_size, self.config.rms_norm_eps
        attention: Any = Qwen3Attention if qwen else LlamaAttention
        self.attention = attention(self.config, layer_idx=0)
        for name in "qkv":
            old = getattr(self.attention, f"{name}_proj")
            new = nn.Linear(2 * width, old.out_features, bias=old.bias is not None)
            setattr(self.attention, f"{name}_proj", new)
        self.mlp = (Qwen3MLP if qwen else LlamaMLP)(self.config)
        self.rotary = LlamaRotaryEmbedding(self.config)
        self._norm = lambda name: self._filled(name, epsilon)
        for module, own in (("self_attn.", self.attention), ("mlp.", self.mlp)):
            stem = f"layers.0.{module}"
            own.load_state_dict(
                {n.removeprefix(stem): one for n, one in self.w.items() if n.startswith(stem)}
            )

    def _filled(self, name: str, epsilon: float) -> LlamaRMSNorm:
        norm = LlamaRMSNorm(len(self.w[name]), eps=epsilon)
        norm.weight.data.copy_(self.w[name])
        return norm

    def forward(self, token_ids: Tensor, known: Tensor) -> Tensor:
        """Logits of rows that take these tokens and the states before them, from position 0."""
        head, norm = self.made.head, self._norm
        if head.get("norm_before_fc"):
            known = norm("input_norm.weight")(known)
        if head.get("fc_norm"):
            parts = enumerate(known.chunk(3, -1))
            known = torch.cat([norm(f"fc_norm.{i}.weight")(part) for i, part in parts], -1)
        feature = known @ self.w["fc.weight"].T
        normed = norm("layers.0.hidden_norm.weight")(feature)
        embedded = self.w["embed_tokens.weight"][token_ids]
        embedded = norm("layers.0.input_layernorm.weight")(embedded)
        stream = normed if head["norm_before_residual"] else feature
        rows = torch.cat((embedded, normed), -1)[None]
        turns = self.rotary(rows, torch.arange(len(token_ids))[None])
        attended, _ = self.attention(rows, turns, self._mask(len(token_ids)))
        stream = stream + attended[0]
        stream = stream + self.mlp(norm("layers.0.post_attention_layernorm.weight")(stream))
        return norm("norm.weight")(stream) @ self.w["lm_head.weight"].T

    def _mask(self, count: int) -> Tensor:
        from transformers.masking_utils import (
            create_causal_mask,
            create_sliding_window_causal_mask,
        )

        kinds = self.made.shape.get("layer_types") or ["full_attention"]
        window = kinds[0] == "sliding_attention"
        make_mask: Any = create_sliding_window_causal_mask if window else create_causal_mask
        rows = torch.zeros(1, count, self.config.hidden_size)
        mask: Tensor = make_mask(
            config=self.config,
            inputs_embeds=rows,
            attention_mask=None,
            past_key_values=None,
            position_ids=torch.arange(count)[None],
        )
        return mask


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(
        tmp_path_factory.mktemp("models"),
        "llama",
        num_hidden_layers=DEPTH,
        max_position_embeddings=4096,
    )


def load(folder: Path, target: Path) -> EagleEngine:
    spec = ModelSpec(
        str(folder), dtype="float32", base=str(target), threads=1, kv_capacity_tokens=8192
    )
    return load_head(spec)


@torch.inference_mode()
def agree(engine: EagleEngine, made: Made, layout: Layout) -> None:
    """At the beginning, in the middle and far behind, of a text read in parts."""
    text, known = tokens(LONG), states(LONG, made)
    expected = Reference(layout, made)(torch.tensor(text[1:]), known[:-1].float())
    cache = engine.new_cache(LONG)
    cache.anchor(0, known)
    rows = []
    for first, last in ((0, 9), (9, 10), (10, FAR), (FAR, FAR + 4), (FAR + 4, LONG)):
        rows += engine.forward([Segment(cache, text[first:last])])
    torch.testing.assert_close(torch.cat(rows)[1:], expected, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_published_layout_says_what_transformers_layers_say(
    name: str, target: Path, tmp_path: Path
) -> None:
    layout = LAYOUTS[name]
    made = layout.made()
    engine = load(layout.save(made, tmp_path / "head"), target)
    assert engine.layers == layout.layers
    assert engine.max_context_length == 4096
    agree(engine, made, layout)

"""Tiny models that vLLM's attention for CPUs takes, and what transformers says of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from services.engine.port import Engine, Segment
from tests.models import tiny_model, tiny_model_folder

ARCHITECTURES = ("llama", "qwen2", "qwen3", "olmo2", "gemma3_text", "mixtral")
"""Grouped heads, biases, norms of heads, norms behind, sliding windows, experts."""
START_SECONDS = 600.0
"""Until four processes have read vLLM, on a slow machine that has other work."""
READ = {"stderr": subprocess.PIPE, "text": True}
"""Of a process whose last words are read."""
GROUP = 32
"""Weights that have one scale in AWQ."""
WIDE = {"hidden_size": 128, "head_dim": 32}
"""Heads of 16, as tiny models have them elsewhere, are none that vLLM computes."""


def wide_folder(folder: Path, arch: str = "llama", seed: int = 0) -> Path:
    """A tiny model that is saved below `folder`."""
    return tiny_model_folder(folder, arch, seed=seed, **WIDE)


@cache
def plain(arch: str, prompt: tuple[int, ...], count: int) -> list[int]:
    """Transformers' own greedy decoding of a prompt, in float32."""
    return _greedy(tiny_model(arch, **WIDE), prompt, count)


def _greedy(model, prompt: Sequence[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, max_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    found: list[int] = out[0, ids.shape[1] :].tolist()
    return found


def greedy(engine: Engine, prompt: Sequence[int], count: int) -> list[int]:
    """An engine's own greedy decoding, a step a token."""
    cache, said = engine.new_cache(len(prompt) + count), []
    fed = list(prompt)
    while len(said) < count:
        [logits] = engine.forward([Segment(cache, fed, logits_from=len(fed) - 1)])
        fed = [int(logits[-1].argmax())]
        said += fed
    return said


def quantized_folder(folder: Path, scheme: str) -> Path:
    """The tiny Llama with its layers in `int8` (compressed-tensors) or 4 bits (`awq`)."""
    if (folder / scheme).exists():
        return wide_folder(folder / scheme)
    made = wide_folder(folder / scheme)
    tensors = {}
    for name, tensor in load_file(made / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        parts = {"weight": tensor} if not stem.endswith("proj") else _QUANTIZED[scheme](tensor)
        tensors |= {f"{stem}.{part}": content for part, content in parts.items()}
    save_file(tensors, made / "model.safetensors", {"format": "pt"})
    config = json.loads((made / "config.json").read_text())
    config["quantization_config"] = _SCHEMES[scheme]
    (made / "config.json").write_text(json.dumps(config))
    return made


def _int8(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 127
    return {"weight": (weight / scale).round().to(torch.int8), "weight_scale": scale}


def _awq(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    groups = weight.t().reshape(-1, GROUP, len(weight))
    low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    scale = (high - low) / 15
    zero = (-low / scale).round().clamp(0, 15)
    numbers = ((groups / scale).round() + zero).clamp(0, 15).reshape(-1, len(weight))
    return {
        "qweight": _packed(numbers),
        "qzeros": _packed(zero[:, 0]),
        "scales": scale[:, 0].to(torch.float16),
    }


def _packed(numbers: torch.Tensor) -> torch.Tensor:
    """Eight numbers of 4 bits in one, in AWQ's order."""
    eights = numbers.to(torch.int64).unflatten(1, (-1, 8))[..., [0, 2, 4, 6, 1, 3, 5, 7]]
    whole = (eights << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(whole < 1 << 31, whole, whole - (1 << 32)).to(torch.int32)


_QUANTIZED = {"int8": _int8, "awq": _awq}
_ROUNDED = {"num_bits": 8, "type": "int", "symmetric": True}
_SCHEMES = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True},
    "int8": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**_ROUNDED, "strategy": "channel", "dynamic": False},
                "input_activations": {**_ROUNDED, "strategy": "token", "dynamic": True},
            }
        },
    },
}

"""Tiny models that vLLM's attention for CPUs takes, and what transformers says of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from tests.models import tiny_model, tiny_model_folder

ARCHITECTURES = ("llama", "qwen2", "qwen3", "olmo2", "gemma3_text", "mixtral")
"""Grouped heads, biases, norms of heads, norms behind, sliding windows, experts."""
START_SECONDS = 300.0
"""Until three processes have read vLLM, on a slow machine that has other work."""
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

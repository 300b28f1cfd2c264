"""The models of a chaos run where none are named: tiny, random, float32, and quick."""

from pathlib import Path
from typing import Any

LONGEST_TEXT = 2048
_NOISE = 0.02
"""Of the draft model's weights, relative: it agrees with its target about half the time."""


def tiny_models(folder: Path) -> tuple[str, str]:
    """A random target, and the same with noise, which drafts for it; their folders."""
    # Here, because only a checkout has tests, and only this needs them.
    from tests.models import tiny_model_folder

    target = tiny_model_folder(folder / "target", max_position_embeddings=LONGEST_TEXT)
    draft = tiny_model_folder(
        folder / "draft", change=_disturb, max_position_embeddings=LONGEST_TEXT
    )
    return str(target), str(draft)


def _disturb(model: Any) -> None:
    import torch

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        for weight in model.parameters():
            spread = weight.std() if weight.numel() > 1 else weight.abs().mean()
            weight.add_(torch.randn_like(weight) * _NOISE * spread)

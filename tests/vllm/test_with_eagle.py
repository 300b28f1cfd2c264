"""Heads draft here, token by token, what vLLM's own proposer drafts with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from services.engine.eagle.cache import EagleCache
from services.engine.eagle.engine import EagleEngine
from services.engine.eagle.loading import load_head
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from services.training.head.head import EagleHead, shape_of
from services.training.head.stored import save_head
from services.training.target import read_target
from tests.engine.eagle import kit
from tests.models import tiny_model_folder
from tests.vllm.eagle_proposals import PROMPTS, write_proposals
from tests.vllm.forked import in_a_process

TOKENS = 4
SHAPE = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
BIASED = SHAPE | {"attention_bias": True, "num_hidden_layers": 2, "rope_parameters": kit.LLAMA3}
Save = Callable[..., Path]


def made(save: Save, seed: int, *, shape: dict[str, Any] = SHAPE, **head: Any) -> Save:
    """Saves a random head for any target of its size."""
    return lambda target, folder: save(kit.make(seed, shape=shape, **head), folder)


@torch.no_grad()
def exported(target: Path, folder: Path) -> Path:
    """A random head as `paceline train head --storage bfloat16` stores it."""
    own, drawn = read_target(str(target)), torch.Generator().manual_seed(4)
    head = EagleHead(shape_of(own.config, kit.LAYERS, COLUMNS))
    for name, weights in head.named_parameters():
        spread = (3.0 if name.startswith("lm_head") else 1.0) / math.sqrt(weights.shape[-1])
        fresh = torch.randn(weights.shape, generator=drawn)
        weights.copy_(fresh * spread if weights.dim() > 1 else 1 + 0.3 * fresh)
    ids = torch.randperm(own.vocab_size, generator=drawn)[:COLUMNS].sort().values
    save_head(head, ids, own, folder, storage="bfloat16", drafted=TOKENS, card={})
    return folder


COLUMNS = 60
HEADS: dict[str, Save] = {
    "speculators": made(
        kit.save_speculators, 1, shape=BIASED, norm_before_fc=True, norm_output=True
    ),
    "SpecForge": made(kit.save_specforge, 2, norm_before_residual=False),
    "parallel": made(kit.save_speculators, 3, parallel=TOKENS, mask_token_id=9),
    "exported": exported,
}


@pytest.fixture(params=HEADS)
def method(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny_model_folder(tmp_path, num_hidden_layers=4, hidden_size=128, head_dim=32)


def test_heads_draft_as_vllm_does_with_them(method: str, target: Path, tmp_path: Path) -> None:
    folder, file = HEADS[method](target, tmp_path / "head"), tmp_path / "proposals.safetensors"
    in_a_process(write_proposals, str(target), str(folder), method, TOKENS, str(file))
    engine = load_head(ModelSpec(str(folder), base=str(target), threads=1))
    proposals = list(_proposals(load_file(file)))
    assert len(proposals) > 30
    several = 0
    text: list[int] = []
    cache: EagleCache | None = None
    for one in proposals:
        start, rows = int(one["target_positions"][0]), len(one["target_positions"])
        if start == 0:
            cache, text = engine.new_cache(300), []
        assert cache is not None
        several += start > 0 and rows > 1
        text[start:] = [*one["target_token_ids"].tolist(), *one["next_token_ids"].tolist()]
        cache.anchor(start, one["target_hidden_states"])
        cache.refresh()
        assert _drafted(engine, cache, text) == one["drafts"].flatten().tolist()
    assert several > len(PROMPTS)


def _proposals(tensors: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number in sorted({name.partition(".")[0] for name in tensors}):
        yield {
            name.partition(".")[2]: one
            for name, one in tensors.items()
            if name.startswith(f"{number}.")
        }


def _drafted(engine: EagleEngine, cache: EagleCache, text: list[int]) -> list[int]:
    """The head's own greedy drafts after a text; the cache holds that text then."""
    new = text[cache.length :]
    masks = list(engine.soft_ids)
    [rows] = engine.forward([Segment(cache, [*new, *masks], logits_from=len(new) - 1)])
    drafts = _best(engine, rows)
    while len(drafts) < TOKENS:
        [rows] = engine.forward([Segment(cache, drafts[-1:])])
        drafts += _best(engine, rows)
    cache.rollback(len(text))
    return drafts


def _best(engine: EagleEngine, rows: torch.Tensor) -> list[int]:
    assert engine.head_ids is not None
    found: list[int] = engine.head_ids[rows.argmax(-1)].tolist()
    return found

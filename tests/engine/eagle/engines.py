"""Engines of tiny heads, made without a target's folder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from services.engine.eagle.engine import EagleEngine, Table, Target
from services.engine.eagle.layout import HeadConfig
from services.engine.eagle.layout import _config as config_of
from services.engine.eagle.readings import readings_of
from services.engine.spec import ModelSpec
from tests.engine.eagle.kit import Made


class InMemory:
    """A head's tensors as `HeadTensors` gives them."""

    def __init__(self, made: Made) -> None:
        self._tensors = made.tensors

    def __call__(self, name: str) -> Tensor:
        return self._tensors[name]

    def optional(self, name: str) -> Tensor | None:
        return self._tensors.get(name)

    def head_ids(self, config: HeadConfig) -> tuple[Tensor, None]:
        shifts = self._tensors.get("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        return shifts + torch.arange(len(shifts)), None


def config(made: Made) -> HeadConfig:
    said = {"architectures": ["LlamaForCausalLMEagle3"], **made.shape, **made.head}
    if made.head.get("parallel"):
        count = said.pop("parallel")
        methods = {"proposal_methods": [{"speculative_tokens": count}]}
        said |= {"speculators_config": methods}
    return config_of(said, made.tensors)


def engine(made: Made, capacity: int = 4096, **told: Any) -> EagleEngine:
    spec = ModelSpec("head", kv_capacity_tokens=capacity, **told)
    own = config(made)
    target = Target(4, own.target_width, own.vocab_size, made.shape["max_position_embeddings"])
    table = Table(made.tensors["embed_tokens.weight"], made.tensors["lm_head.weight"])
    readings = readings_of(own, 4, "target")
    return EagleEngine(own, InMemory(made), table, target, spec, readings=readings)

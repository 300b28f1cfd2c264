"""The suite of the port on each engine that runs here; see `port_suite`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from services.engine.native import NativeEngine
from services.engine.port import Engine
from services.engine.spec import ModelSpec
from tests.engine.conftest import model_of
from tests.engine.port_suite import *  # noqa: F403
from tests.engine.port_suite import CAPACITY, CONTEXT
from tests.fake_engine import FakeEngine
from tests.synthetic.kit import FakeTime, spec
from tests.vllm.blocks_of_tokens import BlocksOfTokens


def ours(arch: str, dtype: str = "float32", **spec: Any) -> Engine:
    told = ModelSpec(arch, dtype, kv_capacity_tokens=CAPACITY, max_context=CONTEXT, **spec)
    model = copy.deepcopy(model_of(arch)).to(getattr(torch, dtype))
    return NativeEngine.from_model(model, spec=told, check=False)


def native() -> Engine:
    return ours("llama")


def native_with_windows() -> Engine:
    """Layers that see 12 tokens, and layers that see all of them."""
    return ours("gemma3_text")


def batch_invariant_float32() -> Engine:
    """Rows must be equal to the bit in any company."""
    return ours("llama", batch_invariant=True)


def batch_invariant_bfloat16() -> Engine:
    return ours("llama", "bfloat16", batch_invariant=True)


def synthetic() -> Engine:
    from services.engine.synthetic.engine import target_engine

    engine = target_engine(spec(), CAPACITY, pacemaker=FakeTime().pacemaker())
    engine.max_context_length = CONTEXT
    return engine


def fake() -> Engine:
    return FakeEngine(CAPACITY, CONTEXT)


def blocks_of_tokens() -> Engine:
    """The engine on vLLM's blocks, over a memory that holds tokens in place of K/V."""
    return BlocksOfTokens(CAPACITY, CONTEXT)


ENGINES: list[Callable[[], Engine]] = [
    native,
    native_with_windows,
    batch_invariant_float32,
    batch_invariant_bfloat16,
    synthetic,
    fake,
    blocks_of_tokens,
]

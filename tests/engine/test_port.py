"""The suite of the port on each engine that runs here; see `port_suite`."""

from __future__ import annotations

import copy
from collections.abc import Callable

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


def native() -> Engine:
    told = ModelSpec("llama", kv_capacity_tokens=CAPACITY, max_context=CONTEXT)
    return NativeEngine.from_model(model_of("llama"), spec=told, check=False)


def batch_invariant(dtype: str) -> Engine:
    """Ours, whose rows must be equal to the bit in any company."""
    told = ModelSpec(
        "llama",
        dtype,
        kv_capacity_tokens=CAPACITY,
        max_context=CONTEXT,
        batch_invariant=True,
    )
    model = copy.deepcopy(model_of("llama")).to(getattr(torch, dtype))
    return NativeEngine.from_model(model, spec=told, check=False)


def batch_invariant_float32() -> Engine:
    return batch_invariant("float32")


def batch_invariant_bfloat16() -> Engine:
    return batch_invariant("bfloat16")


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
    batch_invariant_float32,
    batch_invariant_bfloat16,
    synthetic,
    fake,
    blocks_of_tokens,
]

"""Engines on tiny random models, and what transformers itself says about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from services.engine.native import NativeEngine, PagedCache
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from tests.models import SUPPORTED, tiny_model

CLOSE = {"atol": 2e-4, "rtol": 1e-4}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def model_of(arch: str) -> Any:
    return tiny_model(arch)


def engine_with(model: Any, capacity: int = 4096, **settings: Any) -> NativeEngine:
    spec = ModelSpec(settings.pop("name", "llama"), kv_capacity_tokens=capacity, **settings)
    return NativeEngine.from_model(model, spec=spec)


@cache
def engine_of(arch: str) -> NativeEngine:
    return engine_with(model_of(arch), name=arch)


@contextmanager
def emptied(engine: NativeEngine) -> Iterator[NativeEngine]:
    """Whatever is opened is freed in the end, and then nothing is used."""
    begin, opened = PagedCache.__init__, []

    def noted(cache: PagedCache, *args: Any) -> None:
        begin(cache, *args)
        opened.append(cache)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PagedCache, "__init__", noted)
        yield engine
    for one in opened:
        one.free()
    assert engine.kv_tokens_used == 0


@pytest.fixture(params=SUPPORTED)
def arch(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def engine(arch: str) -> Iterator[NativeEngine]:
    with emptied(engine_of(arch)) as engine:
        yield engine


@pytest.fixture
def llama() -> Iterator[NativeEngine]:
    with emptied(engine_of("llama")) as engine:
        yield engine


def random_text(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return torch.randint(3, 320, (length,), generator=generator).tolist()


@torch.inference_mode()
def said_by(model: Any, text: Sequence[int]) -> Tensor:
    """Logits [n, vocab] of transformers' own forward over the whole text."""
    return model(torch.tensor([list(text)]), use_cache=False).logits[0].float()


def stock_logits(arch: str, text: Sequence[int]) -> Tensor:
    return said_by(model_of(arch), text)


def stock_greedy(arch: str, prompt: Sequence[int], count: int) -> list[int]:
    """Transformers' own greedy continuation."""
    ids = torch.tensor([list(prompt)])
    given = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 2}
    given |= {"max_new_tokens": count, "min_new_tokens": count, "eos_token_id": 319}
    out = model_of(arch).generate(ids, **given)
    return out[0, len(prompt) :].tolist()


def next_token(logits: Tensor) -> int:
    """Greedy choice; EOS of `stock_greedy` is never one of its tokens."""
    row = logits[-1].clone()
    row[319] = -torch.inf
    return int(row.argmax())


def feed(engine: NativeEngine, kv: PagedCache, tokens: Sequence[int], **kwargs: Any) -> Tensor:
    [logits] = engine.forward([Segment(kv, tokens, **kwargs)])
    return logits

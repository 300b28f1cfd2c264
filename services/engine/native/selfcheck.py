"""The check at load: ragged logits must equal the model's own.

Three texts of random tokens, two of which share a beginning, go through the
model once with its stock eager attention. Then the ragged forward gets the
same tokens in pieces: two sessions interleaved, a wrong continuation that is
rolled back, and a tree that holds both continuations of the shared beginning.
Sliding windows are shortened meanwhile, so that the texts reach beyond them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from services.contract.errors import StartError
from services.engine.native.attention import install
from services.engine.native.kv import PagedBudget, PagedCache
from services.engine.port import Segment

Forward = Callable[[Sequence[Segment]], list[Tensor]]

#: Largest accepted difference: root mean square over a row, in units of the row's spread.
TOLERANCES = {torch.float32: 1e-3, torch.float16: 1e-1, torch.bfloat16: 4e-1}
#: Half precision flips the choice of experts at near-ties, which moves a whole row.
_ROUTED_SLACK = 2
_LENGTH = 10
_SHARED = 5
_WINDOW = 4
_WINDOW_FIELDS = ("sliding_window", "attention_chunk_size")


def tolerance_of(model: Any) -> float:
    """The accepted difference for a model, by its dtype."""
    config = model.config.get_text_config()
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    routed = any(getattr(config, name, None) for name in names)
    half = model.dtype is not torch.float32
    return TOLERANCES[model.dtype] * (_ROUTED_SLACK if routed and half else 1)


def random_texts(vocab_size: int) -> Tensor:
    """Three texts [3, 10]; the last two share their first five tokens."""
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(0, vocab_size, (3, _LENGTH), generator=generator)
    texts[2, :_SHARED] = texts[1, :_SHARED]
    texts[2, _SHARED] = (texts[1, _SHARED] + 1) % vocab_size
    return texts


@torch.inference_mode()
def stock_logits(model: Any, texts: Tensor) -> Tensor:
    """Logits [3, 10, vocab] of the model with its own eager attention."""
    model.set_attn_implementation("eager")
    with _short_windows(model):
        logits: Tensor = model(texts.to(model.device), use_cache=False).logits
    return logits.float()


def ragged_logits(model: Any, forward: Forward, texts: Tensor) -> Tensor:
    """The same logits from the ragged forward, through rollback and tree."""
    install(model)
    budget = PagedBudget(4 * _LENGTH, _layers(model))
    first, second = PagedCache(budget, 2 * _LENGTH), PagedCache(budget, 2 * _LENGTH)
    text, left, right = texts.tolist()
    with _short_windows(model):
        return _in_pieces(forward, first, second, text, left, right)


def _layers(model: Any) -> int:
    layers: int = model.config.get_text_config().num_hidden_layers
    return layers


def _in_pieces(
    forward: Forward,
    first: PagedCache,
    second: PagedCache,
    text: list[int],
    left: list[int],
    right: list[int],
) -> Tensor:
    """Logits of the three texts: `text` by chunks, the other two as one tree."""
    start, shared = forward([Segment(first, text[:4]), Segment(second, left[:_SHARED])])
    forward([Segment(first, right[:3], logits_from=3)])
    first.rollback(4)
    size = _LENGTH - _SHARED
    parents = [-1, *range(size - 1), -1, *range(size, 2 * size - 1)]
    tree = Segment(second, left[_SHARED:-1] + right[_SHARED:], parents=_drop_last(parents, size))
    middle, branches = forward([Segment(first, text[4:8]), tree])
    second.keep_path(_SHARED, range(size - 1))
    last, end = forward([Segment(first, text[8:]), Segment(second, left[-1:])])
    lefts = torch.cat((shared, branches[: size - 1], end))
    rights = torch.cat((shared, branches[size - 1 :]))
    return torch.stack((torch.cat((start, middle, last)), lefts, rights))


def _drop_last(parents: list[int], size: int) -> list[int]:
    """Two chains of `size` nodes; leave out the last node of the first one."""
    kept = parents[: size - 1] + parents[size:]
    return [parent - 1 if parent >= size else parent for parent in kept]


def difference(ours: Tensor, stock: Tensor) -> float:
    """Largest row difference: RMS of the difference over the row's standard deviation."""
    error = (ours - stock).square().mean(-1).sqrt() / stock.std(-1).clamp_min(1e-9)
    return float("inf") if bool(error.isnan().any()) else float(error.max())


def require_equal(ours: Tensor, stock: Tensor, tolerance: float, name: str) -> float:
    """The figure of the check; raises StartError with it when it exceeds the tolerance."""
    figure = difference(ours, stock)
    if figure > tolerance:
        raise StartError(
            f"{name}: self-check failed, ragged logits differ from the model's own by "
            f"{figure:.2e} (tolerance {tolerance:.0e})"
        )
    return figure


@contextmanager
def _short_windows(model: Any) -> Iterator[None]:
    """Cut every sliding window to a few tokens, in configs and in modules."""
    owners = {id(o): o for m in model.modules() for o in (m, getattr(m, "config", None))}
    changed = [
        (owner, field, getattr(owner, field))
        for owner in owners.values()
        for field in _WINDOW_FIELDS
        if isinstance(getattr(owner, field, None), int)
    ]
    try:
        for owner, field, _ in changed:
            setattr(owner, field, _WINDOW)
        yield
    finally:
        for owner, field, window in changed:
            setattr(owner, field, window)

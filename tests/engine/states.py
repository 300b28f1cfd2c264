"""States of layers by any engine, beside those that transformers gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from services.engine.port import HiddenStates, Segment
from tests.engine.conftest import CLOSE

TEXTS = ([5, 9, 2, 7, 7, 1, 30, 12, 4, 11, 8], [3, 1, 4, 1, 5])
TREE, PARENTS = [6, 21, 8, 14, 2], [-1, -1, 0, 1, 0]
PATHS = ([0, 2], [0, 4], [1, 3])


@torch.inference_mode()
def stock_states(model: Any, text: list[int], layers: list[int]) -> Tensor:
    """What transformers says, [tokens, layers x width]; its last state is behind the last norm."""
    given = model(torch.tensor([text]), output_hidden_states=True).hidden_states
    return torch.cat([given[layer][0] for layer in layers], -1)


def check_states(engine: HiddenStates, model: Any, layers: list[int]) -> None:
    """Chunks of a prompt beside another text, blocks after a rollback, and a tree."""
    engine.watch(layers)
    caches = [engine.new_cache(40) for _ in TEXTS]
    first, second = TEXTS
    expected = [stock_states(model, text, layers) for text in TEXTS]
    segments = [Segment(caches[0], first[:4], logits_from=4), Segment(caches[1], second)]
    logits, (start, other) = engine.forward_with_states(segments)
    assert [len(rows) for rows in logits] == [0, len(second)]
    engine.forward([Segment(caches[0], [9, 9, 9])])
    caches[0].rollback(4)
    logits, (rest,) = engine.forward_with_states([Segment(caches[0], first[4:], logits_from=6)])
    torch.testing.assert_close(torch.cat((start, rest)), expected[0], **CLOSE)
    torch.testing.assert_close(other, expected[1], **CLOSE)
    _, (nodes,) = engine.forward_with_states([Segment(caches[0], TREE, PARENTS, len(TREE))])
    for path in PATHS:
        text = [*first, *[TREE[node] for node in path]]
        whole = stock_states(model, text, layers)[len(first) :]
        torch.testing.assert_close(nodes[path], whole, **CLOSE)
    for cache in caches:
        cache.free()

"""What is told of rows of logits: logprobs of tokens, and what the target found likeliest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.contract.top_rows import MOST_ROWS, WIDTH, pack
from services.contract.types import DraftTree, LogprobRow
from services.contract.worker_messages import StartVerify
from services.engine.sampling import likeliest


def told_rows(opening: StartVerify, last: int, tree: DraftTree, logits: Tensor) -> bytes:
    """What the target says at each row [1 + draft tokens, V] of a draft, where that was asked for.

    Not of a plain block: of its one row the token is told, and more of it brings nothing. Of the
    model's own logits, whatever the session adds to them. `last`: the token before the draft.
    """
    width = min(opening.top_rows, WIDTH)
    if not (width and len(tree) and opening.mode.exact_match):
        return b""
    rows = logits[:MOST_ROWS]
    contexts = (last, *tree.token_ids)[: len(rows)]
    return pack(contexts, likeliest(rows, width).tolist())


def logprob_rows(
    logits: Tensor, path: Sequence[int], emitted: Sequence[int], top: int | None
) -> tuple[LogprobRow, ...]:
    """Log-softmax of the raw logits [rows, V] at each emitted token, with `top` alternatives.

    None, as `top`, means that nobody asked.
    """
    rows = [0, *(node + 1 for node in path)][: len(emitted)]
    if top is None or not rows:
        return ()
    laws = torch.log_softmax(logits[rows], dim=-1)
    own = laws.gather(-1, torch.tensor([emitted], device=laws.device).T).flatten().tolist()
    best = torch.topk(laws, min(top, laws.shape[-1]), dim=-1)
    each = zip(own, best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple(LogprobRow(logprob, tuple(ids), tuple(values)) for logprob, ids, values in each)

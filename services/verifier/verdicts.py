"""From the logits of a step to verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.common.engine.sampling import NO_CHOICE, RowContext
from services.common.types import LogprobRow, Verdict, Verify
from services.verifier.rules import Walk, depths
from services.verifier.session import Task, VerifySession


class BrokenLaw(Exception):
    """The model gave NaN or infinite logits where a token was to be chosen."""


def row_contexts(session: VerifySession, task: Task) -> list[RowContext]:
    """How to choose at each row of a block; nodes of one depth share their position."""
    opening = session.opening
    return [
        RowContext(opening.mode, opening.sampling, opening.seed, task.base_len + depth)
        for depth in depths(task.tree)
    ]


def check_walk(walked: Walk) -> None:
    """Raise BrokenLaw when the walk ended at a row without a law."""
    if walked.final_token == NO_CHOICE:
        raise BrokenLaw("the model gave no finite law for a token")


def decided(session: VerifySession, task: Task, walked: Walk, emitted: Sequence[int]) -> Verdict:
    """The verdict of a walk, without timings and logprobs."""
    command = task.block.command
    in_tree = task.tree.parents is not None
    return Verdict(
        session=command.session,
        epoch=command.epoch,
        round=command.round,
        base_len=task.base_len,
        token_ids=tuple(emitted),
        accepted=len(walked.path),
        all_accepted=walked.all_accepted,
        accepted_nodes=tuple(task.nodes[node] for node in walked.path) if in_tree else (),
        mode=session.opening.mode,
        draft_tokens=len(task.tree),
    )


def discarded(session: VerifySession, command: Verify, queue_ms: float) -> Verdict:
    """The answer to a block that does not fit the text."""
    return Verdict(
        session=command.session,
        epoch=command.epoch,
        round=command.round,
        base_len=command.base_len,
        discarded=True,
        queue_ms=queue_ms,
        mode=session.opening.mode,
    )


def logprob_rows(
    logits: Tensor, walked: Walk, emitted: Sequence[int], top: int | None
) -> tuple[LogprobRow, ...]:
    """Log-softmax of the raw logits [rows, V] at each emitted token, with `top` alternatives.

    None, as `top`, means that nobody asked.
    """
    rows = [0, *(node + 1 for node in walked.path)][: len(emitted)]
    if top is None or not rows:
        return ()
    laws = torch.log_softmax(logits[rows], dim=-1)
    own = laws.gather(-1, torch.tensor([emitted], device=laws.device).T).flatten().tolist()
    best = torch.topk(laws, min(top, laws.shape[-1]), dim=-1)
    each = zip(own, best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple(LogprobRow(logprob, tuple(ids), tuple(values)) for logprob, ids, values in each)

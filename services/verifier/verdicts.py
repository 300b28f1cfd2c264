"""From decisions to verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.contract.top_rows import MOST_ROWS, WIDTH, pack
from services.contract.types import DraftTree, LogprobRow, Verdict, Verify
from services.engine.sampling import likeliest
from services.verifier.fed_text import Opening
from services.verifier.judging import Decision
from services.verifier.session import VerifySession
from services.verifier.types import Task


def decided(session: VerifySession, task: Task, decision: Decision) -> Verdict:
    """The verdict of a decision, without timings and logprobs."""
    command = task.block.command
    in_tree = task.tree.parents is not None
    return Verdict(
        session=command.session,
        epoch=command.epoch,
        round=command.round,
        base_len=task.base_len,
        token_ids=emitted(task, decision),
        accepted=len(decision.path),
        all_accepted=decision.all_accepted,
        accepted_nodes=tuple(task.nodes[node] for node in decision.path) if in_tree else (),
        mode=session.opening.mode,
        bad_q_rows=decision.bad_q_rows,
        near_ties=decision.near_ties,
        draft_tokens=len(task.tree),
        taken=task.block.taken,
    )


def emitted(task: Task, decision: Decision) -> tuple[int, ...]:
    """The accepted draft tokens and the one after them."""
    accepted = tuple(task.tree.token_ids[node] for node in decision.path)
    return accepted if decision.final_token is None else (*accepted, decision.final_token)


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


def told_rows(opening: Opening, last: int, tree: DraftTree, logits: Tensor) -> bytes:
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

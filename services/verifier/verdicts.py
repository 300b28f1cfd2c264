"""From decisions to verdicts."""

from __future__ import annotations

from services.contract.types import Verdict, Verify
from services.verifier.batch import Decision
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

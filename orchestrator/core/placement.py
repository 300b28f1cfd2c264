"""Which worker takes a session. Pure.

A verifier is chosen by free KV and queue, a drafter by load among those whose
tokenizer fits; a session stays where it is until its worker goes or drains.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from services.common.types import Progress, Role, WorkerDescription


@dataclass(frozen=True, slots=True)
class Candidate:
    """A connected worker and its last progress report.

    `address`: where it listens; `assigned` counts the sessions this orchestrator has
    placed there.
    """

    description: WorkerDescription
    progress: Progress
    assigned: int = 0
    draining: bool = False
    address: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a session needs of a worker.

    `tokens` is the KV it will reserve, `most_tokens` what it may come to need. Empty
    fingerprints mean any; a drafter must run all of the `methods`.
    A worker that lacks one of the `capabilities` is better than none. `beside`: the
    session's verifier; a drafter in the same process may draft from its K/V.
    """

    role: Role
    tokens: int = 0
    methods: Collection[str] = ()
    capabilities: Collection[str] = ()
    model_fingerprint: str = ""
    tokenizer_fingerprint: str = ""
    avoid: Collection[str] = ()
    most_tokens: int = 0
    beside: str = ""


def choose(candidates: Collection[Candidate], wanted: Wanted) -> str | None:
    """The worker id that suits best, or None. Avoided workers come last of all."""
    fitting = [c for c in candidates if _fits(c, wanted)]
    if not fitting:
        return None
    homes = {c.address for c in candidates if c.description.worker_id == wanted.beside}
    best = min(fitting, key=lambda c: _cost(c, wanted, homes))
    return best.description.worker_id


def _fits(candidate: Candidate, wanted: Wanted) -> bool:
    worker = candidate.description
    if worker.role is not wanted.role or candidate.draining:
        return False
    if wanted.role is Role.VERIFIER:
        same = not wanted.model_fingerprint or worker.model_fingerprint == wanted.model_fingerprint
        able = set(wanted.capabilities) <= set(worker.capabilities)
        return same and able and not _full(candidate, wanted)
    return (
        set(wanted.methods) <= set(worker.methods)
        and not _full(candidate, wanted)
        and pairs(worker.tokenizer_fingerprint, wanted.tokenizer_fingerprint)
    )


def pairs(drafter_tokenizer: str, verifier_tokenizer: str) -> bool:
    """Whether drafts of one tokenizer mean the same to the other; empty fits any."""
    return not drafter_tokenizer or drafter_tokenizer == verifier_tokenizer


def _full(candidate: Candidate, wanted: Wanted) -> bool:
    capacity, used = candidate.progress.kv_tokens_capacity, candidate.progress.kv_tokens_used
    return bool(capacity) and capacity < max(used + wanted.tokens, wanted.most_tokens)


def _cost(
    candidate: Candidate, wanted: Wanted, homes: Collection[str]
) -> tuple[bool, bool, bool, int, int, str]:
    progress = candidate.progress
    return (
        candidate.description.worker_id in wanted.avoid,
        not set(wanted.capabilities) <= set(candidate.description.capabilities),
        candidate.address not in homes,
        max(candidate.assigned, progress.sessions),
        progress.queued_tokens,
        candidate.description.worker_id,
    )

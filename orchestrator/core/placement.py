"""Which worker takes a session. Pure.

A verifier is chosen by free KV and queue, a drafter by load among those whose
tokenizer fits; a session stays where it is until its worker goes or drains. A verifier
that computed the text's beginning is better than an idle one, but not than one with
much less to do: beside others a session is cheap, a prompt never is. A worker that is stuck
gets sessions only where there is no other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from services.contract.types import Progress, Role, WorkerDescription

SLACK_SESSIONS = 2
"""So many more a worker may have for knowing the text, however few the others have."""
STUCK_SECONDS = 1.0
STUCK_STEPS = 4.0
"""Beyond so many steps of its own, and `STUCK_SECONDS`, a worker without an answer is stuck."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A connected worker and its last progress report.

    `address`: where it listens; `assigned` counts the sessions this orchestrator has
    placed there; `stuck_s`: for how long it has left us, or a command, without an answer.
    """

    description: WorkerDescription
    progress: Progress
    assigned: int = 0
    draining: bool = False
    address: str = ""
    stuck_s: float = 0.0

    @property
    def stuck(self) -> bool:
        """Whether it leaves a command for longer than a few of its steps would explain."""
        return self.stuck_s > STUCK_SECONDS + STUCK_STEPS * self.progress.step_ms / 1e3


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a session needs of a worker.

    `tokens` is the KV it will reserve, `most_tokens` what it may come to need. Empty
    fingerprints mean any; a drafter must run all of the `methods`.
    A worker that lacks one of the `capabilities` is better than none. `beside`: the
    session's verifier; a drafter in the same process may draft from its K/V. `text`: what
    a verifier is to compute, in parts, and the `cache_scope` of whom it may have computed it for.
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
    text: tuple[Sequence[int], ...] = field(default=(), repr=False)
    cache_scope: str = ""


def choose(candidates: Collection[Candidate], wanted: Wanted, knows: str = "") -> str | None:
    """The worker id that suits best, or None. Avoided workers come last, stuck ones last of all.

    `knows`: the worker that computed the text's beginning. It is taken while it has no more
    than half again as many sessions as the least of those that fit, and `SLACK_SESSIONS`.
    """
    fitting = [c for c in candidates if fits(c, wanted)]
    if not fitting:
        return None
    fitting = [c for c in fitting if not c.stuck] or fitting
    homes = {c.address for c in candidates if c.description.worker_id == wanted.beside}
    least = min(_load(c) for c in fitting)
    if any(_load(c) > 1.5 * least + SLACK_SESSIONS for c in fitting if _is(c, knows)):
        knows = ""
    best = min(fitting, key=lambda c: _cost(c, wanted, homes, knows))
    return best.description.worker_id


def _is(candidate: Candidate, worker: str) -> bool:
    return candidate.description.worker_id == worker


def _load(candidate: Candidate) -> int:
    """Sessions there, as far as anyone knows."""
    return max(candidate.assigned, candidate.progress.sessions)


def fits(candidate: Candidate, wanted: Wanted) -> bool:
    """Whether the worker may take what is wanted, and has the room."""
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
    candidate: Candidate, wanted: Wanted, homes: Collection[str], knows: str
) -> tuple[bool, bool, bool, bool, int, int, str]:
    progress = candidate.progress
    return (
        candidate.description.worker_id in wanted.avoid,
        not set(wanted.capabilities) <= set(candidate.description.capabilities),
        candidate.address not in homes,
        not _is(candidate, knows),
        _load(candidate),
        progress.queued_tokens,
        candidate.description.worker_id,
    )

"""Which worker takes a session. Pure.

A verifier is chosen by free K/V and queue, a drafter by load among those whose tokenizer
fits; a session stays where it is until its worker goes or drains. A verifier that computed the
text's prefix is better than an idle one, but not than one with much less load: in a batch
a session is cheap, a prompt never is. A stuck worker gets sessions only where there is no other.

A report is up to a quarter of a second old, and every orchestrator has the same one. So what was
placed since counts: in K/V as it is, and in the order of workers as if each orchestrator had placed
as much (Dahlin, "Interpreting stale load information", 2000); else all of them would take the
worker that was idle when it told. Equal workers come in an order of each orchestrator's own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from services.contract.states import NO_STATES, StateShape, gives, needed
from services.contract.types import Progress, Role, WorkerDescription

SLACK_SESSIONS = 2
"""A worker that has the prefix may have so many sessions more, however few the others have."""
STUCK_SECONDS = 1.0
STUCK_STEPS = 4.0
"""A worker without an answer for so many of its steps, and `STUCK_SECONDS`, is stuck."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A connected worker and its last progress report.

    `address`: where it listens; `assigned` counts the sessions this orchestrator has
    placed there; `stuck_s`: the seconds that it has been silent, or has left a command unread.
    `fresh`, `fresh_tokens`: sessions placed there since the report, and the K/V they reserve;
    `order`: among equal workers the least comes first.
    """

    description: WorkerDescription
    progress: Progress
    assigned: int = 0
    draining: bool = False
    address: str = ""
    stuck_s: float = 0.0
    fresh: int = 0
    fresh_tokens: int = 0
    order: int = 0

    @property
    def stuck(self) -> bool:
        """Whether it was without an answer for longer than a few of its steps explain."""
        return self.stuck_s > STUCK_SECONDS + STUCK_STEPS * self.progress.step_ms / 1e3


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a session needs of a worker.

    `tokens` is the K/V it will reserve first, `most_tokens` the most it can need. Empty
    fingerprints mean any; a drafter must run all of the `methods`. A worker that lacks one of
    the `capabilities` is better than none. `beside`: the session's verifier; a drafter in the
    same process may draft from its K/V. `text`: the text to prefill, in parts, and `cache_scope`:
    whose cached prefixes it may use. `states`: of the target, that a drafter of these methods may
    count on; a verifier that can tell them is better than another. `untold`: the session's verifier
    cannot, so a drafter has to have a method that needs none; the next verifier may tell them.
    `company`: the verifiers of other completions of the same prompt. `home`: the verifier that last
    had the session, with another orchestrator.
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
    states: StateShape = NO_STATES
    untold: bool = False
    company: Collection[str] = ()
    home: str = ""


def choose(candidates: Collection[Candidate], wanted: Wanted, knows: str = "") -> str | None:
    """The worker id that suits best, or None. Avoided workers come last, stuck ones last of all.

    Completions of one prompt stay together where they fit.

    `knows`: the worker that computed the text's prefix. It is taken while it has at most 1.5
    times the sessions of the least loaded one that fits, plus `SLACK_SESSIONS`.
    """
    fitting = [c for c in candidates if fits(c, wanted)]
    if not fitting:
        return None
    fitting = [c for c in fitting if not c.stuck] or fitting
    together = [c for c in fitting if _worker(c) in wanted.company and not _avoided(c, wanted)]
    fitting = together or fitting
    homes = {c.address for c in candidates if c.description.worker_id == wanted.beside}
    least = min(_load(c) for c in fitting)
    if any(_load(c) > 1.5 * least + SLACK_SESSIONS for c in fitting if _is(c, knows)):
        knows = ""
    best = min(fitting, key=lambda c: _cost(c, wanted, homes, knows))
    return best.description.worker_id


def _worker(candidate: Candidate) -> str:
    return candidate.description.worker_id


def _is(candidate: Candidate, worker: str) -> bool:
    return _worker(candidate) == worker


def _avoided(candidate: Candidate, wanted: Wanted) -> bool:
    return _worker(candidate) in wanted.avoid


def _load(candidate: Candidate) -> int:
    """Sessions there, as far as is known."""
    return max(candidate.assigned, candidate.progress.sessions + candidate.fresh)


def _load_for_all(candidate: Candidate) -> int:
    """The same if every orchestrator has placed as much there since the report."""
    told = candidate.progress
    return max(candidate.assigned, told.sessions + candidate.fresh * max(1, told.links))


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
        and _drafts_from(worker, wanted)
        and not _full(candidate, wanted)
        and pairs(worker.tokenizer_fingerprint, wanted.tokenizer_fingerprint)
    )


def _drafts_from(drafter: WorkerDescription, wanted: Wanted) -> bool:
    """Whether the states that there are suffice for the methods, or for some of them."""
    methods = tuple(wanted.methods)
    shape = needed(drafter, methods)
    if shape == NO_STATES:
        return True
    without = any(needed(drafter, (method,)) == NO_STATES for method in methods)
    return shape == wanted.states and (without or not wanted.untold)


def pairs(drafter_tokenizer: str, verifier_tokenizer: str) -> bool:
    """Whether drafts of one tokenizer mean the same to the other; empty fits any."""
    return not drafter_tokenizer or drafter_tokenizer == verifier_tokenizer


def _full(candidate: Candidate, wanted: Wanted) -> bool:
    capacity = candidate.progress.kv_tokens_capacity
    used = candidate.progress.kv_tokens_used + candidate.fresh_tokens
    return bool(capacity) and capacity < max(used + wanted.tokens, wanted.most_tokens)


def _lacks_states(candidate: Candidate, wanted: Wanted) -> bool:
    """Whether it is a verifier that cannot tell the states that are wanted."""
    if wanted.role is Role.DRAFTER or not wanted.states.layers:
        return False
    return not gives(candidate.description, wanted.states)


def _cost(
    candidate: Candidate, wanted: Wanted, homes: Collection[str], knows: str
) -> tuple[bool, bool, bool, bool, int, int, int, str]:
    progress = candidate.progress
    return (
        _avoided(candidate, wanted),
        not (set(wanted.capabilities) <= set(candidate.description.capabilities))
        or _lacks_states(candidate, wanted),
        candidate.address not in homes,
        not _is(candidate, knows),
        _load_for_all(candidate),
        progress.queued_tokens,
        candidate.order,
        candidate.description.worker_id,
    )

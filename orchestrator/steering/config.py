"""What a session was opened with, and the bounds of its life."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from services.contract.states import NO_STATES, StateShape
from services.contract.types import (
    SCORES,
    TOKEN_LIMITS,
    ResolvedSampling,
    VerifyMode,
    sampled_capability,
    split_methods,
    tree_capability,
)


@dataclass(frozen=True, slots=True)
class TextStop:
    """A stop string that new tokens complete: the first `keep` of them stay."""

    keep: int
    text: str


# (tokens that would follow what was persisted) -> where a stop string ends them.
FindStop = Callable[[tuple[int, ...]], TextStop | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds and counts that bound a session."""

    deadline: float = 300.0
    detach_grace: float = 10.0
    verifier_wait: float = 60.0
    verdict_wait: float = 30.0
    # On top of the time that the worker's queue and pace explain.
    opening_wait: float = 30.0
    worker_attempts: int = 4
    drafter_backoff: float = 1.0
    max_tree_nodes: int = 256


SMALL_TREE = 16
"""Most nodes of a tree whose nodes come with their chances: room for it is kept at all times."""
SMALL_TREE_DEPTH = 8
"""Most levels of such a tree, which cost no step of a model, where a request names no window."""
SMALL_TREE_WIDTH = 8
"""Candidates of each place in it, where a request names no number."""


def largest_block(
    window: int, num_candidates: int, limits: Limits, *, estimated: bool = False
) -> int:
    """Most draft tokens (nodes of a tree) in one block."""
    if estimated:
        return max(window, SMALL_TREE)
    return max(window, limits.max_tree_nodes if num_candidates > 1 else 0)


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """What a session was opened with; never changes."""

    session: str
    prompt: tuple[int, ...]
    mode: VerifyMode
    sampling: ResolvedSampling
    seed: int
    term: int = 1
    # Drafting method, or several joined by commas; empty = plain decoding, no drafter is
    # ever asked for.
    method: str = ""
    # Most tokens a drafter may be ahead of the committed text.
    window: int = 0
    num_candidates: int = 1
    # Trees come at once, each node with its chance, and are cut where they stop to pay.
    estimated: bool = False
    # 0 = not checked.
    vocab_size: int = 0
    # Whose phrases the drafter may learn and propose; empty = nobody's.
    phrase_scope: str = ""
    # Whose K/V the verifier may share with the session; empty = nobody's.
    cache_scope: str = ""
    # Whose K/V it may share while both are open: completions of one prompt; empty = nobody's.
    fork_scope: str = ""
    # Among waiting sessions of its tenant; lower is sooner.
    priority: int = 0
    # The policy by which its verifier decides how much of a draft it judges; empty = its own.
    pacing: str = ""
    # The drafter is to rest while the verifier works.
    synchronous: bool = False
    # Tokens in each row of target predictions for the drafter; 0 = verdicts carry none.
    top_rows: int = 0
    # The states of the target that the drafter needs, which the verifier is asked for.
    states: StateShape = NO_STATES
    # None: it has no stop strings.
    find_stop: FindStop | None = None
    limits: Limits = field(default_factory=Limits)

    @property
    def most_tokens(self) -> int:
        """The most tokens of K/V that a worker of the session can need."""
        return len(self.prompt) + self.sampling.max_tokens + self.largest_block

    @property
    def largest_block(self) -> int:
        """Most draft tokens (nodes of a tree) in one block."""
        return largest_block(
            self.window, self.num_candidates, self.limits, estimated=self.estimated
        )

    @property
    def methods(self) -> tuple[str, ...]:
        """The drafting methods that the session's worker must run, all of them."""
        return split_methods(self.method)

    @property
    def drafter_capabilities(self) -> tuple[str, ...]:
        """The capabilities that a drafter should have for the session's method.

        Several methods together draft trees, even if none of them does alone.
        """
        if len(self.methods) > 1:
            return ()
        sampled = () if self.mode.exact_match else (sampled_capability(self.method),)
        tree = (tree_capability(self.method),) if self.num_candidates > 1 else ()
        return sampled + tree

    @property
    def verifier_capabilities(self) -> tuple[str, ...]:
        """What a verifier must be able to do."""
        formats = self.sampling.response_format
        needed = {
            TOKEN_LIMITS: self.sampling.limits_tokens,
            SCORES: self.sampling.prompt_logprobs is not None,
        }
        others = tuple(name for name, used in needed.items() if used)
        return (() if formats is None else formats.capabilities) + others


class Phase(Enum):
    """Where a session stands."""

    NEW = "new"
    RUNNING = "running"
    # The last commit is decided but not yet stored, or the last one before nobody can go on.
    FINISHING = "finishing"
    # Stopped before its end; a new term may go on from what is stored.
    SUSPENDED = "suspended"
    DONE = "done"

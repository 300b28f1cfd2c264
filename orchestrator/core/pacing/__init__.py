"""When to send a block to the verifier, and how many draft tokens it holds.

Pure: a policy sees counts, clocks and past outcomes, never an unsent token (otherwise decoding
would not be lossless). Policies are values; `observe` returns the next one, and the same
outcomes lead to the same decisions.

- `Thompson` (`thompson`; Liu et al. 2024): asynchronous, the number k = 0, 1, ... of draft
  tokens that pays best by what was learned of drafts and rounds (`learned`, `costs`, `plan`).
- `Matched` (`matched`; PEARL, Liu et al. 2024): blocks that take as long to draft as to
  verify; it does not wait for one after a rejection.
- `Eager` (`eager`; AMUSD, McDanel 2024): whatever is drafted, as soon as the verifier is free.
- `Fixed` (`fixed`; Leviathan et al. 2023): synchronous speculative decoding, k
  tokens a round, the drafter idle during verification. A baseline.
- `Marginal` (trees whose nodes carry chances): as many nodes as pay.
- `Levels` (other trees under any asynchronous policy): synchronous, as deep as pays best.

`Chained` wraps an asynchronous policy and sends the next block before the verdict on the last;
`Fallback` turns the drafter off while drafts do not pay. Later sessions inherit what a session
learned as their `Experience`.
"""

from __future__ import annotations

from orchestrator.core.pacing.baselines import Eager, Fixed
from orchestrator.core.pacing.chained import Chained
from orchestrator.core.pacing.costs import RoundCosts
from orchestrator.core.pacing.experience import Experience
from orchestrator.core.pacing.learned import Learned
from orchestrator.core.pacing.levels import Levels
from orchestrator.core.pacing.marginal import Estimates, Marginal
from orchestrator.core.pacing.matched import Matched
from orchestrator.core.pacing.policy import (
    Decision,
    FinishedRound,
    Flight,
    Policy,
    Send,
    View,
    Wait,
)
from orchestrator.core.pacing.resting import Fallback
from orchestrator.core.pacing.steps import told_by
from orchestrator.core.pacing.thompson import Thompson
from services.contract.types import Allowance

__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "Chained",
    "Decision",
    "Eager",
    "Estimates",
    "Experience",
    "Fallback",
    "FinishedRound",
    "Fixed",
    "Flight",
    "Learned",
    "Levels",
    "Marginal",
    "Matched",
    "Policy",
    "RoundCosts",
    "Send",
    "Thompson",
    "View",
    "Wait",
    "make_policy",
    "told_by",
]

POLICIES = ("thompson", "matched", "eager", "fixed")
DEFAULT_POLICY = "thompson"


def resting(policy: Policy) -> int:
    """Rounds from now on in which the drafter rests, whatever their verdicts."""
    return policy.resting if isinstance(policy, Fallback | Marginal) else 0


def allowance(policy: Policy, most: int) -> Allowance | None:
    """How much of a tree of `most` nodes the verifier may take by itself; None = it may not."""
    return policy.allowance(most) if isinstance(policy, Marginal) else None


def make_policy(
    name: str,
    window: int,
    *,
    fallback: bool = True,
    exact: bool = True,
    trees: bool = False,
    most_nodes: int = 0,
    chained: bool = False,
    seed: int = 0,
) -> Policy:
    """The policy of a name. `window` is the most tokens a drafter may be ahead.

    `exact`: drafts are matched exactly, so the target's own tokens show how good they
    are; `trees`: a draft is a tree; `most_nodes` > 0: its node limit, if nodes carry
    chances; `chained`: several blocks of a session may be at the verifier; `seed`: of
    the random draws. Raises ValueError for an unknown name.
    """
    if name not in POLICIES:
        raise ValueError(f"unknown pacing {name!r}; known are {', '.join(POLICIES)}")
    if most_nodes:
        return Marginal(most_nodes, window, fallback)
    policy = (
        _trees(name, window, exact, fallback)
        if trees
        else _chains(name, window, exact, seed, chained)
    )
    policy = Fallback(policy) if fallback else policy
    return Chained(policy) if chained and name != "fixed" and not trees else policy


def _chains(name: str, window: int, exact: bool, seed: int, chained: bool) -> Policy:
    learned = Learned(exact)
    match name:
        case "thompson":
            return Thompson(window, learned, seed, chained)
        case "matched":
            return Matched(window, learned)
        case "eager":
            return Eager(window)
        case _:
            return Fixed(window)


def _trees(name: str, window: int, exact: bool, fallback: bool) -> Policy:
    """Trees are drafted on demand, so the policy waits for them."""
    return Fixed(window) if name == "fixed" or not fallback else Levels(window, Learned(exact))

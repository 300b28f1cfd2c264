"""When to send a block to the verifier, and how many draft tokens it holds.

Pure: a policy sees counts, clocks and past outcomes, never a token that was not
sent (what may decide about a drawn token is part of losslessness). Policies are
values; `observe` returns the next one.

- `Adaptive` (`eager`): asynchronous, with k = 0, 1, ... draft tokens as pays best
  by what was learned of drafts and rounds (`learned`, `plan`).
- `Levels` (trees under `eager`): synchronous, as deep as pays best.
- `Fixed` (`fixed`; Leviathan et al. 2023): synchronous speculative decoding, k
  tokens a round, the drafter idle while the verifier works. A baseline.
- `Eager` (`eager` without fallback; AMUSD, McDanel 2024): whatever is there, as soon
  as the verifier is free. A baseline.

A `Fallback` around them turns the drafter off while drafts do not pay. What a
session learned is the `Experience` of those after it.
"""

from __future__ import annotations

from orchestrator.core.pacing.adaptive import Adaptive, Levels
from orchestrator.core.pacing.baselines import Eager, Fixed
from orchestrator.core.pacing.experience import Experience
from orchestrator.core.pacing.learned import Learned
from orchestrator.core.pacing.policy import Decision, Outcome, Policy, Send, View, Wait
from orchestrator.core.pacing.resting import Fallback

__all__ = [
    "POLICIES",
    "Adaptive",
    "Decision",
    "Eager",
    "Experience",
    "Fallback",
    "Fixed",
    "Learned",
    "Levels",
    "Outcome",
    "Policy",
    "Send",
    "View",
    "Wait",
    "make_policy",
]

POLICIES = ("eager", "fixed")


def make_policy(
    name: str, window: int, *, fallback: bool = True, exact: bool = True, trees: bool = False
) -> Policy:
    """The policy of a name. `window` is the most tokens a drafter may be ahead.

    `exact`: drafts are matched exactly, so what the target says by itself shows
    how good they are; `trees`: a draft is a tree. Raises ValueError for an
    unknown name.
    """
    if name not in POLICIES:
        raise ValueError(f"unknown pacing {name!r}; known are {', '.join(POLICIES)}")
    if name == "fixed" or (trees and not fallback):
        # A tree is only there if it is waited for.
        return Fallback(Fixed(window)) if fallback else Fixed(window)
    if not fallback:
        return Eager(window)
    learned = Learned(exact)
    return Fallback(Levels(window, learned) if trees else Adaptive(window, learned))

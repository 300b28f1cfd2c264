"""Verification rules: which draft tokens stay, and the law of the token after them.

    exact       the target's own choices walk down the draft (greedy, coupled)
    standard    token-level rejection sampling on a chain
    block       block verification on a chain
    candidates  recursive rejection on a tree
    judge       the three rejection rules over a ragged batch

Every rule is a short pure function of tensors and of the random numbers, so its
exactness is proven by enumeration.
"""

from services.verifier.rules.exact import Walk, walk_rows
from services.verifier.rules.judge import judge
from services.verifier.rules.proposed import Outcome, Proposed

__all__ = ["Outcome", "Proposed", "Walk", "judge", "walk_rows"]

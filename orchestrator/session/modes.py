"""Which rule verifies the drafts of a session. Pure.

Every rule keeps the target's output distribution, so this is a choice of speed and of
further guarantees: `GREEDY` and `COUPLED` give the same text whatever was drafted,
`STANDARD` and `BLOCK` accept more of what a drafter samples.
"""

from __future__ import annotations

from services.contract.types import VerifyMode

# With asynchronous drafting BLOCK gives up the bonus after each fully accepted block, which
# COUPLED keeps; what BLOCK accepts beyond the others grows with the block. On the demo model,
# with a draft that is right half the time, the two are equal at about five tokens.
SHORT_BLOCK = 5


def resolve_mode(
    asked: VerifyMode | None,
    *,
    temperature: float,
    seeded: bool,
    sampled: bool,
    num_candidates: int,
    short_blocks: bool,
) -> VerifyMode:
    """The rule of a session; `asked` None = AUTO. At temperature 0 all rules are one.

    What AUTO is above that:

    | seed given | drafts                                  | rule       |
    |------------|-----------------------------------------|------------|
    | yes        | any                                     | `COUPLED`  |
    | no         | sampled chains in short blocks          | `COUPLED`  |
    | no         | sampled chains                          | `BLOCK`    |
    | no         | sampled trees (`num_candidates` > 1)    | `STANDARD` |
    | no         | not sampled, not known, or none at all  | `COUPLED`  |

    `sampled`: the drafting method samples its tokens and sends their distributions. A given
    seed asks for a repeatable text, which rules that depend on the draft cannot promise.
    `short_blocks`: an asynchronous drafter drafts fewer than `SHORT_BLOCK` tokens during a
    verification.
    """
    if temperature == 0:
        return VerifyMode.GREEDY
    if asked is not None:
        return asked
    if seeded or not sampled:
        return VerifyMode.COUPLED
    if num_candidates > 1:
        return VerifyMode.STANDARD
    return VerifyMode.COUPLED if short_blocks else VerifyMode.BLOCK

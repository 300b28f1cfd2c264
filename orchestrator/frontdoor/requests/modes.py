"""Which rule verifies the drafts of a session. Pure.

Every rule keeps the target's law, so this is a choice of pace and of what is
promised beside the law: `GREEDY` and `COUPLED` give the same text whatever was
drafted, `STANDARD` and `BLOCK` accept more of what a drafter samples.
"""

from __future__ import annotations

from services.contract.types import VerifyMode

# Ahead of the verifier, BLOCK gives up the bonus after each block accepted whole, which
# COUPLED keeps; what BLOCK accepts beyond the others grows with the block. Measured on the
# demo model with a draft that it accepts half the time, the two meet at about five tokens.
SHORT_BLOCK = 5


def resolve_mode(
    asked: VerifyMode | None,
    *,
    temperature: float,
    seeded: bool,
    sampled: bool,
    num_candidates: int,
    short_blocks: bool = False,
) -> VerifyMode:
    """The rule of a session; `asked` None = AUTO. At temperature 0 all rules are one."""
    if temperature == 0:
        return VerifyMode.GREEDY
    return asked or auto_mode(
        seeded=seeded, sampled=sampled, num_candidates=num_candidates, short_blocks=short_blocks
    )


def auto_mode(
    *, seeded: bool, sampled: bool, num_candidates: int, short_blocks: bool = False
) -> VerifyMode:
    """What AUTO is at a temperature above 0.

    | seed given | drafts                                  | rule       |
    |------------|-----------------------------------------|------------|
    | yes        | any                                     | `COUPLED`  |
    | no         | sampled chains in short blocks          | `COUPLED`  |
    | no         | sampled chains                          | `BLOCK`    |
    | no         | sampled trees (`num_candidates` > 1)    | `STANDARD` |
    | no         | not sampled, not known, or none at all  | `COUPLED`  |

    `sampled`: the drafting method draws its tokens and tells the law it drew
    them from. A given seed asks for a text that can be had again, which rules
    that depend on the draft cannot promise. `short_blocks`: a drafter that runs ahead
    drafts fewer than `SHORT_BLOCK` tokens while a block is verified.
    """
    if seeded or not sampled:
        return VerifyMode.COUPLED
    if num_candidates > 1:
        return VerifyMode.STANDARD
    return VerifyMode.COUPLED if short_blocks else VerifyMode.BLOCK

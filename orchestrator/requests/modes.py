"""Which rule verifies the drafts of a session. Pure.

Every rule keeps the target's law, so this is a choice of pace and of what is
promised beside the law: `GREEDY` and `COUPLED` give the same text whatever was
drafted, `STANDARD` and `BLOCK` accept more of what a drafter samples.
"""

from __future__ import annotations

from services.common.types import VerifyMode


def resolve_mode(
    asked: VerifyMode | None,
    *,
    temperature: float,
    seeded: bool,
    sampled: bool,
    num_candidates: int,
) -> VerifyMode:
    """The rule of a session; `asked` None = AUTO. At temperature 0 all rules are one."""
    if temperature == 0:
        return VerifyMode.GREEDY
    return asked or auto_mode(seeded=seeded, sampled=sampled, num_candidates=num_candidates)


def auto_mode(*, seeded: bool, sampled: bool, num_candidates: int) -> VerifyMode:
    """What AUTO is at a temperature above 0.

    | seed given | drafts                                  | rule       |
    |------------|-----------------------------------------|------------|
    | yes        | any                                     | `COUPLED`  |
    | no         | sampled chains                          | `BLOCK`    |
    | no         | sampled trees (`num_candidates` > 1)    | `STANDARD` |
    | no         | not sampled, not known, or none at all  | `COUPLED`  |

    `sampled`: the drafting method draws its tokens and tells the law it drew
    them from. A given seed asks for a text that can be had again, which rules
    that depend on the draft cannot promise.
    """
    if seeded or not sampled:
        return VerifyMode.COUPLED
    return VerifyMode.BLOCK if num_candidates == 1 else VerifyMode.STANDARD

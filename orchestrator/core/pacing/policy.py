"""What a pacing policy sees, decides and is told afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class View:
    """What a policy may know. Times in seconds on the driver's clock.

    `drafted` is the number of tokens (nodes of a tree) ready to be sent;
    `idle_since` is when the verifier became free for this session.
    """

    now: float
    idle_since: float
    drafted: int
    drafting: bool
    room: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a block of at most `count` draft tokens now; 0 = plain decoding."""

    count: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for more, at most until this time."""

    until: float


Decision = Send | Wait


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished round: milliseconds from sending to verdict; discarded ones are left out.

    `waited_ms` is how long the free verifier stood idle before. `levels` is the
    depth of the block (None: a chain, one level a token); `whole` tells whether
    it was accepted down to a leaf (None: a chain, so if all of it was).
    `guessed`: whether the target's own token at the end was the one that the
    drafter had next, None where it had none.
    """

    draft_tokens: int
    accepted_tokens: int
    emitted_tokens: int
    round_ms: float
    draft_ms: float
    waited_ms: float = 0.0
    levels: int | None = None
    whole: bool | None = None
    guessed: bool | None = None

    @property
    def depth(self) -> int:
        """Levels of the block."""
        return self.draft_tokens if self.levels is None else self.levels

    @property
    def to_leaf(self) -> bool:
        """Nothing was drafted after what was accepted."""
        return self.accepted_tokens == self.draft_tokens if self.whole is None else self.whole


class Policy(Protocol):
    """A pacing policy."""

    @property
    def window(self) -> int:
        """Most tokens the drafter may be ahead; 0 = it should rest."""

    def decide(self, view: View) -> Decision:
        """Send now, or wait."""

    def observe(self, outcome: Outcome) -> Policy:
        """The policy after a round."""

"""What a pacing policy sees, decides and observes.

Values that every round makes anew are named tuples, here, in `learned` and the policies for
chains: making one is faster than a frozen dataclass, which sets field after field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

PATIENCE = 1.5
PATIENCE_MS = 5.0


class Flight(NamedTuple):
    """A block of the session at the verifier: when it was sent, and its draft tokens."""

    sent_at: float
    draft_tokens: int


class View(NamedTuple):
    """What a policy may know. Times in seconds on the driver's clock.

    `drafted` is the number of tokens (nodes of a tree) ready to be sent;
    `idle_since` is when the verifier became free for this session, or, for a block
    chained to `live` ones, will become free. `bonus`: the first token of a chained block
    is the bonus of the one before, so that a block of one token is a plain round.
    `reach`: the chance of each node of the ready tree, where the drafter gives it.
    """

    now: float
    idle_since: float
    drafted: int
    drafting: bool
    room: int
    live: tuple[Flight, ...] = ()
    bonus: bool = True
    reach: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """Send a block of at most `count` draft tokens now; 0 = plain decoding."""

    count: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for more, at most until this time."""

    until: float


Decision = Send | Wait


class FinishedRound(NamedTuple):
    """One finished round, not discarded. Times in milliseconds.

    `round_ms`: from sending to verdict; `waited_ms`: how long pacing let the free verifier
    idle before; `elapsed_ms`: since the verdict before (0: the sum of both). `levels`: the
    depth of the block (None: a chain, one level a token); `whole`: it was accepted down to
    a leaf (None: a chain, so if all of it was). `guessed`: the target's own token at the
    end was the drafter's next one; None where it had none. Of the verifier's step:
    `verify_ms`, its sessions and tokens, and the block's `queue_ms` before it; all 0 where
    the verifier does not report them. `chained`: it also waited for a block of its own
    session. `tail_ms`: the time per token drafted beyond the block, 0 = none was. `reach`:
    the drafter's chances of the block's nodes; `taken`: the accepted nodes.
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
    elapsed_ms: float = 0.0
    verify_ms: float = 0.0
    queue_ms: float = 0.0
    batch_size: int = 1
    batch_rows: int = 0
    chained: bool = False
    tail_ms: float = 0.0
    reach: tuple[float, ...] = ()
    taken: tuple[int, ...] = ()

    @property
    def depth(self) -> int:
        """Levels of the block."""
        return self.draft_tokens if self.levels is None else self.levels

    @property
    def to_leaf(self) -> bool:
        """No draft token of the block follows the accepted ones."""
        return self.accepted_tokens == self.draft_tokens if self.whole is None else self.whole

    @property
    def spent_ms(self) -> float:
        """What the round took of the session's time."""
        return self.elapsed_ms or self.round_ms + self.waited_ms


def wait_for(view: View, seconds: float) -> Wait | None:
    """A wait of so long from when the verifier became free; None when it is over."""
    until = view.idle_since + seconds
    return Wait(until) if view.now < until else None


def patience(expected_ms: float) -> float:
    """Seconds to wait for something that should take `expected_ms`."""
    return 1e-3 * (PATIENCE * expected_ms + PATIENCE_MS)


class Policy(Protocol):
    """A pacing policy."""

    @property
    def window(self) -> int:
        """Most tokens the drafter may be ahead; 0 = it should rest."""

    def decide(self, view: View) -> Decision:
        """Send now, or wait."""

    def observe(self, outcome: FinishedRound) -> Policy:
        """The policy after a round."""

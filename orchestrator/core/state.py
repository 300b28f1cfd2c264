"""The state of one session, as a value.

`committed` is final. The text a drafter may extend is
committed + live blocks in flight + tail, called the *speculated text* below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from orchestrator.core.drafts import Piece, Tail, chain_tokens, ends_in_tree
from orchestrator.core.events import DraftArrived
from orchestrator.core.pacing import Policy
from orchestrator.steering.config import Phase, SessionConfig
from orchestrator.steering.rounds import Commit
from services.contract.types import (
    EMPTY_HASH,
    Verdict,
    extend_hash,
)
from services.scheduling.kv_reserve import reserve_of


@dataclass(frozen=True, slots=True)
class Attached:
    """A worker that has the session, opened in `epoch`, or is to have it by `due`.

    `beside`: for a drafter, the verifier that may take its trees by itself; empty = none.
    """

    worker: str
    epoch: int
    opened: bool = False
    due: float = math.inf
    beside: str = ""

    def overdue(self, now: float) -> bool:
        """Whether it should have opened the session by now."""
        return not self.opened and now >= self.due


class Block(NamedTuple):
    """A block at the verifier. A doomed one will come back discarded."""

    round: int
    epoch: int
    base_len: int
    piece: Piece
    sent_at: float
    drafter: str = ""
    want_bonus: bool = True
    doomed: bool = False
    # It was sent behind another one whose verdict had not come.
    chained: bool = False
    # Milliseconds that pacing let the free verifier wait for it.
    waited_ms: float = 0.0
    # It was sent with the opening, to be verified in the step that ends the prefill.
    opening: bool = False
    # It follows the block before it, whatever that one's verdict.
    behind: bool = False
    # It left without a tree, and takes one in the verifier's process.
    takes: bool = False


def of_flight(in_flight: tuple[Block, ...]) -> dict[str, tuple[Block, ...] | tuple[int, ...]]:
    """The fields of a state that follow from its blocks in flight."""
    if not in_flight:
        return {"live": (), "flying": ()}
    live = tuple([block for block in in_flight if not block.doomed])
    return {"live": live, "flying": chain_tokens(tuple([block.piece for block in live]))}


def tokens_in(tail: Tail) -> int:
    """Draft tokens (tree nodes) of a tail."""
    return sum([len(piece.tree.token_ids) for piece in tail])


@dataclass(frozen=True)
class State:
    """One session. Only `rounds.step` makes a new one.

    No slots: a turn copies all of it, and copying a dictionary is faster.
    """

    config: SessionConfig
    policy: Policy
    phase: Phase = Phase.NEW
    epoch: int = 1
    committed: tuple[int, ...] = ()
    committed_hash: int = EMPTY_HASH
    tail: Tail = ()
    in_flight: tuple[Block, ...] = ()
    # Verdicts that arrived before those of earlier blocks.
    early: tuple[Verdict, ...] = ()
    next_round: int = 1
    verifier: Attached | None = None
    drafter: Attached | None = None
    # A draft from beside the verifier that follows a verdict which is not here yet.
    foreknown: DraftArrived | None = None
    # Committed tokens that the drafter was sent, and rounds since then that it got beside.
    told: int = 0
    untold_rounds: int = 0
    # The states that came with the verdicts of these rounds.
    untold_states: tuple[bytes, ...] = ()
    # The drafter will not extend its draft.
    drafter_final: bool = False
    # Most tokens ahead that the load allows; None = any.
    cap: int | None = None
    # What the drafter was last told of its window.
    credit: int = 0
    resync: bool = False
    resyncs: int = 0
    unpersisted: tuple[Commit, ...] = ()
    began_at: float = 0.0
    idle_since: float = 0.0
    verifier_missing_since: float = 0.0
    # Refusals of the session and wrong answers, since the last verdict.
    verifier_failures: int = 0
    # Verifiers that were lost, and the openings in a row that were overdue.
    verifier_losses: int = 0
    verifier_overdue: int = 0
    # The current one, of an older version, took no block behind a plain one.
    refuses_behind: bool = False
    # Why the last one has the session no more.
    verifier_left: str = ""
    drafter_failures: int = 0
    drafter_losses: int = 0
    drafter_not_before: float = 0.0
    detached_at: float | None = None
    # When pacing wants to be asked again.
    wait_until: float | None = None
    cached_tokens: int = 0

    # What follows from the text; `Turn.set` keeps it in step.
    # Blocks whose verdict will move the text.
    live: tuple[Block, ...] = field(init=False, compare=False, repr=False)
    # Draft tokens of the live chain blocks, in text order.
    flying: tuple[int, ...] = field(init=False, compare=False, repr=False)
    # Draft tokens (tree nodes) of the tail.
    drafted: int = field(init=False, compare=False, repr=False)
    # None = to be worked out when it is asked for.
    known_hash: int | None = field(init=False, compare=False, repr=False, default=None)

    def __post_init__(self) -> None:
        self.__dict__.update(of_flight(self.in_flight), drafted=tokens_in(self.tail))

    @property
    def next_tokens(self) -> int:
        """Tokens of K/V that a verifier reserves for the session at first."""
        config = self.config
        text = len(config.prompt) + len(self.committed)
        return reserve_of(text, config.largest_block, config.most_tokens)

    @property
    def speculated(self) -> tuple[int, ...]:
        """Chain tokens beyond the committed text: in flight, then tail."""
        return self.flying + chain_tokens(self.tail)

    @property
    def end_hash(self) -> int:
        """The rolling hash of the whole speculated text."""
        if self.known_hash is None:
            self.__dict__["known_hash"] = extend_hash(self.committed_hash, self.speculated)
        assert self.known_hash is not None
        return self.known_hash

    @property
    def end(self) -> int:
        """Length of the speculated text: where the next draft token would stand."""
        tree = len(self.tail[-1].tree) if ends_in_tree(self.tail) else 0
        return len(self.committed) + len(self.flying) + self.drafted - tree

    @property
    def closed(self) -> bool:
        """A tree ends the speculated text, so nothing can follow it."""
        if ends_in_tree(self.tail):
            return True
        return bool(self.live) and any(not block.piece.is_chain for block in self.live)

    @property
    def window(self) -> int:
        """Most tokens that the drafter may be ahead now."""
        return self.capped(self.policy.window)

    def capped(self, count: int) -> int:
        """A count of draft tokens, or what the load allows if that is less."""
        return count if self.cap is None else min(count, self.cap)

    @property
    def lacks_worker(self) -> bool:
        """It would take another worker now."""
        return self.verifier is None or (self.drafter is None and self.wants_drafter)

    @property
    def wants_drafter(self) -> bool:
        """Speculation is on and the drafters have not failed too often."""
        limit = self.config.limits.worker_attempts
        return bool(self.config.method) and self.drafter_failures < limit

"""What one session does in a step, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from services.contract.frames import StepEnd
from services.contract.types import DraftTree
from services.engine.noise import Stream, uniform
from services.engine.port import Segment
from services.runtime.step_records import StepEntry
from services.verifier.running.mailbox import NO_TREE, NOTHING, Taken
from services.verifier.running.session import RunningSession


class Turn:
    """A session's part of a step: `prompt` tokens of its prefill, its draft behind the text, both.

    `verifies`: whether a token is to follow. `logits` [1 + draft tokens, V] and `states` [the same,
    width] of the draft's rows are there once they were computed, and `ahead` [L, V] of rows ahead.
    `last`: the place in the text of the last token before the draft; `since`: when the session
    could first have been in a step.
    """

    __slots__ = (
        "ahead",
        "base_len",
        "last",
        "logits",
        "prompt",
        "room",
        "segment",
        "session",
        "since",
        "states",
        "step",
        "taken",
        "tree",
        "verifies",
    )

    logits: Tensor

    def __init__(
        self,
        session: RunningSession,
        segment: Segment,
        taken: Taken = NOTHING,
        prompt: int = 0,
        *,
        verifies: bool = True,
    ) -> None:
        self.session, self.segment, self.taken = session, segment, taken
        self.prompt, self.verifies = prompt, verifies
        self.tree = taken.tree
        self.base_len, self.room = session.length, session.room
        self.last, self.since = len(session.text) - 1, session.ready_since
        self.step = session.steps + 1
        self.states: Tensor | None = None
        self.ahead: Tensor | None = None

    @property
    def rows(self) -> int:
        """Tokens that it adds to the forward."""
        return len(self.segment.token_ids)

    def number(self, stream: Stream, node: int, candidate: int) -> float:
        """A random number of its own: no other step, opening or term has the same."""
        opening = self.session.opening
        counters = (opening.term, opening.opening, self.step, node, candidate)
        return uniform(opening.seed, stream, *counters)

    def tell(self, logits: Tensor, states: Tensor | None) -> None:
        """Take what the forward says of the draft's rows and of those ahead."""
        rows = 1 + len(self.tree)
        self.logits = logits if len(logits) == rows else logits[:rows]
        if len(logits) > rows:
            self.ahead = logits[rows:].clone()
        self.states = None if states is None else states[self.prompt : self.prompt + rows]

    def entries(self, started: float) -> Iterator[StepEntry]:
        """What tracing learns of it; `started` is in seconds."""
        session = self.session
        name, parent = session.opening.session_id, session.opening.traceparent
        if self.prompt:
            yield StepEntry(name, "prefill", self.prompt, traceparent=parent)
        if self.verifies:
            waited = 1e3 * max(0.0, started - self.since)
            place = session.opening.opening, self.base_len
            yield StepEntry(name, "verify", len(self.tree), parent, waited, *place)


class Decided(NamedTuple):
    """The accepted nodes of a draft, and what stands behind them.

    `late`: candidates for the token behind the verified ones that came while the step ran and
    that its last row judged; their nodes follow those of the draft.
    """

    path: tuple[int, ...]
    token: int | None
    end: StepEnd
    near_ties: int = 0
    bad_q_rows: int = 0
    late: DraftTree = NO_TREE


def step_turn(session: RunningSession, taken: Taken, prompt: int = 0) -> Turn:
    """A draft behind the text; before it the last `prompt` tokens of the prefill."""
    tree, text = taken.tree, session.text
    tokens: Sequence[int] = (text[-1], *tree.token_ids)
    parents = None
    if tree.parents is not None:
        parents = (-1, *[parent + 1 for parent in tree.parents])
    elif session.offer is not None and session.offer.look_ahead:
        left = max(0, session.room - len(tree) - 1)
        tokens = (*tokens, *session.offer.look_ahead[:left])
    if prompt:
        tokens = (*session.prompt_segment(prompt).token_ids, *tokens)
    return Turn(session, Segment(session.cache, tokens, parents, prompt), taken, prompt)


def prompt_turn(session: RunningSession, share: int) -> Turn:
    """The next `share` tokens of a prefill alone."""
    return Turn(session, session.prompt_segment(share), prompt=share, verifies=False)

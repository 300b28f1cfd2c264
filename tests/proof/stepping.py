"""One step of a session by the verifier's own code, with every outcome and its probability.

The real mailbox, the real decision over the logits of the target's law, the real cut at a stop. It
is asked again and again: where it wants a random number, each is tried that may decide otherwise,
by thresholds that are worked out by hand (`laws`, `tests.rules.reference`). One that is off by more
than 1e-12 makes the law of the text wrong. What is left out: K/V, and the wire.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from services.contract.frames import DraftRow
from services.contract.types import DraftTree, ResolvedSampling, VerifyMode
from services.contract.worker_messages import StartVerify
from services.engine.noise import Stream
from services.engine.structure import Structures
from services.verifier.refusals import open_matcher
from services.verifier.running.deciding import decide_turns
from services.verifier.running.mailbox import Mailbox
from services.verifier.running.session import RunningSession
from services.verifier.running.telling import said
from services.verifier.running.turns import Decided, Turn, step_turn
from tests.proof.laws import LawOf, Text, target
from tests.rules import reference
from tests.rules.worlds import texts
from tests.services.loop_law import Frozen, frozen, thawed

EDGE = 2.0**-40
PROMPT = (0,)
FREE = 1 << 20
"""A limit that is never reached."""
Draw = tuple[Stream, int, int]
"""(stream, row, candidate)."""
Outcome = tuple[float, Text, Frozen]
"""(probability, the tokens said, the mailbox behind them)."""


class Doing(NamedTuple):
    """What a step verifies, and what came for its session while it ran."""

    box: Frozen
    size: int
    came: tuple[DraftRow, ...] = ()


@dataclass(frozen=True)
class Stepping:
    """Steps of a session whose target has a law after each text.

    `law`: as its tokens are drawn, worked out by hand; `raw`: before any form.
    """

    mode: VerifyMode
    sampling: ResolvedSampling
    law: LawOf = target
    raw: LawOf = target
    structures: Structures | None = None
    seed: int = 1
    prompt: Text = PROMPT
    _sessions: dict[Text, RunningSession] = field(default_factory=dict, compare=False, repr=False)
    _steps: dict[Any, list[Outcome]] = field(default_factory=dict, compare=False, repr=False)

    def __hash__(self) -> int:
        return hash((self.mode, self.seed))

    def outcomes(self, text: Text, doing: Doing) -> list[Outcome]:
        """Every outcome of a step behind a text; equal ones are one."""
        known = self._steps.get((text, doing))
        if known is None:
            known = self._steps[text, doing] = [*self._outcomes(text, doing)]
        return known

    def _outcomes(self, text: Text, doing: Doing) -> Iterator[Outcome]:
        session = self.session(text)
        session.mailbox = thawed(Mailbox, doing.box)
        turn = step_turn(session, session.mailbox.first_tokens(doing.size, session.room))
        tell(turn, self.raw)
        for draft in doing.came:
            session.mailbox.put(draft, session.output, 0.0)
        behind = frozen(session.mailbox)
        merged: defaultdict[Text, float] = defaultdict(float)
        for weight, decided in ways(self.law, turn):
            merged[said(turn, decided)] += weight
        for tokens, weight in merged.items():
            box: Mailbox = thawed(Mailbox, behind)
            box.follow(tokens)
            yield weight, tokens, frozen(box)

    def session(self, text: Text) -> RunningSession:
        """As it is opened behind an output."""
        known = self._sessions.get(text)
        if known is None:
            known = self._sessions[text] = self.opened(text)
        return known

    def opened(self, text: Text) -> RunningSession:
        """Another one."""
        own = StartVerify(
            1, 1, "s", 1, self.prompt, text, FREE, self.mode, self.sampling, self.seed, 255
        )
        session = RunningSession(0, own, 0.0)
        session.cache = None  # type: ignore[assignment]
        if (wanted := self.sampling.response_format) is not None and self.structures is not None:
            compiled = self.structures.compiled(wanted)
            session.matcher = open_matcher(own, compiled, self.structures)
            while not session.follow_text(1.0):
                pass
        return session


def tell(turn: Turn, raw: Callable[[Text], Sequence[float]]) -> None:
    """Give a turn the logits of its rows: those of a law after each text."""
    laws = np.array([raw(at) for at in texts(turn.tree, output_of(turn))])
    turn.tell(torch.from_numpy(laws).log(), None)


def output_of(turn: Turn) -> Text:
    """The output of a turn's session."""
    return tuple(turn.session.text[len(turn.session.opening.prompt) :])


# --- every outcome --------------------------------------------------------------------


def ways(
    law: Callable[[Text], Sequence[float]],
    turn: Turn,
    known: dict[Draw, float] | None = None,
    weight: float = 1.0,
) -> Iterator[tuple[float, Decided]]:
    """What the real code may decide of a turn, of which the text has this law."""
    known = known or {}
    asked = Asked(law, turn, known)
    if asked.missing is None:
        yield weight, asked.decided
        return
    for number, chance in asked.choices():
        yield from ways(law, turn, {**known, asked.missing: number}, weight * chance)


class Asked:
    """What the real code does with the numbers that are known, and which one it misses first."""

    def __init__(
        self, law: Callable[[Text], Sequence[float]], turn: Turn, known: dict[Draw, float]
    ) -> None:
        self._law, self._turn, self._known = law, turn, known
        self._at = texts(turn.tree, output_of(turn))
        self.missing: Draw | None = None
        with patch("services.verifier.running.turns.uniform", self._number):
            [decided] = decide_turns([turn])
        assert isinstance(decided, Decided), decided
        self.decided = decided

    def _number(self, _seed: int, stream: Stream, *counters: int) -> float:
        draw = (stream, counters[-2], counters[-1])
        if draw not in self._known and self.missing is None:
            self.missing = draw
        return self._known.get(draw, 0.5)

    def choices(self) -> Iterator[tuple[float, float]]:
        """Numbers that may decide otherwise, with the probability that each stands for."""
        assert self.missing is not None
        stream, row, candidate = self.missing
        if stream is Stream.BONUS:
            return one_for_each(self._law(self._at[row]))
        chances, last = self._by_hand(row)
        if stream is Stream.ACCEPT:
            return two_sides(chances[candidate])
        return one_for_each(last)

    def _by_hand(self, row: int) -> tuple[Sequence[float], Sequence[float]]:
        """At a row of the draft, or at what has come behind it: the chance of each candidate, and
        the law of what replaces them."""
        tree, place, at = self._turn.tree, row, self._at
        if not _children(tree, row):
            behind, mailbox = at[row], self._turn.session.mailbox
            tree, place = mailbox.next_level(behind[len(at[0]) :]), 0
            at = texts(tree, behind)
        p = [np.array(self._law(each)) for each in at]
        q = reference.q_rows(tree, p)
        if place not in q:
            # The target's own token that no draft token equals: it is drawn already.
            return (), (1.0,)
        if not tree.is_chain:
            drawn = [tree.token_ids[node] for node in _children(tree, place)]
            chances, law = reference.candidate_thresholds(
                p[place], q[place], drawn, tree.without_replacement
            )
            return chances, law.tolist()
        size = next(i for i in range(len(tree) + 1) if i not in q)
        x, qs = tree.token_ids[:size], [q[i] for i in range(size)]
        if self._turn.session.opening.mode is VerifyMode.STANDARD:
            chance, scale = reference.standard_thresholds(p, qs, x)[place], 1.0
        else:
            chance = reference.block_thresholds(p, qs, x)[place]
            scale = reference.block_reach(p, qs, x)[place - 1] if place else 1.0
        return (chance,), reference.residual(p[place], q[place], scale).tolist()


def _children(tree: DraftTree, row: int) -> list[int]:
    return [node for node, parent in enumerate(tree.every_parent) if parent == row - 1]


def two_sides(h: float) -> Iterator[tuple[float, float]]:
    """Just below and just above a threshold."""
    if h > 0:
        yield h * (1 - EDGE), h
    if h < 1:
        yield h + (1 - h) * EDGE, 1 - h


def one_for_each(law: Sequence[float]) -> Iterator[tuple[float, float]]:
    """For each token a number that draws it."""
    for below, mass in zip(accumulate(law, initial=0.0), law, strict=False):
        if mass > 1e-13:
            yield below + mass * EDGE, mass

"""An upper bound: what the same trees would bring without any delay.

No hops, no waits, no rests, and of every tree the number of nodes that pays most by its own
chances, with known costs of rows and a known pace. The served system cannot have that; the
difference shows what there is to gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from bench.simulation.chained import walked
from bench.simulation.recorded import RecordedText
from bench.simulation.scenario import StepTime
from bench.simulation.tree_drafter import TreeDrafts
from orchestrator.core.state import SMALL_TREE_WIDTH
from services.contract.types import OpenDraft, ResolvedSampling, VerifyMode
from services.drafter.methods.ngram.small_tree import SmallTrees, TreeSession
from services.drafter.protocol import Proposed

SWEEPS = 4
"""Each begins with the pace that the one before it came to; it hardly moves after two."""


@dataclass(frozen=True, slots=True)
class Ideal:
    """One text after its first token: verifications, their milliseconds, nodes, and tokens."""

    rounds: int
    ms: float
    nodes: int
    tokens: int


def ideal(text: RecordedText, drafts: TreeDrafts, trees: SmallTrees, verify: StepTime) -> Ideal:
    """How fast a text would be written. `trees`: of `drafts`, made once for all texts."""
    steps = [verify.at(1, 1 + nodes) for nodes in range(drafts.nodes + 1)]
    proposals = _proposals(text, drafts, trees)
    found = _written(text, proposals, steps, 1.0 / steps[0])
    for _ in range(SWEEPS - 1):
        if found.rounds:
            found = _written(text, proposals, steps, found.tokens / found.ms)
    return found


def _proposals(text: RecordedText, drafts: TreeDrafts, trees: SmallTrees) -> list[Proposed]:
    """The tree in front of every token of the answer."""
    answer = text.answer
    sampling = ResolvedSampling(temperature=0.0, max_tokens=len(answer))
    opening = OpenDraft(
        "", 1, text.prompt, (), VerifyMode.GREEDY, sampling, 0, drafts.depth, SMALL_TREE_WIDTH
    )
    session = trees.open(opening, "")
    found = []
    for place in range(len(answer)):
        _follow(session, (*text.prompt, *answer[:place]))
        found.append(session.draft(place, min(drafts.depth, len(answer) - place)))
    return found


def _follow(session: TreeSession, text: Sequence[int]) -> None:
    while not session.follow(text):
        pass


def _written(
    text: RecordedText, proposals: Sequence[Proposed], steps: Sequence[float], pace: float
) -> Ideal:
    """All of the answer but its first token; `pace`: tokens a millisecond of it are worth."""
    answer, place, rounds, nodes, ms = text.answer, 1, 0, 0, 0.0
    while place < len(answer):
        proposed, left = proposals[place], len(answer) - place
        size = _best(proposed.reach, steps, pace) if left > 1 else 0
        path, _ = walked(proposed.tree, answer[place:])
        place += min(left, 1 + sum(node < size for node in path))
        rounds, nodes, ms = rounds + 1, nodes + size, ms + steps[size]
    return Ideal(rounds, ms, nodes, len(answer) - 1)


def _best(reach: Sequence[float], steps: Sequence[float], pace: float) -> int:
    """The fewest nodes that bring most beyond what their time is worth."""
    brought = list(accumulate(reach, initial=0.0))
    return max(range(len(brought)), key=lambda nodes: brought[nodes] - pace * steps[nodes])

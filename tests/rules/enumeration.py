"""Exact enumeration of speculative rounds: every draft, every outcome, the law of the text.

For each draft the reference rules cut [0, 1) of every uniform at its threshold, and
the real `judge` is run with a number close to each side of the cut. If a threshold
of the real rule lies elsewhere, a decision flips and the whole weight of an interval
lands on the wrong text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from services.contract.types import DraftTree, VerifyMode
from services.engine.noise import Stream
from services.verifier.rules import Outcome, Proposed, judge
from tests.rules import reference
from tests.rules.worlds import Draft, Drafter, Law, Text, World, drafts, texts

Key = tuple[Stream, int, int]
CLOSE = 1e-12


@dataclass(frozen=True)
class Span:
    """A part of [0, 1) in which a uniform lies, and the number tried there."""

    low: float = 0.0
    high: float = 1.0
    tried: float = 0.5


WHOLE = Span()


@dataclass(frozen=True)
class Case:
    """A block to judge under given uniforms; `tail` is chained behind it."""

    weight: float
    start: Text
    tree: DraftTree
    tail: DraftTree = field(default_factory=DraftTree)
    spans: Mapping[Key, Span] = field(default_factory=dict)

    def proposed(self, world: World, mode: VerifyMode) -> Proposed:
        log_p = torch.stack([world.log_p(text) for text in texts(self.tree, self.start)])
        return Proposed(self.tree, log_p, lambda *key: self.spans.get(key, WHOLE).tried, mode)


def branches(world: World, mode: VerifyMode, case: Case) -> Iterator[Case]:
    """The case under every combination of uniforms that may decide otherwise."""
    p = [world.target(text) for text in texts(case.tree, case.start)]
    if case.tree.is_chain:
        ways = reference.chain_branches(case.tree, p, mode)
    else:
        ways = reference.tree_branches(case.tree, p)
    for decisions in ways:
        weight, spans = case.weight, dict(case.spans)
        for decision in decisions:
            share, spans[decision.key] = narrowed(spans.get(decision.key, WHOLE), decision)
            weight *= share
        if weight > 0:
            yield replace(case, weight=weight, spans=spans)


def narrowed(span: Span, decision: reference.Decision) -> tuple[float, Span]:
    """The part of a span that a decision leaves, and its share of the weight."""
    low, high = max(span.low, decision.low), min(span.high, decision.high)
    if low >= high:
        return 0.0, span
    inside = min(CLOSE, (high - low) / 2)
    tried = {0.0: low + inside, 0.5: (low + high) / 2, 1.0: high - inside}[decision.edge]
    return (high - low) / (span.high - span.low), Span(low, high, tried)


Judge = Callable[[Sequence[Proposed]], Sequence[Outcome]]
FinalLaw = Callable[[Case, Outcome], Law]
Judged = tuple[Case, Outcome]


@dataclass(frozen=True)
class Round:
    """One round of speculation: how drafts are made and cut into chained blocks.

    `shape`: the drafts' parents. `sizes`: the blocks' lengths but for the last, which
    takes the rest of the draft; that one alone has a bonus.
    """

    world: World
    drafter: Drafter
    shape: Text
    mode: VerifyMode
    sizes: tuple[int, ...] = ()
    judge: Judge = judge
    final_law: FinalLaw = lambda case, outcome: outcome.law.numpy()

    def first_blocks(self, start: Text = ()) -> list[Judged]:
        """Every outcome of the first block."""
        cases = [Case(each.weight, start, each.tree) for each in self._drafts(start)]
        return self.judged(cases, self.sizes[:1])

    def judged(self, cases: Sequence[Case], size: tuple[int, ...] = ()) -> list[Judged]:
        """Every outcome of the cases' first `size` tokens, by the real rules."""
        split = [_split(case, size) for case in cases]
        ways = [way for case in split for way in branches(self.world, self.mode, case)]
        blocks = [way.proposed(self.world, self.mode) for way in ways]
        return list(zip(ways, self.judge(blocks), strict=True))

    def texts_after(self, start: Text) -> Counter[Text]:
        """The law of the text after one round, every outcome counted."""
        emitted: Counter[Text] = Counter()
        judged, number = self.first_blocks(start), 1
        while judged:
            chained = []
            for case, outcome in judged:
                text = end_of(case, outcome)
                if outcome.all_accepted and case.tail:
                    chained.append(Case(case.weight, text, case.tail))
                    continue
                law = self.world.written(self.final_law(case, outcome))
                for token, mass in enumerate(law.tolist()):
                    emitted[(*text, token)] += case.weight * mass
            judged = self.judged(chained, self.sizes[number : number + 1])
            number += 1
        return emitted

    def _drafts(self, start: Text) -> Iterator[Draft]:
        return drafts(self.drafter, start, self.shape)


def end_of(case: Case, outcome: Outcome) -> Text:
    """The text up to the last accepted token."""
    return texts(case.tree, case.start)[outcome.path[-1] + 1 if outcome.path else 0]


def expected_accepted(one: Round) -> float:
    """Draft tokens that the first block accepts on average."""
    return sum(case.weight * len(outcome.path) for case, outcome in one.first_blocks())


def _split(case: Case, size: tuple[int, ...]) -> Case:
    """Cut the block after `size` tokens, the rest is chained."""
    tree, cut = case.tree, size[0] if size else len(case.tree)
    if cut >= len(tree):
        return case
    assert tree.parents is None
    q = tree.q or ()
    head = replace(tree, token_ids=tree.token_ids[:cut], q=q[:cut])
    return replace(case, tree=head, tail=replace(tree, token_ids=tree.token_ids[cut:], q=q[cut:]))


# --- the law of the text ----------------------------------------------------------


def continued(world: World, emitted: Mapping[Text, float], length: int) -> Law:
    """The law of the first `length` tokens when the target alone writes what is missing."""
    law = np.zeros((world.vocab,) * length)
    for text, weight in emitted.items():
        if len(text) >= length:
            law[text[:length]] += weight
        else:
            next_token = enumerate(world.written(world.target(text)).tolist())
            grown = {(*text, token): weight * mass for token, mass in next_token}
            law += continued(world, grown, length)
    return law


def in_rounds(rounds: Round, length: int, start: Text = ()) -> Law:
    """The law of the first `length` tokens, written by rounds alone."""
    open_texts: Counter[Text] = Counter({start: 1.0})
    done: Counter[Text] = Counter()
    while open_texts:
        text, weight = open_texts.popitem()
        if len(text) >= length:
            done[text[:length]] += weight
            continue
        for longer, mass in rounds.texts_after(text).items():
            open_texts[longer] += weight * mass
    return continued(rounds.world, done, length)


def distance(law: Law, world: World) -> float:
    """Total variation between a law of texts and the target's own."""
    return float(np.abs(law - continued(world, {(): 1.0}, law.ndim)).sum() / 2)


def round_distance(one: Round) -> float:
    """Total variation of one round, the target writing on, over the draft and one more token."""
    emitted = one.texts_after(())
    return distance(continued(one.world, emitted, len(one.shape) + 1), one.world)

"""What is kept of one session of a head: as of a draft model, and anchored by its verdicts.

Rules:

1.  K/V of committed text is computed with the target's states, as far as they came. What was
    computed with own features before they came is dropped and computed again, in the same
    forward as what is fed next: a verdict costs no step of its own.
2.  A chain that stands stays the draft, though it was made with own features. Trees are grown
    anew from each verdict.
3.  A prompt's states come while the verifier reads it, and all of them before the first verdict.
    So a prompt is read as far as its states are known, and what has none by the first verdict
    will have none: it is skipped.
4.  Where drafts are matched exactly, a draft ends before what is hardly ever taken; see `chances`.
    A chain is not gone on with before anything more is committed. In a tree the candidates weigh
    what the head says, wherever they stand (EAGLE-2), and those that are hardly ever taken are
    neither gone on from nor sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from services.contract.types import DraftTree, OpenDraft
from services.drafter.comb import Level
from services.drafter.methods.eagle.chances import Chances
from services.drafter.methods.graph.draft_graph import ROOT
from services.drafter.methods.graph.graph_state import GraphSession
from services.drafter.methods.model.candidates import Place
from services.drafter.methods.model.forms import TextForm
from services.drafter.methods.model.model_state import ModelSession
from services.drafter.methods.model.places import DEEPEST, Places
from services.drafter.methods.model.stepping import Feed
from services.drafter.methods.ngram.mixture import HEADED
from services.drafter.methods.self_draft.lookahead import LookaheadSession
from services.drafter.protocol import Ask, Proposed
from services.engine.port import AnchoredCache, Segment
from services.engine.sampling import RowContext

CHOICES = 3
"""Candidates at a place of a chain among which the drafted one is weighed."""


class AnchoredSession(ModelSession):
    """A session that drafts chains."""

    cache: AnchoredCache
    chances: Chances | None = None
    """Where its drafts end; None: at the window."""
    _guesses: dict[int, tuple[int, float]]
    """By place of the text: what was drafted there, and its probability. The last one may not have
    been sent."""
    _decided = 0
    """Length of the text whose guesses were observed."""
    _ended = (-1, -1)
    """Lengths of a text, and of what is committed of it, behind which a draft ended."""

    def ends_by(self, chances: Chances) -> None:
        """Let drafts end by these; before anything is drafted."""
        self.chances, self._guesses = chances, {}

    def rewind(self, length: int) -> None:
        """Also forget what was drafted after a token that is not text."""
        super().rewind(length)
        if self.chances is not None:
            self._guesses = {at: guess for at, guess in self._guesses.items() if at <= length}

    def follow(self, ask: Ask) -> None:
        """Also drop K/V that is to be computed anew."""
        super().follow(ask)
        self.cache.refresh()
        if self.chances is not None:
            self._observe(self.chances, ask)

    def may_draft(self, ask: Ask) -> bool:
        """Also not behind a draft that ended by its chance, before more is committed."""
        if self._ended == (len(ask.text), ask.committed_length):
            return False
        return super().may_draft(ask)

    def _observe(self, chances: Chances, ask: Ask) -> None:
        """Take in which guesses the text that was committed since bears out."""
        for place in range(self._decided, ask.committed_length):
            if (guess := self._guesses.pop(place, None)) is not None:
                chances.observe(guess[1], hit=guess[0] == ask.text[place])
                if guess[0] != ask.text[place]:
                    self._guesses = {}
        self._decided = ask.committed_length

    def _place(self, row: RowContext, ask: Ask, node: int) -> Place:
        """Also with the weight of what is drafted, where that ends drafts."""
        if self.chances is None:
            return super()._place(row, ask, node)
        return Place(row, min(CHOICES, self.vocab_size), self.vocab_size, weighed=True)

    def _worth(self, ask: Ask, levels: Sequence[Level]) -> Sequence[Level]:
        """The first of these levels behind the text, up to one whose first token hardly stays."""
        chances, start = self.chances, len(ask.text)
        if chances is None:
            return levels
        tail = range(ask.committed_length, start)
        guesses = ((ask.text[at], self._guesses.get(at)) for at in tail)
        # A token that another method drafted is believed in.
        sure = [chances.believed(own[1]) for token, own in guesses if own and own[0] == token]
        reach = prod(sure)
        for count, level in enumerate(levels):
            if level.token_ids:
                self._guesses[start + count] = level.token_ids[0], level.weights[0]
                reach *= chances.believed(level.weights[0])
                if reach < chances.least:
                    self._ended = start + count, ask.committed_length
                    return levels[:count]
        return levels

    def absorb(self, levels: Sequence[Level], ask: Ask) -> Proposed:
        """Also end the draft by its chance."""
        kept = self._worth(ask, levels)
        if not kept:
            return Proposed(final=True)
        if self.chances is not None:
            kept = [replace(level, token_ids=level.token_ids[:1]) for level in kept]
        proposed = super().absorb(kept, ask)
        return proposed if len(kept) == len(levels) else replace(proposed, final=True)

    def feed(self, ask: Ask, most: int) -> Feed:
        """Also drop K/V that is to be computed anew."""
        self.cache.refresh()
        return super().feed(ask, most)

    def unread(self, ask: Ask) -> Sequence[int]:
        """Committed text that can be read with the target's states, and is not in K/V."""
        return _unread(self.cache, ask)


class ParallelSession(AnchoredSession, LookaheadSession):
    """A session whose head drafts several tokens in one pass: P-EAGLE.

    Masks behind the text stand for tokens to come; see `LookaheadSession`, whose rows are those of
    a target. A draft is one pass from the states of the last verdict, and there is none behind it.
    """

    def may_draft(self, ask: Ask) -> bool:
        """Not behind a draft that is still to be verified."""
        return len(ask.text) == ask.committed_length and super().may_draft(ask)

    def absorb(self, levels: Sequence[Level], ask: Ask) -> Proposed:
        """The whole draft."""
        return replace(super().absorb(levels, ask), final=True)


class AnchoredTrees(GraphSession):
    """A session that drafts trees: each from the states of the last verdict on."""

    cache: AnchoredCache
    chances: Chances | None = None
    """What the head's probabilities are worth; None: candidates weigh what their rank does."""

    def ends_by(self, chances: Chances) -> None:
        """Let drafts end by these; before anything is drafted."""
        self.chances, self._by_rank = chances, False

    def drafted(self, ask: Ask) -> Proposed | None:
        """Also without nodes that are hardly ever taken."""
        proposed = super().drafted(ask)
        if proposed is None or self.chances is None:
            return proposed
        return replace(proposed, tree=self._worth(proposed.tree, self.chances.least))

    def _worth(self, tree: DraftTree, least: float) -> DraftTree:
        reach, parents = self._reach(), tree.every_parent
        nodes, kept = {-1: ROOT}, {-1: -1}
        for at, (token, above) in enumerate(zip(tree.token_ids, parents, strict=True)):
            nodes[at] = self._graph.child(nodes[above], token)
            if reach[nodes[at]] >= least:
                kept[at] = len(kept) - 1
        own = list(kept)[1:]
        tokens = tuple(tree.token_ids[at] for at in own)
        above_own = tuple(kept[parents[at]] for at in own)
        return replace(tree, token_ids=tokens, parents=above_own).normal()

    def _reach(self) -> dict[int, float]:
        """Of each node the chance that the text gets there."""
        assert self.chances is not None
        reach = {ROOT: 1.0}
        for above in (ROOT, *range(len(self._graph.nodes))):
            for below, weight in self._graph[above].below:
                reach[below] = reach[above] * self.chances.believed(weight)
        return reach

    def _frontier(self, ask: Ask) -> list[int]:
        """Also nothing behind a node that is hardly ever taken."""
        likely = super()._frontier(ask)
        if self.chances is None:
            return likely
        reach = self._reach()
        return [node for node in likely if reach[node] >= self.chances.least]

    def _learn(self, committed: Sequence[int], path: Sequence[int]) -> None:
        """Also what the probabilities of the candidates were worth."""
        super()._learn(committed, path)
        if self.chances is None:
            return
        for token, node in zip(committed, (ROOT, *path), strict=False):
            for below, weight in self._graph[node].below:
                self.chances.observe(weight, hit=self._graph[below].token == token)

    def follow(self, ask: Ask) -> None:
        """Also begin anew where the target's states came."""
        super().follow(ask)
        if self.cache.stale:
            self._keep_in_kv(())
            self.cache.refresh()
            self._start(ask.text)

    def unread(self, ask: Ask) -> Sequence[int]:
        """Committed text that can be read with the target's states, and is not in K/V."""
        return () if self._in_kv else _unread(self.cache, ask)


def _unread(cache: AnchoredCache, ask: Ask) -> Sequence[int]:
    cache.refresh()
    return ask.text[cache.length : min(ask.committed_length, cache.anchored + 1)]


class AnchoredPlaces(Places):
    """Places of a session in front of a text that each verdict anchors.

    With the target's states the head says better what follows: places are found anew from them.
    """

    cache: AnchoredCache
    weights = HEADED

    def __init__(
        self,
        opening: OpenDraft,
        cache: AnchoredCache,
        vocab_size: int,
        longest: int,
        form: TextForm | None = None,
    ) -> None:
        super().__init__(opening, cache, vocab_size, longest, form)
        self._prompt_length = len(opening.prompt)

    @property
    def unseen(self) -> int:
        """Tokens of the text that are not in K/V, and can be by now."""
        readable = len(self._text)
        if not self._begun:
            readable = min(readable, self.cache.anchored + 1)
        return max(0, readable - self.cache.length)

    @property
    def _begun(self) -> bool:
        """Whether a verdict was there."""
        return len(self._text) > self._prompt_length

    def rewind(self, length: int) -> None:
        """Also the states of what is not text any more are forgotten."""
        super().rewind(length)
        self.cache.forget(length)

    def follow(self, text: Sequence[int]) -> None:
        """Also drop K/V that is to be computed anew."""
        if len(text) > len(self._text):
            self._steps = DEEPEST
        super().follow(text)
        if self.cache.stale:
            self._keep(())
            self.cache.refresh()

    def feed(self, most: int) -> Segment | None:
        """Nothing where no feature goes with the text's end."""
        dumb = self._begun and not self.cache.drafts(len(self._text))
        return None if dumb else super().feed(most)

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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.contract.types import OpenDraft
from services.drafter.comb import Level
from services.drafter.methods.graph.graph_state import GraphSession
from services.drafter.methods.model.forms import TextForm
from services.drafter.methods.model.model_state import ModelSession
from services.drafter.methods.model.places import DEEPEST, Places
from services.drafter.methods.model.stepping import Feed
from services.drafter.methods.ngram.mixture import HEADED
from services.drafter.methods.self_draft.lookahead import LookaheadSession
from services.drafter.protocol import Ask, Proposed
from services.engine.port import AnchoredCache, Segment


class AnchoredSession(ModelSession):
    """A session that drafts chains."""

    cache: AnchoredCache

    def follow(self, ask: Ask) -> None:
        """Also drop K/V that is to be computed anew, but for what is prepared."""
        super().follow(ask)
        if not self._branching:
            self.cache.refresh()

    def feed(self, ask: Ask, most: int) -> Feed:
        """Also what was prepared gives way."""
        if self.branches is not None:
            self.branches.settle(ask.text)
        self.cache.refresh()
        return super().feed(ask, most)

    def unread(self, ask: Ask) -> Sequence[int]:
        """Committed text that can be read with the target's states, and is not in K/V."""
        return () if self._branching else _unread(self.cache, ask)


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

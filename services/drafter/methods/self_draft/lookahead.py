"""Drafting by the target itself, several tokens in one forward: PaSS.

Monea, Joulin and Grave, "PaSS: Parallel Speculative Sampling", 2311.13581. A text
and, behind it, L learned look-ahead embeddings go through the target once:

    un-cached text tokens, [LA]_1 .. [LA]_L
    row of the last real token    the first drafted token
    row of [LA]_i                 drafted token i + 1

The look-ahead rows stand at the positions of the tokens that they answer for the
next of, and are dropped from KV before anything else happens. The first token comes
from the target's own law, so with the target's weights it is always right: a draft
and its verification bring two tokens or more. The next draft feeds the tokens of
this one, by then part of the text, and so runs ahead of the verifier.

Law: each row is read once, under the session's parameters, and q_i is what row i
gives. It does not see the draft's tokens before it: given the text they are
independent. That is a lawful q for the token rule and for block verification (2403.10444
asks for any M_s(x_i | c, x_<i) that x_i was drawn from; one that ignores x_<i is one).
For the same reason penalties count the text up to the draft and not the draft itself;
the target's rows count both, which may cost acceptance and never the law. Positions
are each row's own: min_tokens and the noise of coupled sessions go by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from services.contract.types import DraftTree, OpenDraft
from services.drafter.comb import Level
from services.drafter.methods.model.candidates import PROPOSALS, Place
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.model.model_state import ModelSession
from services.drafter.methods.model.stepping import Feed
from services.drafter.methods.self_draft.borrowing import Borrowing
from services.drafter.protocol import Ask, Proposed, SessionKey
from services.engine.lending import Offer
from services.engine.port import KVCache, SelfDrafting, freed_on_error
from services.engine.sampling import RowContext


class LookaheadDrafter(ModelDrafter):
    """Up to 1 + L tokens of each session's draft per step, all sessions in one forward.

    `engine` is the target, with look-ahead embeddings for its soft tokens. Drafts are
    chains. Prompts enter in chunks, as those of the model drafter do.
    """

    trees = False

    def __init__(
        self,
        engine: SelfDrafting,
        *,
        step_tokens: int = 512,
        q_top: int = 64,
        borrowing: Borrowing | None = None,
        riding: bool = True,
    ) -> None:
        """Raise ValueError for an engine without soft tokens.

        `riding`: what borrows drafts on the verifier's forwards alone.
        """
        if not engine.soft_ids:
            raise ValueError("the engine was given no look-ahead embeddings")
        super().__init__(engine, step_tokens=step_tokens, q_top=q_top, borrowing=borrowing)
        self._soft_ids = engine.soft_ids
        self._riding = riding

    def open(self, key: SessionKey, opening: OpenDraft) -> None:
        """As the model drafter does; one candidate per node."""
        super().open(key, replace(opening, num_candidates=1))

    def _session(
        self, key: SessionKey, opening: OpenDraft, reserve: int, vocab_size: int
    ) -> LookaheadSession:
        longest = self._engine.max_context_length
        with freed_on_error(self._cache(key, opening, reserve)) as cache:
            return LookaheadSession(opening, cache, vocab_size, longest, self._soft_ids)

    def _ready(self, asks: Sequence[Ask]) -> dict[SessionKey, Proposed]:
        """The drafts that the verifier's forwards made, where they are to."""
        if self._borrowing is None or not self._riding:
            return {}
        offered = [(ask, self._borrowing.offer(ask.key)) for ask in asks]
        return {ask.key: self._ridden(ask, offer) for ask, offer in offered if offer is not None}

    def _ridden(self, ask: Ask, offer: Offer) -> Proposed:
        """What the rows behind the last block say of this text, if it was accepted whole."""
        offer.look_ahead = self._soft_ids
        ahead, session = offer.ahead, self._sessions[ask.key]
        if ahead is None or ahead.length != len(ask.text):
            return Proposed(final=True)
        assert isinstance(session, LookaheadSession)
        rows = ahead.logits[: ask.room]
        levels = self._levels([rows], session.places_ahead(ask, len(rows)))
        return replace(session.absorb(levels, ask), final=True)


class LookaheadSession(ModelSession):
    """One session: a draft is made in one step, and nothing of it stays in KV."""

    def __init__(
        self,
        opening: OpenDraft,
        cache: KVCache,
        vocab_size: int,
        longest: int,
        soft_ids: Sequence[int],
    ) -> None:
        super().__init__(opening, cache, vocab_size, longest)
        self._soft_ids = soft_ids
        self._depth_fed = 0
        """How many tokens the step under way drafts."""

    def feed(self, ask: Ask, most: int) -> Feed:
        """Also look-ahead rows behind a whole text, as many as there is room for."""
        feed = super().feed(ask, most)
        room = min(ask.room - 1, self._longest - len(ask.text))
        ahead = self._soft_ids[:room] if feed.complete else ()
        return replace(feed, token_ids=(*feed.token_ids, *ahead), ahead=len(ahead))

    def entered(self, feed: Feed) -> None:
        """The look-ahead rows leave KV again."""
        super().entered(feed)
        self.cache.rollback(self.cache.length - feed.ahead)
        self._depth_fed = feed.rows

    def places(self, ask: Ask) -> list[Place]:
        """One for each row that was fed behind the text, the text's last one included."""
        return self.places_ahead(ask, self._depth_fed)

    def places_ahead(self, ask: Ask, depth: int) -> list[Place]:
        """One for each of `depth` tokens; none sees another."""
        counted = self._counts.of(ask.text)
        rows = (
            RowContext(self._mode, self._sampling, self._seed, ask.position + ahead, counted)
            for ahead in range(depth)
        )
        return [self._place(row, ask, node) for node, row in enumerate(rows)]

    def absorb(self, levels: Sequence[Level], ask: Ask) -> Proposed:  # noqa: ARG002
        """The levels before the first one without a finite law, as a chain."""
        found = list(takewhile(lambda level: level.token_ids, levels))
        tree = DraftTree(
            tuple(level.token_ids[0] for level in found),
            None,
            tuple(level.q for level in found if level.q is not None) or None,
            PROPOSALS[self._mode],
        )
        return Proposed(tree, final=len(found) < len(levels))

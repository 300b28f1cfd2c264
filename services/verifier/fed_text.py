"""A session's text, prompt and output, and how much of it is in K/V.

What reads prompts, shares K/V and follows response formats knows no more of a session than this.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from services.contract.worker_messages import StartVerify
from services.engine.lending import Offer
from services.engine.port import KVCache, Segment, SharedText
from services.engine.sampling import History, wants_history
from services.engine.structure import Compiled, Matcher, StructureError
from services.scheduling.turns import Claim, exchange


@dataclass(slots=True)
class Telling:
    """Of the states of a text: rows of so many tokens from its beginning on are told."""

    told: int = 0


class FedText:
    """A session of one link; what verifies drafts behind its text is a kind of it.

    `key`: the link, and the session's handle there.
    """

    cache: KVCache

    def __init__(
        self,
        key: tuple[int, int],
        opening: StartVerify,
        now: float,
        form: Compiled | None = None,
        number: int = 0,
    ) -> None:
        """Without a cache: see `Caches.open`. `number` grows from session to session.

        `form`: what its output is to be, where it has one.
        """
        self.key = key
        self.opening, self.priority = opening, opening.priority
        self.number = number
        self.since = now
        self.opened = False
        """Whether the orchestrator was told that it is."""
        self.filled = False
        """Whether the text is in K/V, so that drafts can be verified."""
        self.filled_at = math.inf
        """When it was first; in seconds."""
        self.shared: SharedText | None = None
        """Its text in K/V, and what others may copy; None = it has no K/V."""
        self.text = [*opening.prompt, *opening.output]
        self.scored = self._first_scored()
        """Tokens of the prompt before it are told of, or were not asked for."""
        self.offer: Offer | None = None
        """What a drafter in this process may borrow."""
        self.telling: Telling | None = None
        """What of its layers' states was told, where they are told."""
        self.most_tokens = _most_tokens(opening)
        """Tokens of K/V beyond which it cannot grow."""
        self.history = _history(opening)
        self.form = form
        """What it waits for before a draft can be verified; its text is fed meanwhile."""
        self.matcher: Matcher | None = None
        """Keeps the output to its form; behind all of it from when `form` is None."""

    # --- who waits --------------------------------------------------------------

    @property
    def tenant(self) -> Hashable:
        """Equal for sessions of one tenant, as far as is known: itself, where nothing is."""
        return self.opening.cache_scope or self.key

    @property
    def claim(self) -> Claim:
        """Its claim to room, and to be read."""
        return Claim(self.tenant, self.priority, self.since)

    @property
    def ready(self) -> bool:
        """Whether it could be in a step now."""
        raise NotImplementedError

    @property
    def waits(self) -> bool:
        """Whether it has something for a step."""
        return not self.preempted and (self.ready or not self.filled)

    # --- its form -----------------------------------------------------------------

    @property
    def heavy(self) -> bool:
        """Whether following its form takes others' time, more than is usual."""
        return self.matcher is not None and self.matcher.spending.heavy

    def follow_text(self, seconds: float) -> bool:
        """Follow the text to its form for so long; whether all of it is.

        Raises StructureError for a text that is not of it, or takes too much.
        """
        assert self.matcher is not None
        behind = self.opening.output[self.matcher.length :]
        if not self.matcher.advance(behind, seconds):
            raise StructureError("what is committed is no beginning of what it allows")
        return self.matcher.length == len(self.opening.output)

    # --- scores of the prompt -----------------------------------------------------

    @property
    def scoring(self) -> bool:
        """Whether tokens of the prompt are still to be told of."""
        return self.scored < len(self.opening.prompt)

    @property
    def most_cached(self) -> int:
        """Tokens of the prompt that need not be fed: none whose row is told of."""
        first = self._first_scored()
        return first - (first < len(self.opening.prompt))

    def forget_unscored(self) -> None:
        """Of K/V that was copied, drop the rows that are still to be told of."""
        if self.scoring:
            self.cache.rollback(min(self.cache.length, self.scored - 1))

    def scored_rows(self, share: int) -> int:
        """How many of the next `share` tokens of its prefill tell of the one behind them."""
        if not self.scoring:
            return 0
        return min(share, max(0, self.cache.length + share + 1 - self.scored))

    def _first_scored(self) -> int:
        """The first token of the prompt to tell of; the prompt's length: none.

        What is committed came behind all that was asked for.
        """
        opening = self.opening
        if opening.sampling.prompt_logprobs is None or opening.output:
            return len(opening.prompt)
        return max(1, opening.score_from)

    # --- K/V ------------------------------------------------------------------------

    def fill(self, now: float) -> None:
        """Its text is in K/V."""
        self.filled, self.filled_at = True, min(now, self.filled_at)

    @property
    def feeds(self) -> bool:
        """Whether its text is to be fed now."""
        return not self.filled and self.shared is not None and not self.shared.waits

    @property
    def preempted(self) -> bool:
        """Whether it gave its K/V up, and waits for room."""
        return self.shared is None

    @property
    def fed_length(self) -> int:
        """Tokens of the text that K/V is to hold before a step: all but the last one."""
        return len(self.text) - 1

    @property
    def prefill_left(self) -> int:
        """Tokens to feed before a draft can be verified; none from then on."""
        if self.filled:
            return 0
        return self.fed_length - (0 if self.preempted else self.cache.length)

    def prompt_segment(self, share: int) -> Segment:
        """The next `share` tokens of its prefill."""
        start, scored = self.cache.length, self.scored_rows(share)
        tokens = self.text[start : start + share]
        return Segment(self.cache, tokens, logits_from=share - scored)

    @property
    def next_tokens(self) -> int:
        """Tokens of K/V that the text and its next draft may take."""
        return min(self.most_tokens, len(self.text) + self.next_block)

    @property
    def next_block(self) -> int:
        """Rows that a draft may have behind the text's last token."""
        ahead = len(self.offer.look_ahead) if self.offer is not None else 0
        return self.opening.window + ahead


Text = TypeVar("Text", bound=FedText)


def by_seniority(sessions: Iterable[Text]) -> list[Text]:
    """By `number`, once those of a tenant have exchanged theirs as their priorities say."""
    return exchange(sorted(sessions, key=lambda own: own.number), lambda own: own.claim, "number")


def _most_tokens(opening: StartVerify) -> int:
    if opening.score_from:
        return len(opening.prompt)
    return len(opening.prompt) + opening.sampling.max_tokens + opening.window


def _history(opening: StartVerify) -> History | None:
    """Token counts for the penalties, where there are any."""
    if not wants_history(opening.sampling):
        return None
    history = History(opening.prompt)
    history.extend(opening.output)
    return history

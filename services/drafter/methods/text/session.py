"""What the text drafter keeps of one session: its text in both vocabularies, and K/V.

KV rule: entries cover a prefix of the draft's tokens. Each step feeds every token that has no
entry, and at least the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.contract.errors import Overloaded
from services.contract.types import DraftTree, OpenDraft, ResolvedSampling, VerifyMode
from services.drafter.comb import Level
from services.drafter.methods.model.candidates import Place
from services.drafter.methods.model.forms import TextForm
from services.drafter.methods.model.stepping import Feed
from services.drafter.methods.text.written import Languages, Written
from services.drafter.protocol import Ask, Proposed
from services.engine.port import KVCache
from services.engine.sampling import RowContext

_MOST_AHEAD = 512
"""Bytes. A model that writes more of which nothing can be sent is not asked any further."""
_AT_ONCE = 512
"""Tokens that are encoded before they enter KV."""
_MORE = 64
"""Tokens by which K/V grows at least."""


class TextSession:
    """One session of the text drafter: a chain of the draft model's best tokens."""

    form: TextForm | None = None

    def __init__(
        self,
        opening: OpenDraft,
        cache: KVCache,
        languages: Languages,
        vocab_size: int,
        longest: int,
    ) -> None:
        """`vocab_size` is the draft model's, which takes `longest` tokens."""
        self.cache = cache
        self.vocab_size = vocab_size
        self.caught_up = False
        self._longest = longest
        self._draft = languages.draft
        self._written = Written(languages, opening.vocab_size)
        self._min_tokens = opening.sampling.min_tokens
        stops = opening.sampling.stop_token_ids
        self._end = next((token for token in languages.target.ends if token in stops), None)
        """The token that ends the target's text, where any does."""

    # --- the text ---------------------------------------------------------------

    def rewind(self, length: int) -> None:
        """The first `length` tokens of the text stay."""
        self._written.rewind(length)

    def follow(self, ask: Ask) -> None:
        """Take in the text as it is now, about as much of it as enters KV in a step."""
        written = self._written
        written.rewind(len(ask.text))
        written.extend(ask.text[len(written) :])
        while not written.caught_up and len(written.ids) < self.cache.length + _AT_ONCE:
            written.catch_up()
        if not written.ids:
            written.append(self._draft.start, b"")
        self.cache.rollback(min(self.cache.length, written.unchanged))

    def may_draft(self, ask: Ask) -> bool:  # noqa: ARG002
        """Whether there is room for one token more, and the model can still read them all."""
        needed = len(self._written.ids) + 1
        if needed > self._longest:
            return False
        if needed > self.cache.reserve:
            return self._grown(needed)
        return True

    def _grown(self, needed: int) -> bool:
        """Whether there is room by now."""
        try:
            self.cache.grow(min(self._longest, max(needed, self.cache.reserve * 5 // 4) + _MORE))
        except Overloaded:
            return False
        return True

    # --- the draft --------------------------------------------------------------

    def drafted(self, ask: Ask) -> Proposed | None:
        """What was written ahead and left, if a draft can be made of it."""
        if not self._written.caught_up:
            return None
        return self._proposed(self._written.drafted(), ask)

    def feed(self, ask: Ask, most: int) -> Feed:  # noqa: ARG002
        """Tokens of the draft model that are not in KV, at most `most`."""
        ids = self._written.ids
        start = min(self.cache.length, len(ids) - 1)
        self.cache.rollback(start)
        tokens = tuple(ids[start : start + most])
        return Feed(tokens, self._written.caught_up and start + len(tokens) == len(ids))

    def entered(self, feed: Feed) -> None:
        """It is in KV."""
        self.caught_up = feed.complete
        self._written.unchanged = self.cache.length

    def places(self, ask: Ask) -> list[Place]:
        """The end of the text; the model's best token is drafted, whatever the mode."""
        row = RowContext(VerifyMode.GREEDY, ResolvedSampling(), 0, ask.position)
        return [Place(row, 1, self.vocab_size)]

    def absorb(self, levels: Sequence[Level], ask: Ask) -> Proposed:
        """Take a token of the draft model in; the draft, if some of it is sure by now."""
        [level] = levels
        token = level.token_ids[0] if level.token_ids else -1
        own = self._draft.bytes_of(token)
        if not own:
            return self._ended(ask, token in self._draft.ends)
        self._written.append(token, own)
        if proposed := self._proposed(self._written.drafted(), ask):
            return proposed
        if len(self._written.ahead) > _MOST_AHEAD:
            self._written.forget_ahead()
            return Proposed(final=True)
        return Proposed()

    def _ended(self, ask: Ask, text_ends: bool) -> Proposed:
        """The model has nothing to say that is text: all that it wrote, and the end if it is."""
        tokens = self._written.drafted(ended=True)
        early = ask.position + len(tokens) < self._min_tokens
        if text_ends and self._end is not None and not early:
            tokens.append(self._end)
        return self._proposed(tokens, ask, final=len(tokens) <= ask.room) or Proposed(final=True)

    @staticmethod
    def _proposed(tokens: Sequence[int], ask: Ask, *, final: bool = False) -> Proposed | None:
        if not tokens:
            return None
        return Proposed(DraftTree(tuple(tokens[: ask.room])), final=final)

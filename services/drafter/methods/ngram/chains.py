"""Chains of what followed the same tokens before: prompt lookup, and phrases of other sessions.

"Prompt Lookup Decoding" (Saxena, 2023, github.com/apoorvumang/prompt-lookup-decoding), and
Ouroboros (Zhao et al., 2402.13720), which also draws on texts that were verified for others, and
on drafts that were rejected.

Rules:

1.  The session's own text comes first: what followed its last tokens where they stood last, the
    most of them that stood anywhere, `shortest` to `longest`. Past the end the copy goes on with
    its own tokens. The other way round, or with the longer match first, fewer drafts are right:
    measured on texts of the demo model.
2.  Then a phrase of the scope's earlier outputs, at most `phrase` tokens of it, found likewise.
    What follows a single token in other texts is anything.
3.  Last a guess: what the draft went on with after the token that was corrected, if what came
    before that was right. Of five such guesses for the demo model, one is right at first.
4.  Where another method drafts if this one has nothing, only matches of `longest` tokens in texts
    count: what shorter ones bring would keep it waiting, and is likely to be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from services.contract.texts import common_prefix
from services.contract.types import DraftSource, DraftTree, OpenDraft, split_methods
from services.drafter.methods.ngram.text_index import BORDER, TextIndex
from services.drafter.methods.ngram.text_pool import TextPool
from services.drafter.protocol import Ask, Proposed

PHRASES_FROM = 2
"""Tokens in front of a phrase."""


@dataclass(frozen=True, slots=True)
class ChainLengths:
    """In tokens: n-grams that are looked up in the session's own text, and phrases of others."""

    shortest: int = 2
    longest: int = 4
    phrase: int = 8


class ChainSession:
    """What is known of one session's text, and the chains behind it."""

    def __init__(
        self, opening: OpenDraft, scope: str, pool: TextPool, lengths: ChainLengths
    ) -> None:
        """`scope`: whose texts it reads and leaves, empty = nobody's."""
        self.scope = scope
        self._pool, self._lengths = pool, lengths
        self._sure = "ngram" in split_methods(opening.method)[:-1]
        self._known_ids = opening.vocab_size or BORDER
        self._index = TextIndex()
        self._prompt_length = self._committed = len(opening.prompt)
        self._tail: list[int] = []
        """What was drafted behind the committed text."""

    @property
    def output(self) -> Sequence[int]:
        """What was seen of the committed output."""
        return self._index.tokens[self._prompt_length : self._committed]

    def rewind(self, length: int) -> None:
        """The text is only its first `length` tokens again."""
        self._index.rewind(length)

    def propose(self, ask: Ask) -> Proposed:
        """A chain; without a match, nothing and final."""
        self._index.extend(ask.text[len(self._index) :])
        guess, recalled = self._guess(ask), 0
        tokens = self._copied(ask.room)
        if not tokens:
            tokens = self._phrase(ask.room)
            recalled = len(tokens)
        if not tokens and not self._sure:
            tokens = guess
        self._tail += tokens
        source = DraftSource.OTHER_TEXTS if recalled else DraftSource.THIS_TEXT
        sources = bytes((source,)) * len(tokens)
        tree = DraftTree(tuple(tokens))
        return Proposed(tree, final=not tokens, recalled=recalled, sources=sources)

    def _guess(self, ask: Ask) -> list[int]:
        """What the last draft went on with, if the text ends in the token that corrects it."""
        fresh = ask.text[self._committed : ask.committed_length]
        same, drafted = common_prefix(self._tail, fresh), self._tail
        self._committed = ask.committed_length
        self._tail = list(ask.text[ask.committed_length :])
        return drafted[same + 1 :][: ask.room] if 0 < same == len(fresh) - 1 else []

    def _copied(self, room: int) -> list[int]:
        """At most `room` tokens of the session's own text."""
        lengths, text = self._lengths, self._index.tokens
        length, start = self._index.match(text, lengths.longest)
        if length < (lengths.longest if self._sure else lengths.shortest):
            return []
        return copy_from(text, start, room)

    def _phrase(self, room: int) -> list[int]:
        """At most `room` tokens of the scope's other texts; of equal matches the newest."""
        lengths, longest = self._lengths, self._lengths.longest
        least = longest if self._sure else min(max(lengths.shortest, PHRASES_FROM), longest)
        texts = self._pool.of(self.scope)[::-1]
        found = ((text.match(self._index.tokens, longest), text) for text in texts)
        (length, start), text = max(found, key=lambda one: one[0][0], default=((0, 0), None))
        if text is None or length < least:
            return []
        phrase = text.tokens[start : start + min(room, lengths.phrase)]
        return list(takewhile(lambda token: token < self._known_ids, phrase))


def copy_from(text: Sequence[int], start: int, count: int) -> list[int]:
    """`count` tokens from `start` (< len(text)) on; past the end, the copy itself goes on."""
    period = len(text) - start
    return [text[start + offset % period] for offset in range(count)]

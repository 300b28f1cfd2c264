"""Phrases that outlive the session they come from.

Ouroboros (Zhao et al., 2402.13720): a pool of n-grams, learned from the text that was
verified and from the drafts that were not, from which drafts are made or lengthened.
Its reference code keeps one pool for whatever it serves; here every scope (a tenant)
has its own, and no lookup crosses scopes.

Rules:

1.  A phrase is what followed an n-gram of `shortest` to `longest` tokens in a
    session's output, at most `length` tokens of it. Prompts are not learned (but an
    output may quote its prompt).
2.  A phrase of committed text replaces the phrase that its n-gram had.
3.  What a draft went on with after a token that was corrected is a guess, if what came
    before that token was right. It stands for the longest n-gram alone, where that has
    no phrase, and counts only where no n-gram has a phrase of committed text: of five
    such drafts of the demo model, one has its first token accepted.
4.  A scope holds at most `per_scope` phrases and all scopes at most `capacity`; the
    one learned or used longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from services.drafter.protocol import Ask
from services.drafter.session import common_prefix

Gram = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Phrase:
    """Tokens that followed an n-gram, or, `guessed`, that a draft said would.

    `teacher`: number of the learner that it comes from; 0 = an output of an ended session.
    """

    tokens: Gram
    guessed: bool = False
    teacher: int = 0


NO_PHRASE = Phrase(())


@dataclass(frozen=True, slots=True)
class PhraseLimits:
    """The sizes of a pool: n-grams and phrases in tokens, the rest in phrases."""

    shortest: int = 2
    longest: int = 4
    length: int = 8
    per_scope: int = 32_768
    capacity: int = 262_144


class PhrasePool:
    """The phrases of all scopes. Deterministic: the same calls leave the same pool."""

    def __init__(self, limits: PhraseLimits) -> None:
        self.limits = limits
        self._scopes: dict[str, OrderedDict[Gram, Phrase]] = {}
        # The same phrases, whatever their scope, in order of use.
        self._used: OrderedDict[tuple[str, Gram], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used)

    def size(self, scope: str) -> int:
        """Phrases of one scope."""
        return len(self._scopes.get(scope, ()))

    def find(self, scope: str, text: Sequence[int], *, sure: bool = False) -> Gram:
        """What followed the end of `text`; its longest n-gram that has a phrase decides.

        Guesses come last. `sure`: only the longest n-gram counts, and no guess.
        Empty = there is nothing.
        """
        return self.look_up(scope, text, sure=sure).tokens

    def look_up(self, scope: str, text: Sequence[int], *, sure: bool = False) -> Phrase:
        """The phrase that `find` gives the tokens of, with whose it is."""
        phrases = self._scopes.get(scope)
        if not phrases:
            return NO_PHRASE
        grams = self._grams(text, len(text))[::-1]
        if sure:
            grams = [gram for gram in grams if len(gram) == self.limits.longest]
        known = [(gram, phrase) for gram in grams if (phrase := phrases.get(gram)) is not None]
        known.sort(key=lambda found: found[1].guessed)
        if not known or (sure and known[0][1].guessed):
            return NO_PHRASE
        gram, phrase = known[0]
        self._use(scope, phrases, gram)
        return phrase

    def learn(self, scope: str, text: Sequence[int], end: int, teacher: int = 0) -> None:
        """What followed the first `end` tokens of committed output `text`."""
        phrase = Phrase(self._tokens(text, end), teacher=teacher)
        for gram in self._grams(text, end):
            self._put(scope, gram, phrase)

    def guess(self, scope: str, text: Sequence[int], end: int, teacher: int = 0) -> None:
        """What a draft said would follow `text[:end]`; a phrase that is known stays."""
        gram = tuple(text[max(0, end - self.limits.longest) : end])
        phrases = self._scopes.get(scope)
        known = phrases.get(gram) if phrases else None
        if len(gram) == self.limits.longest and (known is None or known.guessed):
            phrase = Phrase(self._tokens(text, end), guessed=True, teacher=teacher)
            self._put(scope, gram, phrase)

    def _tokens(self, text: Sequence[int], end: int) -> Gram:
        return tuple(text[end : end + self.limits.length])

    def _grams(self, text: Sequence[int], end: int) -> list[Gram]:
        longest = min(self.limits.longest, end)
        return [tuple(text[end - n : end]) for n in range(self.limits.shortest, longest + 1)]

    def _put(self, scope: str, gram: Gram, phrase: Phrase) -> None:
        phrases = self._scopes.setdefault(scope, OrderedDict())
        phrases[gram] = phrase
        self._used[scope, gram] = None
        self._use(scope, phrases, gram)
        if len(phrases) > self.limits.per_scope:
            self._drop(scope, next(iter(phrases)))
        if len(self._used) > self.limits.capacity:
            self._drop(*next(iter(self._used)))

    def _use(self, scope: str, phrases: OrderedDict[Gram, Phrase], gram: Gram) -> None:
        phrases.move_to_end(gram)
        self._used.move_to_end((scope, gram))

    def _drop(self, scope: str, gram: Gram) -> None:
        phrases = self._scopes[scope]
        del phrases[gram], self._used[scope, gram]
        if not phrases:
            del self._scopes[scope]


class Archive(Protocol):
    """Where outputs outlive the process. No call waits for anything."""

    def load(self, scope: str) -> None:
        """Ask for the outputs of a scope."""

    def keep(self, scope: str, output: Sequence[int]) -> None:
        """Keep the output of a session that ended."""

    def arrived(self) -> tuple[str, Sequence[int]] | None:
        """One scope and output that was asked for, if one is here."""


_NUMBERS = count(1)


class Learner:
    """Follows one session's output and teaches a pool what it says.

    `follow` is shown the text of every ask and `drafted` what was drafted after it:
    so a later text tells which of it was rejected.
    """

    __slots__ = ("_learned", "_number", "_output", "_pool", "_tail", "scope")

    def __init__(self, pool: PhrasePool, scope: str) -> None:
        self._pool = pool
        self._number = next(_NUMBERS)
        self.scope = scope
        self._output: list[int] = []
        self._learned = 0
        self._tail: list[int] = []

    def find(self, text: Sequence[int], *, sure: bool = False) -> tuple[Gram, bool]:
        """What the pool knows to follow `text`, and whether another session taught it."""
        phrase = self._pool.look_up(self.scope, text, sure=sure)
        return phrase.tokens, phrase.teacher != self._number

    def follow(self, ask: Ask) -> None:
        """Learn what was committed since the last ask, and from what was rejected."""
        known = ask.prompt_length + len(self._output)
        fresh = ask.text[known : ask.committed_length]
        same = common_prefix(self._tail, 0, fresh)
        if 0 < same < len(fresh):
            self._recycle(fresh[: same + 1], self._tail[same + 1 :])
        self._output += fresh
        self._tail = list(ask.text[ask.committed_length :])
        self._learn_until(len(self._output) - self._pool.limits.length + 1)

    def drafted(self, tokens: Sequence[int]) -> None:
        """These tokens were drafted after what `follow` was last shown."""
        self._tail += tokens

    def finish(self) -> Sequence[int]:
        """Learn the end of the text, of which no more will be heard; the whole output."""
        self._learn_until(len(self._output))
        return self._output

    def _learn_until(self, end: int) -> None:
        for place in range(max(1, self._learned), end):
            self._pool.learn(self.scope, self._output, place, self._number)
        self._learned = max(self._learned, end)

    def _recycle(self, committed: Sequence[int], rejected: Sequence[int]) -> None:
        """The draft went on with `rejected` after a token that `committed` ends with instead."""
        if rejected:
            before = self._output[-self._pool.limits.longest :] + list(committed)
            self._pool.guess(self.scope, [*before, *rejected], len(before), self._number)


def teach(pool: PhrasePool, scope: str, output: Sequence[int]) -> None:
    """Learn a whole output at once."""
    for place in range(1, len(output)):
        pool.learn(scope, output, place)

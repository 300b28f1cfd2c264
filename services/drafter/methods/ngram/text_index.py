"""Where the end of a text stood before in it, and what followed there.

A text is kept as its tokens and two chains: for every place, the latest one before it that
ends in the same token, and in the same two. One walk along each, of at most `LONGEST_WALK`
places, finds what followed n-grams of every length, without a table for each length.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_WALK = 10
LONGEST_MATCH = 8
LONGEST_SEARCH = 64
"""Places that are looked at for one match."""
BORDER = 0xFFFFFFFF
"""Between two texts of one index: no token, and nothing is said to be followed by it."""

Counts = dict[int, int]
"""How often each token followed."""


class Votes:
    """What followed a context: after its last 1, 2, 3 and 5 tokens or more, in a walk.

    `counts`: for each of the four, tokens by how often; `totals` are the sums. `latest`: what
    followed the latest of the longest matches, of `length` tokens; -1 = none of two or more.
    """

    __slots__ = ("counts", "latest", "length", "totals")

    def __init__(self) -> None:
        self.counts: tuple[Counts, Counts, Counts, Counts] = ({}, {}, {}, {})
        self.totals = [0, 0, 0, 0]
        self.latest, self.length = -1, 0


class TextIndex:
    """The chains of one text, which grows and is cut at its end."""

    __slots__ = ("_before_one", "_before_two", "_one", "_two", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        # The latest length at which the text ended in a token, or in two.
        self._one: dict[int, int] = {}
        self._two: dict[int, int] = {}
        # For every length, the one before it that ended alike; 0 = none.
        self._before_one: list[int] = []
        self._before_two: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on with these."""
        text, one, two = self.tokens, self._one, self._two
        before_one, before_two = self._before_one, self._before_two
        last = text[-1] if text else -1
        end = len(text)
        for token in tokens:
            end += 1
            before_one.append(one.get(token, 0))
            one[token] = end
            pair = last << 32 | token
            before_two.append(two.get(pair, 0))
            two[pair] = end
            last = token
        text.extend(tokens)

    def rewind(self, length: int) -> None:
        """The text is only its first `length` tokens again."""
        text = self.tokens
        while len(text) > length:
            token = text.pop()
            pair = (text[-1] if text else -1) << 32 | token
            _undo(self._one, token, self._before_one.pop())
            _undo(self._two, pair, self._before_two.pop())

    def match(self, context: Sequence[int], most: int) -> tuple[int, int]:
        """How many of the last tokens of `context`, at most `most`, stood before, and where last.

        The latest of the longest matches that are followed by a token: its end; (0, 0) = none.
        """
        most = min(most, len(context))
        if most > 1 and (found := self._longest_match(context, most))[0]:
            return found
        end, chain = self._one.get(context[-1], 0), self._before_one
        for _ in range(LONGEST_SEARCH):
            if not end or self._goes_on(end):
                break
            end = chain[end - 1]
        return (1, end) if end and self._goes_on(end) else (0, 0)

    def _longest_match(self, context: Sequence[int], most: int) -> tuple[int, int]:
        chain, found = self._before_two, (0, 0)
        end = self._two.get(context[-2] << 32 | context[-1], 0)
        for _ in range(LONGEST_SEARCH):
            if not end or found[0] == most:
                break
            length = self._length_of(end, context, most)
            if length > found[0] and self._goes_on(end):
                found = length, end
            end = chain[end - 1]
        return found

    def _length_of(self, end: int, context: Sequence[int], most: int) -> int:
        """How many of the last tokens of `context` the first `end` end in: two are known."""
        text, length, most = self.tokens, 2, min(most, end)
        while length < most and text[end - 1 - length] == context[-1 - length]:
            length += 1
        return length

    def _goes_on(self, end: int) -> bool:
        """Whether a token follows the first `end` of them in the same text."""
        return end < len(self.tokens) and self.tokens[end] != BORDER

    def vote(self, context: Sequence[int], votes: Votes) -> None:
        """Add what followed `context` (at least a token) wherever it ended in the text."""
        text, size = self.tokens, len(self.tokens)
        last = context[-1]
        counts, totals = votes.counts, votes.totals
        end, chain = self._one.get(last, 0), self._before_one
        ones, walked = counts[0], 0
        while end and walked < LONGEST_WALK:
            if end < size and (token := text[end]) != BORDER:
                ones[token] = ones.get(token, 0) + 1
                walked += 1
            end = chain[end - 1]
        totals[0] += walked
        if walked and len(context) > 1:
            self._vote_longer(context, votes)

    def _vote_longer(self, context: Sequence[int], votes: Votes) -> None:
        text, size, most = self.tokens, len(self.tokens), min(len(context), LONGEST_MATCH)
        end, chain = self._two.get(context[-2] << 32 | context[-1], 0), self._before_two
        counts, totals = votes.counts, votes.totals
        _, twos, threes, fives = counts
        walked = 0
        while end and walked < LONGEST_WALK:
            if end < size and (token := text[end]) != BORDER:
                walked += 1
                length = self._length_of(end, context, most)
                twos[token] = twos.get(token, 0) + 1
                if length > 2:
                    threes[token] = threes.get(token, 0) + 1
                    totals[2] += 1
                    if length > 4:
                        fives[token] = fives.get(token, 0) + 1
                        totals[3] += 1
                if length > votes.length:
                    votes.length, votes.latest = length, token
            end = chain[end - 1]
        totals[1] += walked


def _undo(latest: dict[int, int], key: int, before: int) -> None:
    if before:
        latest[key] = before
    else:
        del latest[key]

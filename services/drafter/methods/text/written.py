"""The text of a session in two vocabularies, the target's and the draft model's.

    target's tokens   |Hello|,|·wor|ld|           data    Hello, world       cuts
    draft's tokens    |Hel|lo|,|·world|·and|      said    Hello, world and   ends

Rules:

1.  `data` are the bytes of the target's tokens, `said` those that the draft's tokens stand for.
    While one begins with the other, all of the draft's tokens stay: a text that the draft
    model wrote stays in the tokens that it chose, whatever tokens the target has for it.
2.  Where the two part, the draft's tokens from there on go. Where `data` goes on, the rest is
    encoded, with the last few of the draft's tokens once more, for the end of a text may have
    other tokens when it goes on. Those that come out equal stay, with their K/V.
3.  At most `WINDOW` bytes are encoded at a time, however long the text is.
4.  A special token is a mark: a byte that is in no text, which stands for the draft's special
    token of the same name, for its end of a text, or for nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from services.contract.texts import common_prefix
from services.drafter.methods.text.coder import Coder, settled, whole

WINDOW = 2048
"""Most bytes that are encoded at once."""
_AGAIN = 4
"""Tokens before the end of a text that are encoded once more when it goes on."""
_LONGEST_TORN = 64
"""Tokens that stand for a part of the text only together, and are encoded again, at most."""
_CONTEXTS = (4, 1, 0)
"""Tokens of the text that are encoded with a draft: the first number that leaves them alone."""
_HELD = 2
"""Most tokens at the end of a draft that wait for what follows."""
_MARK = 0xFF


class Languages:
    """The vocabularies of a target and of a draft model."""

    def __init__(self, target: Coder, draft: Coder) -> None:
        self.target, self.draft = target, draft
        self._marks: dict[int, int | None] = {}

    def mark(self, token: int) -> int | None:
        """What stands for a special token of the target in the draft's text; None = nothing."""
        if token not in self._marks:
            self._marks[token] = self._find(token)
        return self._marks[token]

    def _find(self, token: int) -> int | None:
        same = self.draft.mark(self.target.written(token))
        if same is None and token in self.target.ends:
            return next(iter(self.draft.ends), None)
        return same


class Written:
    """One session's text; see the rules above."""

    def __init__(self, languages: Languages, vocab_size: int = 0) -> None:
        """`vocab_size`: ids of the target below it may be drafted; 0 = all of its tokenizer."""
        self._languages = languages
        self._vocab_size = vocab_size or languages.target.size
        self._tokens: list[int] = []
        self._data = bytearray()
        self._cuts: list[int] = []
        self._marks: dict[int, int | None] = {}
        self._places: list[int] = []
        """Where marks are in the text."""
        self._said = bytearray()
        self._same = 0
        """So many bytes of both are known to be equal."""
        self.ids = list(languages.draft.prefix)
        """The draft's tokens."""
        self._ends = [0] * len(self.ids)
        self.unchanged = 0
        """So many of them are the same as when this was set."""

    def __len__(self) -> int:
        """Tokens of the target."""
        return len(self._tokens)

    @property
    def caught_up(self) -> bool:
        """Whether the draft's tokens stand for all of the text, or for more."""
        return len(self._said) >= len(self._data)

    @property
    def ahead(self) -> bytes:
        """What the draft model wrote behind the text."""
        return bytes(self._said[len(self._data) :])

    # --- the target's tokens ------------------------------------------------------

    def rewind(self, length: int) -> None:
        """Only the first `length` tokens of the target stay."""
        if length >= len(self._tokens):
            return
        del self._tokens[length:]
        del self._cuts[length:]
        end = self._cuts[-1] if self._cuts else 0
        first = bisect_left(self._places, end)
        gone = self._places[first:]
        del self._places[first:]
        for at in gone:
            del self._marks[at]
        del self._data[end:]
        self._same = min(self._same, end)
        if gone:
            # The draft's text holds none of those.
            self._part(gone[0])

    def extend(self, tokens: Sequence[int]) -> None:
        """The target's text goes on."""
        for token in tokens:
            own = self._languages.target.bytes_of(token)
            if own is None:
                self._places.append(len(self._data))
                self._marks[len(self._data)] = self._languages.mark(token)
                own = bytes((_MARK,))
            self._data += own
            self._tokens.append(token)
            self._cuts.append(len(self._data))
        self._compare()

    def _compare(self) -> None:
        """Drop the draft's tokens from where its text is another one."""
        shorter = min(len(self._said), len(self._data))
        fresh, said = self._data[self._same : shorter], self._said[self._same : shorter]
        self._same = shorter if fresh == said else self._same + common_prefix(fresh, said)
        if self._same < shorter:
            self._part(self._same)

    def _part(self, length: int) -> None:
        """The draft's text is right up to `length` at most."""
        kept = len(self._ends)
        while kept and self._ends[kept - 1] > length:
            kept -= 1
        if len(self._said) > length:
            end = self._ends[kept - 1] if kept else 0
            del self.ids[kept:], self._ends[kept:], self._said[end:]
            self.unchanged = min(self.unchanged, kept)
            self._same = min(self._same, end)

    # --- the draft's tokens -------------------------------------------------------

    def catch_up(self) -> None:
        """Encode a window of what the draft's tokens do not stand for yet."""
        if self.caught_up:
            return
        done = len(self._said)
        if done in self._marks:
            self._take_mark(self._marks[done])
            return
        kept, start = self._back(done)
        end = self._window(done)
        found = self._languages.draft.encode(bytes(self._data[start:end]))
        self.unchanged = min(self.unchanged, kept + common_prefix(self.ids, found.ids, kept))
        self.ids[kept:] = found.ids
        self._ends[kept:] = [start + own for own in found.ends]
        self._said[start:] = self._data[start:end]
        self._same = len(self._said)

    def _take_mark(self, token: int | None) -> None:
        self._said.append(_MARK)
        self._same = len(self._said)
        if token is None or (self._same == 1 and self.ids[-1:] == [token]):
            return
        self.ids.append(token)
        self._ends.append(self._same)

    def _back(self, done: int) -> tuple[int, int]:
        """How many tokens are not encoded once more, and where in the text the others begin."""
        before = bisect_left(self._places, done)
        lowest = self._places[before - 1] + 1 if before else 0
        ends, kept = self._ends, len(self._ends)
        while kept and ends[kept - 1] > lowest:
            torn = kept < len(ends) and ends[kept - 1] == ends[kept]
            if len(ends) - kept >= _AGAIN and not torn:
                break
            if len(ends) - kept >= _LONGEST_TORN:
                return len(ends), done
            kept -= 1
        return kept, max(lowest, ends[kept - 1] if kept else 0) if kept < len(ends) else done

    def _window(self, start: int) -> int:
        """Where what is encoded now ends: before a mark, and not in a word."""
        end = min(len(self._data), start + WINDOW)
        after = bisect_left(self._places, start)
        if after < len(self._places) and self._places[after] < end:
            return self._places[after]
        if end < len(self._data):
            return start + (settled(bytes(self._data[start:end])) or end - start)
        return end

    def append(self, token: int, own: bytes) -> None:
        """The draft model wrote a token."""
        self.ids.append(token)
        self._said += own
        self._ends.append(len(self._said))

    def forget_ahead(self) -> None:
        """Drop what the draft model wrote behind the text."""
        self._part(len(self._data))

    # --- from one to the other ------------------------------------------------------

    def drafted(self, *, ended: bool = False) -> list[int]:
        """What was written ahead in the target's tokens, without those that may go on.

        `ended`: nothing follows.
        """
        ahead = self.ahead
        if not ended:
            ahead = ahead[: whole(ahead)]
        if not ahead:
            return []
        tokens, ends = self._encoded(ahead)
        if not ended:
            last = settled(ahead)
            sure = sum(end <= last for end in ends)
            tokens = tokens[: max(sure, len(tokens) - _HELD)]
        unknown = (i for i, token in enumerate(tokens) if token >= self._vocab_size)
        return tokens[: next(unknown, len(tokens))]

    def _encoded(self, ahead: bytes) -> tuple[list[int], list[int]]:
        """Tokens of a text behind the target's last ones, as if both were encoded together."""
        for count in _CONTEXTS:
            before = self._before(count)
            index = len(self._tokens) - len(before)
            start = self._cuts[index - 1] if index else 0
            size = len(self._data) - start
            found = self._languages.target.encode(bytes(self._data[start:]) + ahead)
            apart = not before or found.ends[len(before) - 1 : len(before)] == [size]
            if apart and found.ids[: len(before)] == before:
                break
        return found.ids[len(before) :], [end - size for end in found.ends[len(before) :]]

    def _before(self, count: int) -> list[int]:
        """At most the last `count` tokens of the text, none of them a mark."""
        found: list[int] = []
        for token in reversed(self._tokens[-count:] if count else ()):
            if self._languages.target.bytes_of(token) is None:
                break
            found.append(token)
        return found[::-1]

"""Where a session's text may go next, what a draft model said there, and when a verdict is due.

All places form one tree in front of the committed text. K/V of places lies behind the text
in the session's own room. When the text goes down places, theirs stay with all below; all
others go: a length change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import nlargest

from services.common.engine import KVCache, Segment
from services.common.engine.sampling import RowContext
from services.common.ngrams import DraftLaw, draft_law
from services.common.types import DraftTree, OpenDraft, VerifyMode
from services.drafter.counts import TextCounts
from services.drafter.forms import TextForm

PLACES_IN_KV = 48
"""Room for places that a session reserves beside its text."""
MOST_PLACES = 192
"""Places of a session, those that are not in KV included."""
STEPS = 2
"""Steps of a session from one verdict to the next."""
DEEPEST = 16
"""Most tokens between the text and a place."""
LEAST_REACH = 0.01
"""Where the text gets less often is no place worth a row."""
ROOT = -1
_LONG = 0.5
"""Seconds that a verdict may be late."""


class Due:
    """When a session's next verdict is due, by how soon after a draft verdicts came so far.

    It follows their lower fifth, so that four in five come later. One that comes much sooner
    than any is believed: others were waited for before.
    """

    __slots__ = ("_after", "_sent")

    def __init__(self) -> None:
        self._sent = self._after = 0.0

    def came(self, now: float) -> None:
        """A verdict came; seconds."""
        if self._sent:
            gap = now - self._sent
            if gap < 0.5 * self._after or not self._after:
                self._after = gap
            else:
                self._after *= 0.9 if gap < self._after else 1.025
        self._sent = 0.0

    def sent(self, now: float) -> None:
        """A draft left."""
        self._sent = now

    def within(self, now: float) -> float:
        """Seconds until it is due; infinite where that is not known, or long past."""
        if not self._sent or not self._after or self.stalled(now):
            return math.inf
        return self._sent + self._after - now

    def stalled(self, now: float) -> bool:
        """Whether it is long past: whoever is to read the text, or to verify it, is away."""
        return self._sent > 0 and now - self._sent > _LONG + 2.0 * self._after


class Places:
    """The tree of one session's places; see `ahead` for the order in which they are gone to."""

    def __init__(
        self,
        opening: OpenDraft,
        cache: KVCache,
        vocab_size: int,
        longest: int,
        form: TextForm | None = None,
    ) -> None:
        """`vocab_size`: ids below it are known to the model, which reads `longest` tokens.

        `form`: what the output must be.
        """
        self.cache = cache
        self.due = Due()
        self._vocab_size, self._longest = vocab_size, longest
        self._form = form
        self._opening = opening
        self._stops = frozenset(opening.last_ids)
        self._counts = TextCounts(opening)
        self._text: list[int] = []
        self._steps = STEPS
        self.lost = False
        """The text holds a token that the model does not know, or is too long for it."""
        self._start()

    def _start(self) -> None:
        """No places are known."""
        self._law: DraftLaw | None = None
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._depths: list[int] = []
        self._reach: list[float] = []
        self._laws: list[DraftLaw | None] = []
        self._below: dict[int, dict[int, int]] = {}
        self._entries: dict[int, int] = {}
        """Of each place in KV, which of those it is."""
        self._feeding: list[int] = []

    # --- the text ---------------------------------------------------------------

    @property
    def unseen(self) -> int:
        """Tokens of the text that are not in KV."""
        return max(0, len(self._text) - self.cache.length)

    def rewind(self, length: int) -> None:
        """The text is only its first `length` tokens again."""
        self._counts.rewind(length)
        if self._form is not None:
            self._form.rewind(length)
        if length < len(self._text):
            seen = min(self.cache.length, len(self._text))
            self._keep(())
            del self._text[length:]
            self.cache.rollback(min(seen, length))

    def follow(self, text: Sequence[int]) -> None:
        """The text grew: keep what lies below its end."""
        fresh = text[len(self._text) :]
        if not fresh or self.lost:
            return
        self.lost = max(fresh) >= self._vocab_size or len(text) + DEEPEST > self._longest
        path = self._walk(fresh)
        seen = [place for place in path if place in self._entries]
        if len(seen) == len(fresh):
            self._descend(path)
        else:
            self._keep(seen)
        self._text.extend(fresh)

    def law(self, path: Sequence[int]) -> DraftLaw | None:
        """What the model says after the text and `path`; None = it has not been there."""
        if not path:
            return self._law
        places = self._walk(path)
        return self._laws[places[-1]] if len(places) == len(path) else None

    def _walk(self, tokens: Sequence[int]) -> list[int]:
        """The places that these lead through, as far as there are any."""
        at, path = ROOT, []
        for token in tokens:
            found = self._below.get(at, {}).get(token)
            if found is None:
                break
            at = found
            path.append(at)
        return path

    def _keep(self, path: Sequence[int]) -> None:
        """The places of this path become text; all others go."""
        if self._entries:
            self.cache.keep_path(len(self._text), [self._entries[place] for place in path])
        self._start()

    def _descend(self, path: Sequence[int]) -> None:
        """The text ends at a place in KV now: those below it stay."""
        end = path[-1]
        self.cache.keep_branch(len(self._text), [self._entries[place] for place in path])
        index = {end: ROOT}
        for place in range(end + 1, len(self._tokens)):
            if self._parents[place] in index:
                index[place] = len(index) - 1
        kept = list(index)[1:]
        in_kv = sorted((self._entries[place], place) for place in kept if place in self._entries)
        tokens, parents, reach, laws = self._tokens, self._parents, self._reach, self._laws
        share = reach[end] or 1.0
        self._start()
        self._law = laws[end]
        for place in kept:
            self._add(index[parents[place]], tokens[place], min(1.0, reach[place] / share))
            self._laws[-1] = laws[place]
        self._entries = {index[place]: entry for entry, (_, place) in enumerate(in_kv)}

    # --- the places -------------------------------------------------------------

    def expect(self, tree: DraftTree, reach: Sequence[float]) -> None:
        """A tree was sent: the text may lead through its nodes, by these chances."""
        self._steps = STEPS
        if self.lost:
            return
        where = {-1: ROOT}
        parents = range(-1, len(tree) - 1) if tree.parents is None else tree.parents
        for node, (token, parent) in enumerate(zip(tree.token_ids, parents, strict=True)):
            above = where.get(parent)
            if above is None or token >= self._vocab_size:
                continue
            known = self._below.get(above, {}).get(token)
            if known is None:
                known = self._add(above, token, reach[node])
            else:
                self._reach[known] = reach[node]
            where[node] = known

    def _add(self, above: int, token: int, reach: float) -> int:
        place = len(self._tokens)
        self._tokens.append(token)
        self._parents.append(above)
        self._depths.append(1 if above == ROOT else self._depths[above] + 1)
        self._reach.append(reach)
        self._laws.append(None)
        self._below.setdefault(above, {})[token] = place
        return place

    def _wanted(self, most: int) -> list[int]:
        """The likeliest places to go to next, whose ways are in KV or among them; in order."""
        room = self.cache.reserve - self.cache.length - self.unseen
        most = min(most, room, PLACES_IN_KV - len(self._entries))
        if most < 1:
            return []
        open_ = [
            place
            for place, chance in enumerate(self._reach)
            if chance >= LEAST_REACH
            and place not in self._entries
            and self._depths[place] <= DEEPEST
            and self._tokens[place] not in self._stops
        ]
        best = nlargest(most, open_, key=lambda place: (self._reach[place], -place))
        chosen: set[int] = set()
        for place in sorted(best):
            above = self._parents[place]
            if above == ROOT or above in self._entries or above in chosen:
                chosen.add(place)
        return sorted(chosen)

    def feed(self, most: int) -> Segment | None:
        """What enters KV next, at most so many tokens; None = nothing is wanted."""
        unseen = self.unseen
        if self.lost or most < 1 or not self._steps:
            return None
        start = len(self._text) - unseen
        if unseen > most:
            self._feeding = []
            tokens = self._text[start : start + most]
            return Segment(self.cache, tokens, None, len(tokens))
        self._feeding = self._wanted(most - unseen)
        if not unseen and not self._feeding:
            return None
        where = dict(self._entries) | {ROOT: -1}
        where |= {p: unseen + len(self._entries) + i for i, p in enumerate(self._feeding)}
        if unseen:
            where[ROOT] = unseen - 1
        parents = [*range(-1, unseen - 1), *(where[self._parents[p]] for p in self._feeding)]
        tokens = [*self._text[start:], *(self._tokens[p] for p in self._feeding)]
        return Segment(self.cache, tokens, parents, max(0, unseen - 1), start)

    def entered(self, segment: Segment) -> None:
        """It is in KV; what was text there is text."""
        if segment.base is not None:
            self._steps -= 1
        first = len(segment.token_ids) - len(self._feeding)
        known = len(self._entries)
        self._entries |= {place: known + i for i, place in enumerate(self._feeding)}
        if first and segment.base is not None:
            self.cache.keep_branch(segment.base, range(first))

    def rows(self, segment: Segment) -> list[RowContext]:
        """One for each row with logits."""
        if segment.logits_from == len(segment.token_ids):
            return []
        paths: list[tuple[int, ...]] = []
        if len(segment.token_ids) > len(self._feeding):
            paths.append(())
        paths += [self._path(place) for place in self._feeding]
        text, opening = self._text, self._opening
        counted = self._counts.of(text)
        matcher = self._form.of(text) if self._form is not None else None
        start = len(text) - len(opening.prompt)
        # Scores at temperature 1, whatever the session's own.
        greedy = VerifyMode.GREEDY
        return [
            RowContext(greedy, opening.sampling, 0, start + len(path), counted, path, matcher)
            for path in paths
        ]

    def _path(self, place: int) -> tuple[int, ...]:
        tokens = []
        while place != ROOT:
            tokens.append(self._tokens[place])
            place = self._parents[place]
        return tuple(reversed(tokens))

    def absorb(self, laws: Sequence[DraftLaw]) -> None:
        """The laws of the rows: what may follow there is a place, too."""
        own = self._feeding
        laws = [_below(law, self._vocab_size) for law in laws]
        if len(laws) > len(own):
            self._law = laws[0]
            self._grow(ROOT, 1.0, laws[0])
        for place, law in zip(own, laws[len(laws) - len(own) :], strict=True):
            self._laws[place] = law
            self._grow(place, self._reach[place], law)
        self._feeding = []

    def _grow(self, above: int, reach: float, law: DraftLaw) -> None:
        known = self._below.get(above, {})
        for token, log in zip(law.ids, law.logs, strict=True):
            chance = reach * math.exp(log)
            if chance < LEAST_REACH or len(self._tokens) >= MOST_PLACES:
                return
            if token not in known:
                self._add(above, token, chance)


def _below(law: DraftLaw, vocab_size: int) -> DraftLaw:
    """The law without tokens that the target has not."""
    if max(law.ids, default=0) < vocab_size:
        return law
    known = [pair for pair in zip(law.ids, law.logs, strict=True) if pair[0] < vocab_size]
    return draft_law([token for token, _ in known], [log for _, log in known])

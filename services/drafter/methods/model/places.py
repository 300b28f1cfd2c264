"""Where a session's text may go next, what a draft model said there, and when a verdict is due.

All places form one tree in front of the committed text. K/V of places lies behind the text
in the session's own room. When the text goes down places, theirs stay with all below; all
others go: a length change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import nlargest

from services.contract.types import DraftTree, OpenDraft, VerifyMode
from services.drafter.comb import Level
from services.drafter.methods.graph.draft_graph import PLAIN_TREE, ROOT, DraftGraph
from services.drafter.methods.model.counts import TextCounts
from services.drafter.methods.model.forms import TextForm
from services.drafter.methods.ngram.mixture import INFORMED
from services.engine.ngram_file import DraftLaw, draft_law
from services.engine.port import KVCache, Segment
from services.engine.sampling import RowContext

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

    weights = INFORMED

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
        self._graph = DraftGraph((), PLAIN_TREE)
        self._laws: dict[int, DraftLaw] = {}
        """What the model said at each place in KV."""
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
        path = self._graph.walk(fresh)
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
        places = self._graph.walk(path)
        return self._laws.get(places[-1]) if len(places) == len(path) else None

    def _keep(self, path: Sequence[int]) -> None:
        """The places of this path become text; all others go."""
        if self._entries:
            self.cache.keep_path(len(self._text), [self._entries[place] for place in path])
        self._start()

    def _descend(self, path: Sequence[int]) -> None:
        """The text ends at a place in KV now: those below it stay."""
        self.cache.keep_branch(len(self._text), [self._entries[place] for place in path])
        end, laws, entries = path[-1], self._laws, self._entries
        graph, index = self._graph.branch(end, ())
        self._start()
        self._graph, self._law = graph, laws.pop(end)
        left = [at for at in sorted(entries, key=entries.__getitem__) if at in index and at != end]
        self._entries = {index[at]: entry for entry, at in enumerate(left)}
        self._laws = {index[at]: law for at, law in laws.items() if at in index}

    # --- the places -------------------------------------------------------------

    def expect(self, tree: DraftTree, reach: Sequence[float]) -> None:
        """A tree was sent: the text may lead through its nodes, by these chances."""
        self._steps = STEPS
        if self.lost:
            return
        graph, where = self._graph, {-1: ROOT}
        edges = zip(tree.token_ids, tree.every_parent, reach, strict=True)
        for node, (token, parent, chance) in enumerate(edges):
            above = where.get(parent)
            if above is None or token >= self._vocab_size or graph.full:
                continue
            if graph.child(above, token) == ROOT:
                graph.expand(above, Level((token,), weights=(chance,)))
            where[node] = graph.child(above, token)
            graph[where[node]].reach = chance

    def _wanted(self, most: int) -> list[int]:
        """The likeliest places to go to next, whose ways are in KV or among them; in order."""
        room = self.cache.reserve - self.cache.length - self.unseen
        most = min(most, room, PLACES_IN_KV - len(self._entries))
        if most < 1:
            return []
        likely = [
            (node.reach, -place)
            for place, node in enumerate(self._graph.nodes)
            if node.reach >= LEAST_REACH
            and place not in self._entries
            and node.depth < DEEPEST
            and node.token not in self._stops
        ]
        chosen: list[int] = []
        for place in sorted(-number for _, number in nlargest(most, likely)):
            above = self._graph[place].parent
            if above == ROOT or above in self._entries or above in chosen:
                chosen.append(place)
        return chosen

    def feed(self, most: int) -> Segment | None:
        """What enters KV next, at most so many tokens; None = nothing is wanted."""
        unseen = self.unseen
        if self.lost or most < 1 or not self._steps:
            return None
        start = self.cache.length if unseen else len(self._text)
        if unseen > most or start + unseen < len(self._text):
            self._feeding = []
            tokens = self._text[start : start + min(unseen, most)]
            return Segment(self.cache, tokens, None, len(tokens)) if tokens else None
        self._feeding = self._wanted(most - unseen)
        if not unseen and not self._feeding:
            return None
        where = dict(self._entries) | {ROOT: -1}
        where |= {p: unseen + len(self._entries) + i for i, p in enumerate(self._feeding)}
        if unseen:
            where[ROOT] = unseen - 1
        parents = [*range(-1, unseen - 1), *(where[self._graph[p].parent] for p in self._feeding)]
        tokens = [*self._text[start:], *self._graph.tokens(self._feeding)]
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
        paths += [self._graph.tokens(self._graph.path(place)) for place in self._feeding]
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

    def absorb(self, laws: Sequence[DraftLaw]) -> None:
        """The laws of the rows: what may follow there is a place, too."""
        own = self._feeding
        laws = [_below(law, self._vocab_size) for law in laws]
        if len(laws) > len(own):
            self._law = laws[0]
            self._grow(ROOT, laws[0])
        for place, law in zip(own, laws[len(laws) - len(own) :], strict=True):
            self._laws[place] = law
            self._grow(place, law)
        self._feeding = []

    def _grow(self, above: int, law: DraftLaw) -> None:
        """What the model says at a place are places, where the text may get to them."""
        graph = self._graph
        known = {graph[below].token for below, _ in graph[above].below}
        likely = [
            (token, math.exp(log))
            for token, log in zip(law.ids, law.logs, strict=True)
            if token not in known and graph[above].reach * math.exp(log) >= LEAST_REACH
        ][: max(0, MOST_PLACES - len(graph.nodes))]
        tokens, weights = zip(*likely, strict=True) if likely else ((), ())
        graph.expand(above, Level(tokens, weights=weights))


def _below(law: DraftLaw, vocab_size: int) -> DraftLaw:
    """The law without tokens that the target has not."""
    if max(law.ids, default=0) < vocab_size:
        return law
    known = [pair for pair in zip(law.ids, law.logs, strict=True) if pair[0] < vocab_size]
    return draft_law([token for token, _ in known], [log for _, log in known])

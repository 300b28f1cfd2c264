"""Drafting, in idle moments, for what the verifier may say next: the likely outcomes of SSD.

Kumar, Dao and May, "Speculative Speculative Decoding", 2603.03251. A draft that has
reached its window waits for a verdict. Meanwhile the draft model goes on from what the
target may say in its place: from its own second and third choice at each place of
the tail, and beyond the tail. What the text then turns into is already drafted.

    committed | tail a b c        the path of the draft, in KV as text
                   b' d e         branch: the target says b' in place of b
                        f g       the draft, beyond its window

Rules:

1.  Only where drafts are matched exactly (GREEDY, COUPLED): there a token is a function
    of the text (and the noise of its position), drafted once or twice. What is drawn
    for rejection sampling is never drawn ahead, for no place may be drawn twice.
2.  The tail and the branches are one tree in front of the committed text. Of all tokens
    in it, those are fed next that the text most likely leads through: the product of
    the candidates' weights along the path. (SSD gives each accepted length a share of
    the fan-out that falls geometrically: the same, with one rate for all places.)
3.  K/V of the tree lies behind the text in the session's own room, and takes none
    of anybody's: where it is short, less is prepared. Before the draft goes on by
    a step all of it is dropped but the path of the text: a length change.
4.  A text that goes down a branch finds its K/V in place and its continuation drafted.
    Any other text drops the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.drafter.comb import Level
from services.drafter.methods.graph.draft_graph import PLAIN_TREE, ROOT, DraftGraph
from services.drafter.methods.model.stepping import Feed
from services.drafter.protocol import Ask
from services.engine.port import KVCache

CHOICES = 3
"""Candidates at a place that are remembered, the drafted one among them."""


@dataclass(frozen=True, slots=True)
class PrepareRules:
    """At most `tokens` prepared for a session at a time, `rows` of all sessions in a forward.

    A branch is `depth` tokens long at most. A token that the text leads through less
    likely than `least` is left out.
    """

    tokens: int
    rows: int
    depth: int = 4
    least: float = 0.02


@dataclass(slots=True)
class PrepareFigures:
    """What all sessions of a drafter prepared so far, and what of it was of use.

    `steps`: forwards; `fed`: tokens; `hits`: drafts that were there when they were asked
    for; `delivered`: their tokens.
    """

    steps: int = 0
    fed: int = 0
    hits: int = 0
    delivered: int = 0


class Branches:
    """What is prepared for one session, and the candidates it starts from."""

    def __init__(
        self,
        cache: KVCache,
        rules: PrepareRules,
        figures: PrepareFigures,
        *,
        end: int,
        stops: Sequence[int],
    ) -> None:
        """`end`: no token stands at this place of the text or beyond. `stops` end it, too."""
        self._cache, self._rules, self._figures = cache, rules, figures
        self._end, self._stops = end, stops
        self._levels: dict[int, Level] = {}
        """Candidates by their place in the text."""
        self._graph: DraftGraph | None = None
        self._root = 0
        self._in_kv: list[int] = []
        self._feeding: list[int] = []

    @property
    def standing(self) -> bool:
        """Whether a tree is in KV, which then is not the text's alone."""
        return self._graph is not None

    # --- the text ---------------------------------------------------------------

    def note(self, ask: Ask, level: Level) -> Level:
        """Remember the candidates for the next token; the first one alone."""
        start, place = ask.committed_length, len(ask.text)
        self._levels = {at: known for at, known in self._levels.items() if start <= at < place}
        self._levels[place] = level
        return Level(level.token_ids[:1], level.q, level.confidence)

    def rewind(self, length: int) -> None:
        """The first `length` tokens of the text stay. K/V is left as it is while a tree stands."""
        if length < self._root:
            self._drop(())
        self._levels = {place: level for place, level in self._levels.items() if place <= length}

    def follow(self, ask: Ask) -> None:
        """Keep the tree if it holds the text as it is now; KV is the text's alone if not."""
        if self._graph is not None:
            path = self._graph.walk(ask.text[self._root :])
            if len(path) < len(ask.text) - self._root:
                self._drop(path)

    def drafted(self, ask: Ask) -> list[Level]:
        """What is drafted already behind the text, `room` tokens at most; its tree stands.

        Of each its first candidate.
        """
        if self._graph is None:
            return []
        onward = self._onward(self._graph.walk(ask.text[self._root :]))[: ask.room]
        self._figures.hits += bool(onward)
        self._figures.delivered += len(onward)
        return onward

    def _onward(self, path: Sequence[int]) -> list[Level]:
        """The first candidates behind a path."""
        assert self._graph is not None
        below, onward = self._graph[path[-1] if path else ROOT].below, []
        while below:
            first, weight = below[0]
            onward.append(Level((self._graph[first].token,), weights=(weight,)))
            below = self._graph[first].below
        return onward

    def settle(self, text: Sequence[int]) -> None:
        """Drop the branches: the draft goes on by a step."""
        if self._graph is not None:
            self._drop(self._graph.walk(text[self._root :]))

    def _drop(self, path: Sequence[int]) -> None:
        """Of the tree only this path stays, as text."""
        if self._graph is None:
            return
        for place, node in enumerate((ROOT, *path), self._root):
            self._remember(place, node)
        self._cache.keep_path(self._root, self._entries(path))
        self._graph, self._root, self._in_kv = None, 0, []

    def _remember(self, place: int, node: int) -> None:
        """Its candidates, if any are known, are those of a place in the text again."""
        assert self._graph is not None
        below = self._graph[node].below
        if below:
            weights = tuple(weight for _, weight in below)
            self._levels[place] = Level(
                self._graph.tokens([number for number, _ in below]), weights=weights
            )

    def _entries(self, path: Sequence[int]) -> list[int]:
        """Where in the tree's KV the nodes of a path lie, as far as they are there."""
        entry = {node: number for number, node in enumerate(self._in_kv)}
        return [entry[node] for node in path if node in entry]

    # --- idle moments -----------------------------------------------------------

    def wanted(self, ask: Ask) -> list[tuple[float, int]]:
        """What may be fed next for a text that waits for its verdict: (likelihood, node)."""
        tail = len(ask.text) - ask.committed_length
        if tail < 1 or not self._stand(ask):
            return []
        assert self._graph is not None
        most = min(self._rules.tokens + tail - len(self._in_kv), self._room)
        if most < 1:
            return []
        own = set(self._graph.walk(ask.text[self._root :]))
        likely = [
            (node.reach, number)
            for number, node in enumerate(self._graph.nodes)
            if node.reach >= self._rules.least
            and node.grows_to(self._end - self._root)
            and len(set(self._graph.path(number)) - own) <= self._rules.depth
        ]
        return sorted(likely, key=lambda found: -found[0])[:most]

    @property
    def _room(self) -> int:
        return self._cache.reserve - self._cache.length

    def _stand(self, ask: Ask) -> bool:
        """Put the tree in front of what is committed now; False = the tail is not in KV."""
        self.follow(ask)
        if self._graph is None:
            # The last token of a draft is fed by the next step.
            if self._cache.length < len(ask.text) - 1:
                return False
            self._plant(ask)
        elif self._root < ask.committed_length:
            self._descend(ask)
        return True

    def _descend(self, ask: Ask) -> None:
        """What is committed went down the tree: what stands below stays."""
        assert self._graph is not None
        path = self._graph.walk(ask.text[self._root : ask.committed_length])
        graph, index = self._graph.branch(path[-1], ask.text[: ask.committed_length])
        self._cache.keep_branch(self._root, self._entries(path))
        self._in_kv = [index[node] for node in self._in_kv if index.get(node, ROOT) != ROOT]
        self._root, self._graph = ask.committed_length, graph

    def _plant(self, ask: Ask) -> None:
        """A tree of the tail and the candidates beside it."""
        self._root = ask.committed_length
        self._levels = {p: level for p, level in self._levels.items() if p >= self._root}
        graph, node = DraftGraph((), PLAIN_TREE, self._stops), ROOT
        path = []
        for place, token in enumerate(ask.text[self._root :], self._root):
            graph.expand(node, _with(token, self._levels.get(place)))
            node = graph[node].below[0][0]
            path.append(node)
        known = self._levels.get(len(ask.text))
        if known is not None and self._cache.length == len(ask.text):
            graph.expand(node, known)
        self._graph, self._in_kv = graph, path[: self._cache.length - self._root]

    def feed(self, nodes: Sequence[int]) -> Feed:
        """Some of the nodes that were `wanted`, for KV."""
        assert self._graph is not None
        self._feeding = list(nodes)
        place = {ROOT: -1} | {node: entry for entry, node in enumerate(self._in_kv)}
        parents = [place[self._graph[node].parent] for node in nodes]
        return Feed(self._graph.tokens(nodes), parents=parents, base=self._root)

    def paths(self) -> list[tuple[int, ...]]:
        """Of each node under way, the tokens behind the committed text, down to itself."""
        assert self._graph is not None
        return [self._graph.tokens(self._graph.path(node)) for node in self._feeding]

    def absorb(self, levels: Sequence[Level]) -> None:
        """They are in KV; the candidates after each."""
        assert self._graph is not None
        self._in_kv += self._feeding
        self._figures.fed += len(self._feeding)
        for node, level in zip(self._feeding, levels, strict=True):
            self._graph.expand(node, level)


def _with(token: int, level: Level | None) -> Level:
    """The candidates at a place of the tail, its own token first."""
    if level is None or level.token_ids[0] != token:
        return Level((token,), weights=(1.0,))
    return level

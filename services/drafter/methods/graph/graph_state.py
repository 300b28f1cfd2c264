"""What a drafter of trees keeps of one session: the graph, and which of its nodes are in KV.

A graph in which nothing is merged is a tree; so this serves `graph` and the trees of `model`.

KV rule: entries cover a prefix of the text and, once that is whole, nodes of the
graph as one growing tree in front of it. A node enters KV when it is expanded,
after its first path, once.

When the text grows, the nodes it went through are kept as far as they stand on
their first path: that is where K/V is right. If the whole of the new text is such a
path, what was drafted below its end is still the draft, and stays with its K/V. If the
text took a merged edge, what comes after the edge is fed again. (The published code
rolls back to the round's start.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from services.contract.types import DraftTree, OpenDraft
from services.drafter.comb import MAX_TREE_NODES, Level
from services.drafter.methods.graph.draft_graph import ROOT, DraftGraph, GraphRules
from services.drafter.methods.graph.tree_growth import GrowthPlan
from services.drafter.methods.model.candidates import PROPOSALS, Place
from services.drafter.methods.model.counts import TextCounts
from services.drafter.methods.model.forms import TextForm
from services.drafter.methods.model.stepping import Feed
from services.drafter.protocol import Ask, Proposed
from services.engine.port import KVCache
from services.engine.sampling import RowContext

NODES_IN_KV = 64
"""Room for nodes that a session reserves beside its text."""


class GraphSession:
    """One session that drafts trees; proposes ids below `vocab_size` only."""

    def __init__(
        self,
        opening: OpenDraft,
        cache: KVCache,
        vocab_size: int,
        longest: int,
        rules: GraphRules,
        plan: GrowthPlan,
        *,
        by_rank: bool = False,
    ) -> None:
        """`longest`: most tokens that the draft model takes.

        `by_rank`: a candidate weighs what its rank was worth so far, wherever it
        stands; else what the draft model gives it.
        """
        self.cache = cache
        self.vocab_size = vocab_size
        self.caught_up = False
        self._opening, self._longest = opening, longest
        self._rules, self._plan = rules, plan
        self._by_rank = by_rank
        self._growth = plan.growth(1)
        self._count = max(1, min(opening.num_candidates, vocab_size, MAX_TREE_NODES))
        self._counts = TextCounts(opening)
        self.form: TextForm | None = None
        """What the output must be, where that is to be followed."""
        self._start(opening.prompt)

    def _start(self, text: Sequence[int]) -> None:
        """Nothing is drafted in front of `text`, and no node is in KV."""
        stops = self._opening.sampling.stop_token_ids
        self._root = len(text)
        self._graph = DraftGraph(text, self._rules, stops)
        self._in_kv: list[int] = []
        self._feeding: list[int] = []
        self._steps = 0

    # --- the text ---------------------------------------------------------------

    def rewind(self, length: int) -> None:
        """The first `length` tokens of the text stay."""
        self._counts.rewind(length)
        if self.form is not None:
            self.form.rewind(length)
        if length < self._root:
            self._keep_in_kv(())
            self.cache.rollback(min(self.cache.length, length))
            self._start(range(length))

    def follow(self, ask: Ask) -> None:
        """Keep of graph and KV what is right for the text as it is now."""
        new = ask.text[self._root :]
        if not new and self._graph.nodes:
            return
        path = self._graph.walk(new)
        self._learn(ask.text[self._root : ask.committed_length], path)
        real = path[: self._graph.real(path)]
        if new and len(real) == len(new):
            self._descend(real, ask.text)
        else:
            self._keep_in_kv(self._entries(real))
            self._start(ask.text)

    def may_draft(self, ask: Ask) -> bool:  # noqa: ARG002
        """Always: what is drafted follows from the text alone."""
        return True

    def _learn(self, committed: Sequence[int], path: Sequence[int]) -> None:
        """Tell the plan which candidates the target took, as far as there were any."""
        for token, node in zip(committed, (ROOT, *path), strict=False):
            tokens = [self._graph[below].token for below, _ in self._graph[node].below]
            if tokens:
                self._plan.observe(tokens.index(token) if token in tokens else None, len(tokens))

    def _descend(self, path: Sequence[int], text: Sequence[int]) -> None:
        """The text went down this path: what was drafted below its end stays."""
        entries = self._entries(path)
        graph, index = self._graph.branch(path[-1], text)
        if len(entries) == len(path):
            self.cache.keep_branch(self._root, entries)
        else:
            self._keep_in_kv(entries)
        self._in_kv = [index[node] for node in self._in_kv if index.get(node, ROOT) != ROOT]
        self._root, self._graph = len(text), graph
        self._steps = max(0, self._steps - len(path))

    def _entries(self, path: Sequence[int]) -> list[int]:
        """Where in the tree's KV the nodes of a path lie, as far as they are there."""
        place = {node: entry for entry, node in enumerate(self._in_kv)}
        return [place[node] for node in path if node in place]

    def _keep_in_kv(self, entries: Sequence[int]) -> None:
        """Of the tree in KV only this path stays, as text."""
        if self._in_kv:
            self.cache.keep_path(self._root, entries)

    # --- the draft --------------------------------------------------------------

    def drafted(self, ask: Ask) -> Proposed | None:
        """The draft, once there is nothing left to expand."""
        if not self._graph[ROOT].expanded or self._frontier(ask):
            return None
        copied, parents = self._graph.unfolded(ask.room, self._growth.nodes)
        proposal = PROPOSALS[self._opening.mode]
        tree = DraftTree(self._graph.tokens(copied), tuple(parents), proposal=proposal)
        # A graph may happen to be a chain; a tree behind it would be lost with its verdict.
        return Proposed(tree.normal(), final=not copied or self._count > 1)

    def _frontier(self, ask: Ask) -> list[int]:
        if self._steps >= len(self._growth.widths):
            return []
        room = self.cache.reserve - self.cache.length
        most = min(room, self._growth.widths[self._steps])
        return self._graph.frontier(self._depth(ask), most)

    def _depth(self, ask: Ask) -> int:
        return min(ask.room, self._longest - len(ask.text) + 1)

    def feed(self, ask: Ask, most: int) -> Feed:
        """The rest of the text or, where that is in KV, the nodes to expand next."""
        if self._graph[ROOT].expanded:
            return self._feed_nodes(self._frontier(ask)[:most])
        self._growth = self._plan.growth(self._depth(ask))
        start = min(self.cache.length, len(ask.text) - 1)
        self.cache.rollback(start)
        tokens = ask.text[start : start + most]
        self._feeding = [ROOT]
        return Feed(tokens, start + len(tokens) == len(ask.text))

    def _feed_nodes(self, nodes: list[int]) -> Feed:
        self._feeding = nodes
        place = {ROOT: -1} | {node: entry for entry, node in enumerate(self._in_kv)}
        parents = [place[self._graph[node].parent] for node in nodes]
        return Feed(self._graph.tokens(nodes), parents=parents, base=self._root)

    def entered(self, feed: Feed) -> None:
        """It is in KV."""
        self.caught_up = feed.complete
        if feed.parents is not None:
            self._in_kv += self._feeding

    def places(self, ask: Ask) -> list[Place]:
        """The nodes that were fed, or the text."""
        return [self._place(node, ask) for node in self._feeding]

    def _place(self, node: int, ask: Ask) -> Place:
        opening = self._opening
        path = self._graph.tokens(self._graph.path(node))
        row = RowContext(
            opening.mode,
            opening.sampling,
            opening.seed,
            ask.position + len(path),
            self._counts.of(ask.text),
            path,
            self.form.of(ask.text) if self.form is not None else None,
        )
        return Place(row, self._count, self.vocab_size, weighed=not self._by_rank)

    def absorb(self, levels: Sequence[Level], ask: Ask) -> Proposed:
        """Take in the candidates after each node that was fed; the draft when it is grown."""
        for node, level in zip(self._feeding, levels, strict=True):
            self._graph.expand(node, self._weighed(level))
        self._steps += 1
        return self.drafted(ask) or Proposed()

    def _weighed(self, level: Level) -> Level:
        if not self._by_rank:
            return level
        rates = tuple(accumulate(self._growth.rates[: len(level.token_ids)], min))
        return replace(level, token_ids=level.token_ids[: len(rates)], weights=rates)

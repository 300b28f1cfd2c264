"""The newest draft of a session, as far as it follows the session's output.

A draft has a name, an opening of its drafter and a number; one with a higher name is newer.

    tokens of the held name, behind its last one, whose hash says so    go on with it (chains only)
    another name, newer than any that was held, behind this very text   replaces it
    anything else: older names, gaps, doubled tokens, other texts       is nothing

The output grows by tokens of the draft or by others. What the draft said of them is cut off its
head, a tree goes down to the child that was said; what departs from the output is dropped whole.
No token is looked at for what it is, but to compare it with the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import eq
from typing import NamedTuple

from services.contract.frames import NO_NAME, DraftName, DraftRow
from services.contract.types import DraftTree, Proposal, SparseRow, extend_hash
from services.runtime.proposer import LocalDraft
from services.verifier.running.output import Output
from services.verifier.trees import depths

MOST_HELD = 512
"""Tokens of a chain; a drafter is at most a window ahead."""


class Taken(NamedTuple):
    """What a step verifies of a draft, and which draft that is.

    `arrived`: when its newest token came, in seconds. `draft_ms`: what drafting these took.
    """

    tree: DraftTree
    name: DraftName = NO_NAME
    reach: tuple[float, ...] = ()
    sources: bytes = b""
    draft_ms: float = 0.0
    arrived: float = 0.0


NO_TREE = DraftTree()
NOTHING = Taken(NO_TREE)


class Mailbox:
    """Holds at most one draft, without the tokens that the output has said.

    `first`: drafts of earlier openings on a drafter are stale.
    """

    __slots__ = (
        "_proposal",
        "arrived",
        "draft_ms",
        "end_hash",
        "final",
        "first",
        "name",
        "newest",
        "parents",
        "q",
        "reach",
        "sources",
        "tokens",
        "without_replacement",
    )

    def __init__(self, first: int = 0) -> None:
        self.first = max(1, first)
        self.newest = NO_NAME
        self.clear()

    def __len__(self) -> int:
        return len(self.tokens)

    def clear(self) -> None:
        """Hold nothing."""
        self.name = NO_NAME
        self.tokens: list[int] = []
        self.parents: list[int] | None = None
        self.q: list[SparseRow] | None = None
        self.reach: list[float] = []
        self.sources = b""
        self._proposal = Proposal.ONE_HOT
        self.without_replacement = False
        self.final = False
        self.draft_ms = self.arrived = 0.0
        self.end_hash: int | None = None
        """Of the output and all of a chain; None: nothing goes on with the draft."""

    @property
    def sampled(self) -> bool:
        """Whether its tokens were drawn from laws that it tells."""
        return self._proposal is Proposal.SAMPLED

    @property
    def levels(self) -> int:
        """How deep it reaches."""
        return len(self.tokens) if self.parents is None else max(depths(self._tree()))

    # --- what comes in ----------------------------------------------------------------

    def put(self, draft: DraftRow, output: Output, now: float) -> bool:
        """Take a drafter's message in; whether the mailbox has changed."""
        name = draft.name
        if name.opening < self.first or name < self.newest:
            return False
        if not len(draft.tree):
            return draft.final and self._nothing_more(draft, output)
        if name == self.name and self.tokens:
            return self._append(draft, len(output), now)
        if draft.hash != output.hash_at(draft.position):
            return False
        tree, said = draft.tree, output.behind(draft.position)
        chain = tree.parents is None
        if chain and not _goes_on(tree.token_ids, said):
            return False
        before = None if chain else self._state()
        self._hold(tree, draft.reach, draft.sources, draft.draft_ms, now)
        self.name = name
        if chain and not draft.reach:
            self.end_hash = extend_hash(draft.hash, tree.token_ids)
        self.follow(said)
        if before is not None and not self.tokens:
            self._restore(before)
            return False
        self.newest, self.final = name, draft.final
        return True

    def propose(self, draft: LocalDraft, now: float) -> None:
        """Hold a draft of the verifier's own behind the output as it is, in place of any other.

        It is all that comes before the text grows, also where it is none.
        """
        self.clear()
        if len(draft.tree):
            self._hold(draft.tree, draft.reach, draft.sources, draft.draft_ms, now)
        self.final = True

    def _nothing_more(self, draft: DraftRow, output: Output) -> bool:
        """An empty message: nothing follows what is held, or a newer draft is none at all.

        It is late where the text has grown since: of what follows now it says nothing.
        """
        goes_on = draft.name == self.newest
        held = len(self.tokens) if goes_on else 0
        end = len(output) + held
        hashed = self.end_hash if held else output.hash_at(end)
        if (draft.position, draft.hash) != (end, hashed):
            return False
        if not goes_on:
            self.clear()
        self.newest, self.final = draft.name, True
        return True

    def _append(self, draft: DraftRow, length: int, now: float) -> bool:
        tree = draft.tree
        goes_on = draft.position == length + len(self.tokens) and draft.hash == self.end_hash
        alike = tree.parents is None and not draft.reach and tree.proposal is self._proposal
        alike = alike and (tree.q is None) == (self.q is None)
        if not (goes_on and alike) or len(self.tokens) + len(tree) > MOST_HELD:
            return False
        self.sources = self._sources_with(draft.sources, len(tree))
        self.tokens += tree.token_ids
        if self.q is not None:
            self.q += tree.q or ()
        self.end_hash = extend_hash(draft.hash, tree.token_ids)
        self.draft_ms += draft.draft_ms
        self.final, self.arrived = draft.final, now
        return True

    def _sources_with(self, more: bytes, count: int) -> bytes:
        if not (self.sources or more):
            return b""
        return (self.sources or bytes(len(self.tokens))) + (more or bytes(count))

    def _hold(
        self,
        tree: DraftTree,
        reach: Sequence[float],
        sources: bytes,
        draft_ms: float,
        now: float,
    ) -> None:
        self.tokens = [*tree.token_ids]
        self.parents = None if tree.parents is None else [*tree.parents]
        self.q = None if tree.q is None else [*tree.q]
        self._proposal, self.without_replacement = tree.proposal, tree.without_replacement
        self.reach, self.sources = [*reach], sources
        self.draft_ms, self.arrived = draft_ms, now
        self.end_hash = None

    def _state(self) -> tuple[object, ...]:
        return tuple([getattr(self, name) for name in self.__slots__])

    def _restore(self, state: tuple[object, ...]) -> None:
        for name, value in zip(self.__slots__, state, strict=True):
            setattr(self, name, value)

    # --- what the output says -----------------------------------------------------------

    def follow(self, said: Sequence[int]) -> None:
        """The output has grown by these tokens: keep what follows them, or nothing."""
        self.final = False
        if not self.tokens or not said:
            return
        if self.parents is not None:
            self._descend(said)
        elif _goes_on(self.tokens, said):
            self._cut(len(said))
        else:
            self.clear()

    def _cut(self, count: int) -> None:
        self.draft_ms *= 1 - count / len(self.tokens)
        del self.tokens[:count]
        if self.q is not None:
            del self.q[:count]
        if self.reach:
            last = self.reach[count - 1]
            self.reach = [min(1.0, own / last) if last else 0.0 for own in self.reach[count:]]
        self.sources = self.sources[count:]

    def _descend(self, said: Sequence[int]) -> None:
        """Down the tree; of equal children the first one is the text, as where it is verified."""
        assert self.parents is not None
        at = self._node_of(said)
        if at is None:
            self.clear()
            return
        index = {at: -1}
        for node, parent in enumerate(self.parents):
            if parent in index and node > at:
                index[node] = len(index) - 1
        self._keep(index, at)

    def _keep(self, index: dict[int, int], root: int) -> None:
        """Of a tree the nodes of `index` (former: new place), all of them below `root`."""
        assert self.parents is not None
        kept = [node for node in index if node != root]
        if not kept:
            self.clear()
            return
        givers = sorted(set(self.parents))
        if self.q is not None:
            still = {self.parents[node] for node in kept}
            rows = zip(givers, self.q, strict=False)
            self.q = [row for giver, row in rows if giver in still]
        if self.reach:
            last = self.reach[root]
            self.reach = [min(1.0, self.reach[node] / last) if last else 0.0 for node in kept]
        self.draft_ms *= len(kept) / len(self.tokens)
        self.sources = bytes([self.sources[node] for node in kept]) if self.sources else b""
        self.tokens = [self.tokens[node] for node in kept]
        self.parents = [index[self.parents[node]] for node in kept]

    # --- what goes out ------------------------------------------------------------------

    def first_tokens(self, count: int, room: int) -> Taken:
        """The first `count` tokens, of a tree nodes, that are at most `room` deep."""
        if self.parents is None:
            count = min(count, room)
        if count <= 0 or not self.tokens:
            return NOTHING
        whole = len(self.tokens)
        if self.parents is not None:
            return self._nodes(count, room)
        return Taken(
            DraftTree(
                tuple(self.tokens[:count]),
                None,
                None if self.q is None else tuple(self.q[:count]),
                self._proposal,
                self.without_replacement,
            ),
            self.name,
            tuple(self.reach[:count]),
            self.sources[:count],
            self.draft_ms * min(count, whole) / whole,
            self.arrived,
        )

    def next_level(self, said: Sequence[int] = ()) -> DraftTree:
        """The candidates for the token behind `said`, without what is below them.

        `said`: tokens that the output is about to grow by.
        """
        if self.parents is None:
            at = len(said)
            if self.tokens[:at] != [*said] or at >= len(self.tokens):
                return NO_TREE
            row = None if self.q is None else (self.q[at],)
            return DraftTree((self.tokens[at],), None, row, self._proposal)
        node = self._node_of(said)
        children = [] if node is None else self._children(node)
        if not children:
            return NO_TREE
        q = None
        if self.q is not None:
            q = (self.q[sorted(set(self.parents)).index(self.parents[children[0]])],)
        tokens = tuple([self.tokens[child] for child in children])
        parents = (-1,) * len(children)
        return DraftTree(tokens, parents, q, self._proposal, self.without_replacement).normal()

    def _node_of(self, said: Sequence[int]) -> int | None:
        """The node that these tokens lead to; of equal children the first one; -1 = the text."""
        at = -1
        for token in said:
            found = [node for node in self._children(at) if self.tokens[node] == token]
            if not found:
                return None
            at = found[0]
        return at

    def _children(self, at: int) -> list[int]:
        assert self.parents is not None
        return [node for node, parent in enumerate(self.parents) if parent == at]

    def _nodes(self, count: int, room: int) -> Taken:
        """Of a tree; what is left out goes by places and depths alone."""
        tree = self._tree()
        levels = depths(tree)
        kept = [node for node in range(min(count, len(tree))) if levels[node + 1] <= room]
        index = {-1: -1} | {node: new for new, node in enumerate(kept)}
        parents = tuple([index[tree.every_parent[node]] for node in kept])
        q = None
        if self.q is not None:
            still = {tree.every_parent[node] for node in kept}
            rows = zip(sorted(set(tree.every_parent)), self.q, strict=False)
            q = tuple([row for giver, row in rows if giver in still])
        smaller = DraftTree(
            tuple([tree.token_ids[node] for node in kept]),
            parents,
            q,
            self._proposal,
            self.without_replacement,
        )
        return Taken(
            smaller.normal(),
            self.name,
            tuple([self.reach[node] for node in kept]) if self.reach else (),
            bytes([self.sources[node] for node in kept]) if self.sources else b"",
            self.draft_ms * len(kept) / len(tree),
            self.arrived,
        )

    def _tree(self) -> DraftTree:
        parents = None if self.parents is None else tuple(self.parents)
        return DraftTree(tuple(self.tokens), parents)


def _goes_on(tokens: Sequence[int], said: Sequence[int]) -> bool:
    """Whether a chain of these tokens says what was said, and more."""
    return len(tokens) > len(said) and all(map(eq, tokens, said))

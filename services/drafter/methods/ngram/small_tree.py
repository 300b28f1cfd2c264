"""One small tree from all sources, best first, with each node's chance of being reached.

Rules:

1.  The next node is always the one that is likeliest to be reached. So every beginning of
    the tree is the best tree of its size, as far as the sources know, and whoever verifies it
    may cut it anywhere.
2.  It depends on the text, on what its tenant's texts and the file say, and where the shared
    noise is known (`COUPLED`), on that: so it is for modes that match drafts exactly.
3.  A session that must leave nothing behind reads no pool and fills none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Protocol

from services.contract.top_rows import unpack
from services.contract.types import DraftSource, DraftTree, OpenDraft, VerifyMode
from services.drafter.methods.ngram.mixture import (
    COUPLED,
    GREEDY,
    HEADED,
    INFORMED,
    Scorer,
    Shares,
    probabilities,
    weights_of,
    with_noise,
)
from services.drafter.methods.ngram.text_index import LONGEST_MATCH, TextIndex
from services.drafter.methods.ngram.text_pool import TextPool
from services.drafter.methods.ngram.weights import DEFAULTS
from services.drafter.protocol import Ask, Proposed
from services.engine.ngram_file import DraftLaw, NgramFile

MOST_NODES = 12
LEAST_REACH = 0.02
"""A node that is reached less often is worth no row of any verifier."""
MOST_CONTEXTS = 1024
"""Tokens of a session after which it is known what the target said: 0.2 MB."""
CHUNK = 2048
"""Tokens of a prompt that are taken in at a time: others wait meanwhile."""

_Waiting = tuple[float, int, int, int, Shares, list[int]]
"""A node to be: its chance, negative, its turn among equals, its token, the node above it,
what each source said there, and the text up to there."""


class SmallTrees:
    """What the sessions of one drafter share: the file, its weights, and their texts."""

    def __init__(
        self, file: NgramFile | None = None, pool: TextPool | None = None, nodes: int = MOST_NODES
    ) -> None:
        """`nodes`: most of one tree."""
        self.file = file
        self.pool = TextPool() if pool is None else pool
        self._nodes = nodes
        self._scorers = {
            prefix + informant: _scorer(prefix, informant, file)
            for prefix in (GREEDY, COUPLED)
            for informant in ("", INFORMED, HEADED)
        }

    def open(
        self, opening: OpenDraft, scope: str, informant: Informant | None = None
    ) -> TreeSession:
        """A session that shares texts with those of its scope; empty = with none."""
        warm = opening.mode is VerifyMode.COUPLED and opening.sampling.temperature > 0
        prefix = COUPLED if warm else GREEDY
        informed = INFORMED if informant is None else informant.weights
        scorers = self._scorers[prefix], self._scorers[prefix + informed]
        return TreeSession(opening, scorers, self.pool, scope, self._nodes, informant)


def _scorer(prefix: str, informant: str, file: NgramFile | None) -> Scorer:
    """With the weights of the file, where it has some; a head's may be those of a draft model."""
    given = {} if file is None else file.weights
    names = (prefix + informant, *((prefix + INFORMED,) if informant == HEADED else ()))
    known = [
        values for name in names for source in (given, DEFAULTS) if (values := _named(source, name))
    ]
    source = DraftSource.EAGLE if informant == HEADED else DraftSource.MODEL
    return Scorer(weights_of(known[0]), file, source)


def _named(values: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}


class TargetRows:
    """What the target said after each token when it last verified this session's drafts.

    Of `MOST_CONTEXTS` tokens, those said last. They are nobody else's, and end with the session.
    """

    __slots__ = ("_known", "_vocab_size", "_width")

    def __init__(self, width: int, vocab_size: int) -> None:
        """`width`: tokens of a row, 0 = none come. `vocab_size`: ids below it are known, 0: all."""
        self._width, self._vocab_size = width, vocab_size or 1 << 32
        self._known: OrderedDict[int, tuple[int, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, rows: bytes) -> None:
        """Take in the rows of a block; the newest of a token stands."""
        known = self._known
        for context, likeliest in unpack(rows, self._width) if rows else ():
            if max(likeliest) < self._vocab_size:
                known[context] = likeliest
                known.move_to_end(context)
        while len(known) > MOST_CONTEXTS:
            known.popitem(last=False)

    def after(self, token: int) -> tuple[int, ...]:
        """What is likeliest after a token, best first; empty where that is not known."""
        return self._known.get(token, ())


class Informant(Protocol):
    """A draft model beside the sources that cost no forward."""

    @property
    def weights(self) -> str:
        """What the weights for places where it has a word are named by."""

    def law(self, path: Sequence[int], /) -> DraftLaw | None:
        """What it says after the text and `path`, if it is known by now."""


class TreeSession:
    """What is known of one session's text, and the trees in front of it."""

    __slots__ = (
        "_filed",
        "_informant",
        "_informed",
        "_known",
        "_last_ids",
        "_most",
        "_noise",
        "_pool",
        "_prompt_length",
        "_rows",
        "_scorer",
        "_width",
        "index",
        "scope",
    )

    def __init__(
        self,
        opening: OpenDraft,
        scorers: tuple[Scorer, Scorer],
        pool: TextPool,
        scope: str,
        most: int,
        informant: Informant | None = None,
    ) -> None:
        """`scope`: whose texts it reads and leaves, empty = nobody's; `most`: nodes of a tree.

        `scorers`: that of places without a word of the informant, and with one.
        """
        self.index = TextIndex()
        self.scope = scope
        (self._scorer, self._informed), self._informant = scorers, informant
        self._pool, self._most = pool, most
        self._prompt_length, self._width = len(opening.prompt), opening.num_candidates
        self._rows = TargetRows(opening.top_rows, opening.vocab_size)
        self._last_ids = frozenset(opening.last_ids)
        file = self._scorer.file
        self._filed = file is not None and opening.vocab_size in (0, file.vocab_size)
        warm = opening.mode is VerifyMode.COUPLED and opening.sampling.temperature > 0
        self._known = 0
        self._noise = (opening.sampling.temperature, opening.seed) if warm else None

    @property
    def output(self) -> Sequence[int]:
        """What was seen of the output."""
        return self.index.tokens[self._prompt_length :]

    def propose(self, ask: Ask) -> Proposed:
        """The tree, once all of the text is taken in."""
        self._rows.learn(ask.top_rows)
        known = len(self.index)
        if not self.follow(ask.text):
            return Proposed(fed=len(self.index) - known)
        return self.draft(ask.position, ask.room)

    def follow(self, text: Sequence[int]) -> bool:
        """Take in what is new of the text, a chunk at most; whether that is all."""
        known = len(self.index)
        self.index.extend(text[known : known + CHUNK])
        return len(self.index) == len(text)

    def rewind(self, length: int) -> None:
        """The text is only its first `length` tokens again."""
        self.index.rewind(length)

    def draft(self, position: int, depth: int) -> Proposed:
        """The tree in front of the text, at most `depth` levels.

        `position`: of the next token in the output.
        """
        pool = self._pool.of(self.scope) if self.scope else ()
        context = self.index.tokens[-LONGEST_MATCH:]
        tokens: list[int] = []
        parents: list[int] = []
        reach: list[float] = []
        sources: list[int] = []
        recalled = 0
        waiting: list[_Waiting] = []
        self._known = len(context)
        self._branch(waiting, context, pool, position, (1.0, -1))
        while waiting and len(tokens) < self._most:
            negative, _, token, parent, shares, path = heappop(waiting)
            node, chance = len(tokens), -negative
            tokens.append(token)
            parents.append(parent)
            reach.append(chance)
            sources.append(shares.greatest(token))
            recalled += shares.recalled(token)
            level = len(path) - len(context) + 1
            if level < depth and node + 1 < self._most and token not in self._last_ids:
                self._branch(waiting, [*path, token], pool, position + level, (chance, node))
        tree = DraftTree(tuple(tokens), tuple(parents)) if tokens else DraftTree()
        return Proposed(
            tree, final=True, recalled=recalled, reach=tuple(reach), sources=bytes(sources)
        )

    def _branch(
        self,
        waiting: list[_Waiting],
        path: list[int],
        pool: Sequence[TextIndex],
        position: int,
        above: tuple[float, int],
    ) -> None:
        """Let what may follow `path`, whose chance and node are `above`, wait for its turn."""
        chance, node = above
        found, shares = self._next(path, pool, position, LEAST_REACH / chance)
        for probability, token in found[: self._width]:
            order = len(waiting) + 64 * node
            heappush(waiting, (-chance * probability, order, token, node, shares, path))

    def _next(
        self, path: list[int], pool: Sequence[TextIndex], position: int, least: float
    ) -> tuple[list[tuple[float, int]], Shares]:
        """(probability, token), best first, and what each source said."""
        informant, law = self._informant, None
        if informant is not None:
            law = informant.law(path[self._known :])
        scorer = self._scorer if law is None else self._informed
        context = path[-LONGEST_MATCH:]
        scores, other, shares = scorer.score(
            context,
            self.index,
            pool,
            filed=self._filed,
            rows=self._rows.after(context[-1]) if context else (),
            draft=law,
        )
        if self._noise is not None and scores:
            temperature, seed = self._noise
            scores, other = with_noise(scores, other, scorer.weights, temperature, seed, position)
        return probabilities(scores, other, least), shares

"""Drafting by prompt lookup: copy what followed the last tokens when they stood before.

"Prompt Lookup Decoding" (Saxena, 2023, github.com/apoorvumang/prompt-lookup-decoding).
No model, no torch, any tokenizer. A pool of phrases of earlier sessions (Ouroboros,
Zhao et al., 2402.13720; see `phrases`) is another source for the same copy.

The session's own text comes first, a phrase where that has no match. The other way
round, or with the longer match first, fewer drafts are right: measured on texts of
the demo model, with phrases of the same kind of task.

That is for chains. Where more than one candidate is asked for, and drafts are matched
exactly, it drafts one small tree from all sources instead; see `small_tree` and `mixture`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from services.contract.types import (
    DraftSource,
    DraftTree,
    OpenDraft,
    VerifyMode,
    WorkerDescription,
    estimate_capability,
    rows_capability,
    split_methods,
)
from services.drafter.methods.ngram.phrases import (
    Archive,
    Gram,
    Learner,
    PhraseLimits,
    PhrasePool,
    teach,
)
from services.drafter.methods.ngram.small_tree import Informant, SmallTrees, TreeSession
from services.drafter.protocol import Ask, KVUsage, Proposed, SessionKey


class GramTable:
    """Where each n-gram of a growing text ended, for one n; one step back per token."""

    __slots__ = ("_earlier", "_grams", "_latest", "n")

    def __init__(self, n: int) -> None:
        self.n = n
        self._latest: dict[Gram, int] = {}
        self._grams: list[Gram] = []
        self._earlier: list[int] = []

    @property
    def earlier(self) -> int:
        """Where the text's last n tokens ended before (a text length), 0 = nowhere."""
        return self._earlier[-1] if self._earlier else 0

    def push(self, gram: Gram, end: int) -> None:
        """The text grew to `end` tokens, the last n of which are `gram`."""
        self._grams.append(gram)
        self._earlier.append(self._latest.get(gram, 0))
        self._latest[gram] = end

    def rewind(self, length: int) -> None:
        """The text is only its first `length` tokens again."""
        while len(self._grams) > max(0, length - self.n + 1):
            gram, earlier = self._grams.pop(), self._earlier.pop()
            if earlier:
                self._latest[gram] = earlier
            else:
                del self._latest[gram]


class NgramIndex:
    """The n-grams of one growing text, for every n in [shortest, longest]."""

    __slots__ = ("_tables", "length")

    def __init__(self, shortest: int, longest: int) -> None:
        self._tables = tuple(GramTable(n) for n in range(longest, shortest - 1, -1))
        self.length = 0
        """How many tokens of the text are indexed."""

    def extend(self, text: Sequence[int]) -> None:
        """Index the rest of `text`, whose first `length` tokens are indexed."""
        for end in range(self.length + 1, len(text) + 1):
            for table in self._tables:
                if end >= table.n:
                    table.push(tuple(text[end - table.n : end]), end)
        self.length = len(text)

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        for table in self._tables:
            table.rewind(length)
        self.length = min(self.length, length)

    def match(self) -> int:
        """The latest earlier place where the text's end stood: its end there, 0 = none.

        The longest n-gram that has one decides.
        """
        return next((table.earlier for table in self._tables if table.earlier), 0)


@dataclass(frozen=True, slots=True)
class _Session:
    """`sure`: copy after the longest n-gram only. `vocab_size` 0 = unknown."""

    index: NgramIndex
    learner: Learner
    sure: bool
    vocab_size: int


class NgramDrafter:
    """Copies the continuation of the latest match of the last `longest`..`shortest` tokens.

    `pool`: the phrases of all sessions that share them (`_shared_scope`); one that
    does not has phrases of its own, which go with it. `archive`: where the outputs
    of the former are kept and come back from. `small`: what makes trees.
    """

    modes = frozenset(VerifyMode)
    samples = False
    trees = True

    def __init__(
        self,
        shortest: int = 2,
        longest: int = 4,
        pool: PhrasePool | None = None,
        archive: Archive | None = None,
        small: SmallTrees | None = None,
    ) -> None:
        self._shortest = shortest
        self._longest = longest
        self._pool = PhrasePool(PhraseLimits(shortest, longest)) if pool is None else pool
        self._archive = archive
        self._small = SmallTrees() if small is None else small
        self._sessions: dict[SessionKey, _Session] = {}
        self._trees: dict[SessionKey, TreeSession] = {}

    def describe(self, worker: WorkerDescription) -> WorkerDescription:
        """Works with any tokenizer, unless there is an n-gram file, which is of one."""
        able = (*worker.capabilities, estimate_capability("ngram"), rows_capability("ngram"))
        file = self._small.file
        if file is None or worker.tokenizer_fingerprint:
            return replace(worker, capabilities=able)
        return replace(
            worker,
            capabilities=able,
            tokenizer_fingerprint=file.tokenizer_fingerprint,
            vocab_size=file.vocab_size,
        )

    def usage(self) -> KVUsage:
        """No KV."""
        return KVUsage()

    def open(self, key: SessionKey, opening: OpenDraft, informant: Informant | None = None) -> None:
        """An empty index; the text is indexed by the first step.

        `informant`: a draft model with a word in the session's trees.
        """
        scope = _shared_scope(opening)
        if self._archive is not None and scope and not self._knows(scope):
            self._archive.load(scope)
        if opening.num_candidates > 1 and opening.mode.exact_match:
            self._trees[key] = self._small.open(opening, scope, informant)
            return
        pool = self._pool if scope else PhrasePool(self._pool.limits)
        sure = _others_follow(opening.method)
        index = NgramIndex(self._longest if sure else self._shortest, self._longest)
        self._sessions[key] = _Session(index, Learner(pool, scope), sure, opening.vocab_size)

    def rewind(self, key: SessionKey, length: int) -> None:
        """Forget what was indexed beyond `length`."""
        if (tree := self._trees.get(key)) is not None:
            tree.rewind(length)
        else:
            self._sessions[key].index.rewind(length)

    def close(self, key: SessionKey) -> None:
        """Drop the index; the text becomes phrases, and text to look up."""
        if (tree := self._trees.pop(key, None)) is not None:
            scope, output = tree.scope, tree.output
        elif (session := self._sessions.pop(key, None)) is not None:
            scope, output = session.learner.scope, session.learner.finish()
        else:
            return
        self._small.pool.learn(scope, output)
        if self._archive is not None and scope:
            self._archive.keep(scope, output)

    def propose(self, asks: Sequence[Ask]) -> list[Proposed]:
        """One copied chain per session; without a match, nothing and final."""
        if self._archive is not None and (kept := self._archive.arrived()) is not None:
            # One at each step: drafts must not wait for all that a tenant ever said.
            teach(self._pool, *kept)
            self._small.pool.learn(*kept)
        return [self._answer(ask) for ask in asks]

    def _knows(self, scope: str) -> bool:
        """Whether there is anything of a scope here."""
        return bool(self._pool.size(scope) or self._small.pool.of(scope))

    def _answer(self, ask: Ask) -> Proposed:
        if (tree := self._trees.get(ask.key)) is not None:
            return tree.propose(ask)
        return self._propose(self._sessions[ask.key], ask)

    def idle(self, asks: Iterable[Ask]) -> bool:  # noqa: ARG002
        """There is nothing beside drafting."""
        return False

    def _propose(self, session: _Session, ask: Ask) -> Proposed:
        session.index.extend(ask.text)
        session.learner.follow(ask)
        tokens, recalled = _copy(session.index, ask), 0
        if not tokens:
            tokens, recalled = _phrase(session, ask)
        session.learner.drafted(tokens)
        source = DraftSource.OTHER_TEXTS if recalled else DraftSource.THIS_TEXT
        sources = bytes((source,)) * len(tokens)
        return Proposed(DraftTree(tokens), final=not tokens, recalled=recalled, sources=sources)


def _shared_scope(opening: OpenDraft) -> str:
    """Whose phrases a session shares; empty = nobody's.

    None where drafts are judged by rejection: of two sessions with one seed the second
    would be drafted what the first one's random numbers brought, and which of its own
    it uses, the same ones, would hang on that draft. Where drafts are matched exactly
    (greedy, coupled), no draft moves the text.
    """
    return opening.phrase_scope if opening.mode.exact_match else ""


def _others_follow(method: str) -> bool:
    """Whether another method drafts where this one has nothing.

    What a short match brings would keep it waiting, and is likely to be wrong.
    """
    return "ngram" in split_methods(method)[:-1]


def _copy(index: NgramIndex, ask: Ask) -> Gram:
    start = index.match()
    return tuple(copy_from(ask.text, start, ask.room)) if start else ()


def _phrase(session: _Session, ask: Ask) -> tuple[Gram, int]:
    """A phrase of the pool, and how many of its tokens other sessions' texts gave."""
    phrase, of_others = session.learner.find(ask.text, sure=session.sure)
    known = session.vocab_size or 1 << 32
    tokens = tuple(takewhile(lambda token: token < known, phrase[: ask.room]))
    return tokens, len(tokens) if of_others else 0


def copy_from(text: Sequence[int], start: int, count: int) -> list[int]:
    """`count` tokens from `start` (< len(text)) on; past the end, the copy itself goes on."""
    period = len(text) - start
    return [text[start + offset % period] for offset in range(count)]

"""What the model drafter keeps of one session: KV, the draft being built, penalty counts.

KV rule: entries cover a prefix of the text and of the trunk in front of it. Each
step feeds every token that has no entry, and at least the last one; never one
that has. (AMUSD's published loop feeds one token twice after a rollback, which
shifts all that follow.)

Key rule: within an epoch, drafts that are drawn start at ever later positions, so
that no random number decides twice. The orchestrator moves the epoch whenever
what it commits departs from anything that may have been drawn, so this holds by
itself. Where a text went back without that, or a turn was given twice in front of
a tree, nothing is drafted until the text has passed the last start.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.common.engine import KVCache
from services.common.engine.sampling import History, RowContext, wants_history
from services.common.types import DraftTree, OpenDraft
from services.drafter.candidates import PROPOSALS, Place
from services.drafter.comb import MAX_TREE_NODES, Comb, Level
from services.drafter.protocol import Ask


class ModelSession:
    """One session of the model drafter; proposes ids below `vocab_size` only."""

    def __init__(self, opening: OpenDraft, cache: KVCache, vocab_size: int) -> None:
        self.cache = cache
        self.vocab_size = vocab_size
        self.caught_up = False
        """Its prompt is in KV."""
        self._mode = opening.mode
        self._seed = opening.seed
        self._drafter_index = opening.drafter_index
        self._prompt_length = len(opening.prompt)
        self._sampling = opening.sampling
        self._count = max(1, min(opening.num_candidates, vocab_size, MAX_TREE_NODES))
        self._history = History(opening.prompt) if wants_history(self._sampling) else None
        self._comb = Comb(advances=opening.mode.exact_match)
        self._drawn = (-1, -1)
        """Epoch and position where the last draft that was drawn starts."""

    # --- the text ---------------------------------------------------------------

    def rewind(self, length: int) -> None:
        """The first `length` tokens of the text stay."""
        self.cache.rollback(min(self.cache.length, length))
        self._comb.rewind(length)
        if self._history is not None:
            kept = max(0, length - self._prompt_length)
            self._history.rewind(min(self._history.output_length, kept))

    def follow(self, ask: Ask) -> None:
        """Keep of the draft and of KV what is right for the text as it is now."""
        right = self._comb.follow(ask.text, ask.epoch)
        self.cache.rollback(min(self.cache.length, right))

    def may_draft(self, ask: Ask) -> bool:
        """Whether a draft may start here, or one has: the key rule."""
        if self._mode.exact_match or self._comb.levels:
            return True
        return (ask.epoch, ask.position) > self._drawn

    def feed(self, ask: Ask, most: int) -> tuple[tuple[int, ...], bool]:
        """At most `most` tokens for KV, and whether nothing is left after them."""
        trunk, size = self._comb.trunk, len(ask.text)
        start = min(self.cache.length, size + len(trunk) - 1)
        tokens = (*ask.text[start : start + most], *trunk[max(0, start - size) :])[:most]
        self.cache.rollback(start)
        return tokens, start + len(tokens) == size + len(trunk)

    # --- the draft --------------------------------------------------------------

    def place(self, ask: Ask) -> Place:
        """Where the next level stands: after the text and the trunk."""
        comb = self._comb
        if not comb.levels:
            self._drawn = (ask.epoch, ask.position)
        path = tuple(comb.trunk)
        row = RowContext(
            self._mode,
            self._sampling,
            self._seed,
            ask.position + len(path),
            self._counted(ask.text),
            path,
        )
        key = (ask.epoch, self._drafter_index, ask.position, comb.node)
        return Place(row, self._count, self.vocab_size, key)

    def absorb(self, level: Level, ask: Ask, longest: int) -> DraftTree | None:
        """Take a level in; the draft if it was the last one, None if there is more to come.

        The draft model takes `longest` tokens. A level without candidates ends the
        draft, and so does a trunk token that ends the text.
        """
        if level.token_ids:
            self._comb.add(level)
        depth = self._depth(ask, longest)
        ended = not level.token_ids or level.token_ids[0] in self._sampling.stop_token_ids
        if not ended and len(self._comb.levels) < depth:
            return None
        return self._comb.take(depth, PROPOSALS[self._mode])

    def _depth(self, ask: Ask, longest: int) -> int:
        if self._count == 1:
            return 1
        return min(ask.room, MAX_TREE_NODES // self._count, longest - len(ask.text) + 1)

    def _counted(self, text: Sequence[int]) -> History | None:
        """Token counts of the whole text, where a penalty needs them."""
        if self._history is not None:
            self._history.extend(text[self._prompt_length + self._history.output_length :])
        return self._history

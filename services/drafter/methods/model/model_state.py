"""What the model drafter keeps of one session: KV, the draft being built, penalty counts.

KV rule: entries cover a prefix of the text and of the trunk in front of it. Each
step feeds every token that has no entry, and at least the last one; never one
that has. (AMUSD's published loop feeds one token twice after a rollback, which
shifts all that follow.)

Key rule: under one draft key, drafts start at ever later positions (see `hypotheses.session`), so
no random number decides twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.contract.types import OpenDraft, VerifyMode
from services.drafter.comb import MAX_TREE_NODES, Comb, Level
from services.drafter.methods.model.candidates import PROPOSALS, Place
from services.drafter.methods.model.counts import TextCounts
from services.drafter.methods.model.forms import TextForm
from services.drafter.methods.model.stepping import Feed
from services.drafter.protocol import Ask, Proposed
from services.engine.port import KVCache
from services.engine.sampling import RowContext, wants_history


class ModelSession:
    """One session of the model drafter; proposes ids below `vocab_size` only."""

    def __init__(self, opening: OpenDraft, cache: KVCache, vocab_size: int, longest: int) -> None:
        """`longest`: most tokens that the draft model takes."""
        self.cache = cache
        self.vocab_size = vocab_size
        self.caught_up = False
        """Its prompt is in KV."""
        self._mode = opening.mode
        self._seed = opening.seed
        self._longest = longest
        self._sampling = opening.sampling
        self._last_ids = opening.last_ids
        self._count = max(1, min(opening.num_candidates, vocab_size, MAX_TREE_NODES))
        self._counts = TextCounts(opening)
        self.form: TextForm | None = None
        """What the output must be, where that is to be followed."""
        self._comb = Comb(advances=opening.mode.exact_match)
        sampling = opening.sampling
        edited = sampling.logit_bias or sampling.limits_tokens or wants_history(sampling)
        self._argmax = opening.mode is VerifyMode.GREEDY and self._count == 1 and not edited
        """Whether it drafts the highest logits, once `min_tokens` are there."""

    # --- the text ---------------------------------------------------------------

    def rewind(self, length: int) -> None:
        """The first `length` tokens of the text stay."""
        self.cache.rollback(min(self.cache.length, length))
        self._comb.rewind(length)
        self._counts.rewind(length)
        if self.form is not None:
            self.form.rewind(length)

    def follow(self, ask: Ask) -> None:
        """Keep of the draft and of KV what is right for the text as it is now."""
        right = self._comb.follow(ask.text, ask.draft_key)
        self.cache.rollback(min(self.cache.length, right))

    @property
    def unsent(self) -> list[int]:
        """First candidates of a draft in the making."""
        return self._comb.trunk if self._comb.levels else []

    def may_draft(self, ask: Ask) -> bool:  # noqa: ARG002
        """Always: the key rule holds by itself."""
        return True

    def drafted(self, ask: Ask) -> Proposed | None:  # noqa: ARG002
        """Nothing: every level takes a step."""
        return None

    def feed(self, ask: Ask, most: int) -> Feed:
        """At most `most` tokens for KV, and whether nothing is left after them."""
        trunk, size = self._comb.trunk, len(ask.text)
        start = min(self.cache.length, size + len(trunk) - 1)
        tokens = (*ask.text[start : start + most], *trunk[max(0, start - size) :])[:most]
        self.cache.rollback(start)
        return Feed(tokens, start + len(tokens) == size + len(trunk))

    def entered(self, feed: Feed) -> None:
        """It is in KV."""
        self.caught_up = feed.complete

    # --- the highest logit ------------------------------------------------------

    def argmax(self, ask: Ask) -> bool:
        """Whether the next token is the highest logit behind a text that is nearly in KV."""
        return (
            self._argmax
            and self.caught_up
            and self.form is None
            and (not self._sampling.stop_token_ids or ask.position >= self._sampling.min_tokens)
        )

    def next_tokens(self, text: Sequence[int]) -> Sequence[int]:
        """What KV lacks of the text, at least the last token; for a session of `argmax`."""
        start = min(self.cache.length, len(text) - 1)
        self.cache.rollback(start)
        self._comb.stand_before(len(text))
        return text[start:]

    # --- the draft --------------------------------------------------------------

    def places(self, ask: Ask) -> list[Place]:
        """Where the next level stands: after the text and the trunk."""
        comb = self._comb
        path, counted = tuple(comb.trunk), self._counts.of(ask.text)
        matcher = self.form.of(ask.text) if self.form is not None else None
        at = ask.position + len(path)
        row = RowContext(self._mode, self._sampling, self._seed, at, counted, path, matcher)
        return [self._place(row, ask, comb.node)]

    def _place(self, row: RowContext, ask: Ask, node: int) -> Place:
        """A node of the draft that starts behind the text."""
        key = (ask.draft_key, ask.position, node)
        return Place(row, self._count, self.vocab_size, key)

    def absorb(self, levels: Sequence[Level], ask: Ask) -> Proposed:
        """Take a level in; the draft if it was the last one, nothing yet if there is more to come.

        A level that `ends` the draft is its last one, and so is, where drafts are matched
        exactly, one whose trunk token ends the text.
        """
        [level] = levels
        if level.token_ids:
            self._comb.add(level)
        depth = self._depth(ask)
        ended = self.ends(level) or level.token_ids[0] in self._last_ids
        if not ended and len(self._comb.levels) < depth:
            return Proposed()
        tree = self._comb.take(depth, PROPOSALS[self._mode])
        return Proposed(tree, final=self.ends(level))

    def ends(self, level: Level) -> bool:
        """Whether nothing is drafted after this level until more is committed."""
        return not level.token_ids

    def _depth(self, ask: Ask) -> int:
        if self._count == 1:
            return 1
        return min(ask.room, MAX_TREE_NODES // self._count, self._longest - len(ask.text) + 1)

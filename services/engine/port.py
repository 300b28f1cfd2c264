"""What drafting and verifying need of an engine, whatever computes in it.

    new_cache       room for the K/V of a sequence
    prefix_cache    the same for texts that others may begin with: automatic prefix caching
    forward         one packed pass for many sequences: chunks of prompts, chains, trees
    keep_path, …    what of the new tokens became text
    free, end       the room given back

An engine reserves what it promised: a cache that was made always takes the tokens that it has
room for. Epochs, rounds, fairness, preemption and the rules of acceptance are the worker's;
pages, layers, ranks and copies are the engine's. One caller at a time.

Rows of logits stay on the device that they are on: `services.engine.sampling` asks them there
for tokens and probabilities, and no row of the vocabulary comes to the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from services.contract.types import TokenizerBundle
    from services.engine.skip_mask import SkipMask


class Capability(Enum):
    """What not every engine can do."""

    TREES = auto()
    """Segments that are trees."""
    SELF_DRAFTING = auto()
    """What `SelfDrafting` describes."""
    HIDDEN_STATES = auto()
    """What `HiddenStates` describes."""


class KVCache(Protocol):
    """K/V of one sequence, of one engine."""

    @property
    def length(self) -> int:
        """Tokens with valid K/V, nodes of an unresolved tree included."""

    @property
    def reserve(self) -> int:
        """The most tokens it may hold."""

    @property
    def freed(self) -> bool:
        """Whether its room was given back."""

    def grow(self, reserve: int) -> None:
        """Reserve more; raises Overloaded, with nothing changed, without room."""

    def rollback(self, length: int) -> None:
        """Forget every token from `length` on. A tree is kept whole or cut to a chain.

        Raises ValueError for more tokens than there are, and for part of a tree.
        """

    def keep_path(self, base: int, path: Sequence[int]) -> None:
        """Of the tree appended at `base`, keep the nodes of `path` as its continuation.

        `path` holds node indices from the root's child downwards; the length
        becomes base + len(path). Raises ValueError when it is no path.
        """

    def keep_branch(self, base: int, path: Sequence[int]) -> None:
        """The same, and the nodes below the path's end stay, in their order, as the tree there."""

    def fork(self, reserve: int) -> KVCache:
        """The same content with room of its own, independent from now on.

        Raises Overloaded without room, ValueError for less than it holds.
        """

    def copy_prefix(self, other: Self, length: int) -> None:
        """Begin with the K/V of another text's first `length` tokens; this one is empty yet.

        Raises ValueError where there is something, or the other one has no such chain.
        """

    def free(self) -> None:
        """Give the room back. Calling it again does nothing."""


class Loan(KVCache, Protocol):
    """Another sequence's K/V and, behind it, some more; see `services.engine.lending`."""

    def adopt(self, length: int) -> None:
        """The first `length` tokens of both texts are the same: the lender's K/V holds for them.

        Raises ValueError for more than the lender has.
        """


C = TypeVar("C", bound=KVCache)


@contextmanager
def freed_on_error(cache: C) -> Iterator[C]:
    """Around what a cache was made for: where that fails, the cache is freed."""
    try:
        yield cache
    except BaseException:
        cache.free()
        raise


@dataclass(frozen=True, slots=True)
class Segment:
    """New tokens of one sequence for one forward.

    `parents`: None for a chain; else, in topological order, the index of each
    token's parent in the tree that starts at `base`, -1 for one that follows the
    text before it. `base`: a length of the cache; None is its length now. What the
    cache holds from `base` on are the first nodes of that tree, which so may grow
    segment by segment. Rows `token_ids[logits_from:]` get logits.
    """

    cache: KVCache
    token_ids: Sequence[int]
    parents: Sequence[int] | None = None
    logits_from: int = 0
    base: int | None = None


class SharedText(Protocol):
    """A sequence whose K/V others may copy, as it may have copied theirs."""

    @property
    def cache(self) -> KVCache:
        """Its K/V."""

    @property
    def cached(self) -> int:
        """Tokens that it began with and that nobody fed for it."""

    @property
    def waits(self) -> bool:
        """Whether another sequence is fed first, whose K/V it copies then."""

    def settle(self) -> bool:
        """Copy what it waits for, if that is there; whether it waits for nothing any more.

        It goes on waiting where the copy fails.
        """

    def hold(self) -> SharedText:
        """The text ended; its K/V stays for its scope until what this gives ends.

        It takes no room from anyone: like that of texts that ended, it goes when a session needs
        it. Where it raises, `discard` gives the room back.
        """

    def end(self) -> None:
        """The text ended; its K/V may serve texts that begin with it, or is freed.

        Where it raises, `discard` gives the room back.
        """

    def discard(self) -> None:
        """The text ended in a way that leaves nothing to others."""


class PrefixCache(Protocol):
    """Automatic prefix caching for the texts of one worker."""

    def open(
        self, scope: str, text: Sequence[int], reserve: int, *, kept: bool = True
    ) -> SharedText:
        """Room for at least `reserve` tokens of a text, with the K/V of a beginning, if known.

        Only texts of the same `scope` are found; "" = none. `text` is the caller's own list,
        which grows as tokens are committed. `kept`: whether its K/V may be kept for others when
        it ends. Raises Overloaded, with nothing taken, without room.
        """

    def evict_all(self) -> int:
        """Free the texts that ended; how many tokens of K/V that were."""


class Engine(Protocol):
    """Packed, ragged steps for many sequences. One caller at a time."""

    model_id: str
    dtype: str
    fingerprint: str
    bundle: TokenizerBundle | None
    vocab_size: int
    head_ids: Tensor | None
    """Token ids that the logits' columns stand for, int64 [m], ascending; None: all ids."""
    max_context_length: int

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do beyond chains."""

    @property
    def kv_tokens_used(self) -> int:
        """Tokens of K/V that open caches reserve."""

    @property
    def kv_tokens_spare(self) -> int:
        """Tokens of K/V of texts that ended; freed when the room is needed."""

    @property
    def kv_tokens_capacity(self) -> int:
        """Tokens of K/V that all caches may reserve together."""

    def new_cache(self, reserve: int) -> KVCache:
        """An empty cache for at most `reserve` tokens; raises Overloaded without room."""

    def prefix_cache(self, most_tokens: int) -> PrefixCache:
        """What shares beginnings; texts that ended hold at most so many tokens, 0 = none."""

    def forward(self, segments: Sequence[Segment], /) -> list[Tensor]:
        """Append the segments' tokens to their caches; logits float32 [rows, V] per segment.

        Raises ValueError, with nothing changed, for a segment that does not fit its cache, the
        context or the vocabulary, or two of one cache. Without memory on the way, nothing is
        changed either.
        """


class HiddenStates(Engine, Protocol):
    """An engine that gives the states of chosen layers, which EAGLE-3 (2503.01840) drafts from."""

    num_layers: int
    hidden_width: int
    """Numbers in one layer's state of a token."""

    def watch(self, layers: Sequence[int]) -> None:
        """Choose them, ascending: i is what goes into layer i, from 0; n what the last puts out.

        Raises StartError for layers that there are not, and for a model that shows none.
        """

    def forward_with_states(
        self, segments: Sequence[Segment], /
    ) -> tuple[list[Tensor], list[Tensor]]:
        """As `forward`; and states [tokens, layers x width] of all new tokens, in its dtype.

        Those of a token lie side by side, in the order of the layers.
        """


class SelfDrafting(Engine, Protocol):
    """An engine whose model can draft for itself, cheaper or in the same pass."""

    num_layers: int

    @property
    def soft_ids(self) -> range:
        """Token ids that stand for soft tokens, right after the vocabulary."""

    def forward(self, segments: Sequence[Segment], skip: SkipMask | None = None) -> list[Tensor]:
        """The same, with the sub-layers of `skip` left out.

        Raises ValueError for a cache that lacks K/V of a layer that is not left out.
        """

    def require_skipping(self) -> None:
        """Raise StartError for an architecture whose layers cannot be left out."""

    def give_soft_tokens(self, embeddings: Tensor) -> None:
        """Let the ids in `soft_ids` stand for `embeddings` [n, width] in a segment.

        Raises StartError for embeddings that are not for this model.
        """

    def borrow(self, cache: KVCache) -> Loan:
        """A loan of a cache of this engine. It reserves nothing of its own."""


class AnchoredCache(KVCache, Protocol):
    """K/V of a sequence whose rows take features of the target's states; see `StateDrafting`."""

    @property
    def anchored(self) -> int:
        """Tokens before it have the target's states, but for those that were never told."""

    @property
    def stale(self) -> bool:
        """Whether `refresh` drops anything."""

    def anchor(self, start: int, states: bytes | Tensor) -> None:
        """The target's states [n, state width] of the text's tokens from `start` on.

        Bytes are bfloat16. Changes no K/V; what is known already stays, a gap may be left. Raises
        ValueError for states of another size, not finite, or beyond what is reserved.
        """

    def refresh(self) -> int:
        """Drop K/V from the first row on that lacks a state that is known now; the new length.

        To be called before the next forward: only of late rows states are kept. Raises ValueError
        while a tree is open.
        """

    def forget(self, length: int) -> None:
        """The states of tokens from `length` on were of another text. A rollback leaves them."""

    def drafts(self, length: int) -> bool:
        """Whether a token fed at position `length` - 1 has a feature to go with it.

        Without one its logits are zeros, and say nothing.
        """


class StateDrafting(Engine, Protocol):
    """A head that drafts from the target's states, as EAGLE-3's (2503.01840).

    The row of a token takes a feature of the position before it: of the target's states there,
    where they are known, else what the head put out for the row before it. Rows without either
    take a place in the text and nothing else. A text's first row always is such a one.
    """

    layers: tuple[int, ...]
    """The states that it needs, as `HiddenStates.watch` counts them."""
    state_width: int
    """Numbers of a token's states, all layers together."""
    parallel: int
    """Tokens that one pass gives, by ids of `soft_ids` behind a text; 0: one only."""

    @property
    def soft_ids(self) -> range:
        """Token ids that stand for masks, right after the vocabulary."""

    def new_cache(self, reserve: int) -> AnchoredCache:
        """An empty cache for at most `reserve` tokens; raises Overloaded without room."""

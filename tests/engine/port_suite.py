"""What holds for every engine: random moves, each beside a reference that is a list of tokens.

The reference knows texts, open trees, reservations. After every forward each row is that of a
prefill of its text on an engine of its own; what the reference refuses the engine refuses, with
nothing changed, and so it is where memory ends in the middle of a forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from services.contract.errors import Overloaded
from services.contract.types import is_chain
from services.engine.port import Capability, Engine, KVCache, Segment
from tests.engine.conftest import CLOSE
from tests.fake_engine import FakeEngine

CAPACITY, CONTEXT, MOST_PARKED = 240, 60, 60
ROUNDED = ("NativeEngine", "VllmEngine")
"""Engines whose rows depend, in their last digits, on what is computed beside them."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test that takes `make` runs with each of the `ENGINES` of its own module."""
    if "make" in metafunc.fixturenames:
        metafunc.parametrize("make", metafunc.module.ENGINES)


@dataclass
class Plain:
    """The reference of a cache."""

    reserve: int
    tokens: list[int]
    tree: tuple[int, tuple[int, ...]] | None = None

    def text_at(self, place: int) -> tuple[int, ...]:
        """The text that the token at this place ends."""
        if self.tree is None or place < self.tree[0]:
            return tuple(self.tokens[: place + 1])
        base, parents = self.tree
        path, node = [], place - base
        while node >= 0:
            path.append(self.tokens[base + node])
            node = parents[node]
        return (*self.tokens[:base], *reversed(path))

    def parents(self, base: int) -> tuple[int, ...]:
        """Of what stands from `base` on, as a tree; a chain where none is open."""
        chain = tuple(range(-1, len(self.tokens) - base - 1))
        return chain if self.tree is None else self.tree[1]

    def append(self, tokens: Sequence[int], parents: Sequence[int] | None, base: int) -> None:
        whole = (*self.parents(base), *parents) if parents is not None else ()
        self.tokens += tokens
        self.tree = None if is_chain(whole) else (base, whole)

    def keep(self, base: int, path: Sequence[int], below: Sequence[int] = ()) -> None:
        parents = self.parents(base)
        self.tokens[base:] = [self.tokens[base + node] for node in (*path, *below)]
        where = {path[-1] if path else -1: -1} | {node: i for i, node in enumerate(below)}
        left = tuple(where[parents[node]] for node in below)
        self.tree = None if is_chain(left) else (base + len(path), left)


class MemoryEnds(TorchDispatchMode):
    """After so many operations the next one finds no memory."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def __torch_dispatch__(self, operation, _types, arguments=(), named=None):
        self.left -= 1
        if self.left < 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return operation(*arguments, **(named or {}))


class World:
    """An engine, its reference, and the moves of a seed."""

    def __init__(self, make: Callable[[], Engine], seed: int) -> None:
        self.engine, self.fresh, self.random = make(), make(), Random(seed)
        rounds = type(self.engine).__name__ in ROUNDED
        self.exact = not rounds or getattr(self.engine, "batch_invariant", False)
        self.caches: list[tuple[KVCache, Plain]] = []
        self.known: dict[tuple[int, ...], Tensor] = {}
        self.happened: set[str] = set()

    def prefilled(self, text: tuple[int, ...]) -> Tensor:
        """The row after a text, by an engine that knows nothing else."""
        if text not in self.known:
            cache = self.fresh.new_cache(len(text))
            (row,) = self.fresh.forward([Segment(cache, text, logits_from=len(text) - 1)])
            cache.free()
            self.known[text] = row[0]
        return self.known[text]

    def tokens(self, count: int) -> list[int]:
        most = min(9, self.engine.vocab_size)
        return [self.random.randrange(most) for _ in range(count)]

    def refuses(self, kind: type[Exception], act: Callable[[], object], why: str) -> None:
        """`act` raises, and nothing is changed."""
        before = self.seen()
        with pytest.raises(kind):
            act()
        assert self.seen() == before, why
        self.happened.add(why)

    def seen(self) -> list[object]:
        held = [(cache.length, cache.reserve, cache.freed) for cache, _ in self.caches]
        return [self.engine.kv_tokens_used, self.engine.kv_tokens_spare, *held]

    def starved(self, segments: Sequence[Segment]) -> list[Tensor]:
        """Now and then: a forward that finds no memory on its way changes nothing.

        The rows, where it was over before.
        """
        if self.random.random() > 0.2:
            return []
        before = self.seen()
        try:
            with MemoryEnds(self.random.randrange(self.random.choice((1, 4, 20, 100)))):
                return self.engine.forward(segments)
        except torch.OutOfMemoryError:
            assert self.seen() == before
            self.happened.add("no memory")
        return []

    def check(self) -> None:
        for cache, plain in self.caches:
            assert (cache.length, cache.reserve) == (len(plain.tokens), plain.reserve)
        assert self.engine.kv_tokens_used == sum(plain.reserve for _, plain in self.caches)

    # --- moves ----------------------------------------------------------------

    def open(self) -> None:
        reserve = self.random.choice((20, 40, CONTEXT, CONTEXT + 10))
        if self.engine.kv_tokens_used + reserve > CAPACITY:
            self.refuses(Overloaded, lambda: self.engine.new_cache(reserve), "no room to open")
        else:
            self.caches.append((self.engine.new_cache(reserve), Plain(reserve, [])))

    def free(self) -> None:
        cache, _ = self.caches.pop(self.random.randrange(len(self.caches)))
        cache.free()
        cache.free()
        assert cache.freed
        self.refuses(ValueError, lambda: self.engine.forward([Segment(cache, [1])]), "freed")

    def grow(self) -> None:
        cache, plain = self.random.choice(self.caches)
        more = plain.reserve + self.random.randrange(40)
        if self.engine.kv_tokens_used + more - plain.reserve > CAPACITY:
            self.refuses(Overloaded, lambda: cache.grow(more), "no room to grow")
        else:
            cache.grow(more)
            plain.reserve = more

    def fork(self) -> None:
        cache, plain = self.random.choice(self.caches)
        reserve = self.random.randrange(1, CONTEXT)
        if reserve < len(plain.tokens):
            self.refuses(ValueError, lambda: cache.fork(reserve), "a branch too small")
        elif self.engine.kv_tokens_used + reserve > CAPACITY:
            self.refuses(Overloaded, lambda: cache.fork(reserve), "no room to fork")
        else:
            self.caches.append(
                (cache.fork(reserve), replace(plain, reserve=reserve, tokens=[*plain.tokens]))
            )
            self.happened.add("fork of a tree" if plain.tree else "fork")
            self.happened |= set() if plain.tokens else {"fork of nothing"}

    def rollback(self) -> None:
        cache, plain = self.random.choice(self.caches)
        length = self.random.randrange(len(plain.tokens) + 2)
        if length > len(plain.tokens):
            self.refuses(ValueError, lambda: cache.rollback(length), "more than there is")
            return
        base, parents = plain.tree or (length, ())
        cut = length < len(plain.tokens)
        if plain.tree is not None and cut and not is_chain(parents[: max(0, length - base)]):
            self.refuses(ValueError, lambda: cache.rollback(length), "through a tree")
            return
        cache.rollback(length)
        del plain.tokens[length:]
        plain.tree = None if cut else plain.tree

    def keep(self) -> None:
        cache, plain = self.random.choice(self.caches)
        base = plain.tree[0] if plain.tree else self.random.randrange(len(plain.tokens) + 1)
        parents, path = plain.parents(base), [-1]
        while below := [node for node, parent in enumerate(parents) if parent == path[-1]]:
            if self.random.random() < 0.3:
                break
            path.append(self.random.choice(below))
        path = path[1:]
        if self.random.random() < 0.5:
            below = under(parents, path)
            cache.keep_branch(base, path)
            plain.keep(base, path, below)
            self.happened.add("a branch" if below else "a leaf")
        else:
            wrong = [*path, len(parents)]
            self.refuses(ValueError, lambda: cache.keep_path(base, wrong), "no path")
            cache.keep_path(base, path)
            plain.keep(base, path)

    def segment(self, cache: KVCache, plain: Plain) -> Segment:
        """Anything that may or may not fit: a chain, a tree, more of a tree."""
        count = self.random.randrange(1, 7)
        tokens, wanted = self.tokens(count), self.random.randrange(count + 1)
        base = plain.tree[0] if plain.tree else len(plain.tokens)
        if self.random.random() < 0.4 + 0.4 * (plain.tree is None):
            return Segment(cache, tokens, None, wanted)
        first = len(plain.tokens) - base
        parents = [self.random.randrange(-1, node) for node in range(first, first + count)]
        return Segment(cache, tokens, parents, wanted, base if plain.tree else None)

    def forward(self) -> None:
        some = self.random.sample(self.caches, self.random.randint(1, min(3, len(self.caches))))
        segments = [self.segment(cache, plain) for cache, plain in some]
        fits = [self.fits(one, plain) for one, (_, plain) in zip(segments, some, strict=True)]
        if not all(fits):
            self.refuses(ValueError, lambda: self.engine.forward(segments), "a segment")
            return
        rows = self.starved(segments) or self.engine.forward(segments)
        spelled = [one.parents for one in segments if one.parents is not None]
        self.happened |= {"a chain spelled as a tree"} if any(map(is_chain, spelled)) else set()
        for segment, own, (_, plain) in zip(segments, rows, some, strict=True):
            start = len(plain.tokens)
            base = start if segment.base is None else segment.base
            plain.append(segment.token_ids, segment.parents, base)
            places = range(start + segment.logits_from, len(plain.tokens))
            assert own.shape == (len(places), self.engine.vocab_size)
            for place, row in zip(places, own, strict=True):
                self.same(row, self.prefilled(plain.text_at(place)))
        self.happened.add("one forward of many" if len(some) > 1 else "one forward")

    def fits(self, segment: Segment, plain: Plain) -> bool:
        """Whether the reference takes a segment."""
        if len(plain.tokens) + len(segment.token_ids) > plain.reserve:
            return False
        if segment.base is None and plain.tree is not None:
            return False
        after = replace(plain, tokens=[*plain.tokens])
        base = len(plain.tokens) if segment.base is None else segment.base
        after.append(segment.token_ids, segment.parents, base)
        new = range(len(plain.tokens), len(after.tokens))
        return max(len(after.text_at(place)) for place in new) <= CONTEXT

    def misfits(self) -> None:
        """Segments that nobody could take."""
        cache, plain = self.random.choice(self.caches)
        if plain.tree is not None or len(plain.tokens) + 4 > min(plain.reserve, CONTEXT):
            return
        good, start = Segment(cache, [1, 2]), len(plain.tokens)
        bad = [
            replace(good, token_ids=[]),
            replace(good, token_ids=[1, self.engine.vocab_size]),
            replace(good, token_ids=[-1, 1]),
            replace(good, logits_from=3),
            replace(good, parents=[-1]),
            replace(good, parents=[-1, 1]),
            replace(good, base=start),
            replace(good, parents=[-1, 0], base=start + 1),
        ]
        for segment in bad:
            self.refuses(ValueError, lambda one=segment: self.engine.forward([one]), "nonsense")
        self.refuses(ValueError, lambda: self.engine.forward([good, good]), "one cache twice")
        other = self.fresh.new_cache(3) if self.exact else FakeEngine().new_cache(3)
        if type(other) is not type(cache):
            foreign = Segment(other, [1])
            self.refuses(ValueError, lambda: self.engine.forward([foreign]), "another's cache")
        other.free()

    def same(self, row: Tensor, expected: Tensor) -> None:
        if self.exact:
            assert torch.equal(row, expected)
        else:
            torch.testing.assert_close(row, expected, **CLOSE)


def under(parents: Sequence[int], path: Sequence[int]) -> list[int]:
    """The nodes below a path's end, in their order."""
    found = {path[-1] if path else -1}
    below = []
    for node, parent in enumerate(parents):
        if parent in found:
            found.add(node)
            below.append(node)
    return below


def test_random_moves_leave_what_a_list_of_tokens_would_hold(make: Callable[[], Engine]) -> None:
    happened: set[str] = set()
    for seed in range(12):
        world = World(make, seed)
        moves = [world.forward] * 8 + [world.keep] * 3 + [world.open, world.fork] * 2
        moves += [world.rollback, world.rollback, world.grow, world.free, world.misfits]
        for _ in range(60):
            (world.random.choice(moves) if world.caches else world.open)()
            world.check()
        while world.caches:
            world.free()
        assert world.engine.kv_tokens_used == 0
        happened |= world.happened
    expected = {"no room to open", "no room to grow", "no room to fork", "a branch too small"}
    expected |= {"fork", "fork of a tree", "more than there is", "through a tree", "no path"}
    expected |= {"a branch", "a leaf", "a segment", "one forward", "one forward of many"}
    expected |= {"freed", "nonsense", "one cache twice", "no memory"}
    expected |= {"fork of nothing", "a chain spelled as a tree"}
    assert expected <= happened


def test_random_texts_with_shared_beginnings_are_read_as_if_alone(make) -> None:
    copied = waited = gave_way = 0
    for seed in range(8):
        world = World(make, 100 + seed)
        engine, random = world.engine, world.random
        prefixes = engine.prefix_cache(MOST_PARKED)
        beginnings = [world.tokens(36) for _ in range(2)]
        live = []
        for _ in range(40):
            spare = engine.kv_tokens_spare
            if random.random() < 0.4:
                scope = random.choice(("a", "a", "b", ""))
                text = random.choice(beginnings)[: random.randrange(18, 37)]
                text = [*text, *world.tokens(random.randrange(1, 8))]
                try:
                    shared = prefixes.open(scope, text, len(text) + 5)
                except Overloaded:
                    assert engine.kv_tokens_used + len(text) + 5 > CAPACITY
                    assert engine.kv_tokens_spare <= spare
                    continue
                assert shared.cached == shared.cache.length < len(text)
                assert not (shared.waits and shared.cached)
                assert scope or not (shared.cached or shared.waits)
                copied += shared.cached > 0
                waited += shared.waits
                live.append((shared, text))
            elif live:
                shared, text = random.choice(live)
                if not shared.settle():
                    continue
                left = text[shared.cache.length :][: random.randrange(1, 30)]
                if left:
                    start = shared.cache.length
                    (rows,) = engine.forward([Segment(shared.cache, left)])
                    for row, end in zip(rows, accumulate([1] * len(left)), strict=True):
                        world.same(row, world.prefilled(tuple(text[: start + end])))
                else:
                    live = [one for one in live if one[0] is not shared]
                    shared.end() if random.random() < 0.8 else shared.discard()
            gave_way += engine.kv_tokens_spare < spare
            assert engine.kv_tokens_spare <= MOST_PARKED
            assert engine.kv_tokens_used + engine.kv_tokens_spare <= CAPACITY
        for shared, _ in live:
            shared.discard()
        spare = engine.kv_tokens_spare
        assert (engine.kv_tokens_used, prefixes.evict_all()) == (0, spare)
        assert engine.kv_tokens_spare == 0
    assert min(copied, waited, gave_way) > 0


def test_whoever_waits_for_a_text_gets_it_or_goes_on_alone(make: Callable[[], Engine]) -> None:
    for ends in ("fed", "discarded"):
        world = World(make, 5)
        text = world.tokens(40)
        prefixes = world.engine.prefix_cache(CAPACITY)
        first = prefixes.open("a", text, 50)
        second = prefixes.open("a", [*text[:36], 1, 2], 50)
        assert (first.waits, second.waits, second.settle()) == (False, True, False)
        if ends == "fed":
            world.engine.forward([Segment(first.cache, text)])
        else:
            first.discard()
        assert second.settle()
        assert second.settle()
        assert second.cached == second.cache.length == (36 if ends == "fed" else 0)
        second.end()


def test_a_text_that_ended_is_taken_over_by_the_next_turn(make: Callable[[], Engine]) -> None:
    world = World(make, 6)
    text = world.tokens(30)
    prefixes = world.engine.prefix_cache(CAPACITY)
    first = prefixes.open("a", text, 40)
    world.engine.forward([Segment(first.cache, text)])
    first.end()
    assert world.engine.kv_tokens_used == 0
    assert 30 <= world.engine.kv_tokens_spare <= 40
    longer = [*text, 1, 2, 3]
    for scope in ("b", ""):
        other = prefixes.open(scope, longer, 50)
        assert (other.cached, other.waits) == (0, False), "a text of another scope"
        other.discard()
    second = prefixes.open("a", longer, 50)
    assert (second.cached, second.waits) == (30, False)
    assert (world.engine.kv_tokens_used, world.engine.kv_tokens_spare) == (50, 0)
    (rows,) = world.engine.forward([Segment(second.cache, longer[30:])])
    world.same(rows[-1], world.prefilled(tuple(longer)))
    second.discard()


def test_a_text_that_is_held_stays_whatever_its_size_until_it_ends(make) -> None:
    world = World(make, 7)
    text = world.tokens(50)
    prefixes = world.engine.prefix_cache(40)
    held = []
    for last in (1, 2, 3):
        whole = [*text, last, last]
        own = prefixes.open("call", whole, CAPACITY - 10, kept=False)
        assert (own.cached, own.waits) == (len(text) if held else 0, False)
        (rows,) = world.engine.forward([Segment(own.cache, whole[own.cached :])])
        world.same(rows[-1], world.prefilled(tuple(whole)))
        own.cache.rollback(len(text))
        held.append(own.hold())
        assert world.engine.kv_tokens_used == 0
    for one in held[:2]:
        one.end()
    assert world.engine.kv_tokens_spare >= len(text)
    held[2].end()
    assert (world.engine.kv_tokens_used, world.engine.kv_tokens_spare) == (0, 0)


def test_an_engine_says_what_it_is(make: Callable[[], Engine]) -> None:
    engine = make()
    assert engine.model_id
    assert engine.dtype in ("float32", "bfloat16")
    assert engine.kv_tokens_capacity == CAPACITY
    assert engine.max_context_length == CONTEXT
    assert engine.capabilities <= set(Capability)
    assert engine.forward([]) == []

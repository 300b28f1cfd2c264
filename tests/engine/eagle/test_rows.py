"""Every row is what the paper's equations say of it, computed anew: chains, trees, anchors."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from services.engine.eagle.cache import KEPT, EagleCache
from services.engine.port import Segment
from tests.engine.eagle import kit
from tests.engine.eagle.engines import engine
from tests.engine.eagle.kit import LLAMA3, Made, Reference, Row, make, states, tokens

ATOL, RTOL = 2e-3, 1e-3
"""A row's output enters the next one, and float32's rounding with it."""

VARIANTS = {
    "plain": make(),
    "norm after the residual": make(norm_before_residual=False),
    "norm before fc": make(norm_before_fc=True),
    "norms of each state": make(fc_norm=True, norm_output=True),
    "scaled": make(logit_scale=0.5, shape={"rope_parameters": LLAMA3}),
    "biases, wide heads": make(shape={"attention_bias": True, "head_dim": 16}),
    "two layers": make(shape={"num_hidden_layers": 2}, norm_before_residual=False),
    "norms of heads": make(shape={"model_type": "qwen3", "head_dim": 16}),
    "a window": make(shape={"layer_types": ["sliding_attention"], "sliding_window": 3}),
    "a window and none": make(
        shape={
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 3,
        }
    ),
    "another width": make(target_hidden_size=32, draft_vocab_size=320),
}


class World:
    """A cache and what the reference holds of it: rows by place, states by position."""

    def __init__(self, made: Made, reserve: int = 200) -> None:
        self.engine, self.reference = engine(made), Reference(made)
        self.cache = self.engine.new_cache(reserve)
        self.states = states(reserve, made)
        self.known: set[int] = set()
        self.rows: list[Row] = []

    def anchor(self, start: int, stop: int, *, as_bytes: bool = False) -> None:
        block = self.states[start:stop]
        self.cache.anchor(start, block.view(torch.uint8).numpy().tobytes() if as_bytes else block)
        self.known |= set(range(start, stop))

    def feed(
        self, said: Sequence[int], parents: Sequence[int] | None = None, base: int | None = None
    ) -> Tensor:
        """Logits of all rows, which are those of the reference."""
        new = self.expected(said, parents, base)
        [rows] = self.engine.forward([Segment(self.cache, said, parents, 0, base)])
        self.agree(rows, new)
        return rows

    def expected(
        self, said: Sequence[int], parents: Sequence[int] | None, base: int | None
    ) -> list[Row]:
        past = len(self.rows)
        base = past if base is None else base
        parents = (
            range(past - base - 1, past - base + len(said) - 1) if parents is None else parents
        )
        for token, parent in zip(said, parents, strict=True):
            place = base + parent if parent >= 0 else base - 1
            before = self.rows[place] if place >= 0 else None
            position = 0 if before is None else before.position + 1
            state = self.states[position - 1] if position - 1 in self.known else None
            vocab = self.reference.made.shape["vocab_size"]
            soft = token >= vocab
            row = Row(self.mask if soft else token, position, before, state, soft)
            self.rows.append(self.reference.compute(row))
        return self.rows[past:]

    mask = 0

    def agree(self, rows: Tensor, expected: Sequence[Row]) -> None:
        whole = torch.stack([row.logits for row in expected if row.logits is not None])
        torch.testing.assert_close(rows, whole.float(), atol=ATOL, rtol=RTOL)

    def cut(self, length: int) -> None:
        self.cache.rollback(length)
        del self.rows[length:]


@pytest.fixture(params=VARIANTS)
def made(request: pytest.FixtureRequest) -> Made:
    return VARIANTS[request.param]


def test_a_text_is_read_token_by_token_as_the_equations_say(made: Made) -> None:
    world = World(made)
    world.anchor(0, 5, as_bytes=True)
    assert world.feed(tokens(6))[0].abs().max() == 0
    for token in tokens(3, seed=1):
        world.feed([token])
    world.feed(tokens(4, seed=2), [-1, -1, 0, 1])
    assert len(world.rows) == world.cache.length == 13


@pytest.mark.parametrize("which", ["norm after the residual", "a window", "two layers"])
def test_trees_of_many_sessions_and_long_rows_are_read_together(which: str) -> None:
    worlds = [World(VARIANTS[which]) for _ in range(4)]
    for world in worlds[1:]:
        world.engine, world.cache = worlds[0].engine, worlds[0].engine.new_cache(200)
    worlds[0].anchor(0, 30)
    worlds[1].anchor(3, 9)
    worlds[1].anchor(20, 22)
    worlds[2].anchor(39, 41)
    together(worlds, [(tokens(40, seed), None) for seed in range(4)])
    random = Random(5)
    for _ in range(2):
        grown = []
        for number, world in enumerate(worlds):
            first = len(world.rows) - 40
            nodes = range(first, first + 4 + 8 * number)
            grown.append((tokens(len(nodes), first), [random.randrange(-1, n) for n in nodes]))
        together(worlds, grown)


def together(worlds: Sequence[World], said: Sequence[tuple[Sequence[int], Any]]) -> None:
    """One forward of all; trees begin behind 40 tokens."""
    expected, segments = [], []
    for world, (text, parents) in zip(worlds, said, strict=True):
        base = None if parents is None else 40
        expected.append(world.expected(text, parents, base))
        segments.append(Segment(world.cache, text, parents, 0, base))
    rows = worlds[0].engine.forward(segments)
    for world, own, wanted in zip(worlds, rows, expected, strict=True):
        world.agree(own, wanted)


def test_a_tree_may_be_larger_than_what_is_kept_of_a_text() -> None:
    world = World(VARIANTS["plain"])
    world.anchor(0, 4)
    world.feed(tokens(5))
    count = KEPT + 6
    world.feed(tokens(count), [-1, *[0] * (count - 1)])
    world.feed([1, 2, 3], [-1, 0, 1], base=5)
    world.cut(5)
    world.feed([4])


def test_states_that_come_late_enliven_what_was_void() -> None:
    world = World(VARIANTS["plain"])
    world.feed(tokens(6))
    assert not any(row.lives for row in world.rows)
    world.anchor(3, 5)
    world.feed(tokens(2, seed=1))
    assert not any(row.lives for row in world.rows)
    assert world.cache.refresh() == 4
    del world.rows[4:]
    world.feed(tokens(4, seed=2))
    assert [row.lives for row in world.rows] == [False] * 4 + [True] * 4


def test_states_beyond_a_gap_begin_a_text_that_had_none() -> None:
    world = World(VARIANTS["plain"])
    world.anchor(9, 11)
    world.feed(tokens(5))
    assert not world.cache.drafts(6)
    assert world.cache.drafts(11)
    world.feed(tokens(8, seed=1))
    assert [row.lives for row in world.rows] == [False] * 10 + [True] * 3


def test_it_knows_whether_a_token_would_have_a_feature() -> None:
    world = World(VARIANTS["plain"])
    assert not any(world.cache.drafts(length) for length in range(8))
    world.feed(tokens(2))
    assert not world.cache.drafts(3)
    world.anchor(1, 2)
    assert world.cache.drafts(3)
    assert not world.cache.drafts(2)
    world.feed(tokens(2))
    assert [world.cache.drafts(length) for length in range(7)] == [False] * 3 + [True] * 4


def test_forgotten_states_are_of_no_use_any_more() -> None:
    world = World(VARIANTS["plain"])
    world.anchor(0, 8)
    world.feed(tokens(6))
    world.cut(4)
    world.cache.forget(4)
    world.known = {0, 1, 2, 3}
    world.feed(tokens(5, seed=1))
    world.anchor(4, 6)
    assert world.cache.refresh() == 5


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("length", [30, 60])
def test_a_text_that_begins_as_another_goes_on_from_its_features(length: int, ended: bool) -> None:
    world = World(VARIANTS["plain"])
    prefixes = world.engine.prefix_cache(200)
    first = [*tokens(20), *tokens(length - 20, 1)]
    shared = prefixes.open("tenant", first, 100)
    world.cache = cast("EagleCache", shared.cache)
    world.anchor(0, length + 4)
    world.feed(first)
    if ended:
        shared.end()
    second = [*tokens(20), *tokens(8, 2)]
    begun = prefixes.open("tenant", second, 90)
    assert begun.cached == 20
    world.cache, world.known = cast("EagleCache", begun.cache), set(range(20))
    del world.rows[20:]
    world.feed(second[20:24])
    world.anchor(23, 26)
    world.feed(second[24:])


def test_long_texts_keep_few_features() -> None:
    world = World(VARIANTS["plain"], reserve=700)
    engine, cache = world.engine, world.cache
    cache.anchor(0, states(300, VARIANTS["plain"]))
    engine.forward([Segment(cache, tokens(301), logits_from=301)])
    for token in tokens(200):
        engine.forward([Segment(cache, [token])])
    held = [*cache.known.values(), *cache.outputs.values()]
    assert len(held) <= 2 * KEPT
    blocks = {row.untyped_storage().data_ptr(): row.untyped_storage() for row in held}
    assert sum(block.nbytes() for block in blocks.values()) <= 4 * KEPT * 48 * 4


def test_masks_draft_several_tokens_in_one_pass() -> None:
    made = make(parallel=4, mask_token_id=9)
    world = World(made)
    world.mask = 9
    assert world.engine.parallel == 4
    masks = list(world.engine.soft_ids)
    assert masks == [320, 321, 322]
    world.feed([5, *masks])
    world.cut(0)
    world.anchor(0, 4)
    world.feed(tokens(4))
    world.feed([7, *masks])
    world.cut(5)
    world.feed([1, 2, *masks, *masks], [-1, 0, 0, 2, 3, 1, 5, 6])
    world.cut(5)
    with pytest.raises(ValueError, match="token ids"):
        world.engine.forward([Segment(world.cache, [323])])


def test_what_cannot_be_anchored_changes_nothing() -> None:
    world = World(VARIANTS["plain"], reserve=10)
    block, cache = world.states, world.cache
    wrong = block.clone()
    wrong[1, 3] = torch.nan
    for start, given in (
        (0, block[:3, :-1]),
        (0, block[0]),
        (0, b"\0" * 7),
        (0, bytes(2 * block.shape[1] - 2)),
        (-1, block[:2]),
        (9, block[:2]),
        (11, b""),
        (0, block.to(torch.int16)),
        (0, wrong[:3]),
    ):
        with pytest.raises(ValueError, match=r"states|rows of"):
            cache.anchor(start, given)
    assert not cache.known
    cache.anchor(3, b"")
    cache.free()
    with pytest.raises(ValueError, match="freed"):
        cache.anchor(0, block[:1])


def moved(world: World, random: Random) -> None:
    """Anything that a drafter may do."""
    cache, length = world.cache, world.cache.length
    open_tree = cache._tree
    kinds = ["feed"] * 3 + ["anchor", "cut", "tree", "refresh"]
    kind = random.choice(kinds if open_tree is None else ["grow", "keep", "branch", "anchor"])
    if kind == "feed":
        world.feed(tokens(random.randrange(1, 5), random.randrange(99)))
    elif kind == "anchor":
        start = random.randrange(length + 2)
        world.anchor(start, start + random.randrange(5))
    elif kind == "cut":
        world.cut(random.randrange(max(0, length - 9), length + 1))
    elif kind in ("tree", "grow"):
        base = length if open_tree is None else open_tree[0]
        count, first = random.randrange(1, 6), length - base
        parents = [random.randrange(-1, node) for node in range(first, first + count)]
        world.feed(tokens(count, random.randrange(99)), parents, base)
    elif kind == "refresh":
        before = [*world.rows]
        del world.rows[world.cache.refresh() :]
        late = [
            row.position
            for row in before
            if row.position and row.state is None and row.position - 1 in world.known
        ]
        assert len(world.rows) == min([*late, len(before)])
    else:
        kept(world, random, branch=kind == "branch")


def kept(world: World, random: Random, *, branch: bool) -> None:
    base, parents = world.cache._tree or (0, ())
    path = [-1]
    while below := [node for node, parent in enumerate(parents) if parent == path[-1]]:
        if random.random() < 0.3:
            break
        path.append(random.choice(below))
    nodes = path[1:]
    if branch:
        found = {path[-1]}
        for node, parent in enumerate(parents):
            if parent in found:
                found.add(node)
                nodes.append(node)
        world.cache.keep_branch(base, path[1:])
    else:
        world.cache.keep_path(base, nodes)
    world.rows[base:] = [world.rows[base + node] for node in nodes]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_drafter_does_every_row_is_that_of_the_equations(seed: int) -> None:
    layers = {"num_hidden_layers": 1 + seed % 2}
    windows = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 2 + seed}
    world = World(make(seed, shape=layers | (windows if seed % 4 > 1 else {})))
    random = Random(seed)
    for _ in range(40):
        if world.cache.length > 55:
            if world.cache._tree is not None:
                kept(world, random, branch=False)
            world.cut(min(world.cache.length, 50))
        moved(world, random)
        assert isinstance(world.cache, EagleCache)
        assert world.cache.length == len(world.rows)


def test_the_reference_is_not_trivial() -> None:
    world = World(kit.make())
    world.anchor(0, 3)
    rows = world.feed(tokens(6))
    assert len({tuple(row.topk(3).indices.tolist()) for row in rows[1:]}) > 3

"""Rows that are the same to the bit in any company: products, attention, whole models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from random import Random

import pytest
import torch
from torch import Tensor, nn

from services.contract.errors import StartError
from services.engine import invariance_check, number_formats
from services.engine.native import NativeEngine, PagedCache, layout
from services.engine.native.attending import Scoring, Steady, attend
from services.engine.native.invariance import TILES, InvariantPlain
from services.engine.native.steadiness import WAYS, holds, steady
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from tests.cpus import told
from tests.engine.conftest import feed, random_text
from tests.models import SUPPORTED, tiny_model

CAPACITY = 8192
OTHER_PRODUCTS = {"gpt2": "Conv1D", "mixtral": "MixtralTopKRouter"}
"""Architectures with weights that are no linear module's."""


def engine(arch: str, dtype: str, *, invariant: bool | None = True) -> NativeEngine:
    asked = ModelSpec(arch, dtype, kv_capacity_tokens=CAPACITY, batch_invariant=invariant)
    read = getattr(torch, "bfloat16" if dtype == "int8" else dtype)
    model = tiny_model(arch, intermediate_size=1536).to(read)
    return NativeEngine.from_model(model, spec=asked)


class OddLinear(InvariantPlain):
    """A kernel for an odd number of rows adds a little."""

    def multiplied(self, rows: Tensor, added: Tensor | None) -> Tensor:
        product = super().multiplied(rows, added)
        return product + len(rows) % 2 * 1e-3


class LongLinear(InvariantPlain):
    """A kernel for more rows than a tile has adds a little."""

    def multiplied(self, rows: Tensor, added: Tensor | None) -> Tensor:
        return super().multiplied(rows, added) + (len(rows) > max(TILES)) * 1e-3


class SixesLinear(InvariantPlain):
    """A kernel that takes six rows at a time, and one to three in another way."""

    def multiplied(self, rows: Tensor, added: Tensor | None) -> Tensor:
        product = super().multiplied(rows, added).clone()
        if 0 < (few := len(rows) % 6) < 4:
            product[-few:] += 1e-3
        return product


class PlacedLinear(InvariantPlain):
    """A kernel that treats the first row otherwise."""

    def multiplied(self, rows: Tensor, added: Tensor | None) -> Tensor:
        product = super().multiplied(rows, added).clone()
        product[:1] += 1e-5
        return product


@pytest.mark.parametrize("kind", [OddLinear, LongLinear, SixesLinear])
def test_products_that_a_kernel_rounds_otherwise_get_rows_of_zeros_or_are_made_in_tiles(kind):
    torch.manual_seed(0)
    linear = kind(nn.Linear(24, 40))
    rows, added = torch.randn(1104, 24), torch.randn(1104, 40)
    expected = torch.cat([linear.multiplied(part, None) for part in rows.split(linear.tile)])
    for count in (0, 1, 2, 7, 9, 16, 63, 65, 200, 1096):
        assert torch.equal(linear(rows[:count]), expected[:count]), count
    together = linear.plus(rows[:9], added[:9])
    for count in (1, 3, 8):
        assert torch.equal(linear.plus(rows[:count], added[:count]), together[:count])
    assert linear(rows[None, :3]).shape == (1, 3, 40)


def test_tiles_are_as_large_as_a_kernel_that_treats_all_rows_of_one_alike_wants() -> None:
    assert SixesLinear(nn.Linear(24, 40)).tile == 12


def test_a_kernel_that_treats_rows_by_their_place_is_refused():
    with pytest.raises(StartError, match="depend on a row's place"):
        PlacedLinear(nn.Linear(24, 40))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_there_is_a_way_to_attend_here(dtype):
    way = steady(dtype, 64, 3)
    assert way.rows >= 1
    assert way.keys is None or way.keys % 64 == 0


@pytest.mark.parametrize("groups", [1, 3])
def test_products_of_one_shape_hold_wherever_a_tile_treats_its_rows_alike(groups):
    for own in (5, 64, 300, 700):
        assert holds(WAYS[-1], torch.float32, 64, groups, own)


@pytest.mark.parametrize("part", [96, 128, 192])
def test_windows_get_the_parts_of_a_kernel_that_adds_up_some_keys_at_a_time(part, monkeypatch):
    """Its parts begin where the keys do, which are read from the first page of a window."""
    multiply = torch.bmm

    def in_parts(rows: Tensor, columns: Tensor) -> Tensor:
        pairs = zip(rows.split(part, -1), columns.split(part, 1), strict=True)
        return reduce(torch.add, (multiply(*(own.contiguous() for own in pair)) for pair in pairs))

    monkeypatch.setattr(torch, "bmm", in_parts)
    found = steady.__wrapped__(torch.float32, 16, 2)
    assert found.keys is not None
    monkeypatch.setattr(layout, "steady", lambda *_: found)
    made, text = engine("mistral", "float32"), random_text(340)
    whole, cache = feed(made, made.new_cache(400), text), made.new_cache(400)
    pieces = [feed(made, cache, text[start : start + 40]) for start in range(0, 340, 40)]
    assert torch.equal(whole, torch.cat(pieces))


@pytest.mark.parametrize(("width", "groups"), [(32, 2), (80, 1), (128, 4), (256, 2)])
def test_there_is_one_for_wide_heads_in_float32_and_its_numbers_are_right(width, groups):
    for way in (steady(torch.float32, width, groups), WAYS[-1]):
        check_numbers(way, width)


def check_numbers(way: Steady, width: int) -> None:
    query, keys, values = (torch.randn(2, count, width) for count in (8, 300, 300))
    mask = torch.zeros(1, 8, 300)
    mask[:, :, 290:] = -torch.inf
    for scoring in (Scoring(), Scoring(softcap=30.0)):
        for seen in (mask, None):
            mine = attend(query, keys, values, seen, scoring, way)
            torch.testing.assert_close(mine, attend(query, keys, values, seen, scoring))


def texts_of(made: NativeEngine, random: Random, text: Sequence[int]) -> list[Tensor]:
    """The rows of a text that is read piece by piece, as chains and in trees, among others."""
    mine, others = made.new_cache(2 * len(text)), [made.new_cache(900) for _ in range(3)]
    for cache in others:
        read = [random.randrange(300) for _ in range(random.randrange(1, 300))]
        made.forward([Segment(cache, read)])
    rows: list[Tensor] = []
    while mine.length < len(text):
        base = mine.length
        piece = list(text[base : base + random.choice((1, 1, 2, 5, 9, 40))])
        tree = random.random() < 0.4
        # Of a tree every second node is another word in the place of the text's.
        nodes = [token for own in piece for token in (random.randrange(300), own)]
        parents = [node // 2 * 2 - 1 for node in range(len(nodes))]
        segment = Segment(mine, nodes, parents=parents) if tree else Segment(mine, piece)
        beside = [
            Segment(cache, [random.randrange(300) for _ in range(random.choice((1, 4)))])
            for cache in others[: random.randrange(4)]
        ]
        pieces = [segment, *beside]
        random.shuffle(pieces)
        mine_now = made.forward(pieces)[pieces.index(segment)]
        for cache in others:
            cache.rollback(min(cache.length, 400))
        if tree:
            mine_now = mine_now[1::2]
            mine.keep_path(base, range(1, len(nodes), 2))
        rows += list(mine_now)
    for cache in (mine, *others):
        cache.free()
    return rows


@pytest.mark.parametrize(
    ("dtype", "invariant"),
    [("float32", None), ("float16", None), ("int8", None), ("bfloat16", True)],
)
@pytest.mark.parametrize("arch", ["llama", "mistral", "gemma2"])
def test_a_text_has_the_same_rows_in_any_company(arch, dtype, invariant):
    made = engine(arch, dtype, invariant=invariant)
    text = [Random(3).randrange(300) for _ in range(330)]
    (expected,) = made.forward([Segment(cache := made.new_cache(len(text)), text)])
    cache.free()
    for seed in range(4):
        rows = texts_of(made, Random(seed), text)
        assert all(torch.equal(*pair) for pair in zip(rows, expected, strict=True)), seed


def test_without_the_mode_rows_depend_on_their_company():
    made = engine("llama", "float32", invariant=False)
    text = [Random(3).randrange(300) for _ in range(330)]
    (expected,) = made.forward([Segment(made.new_cache(len(text)), text)])
    rows = texts_of(made, Random(0), text)
    assert not all(torch.equal(*pair) for pair in zip(rows, expected, strict=True))
    with pytest.raises(StartError, match="depend on the rows beside a row"):
        invariance_check.check(
            made.forward, lambda most: PagedCache(made.budget, most), 300, 512, "llama"
        )


@pytest.mark.parametrize("arch", SUPPORTED)
def test_every_architecture_is_batch_invariant_or_refused_by_the_name_of_what_is_not(arch):
    if (kind := OTHER_PRODUCTS.get(arch)) is None:
        assert engine(arch, "bfloat16").batch_invariant
        return
    with pytest.raises(StartError, match=f"is a {kind}, and not known"):
        engine(arch, "bfloat16")


def test_workers_that_would_write_different_texts_differ_in_their_fingerprints():
    prints = {
        engine("llama", "bfloat16", invariant=invariant).fingerprint for invariant in (True, False)
    }
    assert len(prints) == 2
    assert engine("llama", "bfloat16").fingerprint in prints


def test_where_nothing_is_said_what_computes_rows_in_float32_is_and_bfloat16_is_not(monkeypatch):
    told(monkeypatch, bfloat16=number_formats.cpu().blocked)
    made = engine("llama", "float32", invariant=None)
    assert made.batch_invariant
    for dtype in ("float16", "int8"):
        assert engine("llama", dtype, invariant=None).batch_invariant
    assert number_formats.number_format("bfloat16").computed is torch.bfloat16
    assert not engine("llama", "bfloat16", invariant=None).batch_invariant
    plain = engine("llama", "float32", invariant=False)
    assert made.fingerprint == plain.fingerprint, (
        "a session may move to a CPU that rounds otherwise"
    )


@pytest.mark.parametrize("arch", OTHER_PRODUCTS)
def test_where_nothing_is_said_a_model_that_cannot_be_runs_and_says_so(arch, caplog):
    made = engine(arch, "float32", invariant=None)
    assert not made.batch_invariant
    assert f"is a {OTHER_PRODUCTS[arch]}, and not known" in caplog.text
    plain = engine(arch, "float32", invariant=False)
    rows, expected = (
        one.forward([Segment(one.new_cache(4), [5, 6, 7])])[0] for one in (made, plain)
    )
    torch.testing.assert_close(rows, expected)


def test_so_does_one_whose_check_at_load_fails(monkeypatch, caplog):
    def differs(*_: object) -> str:
        raise StartError("llama: batch-invariant: its logits depend on the rows beside a row")

    monkeypatch.setattr("services.engine.native.engine.check", differs)
    made = engine("llama", "float32", invariant=None)
    assert not made.batch_invariant
    assert "equal up to near-ties" in caplog.text
    assert len(made.forward([Segment(made.new_cache(4), [5, 6, 7])])) == 1
    with pytest.raises(StartError, match="depend on the rows"):
        engine("llama", "float32")

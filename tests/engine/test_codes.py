"""Weights of 4 and 8 bits as a GGUF file has them, and products of a few rows with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from torch import Tensor, nn

from services.engine import number_formats
from services.engine.checkpoint.codes import read_codes
from services.engine.checkpoint.stored import codes_of, with_codes
from services.engine.native import NativeEngine, packing
from services.engine.spec import ModelSpec
from tests.engine.conftest import feed
from tests.gguf_files import gguf_file


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_codes_are_what_the_gguf_package_makes_of_a_file_s_blocks(kind):
    numbers = np.random.default_rng(3).standard_normal((48, 96)).astype(np.float32)
    kept = quants.quantize(numbers, GGMLQuantizationType[kind])
    codes = read_codes(kept, kind)
    assert torch.equal(codes.whole(), dequantized(kept, kind))
    assert torch.equal(codes.rows(16, 32).whole(), dequantized(kept[16:32], kind))
    assert int(codes.numbers.max()) < 1 << codes.bits


def test_codes_of_blocks_of_256_are_so_too():
    blocks = np.random.default_rng(3).integers(0, 256, (32, 144), dtype=np.uint8)
    blocks[:, :4] = np.array([0.01, 0.02], np.float16).view(np.uint8)
    kept = blocks.reshape(16, 288)
    assert torch.equal(read_codes(kept, "Q4_K").whole(), dequantized(kept, "Q4_K"))


def dequantized(kept: Any, kind: str) -> Tensor:
    return torch.from_numpy(quants.dequantize(kept, GGMLQuantizationType[kind]))


def coded(kind: str, height: int) -> nn.Linear:
    """A bfloat16 module whose weights are of a file's blocks."""
    numbers = np.random.default_rng(height).standard_normal((height, 256)).astype(np.float32)
    codes = read_codes(quants.quantize(numbers, GGMLQuantizationType[kind]), kind)
    made = nn.Linear(256, height, dtype=torch.bfloat16).requires_grad_(False)
    made.weight.copy_(codes.whole())
    return with_codes(made, codes)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights are packed, however few, on a CPU that multiplies codes."""
    here = number_formats.cpu()
    if not (here.bfloat16 and here.coded and here.blocked):
        pytest.skip("this CPU multiplies no codes")
    monkeypatch.setattr(packing, "LEAST_BYTES", 0)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("kind", "height", "few"), [("Q4_1", 48, 4), ("Q4_0", 960, 4), ("Q8_0", 4096, 3)]
)
def test_a_few_rows_are_multiplied_with_codes_as_exactly_as_with_bfloat16(kind, height, few):
    linear = coded(kind, height)
    ours, plain = packing.CodedLinear(linear), packing.BlockedLinear(linear)
    exact = codes_of(linear).whole()
    rows = torch.randn(6, 256, dtype=torch.bfloat16)
    true = nn.functional.linear(rows.double(), exact.double(), linear.bias.double())
    for count in range(1, 7):
        own = rows[None, :count]
        product = ours(own)
        assert product.shape == (1, count, height)
        assert torch.equal(product, plain(own)) == (count > few)
        assert off(product[0], true[:count]) < 2 * off(plain(own)[0], true[:count])
        added = torch.randn(1, count, height, dtype=torch.bfloat16)
        total = ours.plus(own, added)
        assert off(total, product.double() + added.double()) < 5e-3
    assert ours(rows[:0]).shape == (0, height)
    assert torch.equal(ours.whole(), linear.weight)


@pytest.mark.usefixtures("kernels")
def test_a_row_s_product_with_codes_depends_on_that_row_alone():
    ours = packing.CodedLinear(coded("Q4_1", 960))
    rows = torch.randn(4, 256, dtype=torch.bfloat16)
    whole = ours(rows)
    assert all(torch.equal(ours(rows[i:j]), whole[i:j]) for i in range(4) for j in range(i + 1, 5))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    "linear",
    [
        nn.Linear(256, 64, dtype=torch.bfloat16),
        coded("Q8_0", 512),
        coded("Q4_1", 40),
    ],
    ids=["no codes", "8 bits of a layer that is not the last", "columns that ATen cannot pack"],
)
def test_what_has_no_codes_to_multiply_is_multiplied_as_bfloat16(linear):
    rows = torch.randn(1, 256, dtype=torch.bfloat16)
    assert torch.equal(packing.CodedLinear(linear)(rows), packing.BlockedLinear(linear)(rows))


@pytest.mark.usefixtures("kernels")
def test_codes_are_packed_bit_by_bit_as_at_once(monkeypatch):
    linear = coded("Q8_0", 4096)
    whole = packing.CodedLinear(linear)
    monkeypatch.setattr(packing, "_AT_ONCE", 64 * 256)
    rows = torch.randn(2, 256, dtype=torch.bfloat16)
    assert torch.equal(packing.CodedLinear(linear)(rows), whole(rows))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_an_engine_on_a_file_of_4_bits_says_what_it_says_in_float32(tmp_path, kind):
    file = gguf_file(tmp_path / "m.gguf", "llama", kind=kind)
    engine = NativeEngine.load(ModelSpec(str(file), "bfloat16"))
    exact = NativeEngine.load(ModelSpec(str(file), "float32"))
    products = {
        id(own): own
        for module in engine.model.modules()
        if isinstance(own := _product_of(module), packing.CodedLinear)
    }
    assert sum(bool(own._codes) for own in products.values()) == len(products) == 9
    text = list(range(5, 45))
    whole = feed(exact, exact.new_cache(64), text)
    cache = engine.new_cache(64)
    parts = torch.cat([feed(engine, cache, [token]) for token in text])
    assert off(parts, whole.double()) < 0.02


def off(ours: Tensor, exact: Tensor) -> float:
    """The difference, of the size of what is exact."""
    return float((ours.double() - exact).norm() / exact.norm())


def _product_of(module: nn.Module) -> nn.Module:
    return module._product.packed if isinstance(module, packing.PartLinear) else module

"""Sums of integers do not depend on how many threads there are.

Those of floating-point numbers may: some libraries cut a sum by the number of threads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from tests.docs.pages import ROOT
from tests.models import tiny_model


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    known = torch.get_num_threads()
    yield
    torch.set_num_threads(known)


@pytest.mark.parametrize("dtype", ["int8"])
@pytest.mark.parametrize("arch", ["llama", "gemma2", "qwen3"])
def test_no_bit_depends_on_how_many_threads_there_are(arch: str, dtype: str) -> None:
    model = tiny_model(arch, intermediate_size=1536)
    spec = ModelSpec(arch, dtype, kv_capacity_tokens=2048, batch_invariant=None)
    torch.set_num_threads(1)
    made = NativeEngine.from_model(model, spec=spec)
    assert made.batch_invariant
    expected = rows_of(made)
    for count in (2, 3):
        torch.set_num_threads(count)
        assert torch.equal(rows_of(made), expected), count
        assert torch.equal(rows_of(NativeEngine.from_model(model, spec=spec)), expected), count


def rows_of(made: NativeEngine) -> torch.Tensor:
    """The rows of a prompt and of what is read behind it in small pieces."""
    drawn = torch.Generator().manual_seed(3)
    text = torch.randint(300, (400,), generator=drawn).tolist()
    cache = made.new_cache(len(text))
    cuts = [0, 330, 331, 332, 334, 339, 347, 400]
    pieces = [Segment(cache, text[a:b]) for a, b in pairwise(cuts)]
    rows = torch.cat([made.forward([piece])[0] for piece in pieces])
    cache.free()
    return rows


ROWS_ALONE = """
import torch
from services.engine.native import fused_layers
torch.set_num_threads(7)
for name, width, count in (("silu", 1000, 334), ("gelu_pytorch_tanh", 1000, 334),
                           ("silu", 20_001, 9), ("gelu_pytorch_tanh", 20_001, 9)):
    rows, gate = torch.randn(count, 2 * width).chunk(2, -1)[0], fused_layers._GATES[name]
    made = fused_layers._by_whole_rows(gate, rows)
    alone = [fused_layers._by_whole_rows(gate, row) for row in rows.split(1)]
    assert torch.equal(made, torch.cat(alone)), (name, width)
"""


@pytest.mark.parametrize("limit", [{}, {"OMP_THREAD_LIMIT": "3"}, {"OMP_DYNAMIC": "true"}])
def test_a_row_has_its_own_bits_however_many_threads_there_really_are(
    limit: dict[str, str],
) -> None:
    subprocess.run([sys.executable, "-c", ROWS_ALONE], env=os.environ | limit, cwd=ROOT, check=True)

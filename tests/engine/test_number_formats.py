"""Each part of a model in each number format, on CPUs that multiply bfloat16 and on others."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from services.engine import number_formats
from services.engine.eagle.head import Fusion, Layer
from services.engine.eagle.turning import Turning
from services.engine.native import NativeEngine, packing
from services.engine.number_formats import Products, number_format
from services.engine.port import Segment
from services.engine.spec import DTYPES, ModelSpec
from tests.cpus import told, told_of_bfloat16
from tests.engine.conftest import random_text
from tests.engine.eagle import engines, kit
from tests.models import tiny_model_folder

ROUNDED = [dtype for dtype in DTYPES if dtype != "float32"]
HEADS = {
    "plain": kit.make(),
    "norm of all states": kit.make(1, norm_before_fc=True, norm_output=True),
    "norm of each state": kit.make(2, fc_norm=True, norm_before_residual=False),
    "two layers": kit.make(3, shape={"num_hidden_layers": 2, "attention_bias": True}),
    "parallel": kit.make(4, parallel=3, ptd_token_id=7),
    "norms of heads": kit.make(5, shape={"model_type": "qwen3", "head_dim": 16}),
    "a window": kit.make(6, shape={"layer_types": ["sliding_attention"], "sliding_window": 3}),
}
ARCHITECTURES = ("llama", "gemma3_text", "qwen2", "phi3", "gpt2", "mixtral")
TEXT = random_text(30)
NEAR = 0.06
"""How far a head may be from float32, of its size."""
CAPABILITIES = {"avx512_bf16", "avx512_vnni", "amx_bf16", "avx_vnni"}


@pytest.fixture(params=[True, False], ids=["multiplied", "not multiplied"])
def bfloat16(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the CPU multiplies bfloat16. All weights are packed, however few."""
    monkeypatch.setattr(packing, "LEAST_BYTES", 0)
    told_of_bfloat16(monkeypatch, request.param)
    return bool(request.param)


def off(ours: Tensor, exact: Tensor) -> float:
    """The difference, of the size of what is exact."""
    return float((ours.float() - exact).norm() / exact.norm())


# --- what is decided ------------------------------------------------------------------------

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
MULTIPLIED = {
    "float32": (F32, F32, Products.BLOCKED),
    "bfloat16": (BF16, BF16, Products.CODED),
    "float16": (F16, F32, Products.HALF),
    "int8": (BF16, F32, Products.BYTES),
}
NOT_MULTIPLIED = MULTIPLIED | {"bfloat16": (BF16, F32, Products.HALF)}


@pytest.mark.parametrize("there", [True, False])
def test_one_place_says_how_each_part_is_read_computed_and_multiplied(monkeypatch, there):
    told(monkeypatch, bfloat16=there, blocked=True, coded=True, half=True, int8=True)
    table = MULTIPLIED if there else NOT_MULTIPLIED
    assert {dtype: _told(dtype) for dtype in DTYPES} == table
    fusion = table | {"int8": table["bfloat16" if there else "float32"]}
    assert {dtype: _told(dtype, part="fusion") for dtype in DTYPES} == fusion


def test_without_the_kernel_of_codes_bfloat16_is_multiplied_as_float32_is(monkeypatch):
    told(monkeypatch, bfloat16=True, blocked=True, coded=False)
    assert _told("bfloat16") == (BF16, BF16, Products.BLOCKED)


def test_without_kernels_of_its_own_all_is_computed_as_it_is_read(monkeypatch):
    plain = {dtype: (read, read, Products.PLAIN) for dtype, (read, _, _) in MULTIPLIED.items()}
    assert {dtype: _told(dtype, device="cuda:0") for dtype in DTYPES} == plain
    told(monkeypatch, blocked=False, half=False, int8=False)
    assert {dtype: _told(dtype) for dtype in DTYPES} == plain


def _told(dtype: str, **where: Any) -> tuple[torch.dtype, torch.dtype, Products]:
    form = number_format(dtype, **where)
    return form.read, form.computed, form.products


@pytest.mark.parametrize(
    ("capability", "has", "bfloat16", "vnni"),
    [
        ("AVX512", {"avx512_bf16", "avx512_vnni"}, True, True),
        ("AVX512", {"amx_bf16"}, True, False),
        ("AVX512", {"avx512_vnni", "avx_vnni"}, False, True),
        ("AVX512", set(), False, False),
        ("AVX2", {"avx_vnni"}, False, False),
        ("AVX2", CAPABILITIES, False, False),
        ("DEFAULT", CAPABILITIES, False, False),
    ],
)
def test_what_a_cpu_multiplies_is_what_aten_was_told(monkeypatch, capability, has, bfloat16, vnni):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(has, True))
    here = number_formats.cpu.__wrapped__()
    assert (here.bfloat16, here.vnni) == (bfloat16, vnni)
    if capability == "DEFAULT":
        assert (here.blocked, here.half, here.int8) == (False, False, False)


def test_a_variable_of_pytorch_takes_away_what_is_built_on_avx512():
    asked = "from services.engine.number_formats import cpu; print(cpu().bfloat16, cpu().vnni)"
    said = subprocess.run(
        (sys.executable, "-c", asked),
        env=os.environ | {"ATEN_CPU_CAPABILITY": "avx2"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == "False False\n"


# --- a head ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("head", HEADS)
def test_features_are_near_those_of_float32_however_large_some_states_are(head, dtype, bfloat16):
    given = kit.states(9, HEADS[head])
    given[:, ::17] *= 1000
    exact, rounded = (_fusion(HEADS[head], one)(given) for one in ("float32", dtype))
    assert off(rounded, exact) < 0.02


def _fusion(made: kit.Made, dtype: str) -> Fusion:
    """One whose weights are as small as some states are large."""
    weights = made.tensors["fc.weight"].clone()
    weights[:, ::17] /= 1000
    own = engines.config(made)
    held = engines.InMemory(kit.Made(made.shape, made.head, made.tensors | {"fc.weight": weights}))
    return Fusion(own, len(own.states or ()), held, dtype, "cpu")


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("number", [0, 1])
def test_a_layer_is_near_the_same_in_float32(number, dtype, bfloat16):
    exact, rounded = (_through_layer(number, one) for one in ("float32", dtype))
    assert off(rounded, exact) < NEAR


@torch.inference_mode()
def _through_layer(number: int, dtype: str) -> Tensor:
    made = HEADS["two layers"]
    own, drawn = engines.config(made), torch.Generator().manual_seed(number)
    layer = Layer(own, number, engines.InMemory(made), number_format(dtype), "cpu")
    layer._pack()
    assert layer.dtype is number_format(dtype).computed
    wide = own.width if number else 2 * own.width
    rows, stream = (torch.randn(9, width, generator=drawn) for width in (wide, own.width))
    turn = Turning(own.rope, own.head_width, layer.device, layer.dtype)(range(9))
    return layer(rows.to(layer.dtype), stream.to(layer.dtype), turn, _attended)


def _attended(_: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return out[0].transpose(0, 1).flatten(1)


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("head", HEADS)
def test_a_head_says_about_what_it_says_in_float32(head, dtype, bfloat16):
    exact, rounded = (_said_by_head(HEADS[head], one) for one in ("float32", dtype))
    seven_bits = dtype == "int8" and not number_formats.cpu().vnni
    assert off(rounded, exact) < (0.08 if seven_bits else NEAR)


def _said_by_head(made: kit.Made, dtype: str) -> Tensor:
    """Logits after states of the target, and after features of the head's own."""
    engine = engines.engine(made, dtype=dtype)
    cache = engine.new_cache(60)
    cache.anchor(0, kit.states(5, made))
    [rows] = engine.forward([Segment(cache, kit.tokens(8), logits_from=1)])
    assert _kept_in(cache) is number_format(dtype).computed
    return rows


def _kept_in(cache: Any) -> torch.dtype:
    dtype: torch.dtype = cache._memory.extent.keys.dtype
    return dtype


# --- a target -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@cache
def _exact(folders: Path, arch: str) -> Tensor:
    return _said(_loaded(folders, arch, "float32"))


def _loaded(folders: Path, arch: str, dtype: str) -> NativeEngine:
    folder = tiny_model_folder(folders, arch)
    return NativeEngine.load(ModelSpec(str(folder), dtype, threads=1, kv_capacity_tokens=4096))


def _said(engine: NativeEngine) -> Tensor:
    cache = engine.new_cache(40)
    parts = (TEXT[:20], TEXT[20:21], TEXT[21:])
    return torch.cat([engine.forward([Segment(cache, part)])[0] for part in parts])


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_model_says_about_what_it_says_in_float32(folders, arch, dtype, bfloat16):
    exact, rounded = _exact(folders, arch), _said(_loaded(folders, arch, dtype))
    near = 0.1 if dtype == "int8" else 0.05
    assert (rounded - exact).abs().mean() / exact.std() < (0.25 if arch == "mixtral" else near)


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_and_states_are_kept_as_rows_are_computed(folders, dtype, bfloat16):
    engine = _loaded(folders, "llama", dtype)
    engine.watch([0, 1])
    cache = engine.new_cache(40)
    [logits], [states] = engine.forward_with_states([Segment(cache, TEXT)])
    assert logits.dtype is torch.float32
    assert {_kept_in(cache), states.dtype} == {number_format(dtype).computed}

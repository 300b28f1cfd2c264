"""Number formats: the one place that decides in which of them each part of a model is computed.

    asked      weights are read in   rows are computed in   products with weights
    float32    float32               float32                oneDNN's
    bfloat16   bfloat16              bfloat16               oneDNN's, where the CPU multiplies it,
                                                            ATen's of codes for few rows
               bfloat16              float32                FBGEMM's of fp16, on other CPUs
    float16    float16               float32                FBGEMM's of fp16
    int8       bfloat16              float32                FBGEMM's of int8, rows of a byte or two

What turns a target's states into a head's features is never int8, as some states are huge beside
all others: there int8 stands for bfloat16 where the CPU multiplies it, else for float32.

Keys, values and states of layers are kept as rows are computed. On a GPU, on a CPU without these
kernels, and where a model's own weights cannot or need not be packed (`native.packing`), products
are PyTorch's, and rows are computed as weights are read.

What the CPU multiplies is what ATen was told that it has: ATEN_CPU_CAPABILITY=avx2 takes away
what is built on AVX-512 here as in PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal

import torch

from services.contract.errors import StartError
from services.engine.spec import INT8

Part = Literal["model", "fusion"]
"""A whole model, or a head; what makes a head's features of the target's states."""
Products = Enum("Products", "PLAIN BLOCKED CODED HALF BYTES")
"""PyTorch's own; oneDNN's with weights in its order; with ATen's of a file's codes for few rows;
FBGEMM's with fp16 weights, with int8 ones."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ONEDNN = ("_reorder_linear_weight", "_linear_pointwise")
_CODED = ("_convert_weight_to_int4pack_for_cpu", "_weight_int4pack_mm_for_cpu")
_FBGEMM = ("fbgemm_pack_gemm_matrix_fp16", "fbgemm_linear_fp16_weight_fp32_activation")


@dataclass(frozen=True, slots=True)
class Cpu:
    """What the CPU here multiplies with kernels of its own."""

    bfloat16: bool
    """By itself: AVX512-BF16, AMX."""
    vnni: bool
    """Products of int8 are added up in 32 bits; FBGEMM does so with AVX512-VNNI alone."""
    blocked: bool
    coded: bool
    half: bool
    int8: bool
    """These four: see `Products`."""


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """How the numbers of a part are kept."""

    read: torch.dtype
    """Weights, as they are read and where they are not packed."""
    computed: torch.dtype
    """Rows between products, keys and values, where weights are packed."""
    products: Products


@cache
def cpu() -> Cpu:
    """Of this process. Tests put another in its place."""
    told = torch.backends.cpu.get_cpu_capability()
    x86, wide = told.startswith("AVX"), told.startswith("AVX512")
    has = torch.cpu.get_capabilities()
    fbgemm = x86 and "fbgemm" in torch.backends.quantized.supported_engines
    return Cpu(
        bfloat16=wide and bool(has.get("avx512_bf16") or has.get("amx_bf16")),
        vnni=wide and bool(has.get("avx512_vnni")),
        blocked=x86 and bool(torch._C._has_mkldnn) and _there(torch.ops.mkldnn, _ONEDNN),
        coded=wide and _there(torch.ops.aten, _CODED),
        half=fbgemm and _there(torch, _FBGEMM),
        int8=fbgemm,
    )


def _there(library: Any, names: tuple[str, ...]) -> bool:
    return all(hasattr(library, name) for name in names)


def number_format(asked: str, device: str = "cpu", part: Part = "model") -> NumberFormat:
    """The format of a part of what is to run in `asked`, one of `spec.DTYPES`, on a device."""
    if asked == INT8 and part == "fusion":
        asked = "bfloat16" if cpu().bfloat16 else "float32"
    read = _DTYPES["bfloat16" if asked == INT8 else asked]
    products = _products(asked) if torch.device(device).type == "cpu" else Products.PLAIN
    widens = products in (Products.HALF, Products.BYTES)
    return NumberFormat(read, torch.float32 if widens else read, products)


def _products(asked: str) -> Products:
    here = cpu()
    if asked == INT8:
        return Products.BYTES if here.int8 else Products.PLAIN
    if asked == "float32" or (asked == "bfloat16" and here.bfloat16):
        blocked = Products.CODED if asked == "bfloat16" and here.coded else Products.BLOCKED
        return blocked if here.blocked else Products.PLAIN
    return Products.HALF if here.half else Products.PLAIN


def name_of(dtype: torch.dtype) -> str:
    """What a format that weights are read in is called."""
    return _NAMES[dtype]


def require_int8(device: str, name: str) -> None:
    """Raise StartError where weights cannot be int8: on a device, or a CPU without FBGEMM."""
    if number_format(INT8, device).products is not Products.BYTES:
        kind = torch.device(device).type
        where = "this CPU" if kind == "cpu" else kind
        raise StartError(f"{name}: dtype int8 needs FBGEMM, which {where} has not; use bfloat16")

"""Half-precision weights on CPUs without half-precision arithmetic.

A CPU without AMX or AVX512-BF16 emulates bfloat16 products; a block of eight
rows then costs three times a single one. FBGEMM's packed fp16 weights with
float32 activations stay bound by memory instead. bfloat16 values are exact in
float16 except below 6e-5 in size, where they move by at most 3e-8.

From three rows on, each row's result is the same to the bit whatever rows run
beside it. FBGEMM cuts a product into tiles of a few rows; without AVX-512 its
kernel for a tile of one or two rows adds up in another order. So a product that
would end in such a tile gets rows of zeros behind its own (7 rows become 8, 31
become 33): which numbers of rows these are is measured where it runs. One or two
rows alone stay as they are: three would cost a step of plain decoding a fifth
more. They may differ in the last bits from the same rows in a larger product.
"""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from services.common.errors import StartError

_NATIVE = ("amx_bf16", "avx512_bf16")
_LARGEST = 65504.0
_TOLERANCE = 1e-3
FEW = 2
"""Rows that are multiplied as they are, alone: padding them is what would cost time."""
_PROBE = 64
_MOST_PADDING = 8
# `quantized.linear_dynamic_fp16` runs the same kernel and is not deprecated, but
# costs 40 µs more a call: a tenth of a decoding step of a small model.
_PACK = getattr(torch, "fbgemm_pack_gemm_matrix_fp16", None)
_MULTIPLY = getattr(torch, "fbgemm_linear_fp16_weight_fp32_activation", None)


class PackedLinear(nn.Module):
    """`nn.Linear` with fp16 weights packed for FBGEMM: float32 in, float32 out."""

    def __init__(self, linear: nn.Linear) -> None:
        """Pack the weights of `linear`; StartError when the products do not agree."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        self._bias = None if linear.bias is None else linear.bias.detach().float()
        self._packed = _PACK(weight)  # type: ignore[misc]
        self._check(weight)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        count = rows.numel() // self.in_features
        lacking = padding(count) if count > FEW else 0
        if not lacking:
            return self._product(rows)
        padded = F.pad(rows.reshape(count, self.in_features), (0, 0, 0, lacking))
        return self._product(padded)[:count].view(*rows.shape[:-1], self.out_features)

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedLinear:
        """One with the same packed weights, which nothing changes and nothing can copy."""
        twin = PackedLinear.__new__(PackedLinear)
        memo[id(self)] = twin
        twin.__dict__.update(self.__dict__)
        return twin

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:  # noqa: ARG002
        """The weights as they are packed: a digest of a model is one of these, too."""
        whole = torch.eye(self.in_features)
        destination[prefix + "weight"] = _MULTIPLY(whole, self._packed, None).T  # type: ignore[misc]
        if self._bias is not None:
            destination[prefix + "bias"] = self._bias

    def _product(self, rows: Tensor) -> Tensor:
        product: Tensor = _MULTIPLY(rows, self._packed, self._bias)  # type: ignore[misc]
        return product

    def _check(self, weight: Tensor) -> None:
        row = torch.linspace(-1.0, 1.0, self.in_features)[None]
        expected = F.linear(row, weight, self._bias)
        error = (self(row) - expected).norm() / expected.norm().clamp_min(1e-9)
        if not error <= _TOLERANCE:
            raise StartError(f"packed weights: products differ by {error:.1e}")


@lru_cache(maxsize=1 << 13)
def padding(count: int) -> int:
    """Rows to put behind `count` rows, so that all have the bits they have in tiles of many."""
    padded = range(_MOST_PADDING)
    return next((more for more in padded if _one_kernel(count + more)), 0)


def _one_kernel(count: int) -> bool:
    """Whether a product of `count` equal rows has equal rows: those of a product of six."""
    row, packed = _probe()
    expected = _MULTIPLY(row.expand(6, -1), packed, None)[0]  # type: ignore[misc]
    return bool((_MULTIPLY(row.expand(count, -1), packed, None) == expected).all())  # type: ignore[misc]


@cache
def _probe() -> tuple[Tensor, Any]:
    """A row [1, 64] and packed weights [64, 64] that show in which order products are added up."""
    drawn = torch.Generator().manual_seed(0)
    row, weight = (torch.randn(size, _PROBE, generator=drawn) for size in (1, _PROBE))
    return row, _PACK(weight)  # type: ignore[misc]


def worth_packing(model: Any) -> bool:
    """Half-precision weights, all of them in plain linear and embedding modules, on such a CPU."""
    if model.device.type != "cpu" or model.dtype not in (torch.bfloat16, torch.float16):
        return False
    capabilities = torch.cpu.get_capabilities()
    if any(capabilities.get(name) for name in _NATIVE) or not _has_fbgemm():
        return False
    return all(
        parameter.dim() < 2 or isinstance(module, nn.Embedding) or _packable(module)
        for module in model.modules()
        for parameter in module.parameters(recurse=False)
    )


def _has_fbgemm() -> bool:
    supported = "fbgemm" in torch.backends.quantized.supported_engines
    return supported and _PACK is not None and _MULTIPLY is not None


def _packable(module: nn.Module) -> bool:
    return type(module) is nn.Linear and float(module.weight.detach().abs().max()) <= _LARGEST


def pack(model: Any) -> None:
    """Replace every linear module; compute in float32 from the embedding on."""
    places = [
        (module, name, child)
        for module in model.modules()
        for name, child in module.named_children()
        if type(child) is nn.Linear
    ]
    with warnings.catch_warnings(), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        warnings.simplefilter("ignore")
        packed = pool.map(PackedLinear, [child for _, _, child in places])
        for (module, name, _), replacement in zip(places, packed, strict=True):
            setattr(module, name, replacement)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(_to_float)
        else:
            _upcast(module)


def _upcast(module: nn.Module) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        setattr(module, name, nn.Parameter(parameter.float(), requires_grad=False))


def _to_float(module: nn.Module, args: Any, output: Tensor) -> Tensor:  # noqa: ARG001
    return output.float()

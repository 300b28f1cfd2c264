"""Half-precision weights on CPUs without half-precision arithmetic.

A CPU without AMX or AVX512-BF16 emulates bfloat16 products; a block of eight
rows then costs three times a single one. FBGEMM's packed fp16 weights with
float32 activations stay bound by memory instead, and give each row the same
result whatever rows run beside it. bfloat16 values are exact in float16 except
below 6e-5 in size, where they move by at most 3e-8.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_NATIVE = ("amx_bf16", "avx512_bf16")
_LARGEST = 65504.0


class PackedLinear(nn.Module):
    """`nn.Linear` with fp16 weights packed for FBGEMM: float32 in, float32 out."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        bias = None if linear.bias is None else linear.bias.float()
        self._packed = torch.ops.quantized.linear_prepack_fp16(linear.weight.float(), bias)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, self._packed)
        return product


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
    return "fbgemm" in torch.backends.quantized.supported_engines


def _packable(module: nn.Module) -> bool:
    return type(module) is nn.Linear and float(module.weight.abs().max()) <= _LARGEST


def pack(model: Any) -> None:
    """Replace every linear module; compute in float32 from the embedding on."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child))
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(_to_float)
        else:
            _upcast(module)


def _upcast(module: nn.Module) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        setattr(module, name, nn.Parameter(parameter.float(), requires_grad=False))


def _to_float(module: nn.Module, args: Any, output: Tensor) -> Tensor:  # noqa: ARG001
    return output.float()

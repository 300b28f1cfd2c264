"""The same rows from two engines: chunks, crowds, rollbacks, trees, copies, and what is refused."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.device.scenes import CAPACITY, refusals, rows
from services.contract.errors import StartError
from services.engine.native import NativeEngine
from services.engine.native.selfcheck import TOLERANCES, difference
from services.engine.spec import ModelSpec

Answer = tuple[dict[str, Tensor], dict[str, bool]]
"""Rows by what they were computed for, and of what is to be refused whether it was."""


class Finding(NamedTuple):
    """`figure`: the largest row difference (RMS over the row's standard deviation)."""

    name: str
    dtype: str
    figure: float
    tolerance: float

    @property
    def right(self) -> bool:
        """Whether it is within the tolerance."""
        return self.figure <= self.tolerance


def check(model: Any, dtypes: Sequence[str], answer: Callable[[str], Answer]) -> list[Finding]:
    """What a float32 model computes on the CPU, natively, and what is answered in each of `dtypes`.

    `answer`: from a number format to what the engine that is checked says.
    """
    expected = rows(_engine(model, "cpu", "float32"))
    findings = []
    for dtype in dtypes:
        found, refused = answer(dtype)
        tolerance = TOLERANCES[getattr(torch, dtype)]
        findings += [
            Finding(name, dtype, difference(found[name], wanted), tolerance)
            for name, wanted in expected.items()
        ]
        findings += [Finding(name, dtype, float(not kept), 0.0) for name, kept in refused.items()]
    return findings


def natively(model: Any, device: str) -> Callable[[str], Answer]:
    """What the native engine says on a device."""

    def answer(dtype: str) -> Answer:
        engine = _engine(model, device, dtype)
        too_much = {"K/V beyond the device's memory is refused": _refuses_too_much(engine)}
        return rows(engine), refusals(engine) | too_much

    return answer


def _engine(model: Any, device: str, dtype: str) -> NativeEngine:
    placed = copy.deepcopy(model).to(device=device, dtype=getattr(torch, dtype))
    spec = ModelSpec("tiny", dtype=dtype, device=device, kv_capacity_tokens=CAPACITY)
    return NativeEngine.taking(placed, spec)


def _refuses_too_much(engine: NativeEngine) -> bool:
    spec = ModelSpec("tiny", dtype=engine.dtype, kv_capacity_tokens=1 << 50)
    try:
        NativeEngine.from_model(engine.model, spec=spec)
    except StartError as error:
        return "are free" in str(error)
    return False

"""How positions are stretched, of which transformers' reader of GGUF files takes no notice.

Llama 3.1 and its kin have a divisor for each frequency as a tensor; Phi 3 has two sets of such, for
short and for long texts; others have a factor in the settings (llama.cpp, src/llama-model.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.engine.checkpoint.gguf_file import GgufFile, Tensor

_LLAMA3, _LONG, _SHORT = (
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
)
ROPE_TENSORS = frozenset((_LLAMA3, _LONG, _SHORT))
_LOW, _HIGH, _TRAINED = 1.0, 4.0, 8192
"""What every Llama 3 has: wavelengths per text that it was trained on first, and its length."""
_CLOSE = 1e-3
_MOST = 1 << 12


def rope_of(file: GgufFile) -> dict[str, Any]:
    """What a configuration has to say of it; ValueError where nobody knows how to say it."""
    prefix = f"{file.architecture}.rope."
    said = {
        name.removeprefix(prefix): field.value
        for name, field in file.fields.items()
        if name.startswith(prefix)
    }
    factors = {one.name: _read(one) for one in file.tensors if one.name in ROPE_TENSORS}
    if _LLAMA3 in factors:
        return _like_llama3(factors[_LLAMA3], said)
    length = said.get("scaling.original_context_length")
    trained = {} if length is None else {"original_max_position_embeddings": length}
    if factors.keys() == {_LONG, _SHORT}:
        scaling = {
            "rope_type": "longrope",
            "long_factor": factors[_LONG].tolist(),
            "short_factor": factors[_SHORT].tolist(),
        }
        return {"rope_scaling": scaling, **trained}
    return _by_a_factor(said, trained)


def _read(place: Tensor) -> NDArray[np.float64]:
    if place.dtype.kind != "f" or len(place.size) != 1 or place.size[0] > _MOST:
        raise ValueError(f"{place.name} is no list of at most {_MOST} floats")
    return place.data.astype(np.float64)


def _by_a_factor(said: Mapping[str, Any], trained: dict[str, int]) -> dict[str, Any]:
    kind, factor = said.get("scaling.type", "none"), said.get("scaling.factor", 1.0)
    if kind == "none" or factor in (0.0, 1.0):
        return {}
    if kind not in ("linear", "yarn"):
        raise ValueError(f"rope.scaling.type is {kind}, which is not read here")
    return {
        "rope_scaling": {"rope_type": kind, "factor": factor, **(trained if kind == "yarn" else {})}
    }


def _like_llama3(divisors: NDArray[np.float64], said: Mapping[str, Any]) -> dict[str, Any]:
    """The largest divisor tells all others; ValueError where they are none of Llama 3's."""
    factor = float(divisors.max(initial=1.0))
    theta = said.get("freq_base", 10_000.0)
    expected = [
        _divisor(theta ** (place / len(divisors)), factor) for place in range(len(divisors))
    ]
    if not np.allclose(divisors, expected, rtol=_CLOSE):
        raise ValueError(f"{_LLAMA3} is not as in Llama 3, and nothing else is read here")
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _TRAINED,
    }
    return {"rope_scaling": scaling} if factor > 1.0 else {}


def _divisor(slowness: float, factor: float) -> float:
    """Of a frequency of which a turn takes 2 pi times `slowness` tokens (conversion/llama.py)."""
    turns = _TRAINED / (2 * math.pi * slowness)
    smooth = min(max((turns - _LOW) / (_HIGH - _LOW), 0.0), 1.0)
    return 1 / ((1 - smooth) / factor + smooth)

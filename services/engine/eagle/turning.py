"""The turns of rotary positions (Su et al., 2104.09864)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Rope = Mapping[str, Any]
"""See `services.engine.eagle.rope.rope_of`."""


class Turning:
    """Cosines and sines of rotary positions (Su et al., 2104.09864), up to the longest so far."""

    def __init__(self, rope: Rope, width: int, device: torch.device, dtype: torch.dtype) -> None:
        """`rope`: see `rope_of`; `width`: a head's."""
        self._frequencies, self._scale = frequencies(rope, width), scale(rope)
        self._device, self._dtype, self._most = device, dtype, 0
        self._table = torch.empty(2, 0, 0)

    def __call__(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Of n positions: cosines and sines [1, n, 1, width], of these the first half negative."""
        most = max(positions) + 1
        if most > self._most:
            self._grow(max(256, 1 << (most - 1).bit_length()))
        index = torch.tensor(positions, device=self._device)
        cos, sin = self._table.index_select(1, index)[:, None, :, None]
        return cos, sin

    def _grow(self, most: int) -> None:
        angles = torch.outer(torch.arange(most, dtype=torch.float32), self._frequencies)
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
        whole = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)))
        self._table = whole.to(self._device, self._dtype)
        self._most = most


def frequencies(rope: Rope, width: int) -> Tensor:
    """Angles of a position, float32 [width / 2], scaled as the type asks for."""
    exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
    plain: Tensor = 1.0 / rope["rope_theta"] ** exponents
    match rope["rope_type"]:
        case "linear":
            return plain / float(rope["factor"])
        case "llama3":
            return _llama3(rope, plain)
        case "yarn":
            share = _yarn_share(rope, width)
            return (1 - share) * plain + share * plain / float(rope["factor"])
    return plain


def scale(rope: Rope) -> float:
    """What cosines and sines are multiplied by: with yarn, so that scores stay as sharp."""
    if rope["rope_type"] != "yarn" or rope["attention_factor"]:
        return float(rope.get("attention_factor") or 1.0)

    def sharper(weight: float) -> float:
        return 0.1 * weight * math.log(rope["factor"]) + 1.0 if rope["factor"] > 1 else 1.0

    if rope["mscale"] and rope["mscale_all_dim"]:
        return sharper(rope["mscale"]) / sharper(rope["mscale_all_dim"])
    return sharper(1.0)


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    low, high, length = (
        rope[name]
        for name in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    waves = 2 * math.pi / plain
    slow = plain / rope["factor"]
    share = (length / waves - low) / (high - low)
    between = (1 - share) * slow + share * plain
    scaled = torch.where(waves > length / low, slow, between)
    return torch.where(waves < length / high, plain, scaled)


def _yarn_share(rope: Rope, width: int) -> Tensor:
    """How far each frequency is slowed down, 0 to 1 (Peng et al., 2309.00071, section 3.2)."""
    length, theta = rope["original_max_position_embeddings"], rope["rope_theta"]

    def turning(times: float) -> float:
        """The pair of numbers that turns so often within the original length."""
        return width * math.log(length / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = turning(rope["beta_fast"]), turning(rope["beta_slow"])
    if rope["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    steps = torch.arange(width // 2, dtype=torch.float32)
    return ((steps - low) / (high - low or 0.001)).clamp(0, 1)

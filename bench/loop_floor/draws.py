"""What target and drafter say: a function of world and place alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]

_TOKENS = 1 << 14
_CHANCES = 1 << 18


def target(worlds: Numbers, places: Numbers) -> Numbers:
    """The target's tokens."""
    return _mixed(worlds, places) % np.uint32(_TOKENS)


def draft(worlds: Numbers, places: Numbers, rate: float) -> Numbers:
    """A drafter's: the target's with a chance of `rate`, independently at every place."""
    mixed = _mixed(worlds, places)
    wrong = mixed // np.uint32(_TOKENS) >= rate * _CHANCES
    return mixed % np.uint32(_TOKENS) ^ wrong


def _mixed(worlds: Numbers, places: Numbers) -> Numbers:
    """32 bits that look random (the finaliser of MurmurHash3, Appleby)."""
    mixed = worlds.astype(np.uint32) * np.uint32(0x9E3779B1)
    mixed = mixed + places.astype(np.uint32) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return mixed ^ (mixed >> np.uint32(16))

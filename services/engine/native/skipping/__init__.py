"""Forwards with some sub-layers left out, as self-speculative decoding drafts.

mask        which sub-layers, and the sets that searches start from
sublayers   finding them in a model and leaving them out
skipper     a model that can skip, checked
storage     the file of a mask
"""

from services.engine.skip_mask import SkipMask, every_second, middle_half, whole
from services.engine.native.skipping.skipper import Skipper
from services.engine.native.skipping.storage import MaskFile, mask_for, read_mask, write_mask

__all__ = [
    "MaskFile",
    "SkipMask",
    "Skipper",
    "every_second",
    "mask_for",
    "middle_half",
    "read_mask",
    "whole",
    "write_mask",
]

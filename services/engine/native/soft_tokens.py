"""Soft tokens: ids beyond the vocabulary that stand for embeddings of their own.

They take the place of what the embedding module puts out, not of what it looks up:
a scale inside that module, or a conversion after it, does not touch them again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from services.contract.errors import StartError


class SoftTokens:
    """Embeddings [n, width] for the ids `first` .. `first` + n - 1 of one model."""

    def __init__(self, model: Any, embeddings: Tensor, first: int) -> None:
        """Raise StartError, one line, for embeddings of another width."""
        self._module = model.get_input_embeddings()
        width: int = self._module.weight.shape[-1]
        if embeddings.dim() != 2 or embeddings.shape[-1] != width:
            raise StartError(
                f"look-ahead embeddings are {list(embeddings.shape)}, "
                f"but the model's are {width} wide"
            )
        self._rows = embeddings.detach().to(model.device)
        self._first = first

    def __len__(self) -> int:
        return len(self._rows)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings [1, n, width] of ids [1, n], soft ones among them."""
        soft = token_ids >= self._first
        whole: Tensor = self._module(token_ids.masked_fill(soft, 0))
        rows = self._rows[(token_ids - self._first).clamp_min(0)].to(whole.dtype)
        return torch.where(soft[..., None], rows, whole)

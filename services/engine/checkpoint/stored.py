"""Weights that stay in their file until somebody wants them, and what stands for them till then.

A loader that finds a matrix in a file makes a `StandIn` of it, a tensor of the right shape and
dtype that takes no memory, and gives that to transformers, which puts it where it belongs. Then
`settle` tells each parameter where its numbers are, and who packs a module asks `weight_of` it,
one module at a time: a model is never in memory twice, nor as plain floats.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from services.engine.checkpoint.codes import Codes

_CODES = "paceline_codes"
_STORED = "paceline_stored"


class Stored(Protocol):
    """A matrix [rows, columns] in a file."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    def read(self, dtype: torch.dtype, first: int = 0, last: int | None = None) -> Tensor:
        """All rows, or some in a row, [n, columns], in memory of their own or mapped."""

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Some rows [n, columns] by their numbers `ids` [n]; the others are not read."""

    def codes(self, first: int = 0, last: int | None = None) -> Codes | None:
        """The codes of all rows, or of some in a row; None where the file has none."""


class StandIns:
    """Those of one load."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Tensor, Stored, str]] = {}

    def of(self, stored: Stored, dtype: torch.dtype, name: str) -> Tensor:
        """A tensor that takes no memory and is known again by where it lies.

        `name`: what a model has it under. Whoever takes it for the matrix finds no numbers.
        """
        tensor = torch.full((), torch.nan, dtype=dtype)
        self._made[tensor.data_ptr()] = tensor, stored, name
        return tensor.expand(stored.shape)

    def settle(self, model: nn.Module, unexpected: Collection[str]) -> bool:
        """Let parameters know where their numbers are; whether each stand-in was found.

        Those of other modules than linear ones and embeddings are read now. One that was made
        something else on its way into the model is not found, and the model then of no use.
        `unexpected`: names that the model has no place for.
        """
        found = set[str]()
        for path, module in model.named_modules(remove_duplicate=False):
            for name, parameter in list(module.named_parameters(recurse=False)):
                made = self._made.get(parameter.data_ptr())
                if made is None:
                    continue
                found |= {made[2], f"{path}.{name}".lstrip(".")}
                if type(module) is nn.Linear or isinstance(module, nn.Embedding):
                    setattr(parameter, _STORED, made[1])
                else:
                    _read(module, name, made[1])
        return all(name in found or name in unexpected for _, _, name in self._made.values())


def stored_of(module: nn.Module) -> Stored | None:
    """Where the weight of a linear module or an embedding lies; None: it is in memory."""
    return getattr(module._parameters.get("weight"), _STORED, None)


def weight_of(module: nn.Linear | nn.Embedding, first: int = 0, last: int | None = None) -> Tensor:
    """The weight of a module in its own dtype, or some rows; read now if it is in its file."""
    stored = stored_of(module)
    if stored is None:
        return module.weight.detach()[first:last]
    return stored.read(module.weight.dtype, first, last)


def codes_of(module: nn.Linear, first: int = 0, last: int | None = None) -> Codes | None:
    """The codes of a module's weight, or of some rows; None where nobody knows any."""
    known: Codes | None = getattr(module, _CODES, None)
    if known is not None:
        return known.rows(first, last)
    stored = stored_of(module)
    return None if stored is None else stored.codes(first, last)


def with_codes(module: nn.Linear, codes: Codes | None) -> nn.Linear:
    """The module, of whose weight in memory these are the codes."""
    setattr(module, _CODES, codes)
    return module


def cut(linear: nn.Linear, first: int, last: int) -> nn.Linear:
    """A module of some of the columns of what this one puts out, read now."""
    weight = weight_of(linear, first, last)
    part = nn.Linear(linear.in_features, len(weight), bias=False, device="meta")
    part.weight = nn.Parameter(weight, requires_grad=False)
    if linear.bias is not None:
        part.bias = nn.Parameter(linear.bias.detach()[first:last], requires_grad=False)
    return part


def embeddings_of(model: Any) -> Tensor:
    """All of a model's input embeddings [V, width], read now if they are looked up in a file."""
    module = model.get_input_embeddings()
    if isinstance(module, _Looked):
        return module.stored.read(module.weight.dtype)
    return weight_of(module)


def read_all(model: nn.Module) -> None:
    """Read every weight that is still in its file; modules that share one go on sharing it."""
    read: dict[int, nn.Parameter] = {}
    for module in model.modules():
        stored = stored_of(module)
        if stored is not None:
            kept = read.get(id(stored))
            module.weight = kept = _read(module, "weight", stored) if kept is None else kept
            read[id(stored)] = kept


def look_up_in_files(model: nn.Module) -> None:
    """Let every embedding whose rows are still in a file be looked up there."""
    for module in model.modules():
        if isinstance(module, nn.Embedding) and stored_of(module) is not None:
            _look_up(module)


def _look_up(module: nn.Embedding) -> None:
    module.stored = stored_of(module)  # type: ignore[assignment]
    # It has a shape and a dtype, and no numbers that anybody could take for the real ones.
    shape = torch.empty_like(module.weight, device="meta")
    del module.weight
    module.weight = shape
    module.__class__ = _looked(type(module))  # type: ignore[assignment, arg-type]


def _read(module: nn.Module, name: str, stored: Stored) -> nn.Parameter:
    dtype = getattr(module, name).dtype
    parameter = nn.Parameter(stored.read(dtype), requires_grad=False)
    setattr(module, name, parameter)
    return parameter


class _Looked(nn.Embedding):
    """What goes behind an embedding's own class: rows come from a file.

    Pages of a file that are looked at often stay in memory, and the others do not. So a last
    layer whose weights are also the embeddings is in memory once, packed.
    """

    stored: Stored

    def forward(self, ids: Tensor) -> Tensor:
        """Embeddings [..., embedding_dim] of ids [...]."""
        rows = self.stored.rows(ids.reshape(-1), self.weight.dtype)
        return rows.view(*ids.shape, self.embedding_dim)


@cache
def _looked(stock: type[nn.Module]) -> type[nn.Module]:
    """The class of such embeddings: what its own one does with rows stays as it is."""
    bases = (_Looked,) if stock is nn.Embedding else (stock, _Looked)
    return type(f"Stored{stock.__name__}", bases, {})

"""Batch invariance on the CPU: the bits of a row do not depend on the rows beside it.

A kernel adds a product up in an order that can depend on how many rows there are. Plain decoding
multiplies one row, a verification several, a prompt hundreds; rounded to bfloat16, their logits
then differ, and with them some tokens (He et al., "Defeating Nondeterminism in LLM Inference",
2025). Which numbers of rows are out of line is measured here, on this CPU, with the
weights themselves; such a product gets rows of zeros behind its own. oneDNN, say, has a kernel
of its own for one row by a long weight: plain decoding multiplies two there.

Sums of int8 are of integers, in any order the same.

Attention is made in one way for all, as `Steady` says: see `steadiness` and `paging`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from services.contract.errors import StartError
from services.engine.native.packing import (
    BlockedLinear,
    ByteLinear,
    HalfLinear,
    PackedLinear,
    shared_out,
)

_DRAWN = 1 << 18
"""Numbers that a product is measured by, at least: rounding hides most differences."""
_DRAWN_UNROUNDED = 1 << 14
"""The same in float32, where most numbers of another order of additions differ."""
TILES = (8, 12)
"""Rows of the products that all others are held against: the first number that treats all of its
rows alike. MKL's kernels for AVX2 take six rows at a time, and one to three in another way."""
_MOST_PADDING = 8
_FEW = 8
"""Numbers of rows up to this are measured together, at the start."""
_EXACT, _COARSE = 64, 32
"""Up to the first, each number of rows is measured by itself; beyond, they are rounded up to a
multiple of the second."""
_PIECES = (16, 32, 64, 128, 256, 512)
"""Rows of a product, at most; of more there are several. The most for which zeros behind do; AMX
takes more than 32 rows in another way, and 64 tiles of eight take ten times as long as 512 rows."""
_Known = dict[int, int | None]


class InvariantLinear(PackedLinear):
    """What goes before a packed linear module's own class to make its rows invariant."""

    _measured: ClassVar[dict[tuple[Any, ...], tuple[_Known, _Known]]] = {}
    """See `_known`, by the shape of the weights."""
    _tiles: ClassVar[dict[tuple[Any, ...], int]] = {}
    """Rows of a tile, by the shape of the weights."""

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        if self._known[False].get(rows.numel() // self.in_features) == 0:
            return self.multiplied(rows, None)
        flat = rows.reshape(-1, self.in_features)
        return self._whole(flat, None).view(*rows.shape[:-1], self.out_features)

    def plus(self, rows: Tensor, added: Tensor) -> Tensor:
        """The product of rows [..., in_features] and `added` [..., out_features], in one call."""
        if self._known[True].get(rows.numel() // self.in_features) == 0:
            return self.multiplied(rows, added)
        flat = rows.reshape(-1, self.in_features)
        return self._whole(flat, added.reshape(-1, self.out_features)).view(added.shape)

    def multiplied(self, rows: Tensor, added: Tensor | None) -> Tensor:
        """The kernel's own product of rows [..., in_features], with what is added to it."""
        raise NotImplementedError

    def _whole(self, rows: Tensor, added: Tensor | None) -> Tensor:
        """The product of rows [n, in_features], in as few pieces as there can be."""
        most = self._piece(len(rows), adds=added is not None)
        if len(rows) <= most:
            return self._padded(rows, added)
        return self._by(most, self._padded, rows, added)

    def _by(
        self, most: int, multiply: Callable[..., Tensor], rows: Tensor, added: Tensor | None
    ) -> Tensor:
        """What `multiply` makes of at most so many rows at a time."""
        parts = torch.split(rows, most)
        beside = [None] * len(parts) if added is None else torch.split(added, most)
        return torch.cat([multiply(*pair) for pair in zip(parts, beside, strict=True)])

    def _padded(self, rows: Tensor, added: Tensor | None) -> Tensor:
        count = len(rows)
        lacking = self._lacking(count, adds=added is not None) if count else 0
        if lacking is None:
            return self._in_tiles(rows, added)
        return self._before_zeros(lacking, rows, added)

    def _before_zeros(self, lacking: int, rows: Tensor, added: Tensor | None) -> Tensor:
        """The product with so many rows of zeros behind, and without what they make."""
        if not lacking:
            return self.multiplied(rows, added)
        padded = F.pad(rows, (0, 0, 0, lacking))
        added = None if added is None else F.pad(added, (0, 0, 0, lacking))
        return self.multiplied(padded, added)[: len(rows)]

    def _in_tiles(self, rows: Tensor, added: Tensor | None) -> Tensor:
        """The product as those have it that others are held against."""
        return self._by(self.tile, self._a_tile, rows, added)

    def _a_tile(self, rows: Tensor, added: Tensor | None) -> Tensor:
        return self._before_zeros(self.tile - len(rows), rows, added)

    def _piece(self, count: int, *, adds: bool) -> int:
        """Most rows of a product, where there are so many; no larger ones are measured."""
        if count <= _PIECES[0]:
            return count
        larger = sum(size < count for size in _PIECES)
        tried = reversed(_PIECES[: larger + 1])
        fitting = (most for most in tried if self._lacking(most, adds=adds) is not None)
        return next(fitting, self.tile)

    @property
    def tile(self) -> int:
        """The first of `TILES` in which a row's place does not matter, once for a shape.

        StartError where a row's bits depend on its place in all of them.
        """
        key = self._shape
        if key not in self._tiles:
            found = next((tile for tile in TILES if self._places_alike(tile)), None)
            if found is None:
                shape = f"{self.in_features} x {self.out_features}"
                raise StartError(
                    f"batch-invariant: products by {shape} depend on a row's place here"
                )
            self._tiles[key] = found
        return self._tiles[key]

    def _places_alike(self, tile: int) -> bool:
        """Whether rows of a tile have the bits that they have in another order."""
        rows, added = self._drawn(tile)
        return all(
            torch.equal(self.multiplied(own, beside), self._turned(own, beside))
            for beside_all in (None, added)
            for own, beside in self._parts(tile, rows, beside_all)
        )

    def _turned(self, rows: Tensor, added: Tensor | None) -> Tensor:
        """The product of the rows in the other order."""
        back = None if added is None else added.flip(0)
        return self.multiplied(rows.flip(0), back).flip(0)

    def _lacking(self, count: int, *, adds: bool) -> int | None:
        """Rows of zeros that so many rows want; measured once for all products of a shape."""
        if count > _EXACT and (short := -count % _COARSE):
            more = self._lacking(count + short, adds=adds)
            return None if more is None else short + more
        known = self._known[adds]
        if count not in known:
            self._measure(range(1, _FEW + 1) if count <= _FEW else (count,), adds=adds)
        return known[count]

    @cached_property
    def _known(self) -> tuple[_Known, _Known]:
        """Rows of zeros to put behind so many rows, and the same where something is added.

        None: no number will do.
        """
        return self._measured.setdefault(self._shape, ({}, {}))

    @cached_property
    def _shape(self) -> tuple[Any, ...]:
        return type(self), self.in_features, self.out_features, self._dtype

    def _measure(self, counts: Sequence[int], *, adds: bool) -> None:
        """Find out what so many rows lack to have the bits that they have in tiles."""
        rows, drawn = self._drawn(counts[-1])
        added = drawn if adds else None
        expected = self._in_tiles(rows, added)
        for count in counts:
            parts = self._parts(count, rows, added)
            pairs = list(zip(parts, torch.split(expected, count), strict=False))
            tried = range(_MOST_PADDING)
            self._known[adds][count] = next((n for n in tried if self._alike(n, pairs)), None)

    def _alike(self, lacking: int, pairs: Sequence[tuple[Any, Tensor]]) -> bool:
        """Whether the parts, with so many rows of zeros behind, are as expected."""
        return all(torch.equal(self._before_zeros(lacking, *part), same) for part, same in pairs)

    def _parts(
        self, count: int, rows: Tensor, added: Tensor | None
    ) -> list[tuple[Tensor, Tensor | None]]:
        """So many rows at a time, and what is added, until products have numbers enough."""
        starts = range(0, self._enough, count)
        cuts = [slice(start, start + count) for start in starts]
        return [(rows[cut], None if added is None else added[cut]) for cut in cuts]

    @property
    def _enough(self) -> int:
        """Rows whose products have numbers enough to measure by."""
        numbers = _DRAWN_UNROUNDED if self._dtype is torch.float32 else _DRAWN
        return -(-numbers // self.out_features)

    def _drawn(self, count: int) -> tuple[Tensor, Tensor]:
        """Rows for `_parts` of so many, and what is added to their products; always the same."""
        drawn = torch.Generator().manual_seed(count)
        total = self._enough + count
        rows = torch.randn(total, self.in_features, generator=drawn).to(self._dtype)
        return rows, torch.randn(total, self.out_features, generator=drawn).to(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        """Of the rows."""
        raise NotImplementedError


class InvariantBlocked(InvariantLinear, BlockedLinear):
    """oneDNN's products."""

    def multiplied(self, rows: Tensor, added: Tensor | None) -> Tensor:
        """See `InvariantLinear`."""
        if added is None:
            return BlockedLinear.forward(self, rows)
        return BlockedLinear.plus(self, rows, added)

    @property
    def _dtype(self) -> torch.dtype:
        return self._packed.dtype  # type: ignore[no-any-return]


class InvariantHalf(InvariantLinear, HalfLinear):
    """FBGEMM's products, of one and two rows as well."""

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        return shared_out(super().forward, rows)

    def plus(self, rows: Tensor, added: Tensor) -> Tensor:
        """See `PackedLinear`; FBGEMM adds nothing, and a sum is a row's own."""
        return self.forward(rows) + added

    def multiplied(self, rows: Tensor, added: Tensor | None) -> Tensor:
        """See `InvariantLinear`."""
        product = self._product(rows)
        return product if added is None else product + added

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float32


class InvariantPlain(InvariantLinear):
    """Those of `nn.Linear`, for weights that are not packed."""

    tolerances: ClassVar = {torch.float32: 1e-3, torch.bfloat16: 1e-2, torch.float16: 1e-2}

    def multiplied(self, rows: Tensor, added: Tensor | None) -> Tensor:
        """See `InvariantLinear`."""
        product = F.linear(rows, self._packed, self._bias)
        return product if added is None else product + added

    def whole(self) -> Tensor:
        """The weights [out_features, in_features]."""
        return self._packed  # type: ignore[no-any-return]

    def _pack(self, weight: Tensor) -> Tensor:
        return weight

    @property
    def _dtype(self) -> torch.dtype:
        return self._packed.dtype  # type: ignore[no-any-return]


def require_known(model: Any, name: str) -> None:
    """Raise StartError for a model with weights that multiply in a way of their own."""
    for path, module in model.named_modules():
        known = type(module) is nn.Linear or isinstance(module, nn.Embedding)
        if not known and any(own.dim() > 1 for own in module.parameters(recurse=False)):
            kind = type(module).__name__
            raise StartError(f"{name}: batch-invariant: {path} is a {kind}, and not known to be so")


def invariant(kind: type[PackedLinear] | None) -> type[PackedLinear]:
    """The invariant products for weights that would be packed so, or not at all."""
    if kind is None:
        return InvariantPlain
    if issubclass(kind, ByteLinear):
        return kind
    return InvariantHalf if issubclass(kind, HalfLinear) else InvariantBlocked

"""Batch invariance on the CPU: the bits of a row do not depend on the rows beside it.

A kernel adds a product up in an order that can depend on how many rows there are. Plain decoding
multiplies one row, a verification several, a prompt hundreds; rounded to bfloat16, their logits
then differ, and with them some tokens (He et al., "Defeating Nondeterminism in LLM Inference",
2025). Which numbers of rows are out of line is measured here, on this CPU, with the
weights themselves; such a product gets rows of zeros behind its own. oneDNN, say, has a kernel
of its own for one row of bfloat16 by a long weight: plain decoding multiplies two there.

Attention is made in one way for all, as `Steady` says: see `paging`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, cached_property
from itertools import product
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from services.contract.errors import StartError
from services.engine.native.attending import Scoring, Steady, attend
from services.engine.native.packing import BlockedLinear, HalfLinear, PackedLinear

_DRAWN = 1 << 18
"""Numbers that a product is measured by, at least: rounding hides most differences."""
TILES = (8, 12)
"""Rows of the products that all others are held against: the first number that treats all of its
rows alike. MKL's kernels for AVX2 take six rows at a time, and one to three in another way."""
_MOST_PADDING = 8
_EXACT, _COARSE = 64, 32
"""Up to the first, each number of rows is measured by itself; beyond, they are rounded up to a
multiple of the second."""
_PIECES = (512, 256, 128, 64, 32, 16)
"""Most rows of a product: of more there are several. The first for which zeros behind do; AMX
takes more than 32 rows in another way, and 64 tiles of eight take ten times as long as 512 rows."""
_TRIED = (1, 2, 3, 5)
"""Numbers of rows that are measured at the start."""
WAYS = (
    *(Steady(1, None), Steady(4, None), Steady(4, 256), Steady(4, 128), Steady(8, 64)),
    *(Steady(4, 256, 64), Steady(4, 128, 64), Steady(8, 64, 64)),
    Steady(1, 64, None, 12),
)
"""Ways to attend, the cheapest first."""
_TEXTS = (5, 64, 100, 200, 300, 700, 1000)
"""Keys that a measured row sees."""


class InvariantLinear(PackedLinear):
    """What goes before a packed linear module's own class to make its rows invariant."""

    _known: ClassVar[dict[tuple[Any, ...], int | None]] = {}
    """Rows of zeros to put behind so many rows; None: no number will do."""
    _pieces: ClassVar[dict[tuple[Any, ...], int]] = {}
    """Most rows of a product, by the shape of the weights."""
    _tiles: ClassVar[dict[tuple[Any, ...], int]] = {}
    """Rows of a tile, by the shape of the weights."""

    def __init__(self, linear: nn.Linear) -> None:
        """Pack the weights; StartError where a row's bits depend on its place in all tiles."""
        super().__init__(linear)
        self._piece(adds=False)
        for count in _TRIED:
            self._lacking(count, adds=False)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        flat = rows.reshape(-1, self.in_features)
        return self._whole(flat, None).view(*rows.shape[:-1], self.out_features)

    def plus(self, rows: Tensor, added: Tensor) -> Tensor:
        """The product of rows [..., in_features] and `added` [..., out_features], in one call."""
        flat = rows.reshape(-1, self.in_features)
        return self._whole(flat, added.reshape(-1, self.out_features)).view(added.shape)

    def multiplied(self, rows: Tensor, added: Tensor | None) -> Tensor:
        """The kernel's own product of rows [n, in_features], with what is added to it."""
        raise NotImplementedError

    def _whole(self, rows: Tensor, added: Tensor | None) -> Tensor:
        """The product of rows [n, in_features], in as few pieces as there can be."""
        most = self._piece(adds=added is not None)
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

    def _piece(self, *, adds: bool) -> int:
        """Most rows of a product; measured once for all products of a shape."""
        key = (self._shape, adds)
        if key not in self._pieces:
            fitting = (most for most in _PIECES if self._lacking(most, adds=adds) is not None)
            self._pieces[key] = next(fitting, self.tile)
        return self._pieces[key]

    @property
    def tile(self) -> int:
        """The first of `TILES` in which a row's place does not matter, once for a shape."""
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
        for rows, added in self._drawn(tile):
            for beside in (None, added):
                turned = None if beside is None else beside.flip(0)
                back = self.multiplied(rows.flip(0), turned).flip(0)
                if not torch.equal(self.multiplied(rows, beside), back):
                    return False
        return True

    def _lacking(self, count: int, *, adds: bool) -> int | None:
        """Rows of zeros that so many rows want; measured once for all products of a shape."""
        if count > _EXACT and (short := -count % _COARSE):
            more = self._lacking(count + short, adds=adds)
            return None if more is None else short + more
        key = (self._shape, adds, count)
        if key not in self._known:
            tried = range(_MOST_PADDING)
            self._known[key] = next((n for n in tried if self._alike(count, n, adds=adds)), None)
        return self._known[key]

    @cached_property
    def _shape(self) -> tuple[Any, ...]:
        return type(self), self.in_features, self.out_features, self._dtype

    def _alike(self, count: int, lacking: int, *, adds: bool) -> bool:
        """Whether so many rows, with so many of zeros behind, have the bits they have in tiles."""
        drawn = ((rows, added if adds else None) for rows, added in self._drawn(count))
        return all(
            torch.equal(self._before_zeros(lacking, *pair), self._in_tiles(*pair)) for pair in drawn
        )

    def _drawn(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """So many rows and what is added, until products have `_DRAWN` numbers; always the same."""
        drawn = torch.Generator().manual_seed(count)
        for _ in range(-(-_DRAWN // (count * self.out_features))):
            rows = torch.randn(count, self.in_features, generator=drawn).to(self._dtype)
            yield rows, torch.randn(count, self.out_features, generator=drawn).to(self._dtype)

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
    """Raise StartError for a packed model with weights that multiply in a way of their own."""
    for path, module in model.named_modules():
        known = isinstance(module, nn.Embedding)
        if not known and any(own.dim() > 1 for own in module.parameters(recurse=False)):
            kind = type(module).__name__
            raise StartError(f"{name}: batch-invariant: {path} is a {kind}, and not known to be so")


def invariant(kind: type[PackedLinear] | None) -> type[PackedLinear]:
    """The invariant products for weights that would be packed so, or not at all."""
    if kind is None:
        return InvariantPlain
    return {BlockedLinear: InvariantBlocked, HalfLinear: InvariantHalf}[kind]


@cache
def steady(dtype: torch.dtype, head_dim: int, groups: int) -> Steady:
    """The cheapest way to attend in which no row depends on others or on how far keys are padded.

    `groups`: heads that share a key. Raises StartError where this CPU has none.
    """
    for way in WAYS:
        if all(holds(way, dtype, head_dim, groups, own) for own in _TEXTS):
            return way
    kind = str(dtype).removeprefix("torch.")
    raise StartError(
        f"batch-invariant: attention in {kind} with heads of {head_dim}, {groups} to a key, "
        "depends on the rows beside a row on this CPU"
    )


def holds(way: Steady, dtype: torch.dtype, head_dim: int, groups: int, own: int) -> bool:
    """Whether rows that see `own` keys have the same bits in all company that is tried."""
    drawn = torch.Generator().manual_seed(own)
    most, longest = 80, -(-own // 64) * 64 + 640
    query = torch.randn(2, most * groups, head_dim, generator=drawn).to(dtype)
    keys, values = (torch.randn(2, longest, head_dim, generator=drawn).to(dtype) for _ in range(2))
    mask = torch.zeros(1, 1, longest, dtype=dtype)
    mask[:, :, own:] = -torch.inf
    least = -(-way.rows // groups)

    def attended(first: int, rows: int, padded: int, parts: int) -> Tensor:
        rows = max(rows, least) * groups
        cut = (query[:, first : first + rows], keys[:, :padded], values[:, :padded])
        mine, those, theirs = (part.repeat(parts, 1, 1) for part in cut)
        seen = mask[:, :, :padded].expand(2 * parts, rows, -1)
        return attend(mine, those, theirs, seen, Scoring(), way)[:2]

    expected = attended(0, most, longest, 1)
    return all(
        torch.equal(out, expected[:, company[0] : company[0] + out.shape[1]])
        for company in _companies(own, longest)
        for out in (attended(*company),)
    )


def _companies(own: int, longest: int) -> Iterator[tuple[int, int, int, int]]:
    """The first row, how many there are, padded keys and parts."""
    least = -(-own // 64) * 64
    lengths = (least, least + 64, least + 128, least + 320, longest)
    yield from product((0, 7), (1, 2, 3, 5, 8, 16, 64), lengths, (1, 3))

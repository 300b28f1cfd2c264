"""Which sub-layers of a model are left out of a forward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SkipMask:
    """Layers of a stack of `layers` whose attention, and whose MLP, adds nothing.

    Attention and MLP are skipped separately (Draft & Verify, Zhang et al.,
    2309.08168). Raises ValueError for a layer that the stack does not have.
    """

    layers: int
    attention: frozenset[int] = field(default_factory=frozenset)
    mlp: frozenset[int] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        """Check that all layers are there."""
        wrong = sorted(one for one in self.attention | self.mlp if not 0 <= one < self.layers)
        if wrong:
            raise ValueError(f"layer {wrong[0]} is skipped, there are 0..{self.layers - 1}")

    @classmethod
    def of(cls, layers: int, attention: Iterable[int] = (), mlp: Iterable[int] = ()) -> SkipMask:
        """A mask from any collections of layers."""
        return cls(layers, frozenset(attention), frozenset(mlp))

    @property
    def empty(self) -> bool:
        """Whether nothing is skipped."""
        return not self.attention and not self.mlp

    @property
    def share(self) -> float:
        """Skipped sub-layers over all sub-layers."""
        return (len(self.attention) + len(self.mlp)) / (2 * self.layers)

    def __str__(self) -> str:
        """As people read it."""
        return (
            f"{len(self.attention)} of {self.layers} attentions and "
            f"{len(self.mlp)} of {self.layers} MLPs"
        )


def whole(layers: int) -> SkipMask:
    """Nothing is skipped."""
    return SkipMask(layers)


def every_second(layers: int) -> SkipMask:
    """Every second layer is skipped, the first and the last kept: where SWIFT starts.

    Xia et al., 2410.06916.
    """
    skipped = frozenset(range(1, layers - 1, 2))
    return SkipMask(layers, skipped, skipped)


def middle_half(layers: int) -> SkipMask:
    """The middle half of the stack is skipped, rounded down."""
    first = (layers - layers // 2) // 2
    skipped = frozenset(range(first, first + layers // 2))
    return SkipMask(layers, skipped, skipped)

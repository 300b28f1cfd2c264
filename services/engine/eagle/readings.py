"""What the layout of a head leaves open: ways to read it, the likeliest one first.

Files name layers of the target by what goes into them (vLLM, speculators) or by what comes out of
them (SpecForge, ModelOpt, and what was converted from these), and nothing in a file says which.
Of outputs are likely those of SpecForge whose first is 1, and one less each than the usual three.
`measuring` tells which ones are right.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.eagle.layout import HeadConfig
from services.engine.limits import check_layers


@dataclass(frozen=True, slots=True)
class Reading:
    """`layers`: the target's states, as `HiddenStates.watch` counts them."""

    layers: tuple[int, ...]
    norm_before_residual: bool

    def __str__(self) -> str:
        where = "before" if self.norm_before_residual else "behind"
        return f"states {','.join(map(str, self.layers))}, residual {where} the norm"


def readings_of(config: HeadConfig, depth: int, name: str) -> list[Reading]:
    """All of them, for a target of `depth` layers; StartError where it has no such layers."""
    usual = config.norm_before_residual
    norms = (usual, not usual) if config.open_norm else (usual,)
    return [Reading(layers, norm) for layers in _layers(config, depth, name) for norm in norms]


def _layers(config: HeadConfig, depth: int, name: str) -> list[tuple[int, ...]]:
    usual = (2, depth // 2, depth - 3)
    inputs = config.states or usual
    check_layers(inputs, depth, name)
    if config.states is None or not config.open_states or inputs[-1] == depth:
        return [inputs]
    outputs = tuple(layer + 1 for layer in inputs)
    likely = outputs == usual or (inputs[0] == 1 and not config.by_speculators)
    return [outputs, inputs] if likely else [inputs, outputs]

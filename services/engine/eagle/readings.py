"""What the layout of a head leaves open: ways to read it, the likeliest one first.

Files name layers of the target by what goes into them (vLLM, speculators) or by what comes out of
them (SpecForge, ModelOpt, and what was converted from these), and nothing in a file says which.
Ids whose first is 1 are nearly always those of outputs: what goes into layer 1 of a model says
little. `measuring` tells which one is right.
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
    inputs = config.states or (2, depth // 2, depth - 3)
    check_layers(inputs, depth, name)
    if config.states is None or not config.open_states or inputs[-1] == depth:
        return [inputs]
    outputs = tuple(layer + 1 for layer in inputs)
    return [outputs, inputs] if inputs[0] == 1 else [inputs, outputs]

"""What a head's configuration says of positions: rotations (Su et al., 2104.09864) and windows.

Both may be told by the kinds of layers (`layer_types`), as models that mix them have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.engine.eagle.fields import Fields

FULL, SLIDING = "full_attention", "sliding_attention"
_THETA = {"least": 1.0, "most": 1e12}
_ROPES: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "mrope": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
}
"""mrope has three kinds of positions, which are one and the same in texts."""
_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.0, "mscale_all_dim": 0.0}
"""What yarn (Peng et al., 2309.00071) takes where a file says nothing, as transformers does."""


def kinds_of(layer: Fields, layers: int) -> tuple[str, ...]:
    """The kind of attention of each layer; of `layers` that are said, or of more."""
    said = layer.said.get("layer_types")
    if said is None:
        if layer.flag("use_sliding_window") and layer.said.get("sliding_window") is not None:
            raise ValueError("use_sliding_window is true, but no layer_types say of which layers")
        return (FULL,) * layers
    if not isinstance(said, list) or len(said) < layers:
        raise ValueError(f"layer_types {str(said)[:40]} are not those of {layers} layers")
    for kind in said[:layers]:
        if kind not in (FULL, SLIDING):
            raise ValueError(f"layers of {str(kind)[:40]} are not supported")
    return tuple(said[:layers])


def windows_of(layer: Fields, kinds: tuple[str, ...]) -> tuple[int | None, ...]:
    """How many of the last rows each layer sees, itself included; None: all."""
    if SLIDING not in kinds:
        return (None,) * len(kinds)
    if not layer.flag("use_sliding_window", True):
        raise ValueError(f"layer_types has {SLIDING}, but use_sliding_window is false")
    window = layer.count("sliding_window", most=1 << 24)
    return tuple(window if kind == SLIDING else None for kind in kinds)


def rope_of(layer: Fields, kinds: tuple[str, ...] = (FULL,)) -> dict[str, Any]:
    """`rope_type`, `rope_theta`, and what the type needs; for layers of these kinds."""
    given = next((n for n in ("rope_parameters", "rope_scaling") if layer.said.get(n)), "")
    own = _of_kinds(layer.inside(given), given, kinds) if given else Fields({})
    kind = own.text("rope_type") or own.text("type") or "default"
    if kind not in _ROPES:
        raise ValueError(f"rope_type {kind!r} is not one of {', '.join(_ROPES)}")
    for one in (layer, own):
        if one.number("partial_rotary_factor", 1.0, least=0.0, most=1.0) != 1.0:
            raise ValueError("partial_rotary_factor is not supported")
    theta = own.number("rope_theta", layer.number("rope_theta", 1e4, **_THETA), **_THETA)
    numbers = {name: own.number(name, least=1e-3, most=1e9) for name in _ROPES[kind]}
    if kind == "yarn":
        numbers |= _yarn(own, layer, theta)
    return {"rope_type": kind, "rope_theta": theta, **numbers}


def _of_kinds(own: Fields, given: str, kinds: tuple[str, ...]) -> Fields:
    """The group for these kinds of layers, where there is one for each kind."""
    if not any(isinstance(value, dict) for value in own.said.values()):
        return own
    groups = [own.said.get(kind) for kind in dict.fromkeys(kinds)]
    if any(not isinstance(group, dict) for group in groups):
        named = ", ".join(str(name)[:40] for name in list(own.said)[:4])
        raise ValueError(f"{given} is told of {named}, and not of {kinds[0]}, which its layers are")
    if any(group != groups[0] for group in groups):
        raise ValueError(f"{given} is another one for each kind of layers, which is not supported")
    return own.inside(kinds[0])


def _yarn(own: Fields, layer: Fields, theta: float) -> dict[str, float]:
    """The rest of yarn's numbers; an `attention_factor` of 0 follows from the others."""
    numbers = {n: own.number(n, default, least=0.0, most=1e6) for n, default in _YARN.items()}
    name = "original_max_position_embeddings"
    original = own.number(name, layer.said.get("max_position_embeddings"), least=1.0, most=1e9)
    attention = own.number("attention_factor", 0.0, least=0.0, most=1e6)
    if not (theta > 1.001 and numbers["beta_fast"] > numbers["beta_slow"] > 0):
        raise ValueError("yarn needs a rope_theta above 1, and a beta_fast above its beta_slow")
    truncated = float(own.flag("truncate", True))
    return {**numbers, name: original, "attention_factor": attention, "truncate": truncated}

"""What an EAGLE-3 head (Li et al., 2503.01840) says of itself, in the two public layouts.

    speculators  config.json with `speculators_model_type`; tensors `layers.0.*`
    SpecForge    config.json as of a Llama, `eagle_config` in it; tensors `midlayer.*`

Nothing is believed before it is checked: every field is of its type and within bounds, and what
would be computed otherwise than here is refused, in one line that says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.contract.errors import StartError
from services.engine.checkpoint.heads import KIND, is_named, read_json
from services.engine.eagle.fields import Fields

KINDS = ("eagle3", "peagle")
"""What speculators call heads; the second one drafts in parallel."""
DEFAULT_PARALLEL = 5
"""Tokens of a pass, where the configuration does not say."""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """What a head computes, and what it was made for."""

    width: int
    heads: int
    kv_heads: int
    head_width: int
    inner: int
    layers: int
    vocab_size: int
    draft_vocab_size: int
    target_width: int
    states: tuple[int, ...] | None
    """The target's states that it reads; None: the usual three."""
    epsilon: float
    rope: Mapping[str, Any]
    context: int
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    logit_scale: float
    bias: bool
    parallel: int
    """Tokens that one pass gives; 0: one after the other."""
    mask_id: int
    target: str | None
    target_weights: str | None
    """The digest of the target's weights, where the head names it."""


def read_config(folder: Path) -> HeadConfig:
    """What a head's folder says of itself; StartError, one line, for anything broken."""
    try:
        return _config(read_json(folder))
    except (StartError, ValueError) as error:
        raise StartError(f"head {folder}: {error}".splitlines()[0]) from error


def _config(said: dict[str, Any]) -> HeadConfig:
    """Of either layout; raises ValueError for what is not supported."""
    whole = Fields(said)
    kind = whole.text(KIND)
    masked = any(whole.said.get(name) is not None for name in _MASK_IDS)
    if kind is None:
        if not is_named(said):
            raise ValueError("config.json describes no EAGLE-3 head")
        return _of(whole, whole, masked, residual=False)
    if kind == "peagle" and not masked:
        raise ValueError("mask_token_id is missing")
    if kind not in KINDS:
        raise ValueError(f"speculators_model_type {kind!r} is not one of {', '.join(KINDS)}")
    layer = whole.inside("transformer_layer_config")
    return _of(whole, layer, masked, residual=kind == "eagle3")


def _of(whole: Fields, layer: Fields, masked: bool, *, residual: bool) -> HeadConfig:
    """`whole`: what is said of the head; `layer`: of its layers. `residual`: a default.

    `masked`: there is a token for masks, so that a pass drafts several tokens.
    """
    eagle = whole.inside("eagle_config")
    _refuse(whole, layer, eagle)
    width = layer.count("hidden_size", most=1 << 16)
    heads = layer.count("num_attention_heads", most=1 << 10)
    vocab = layer.count("vocab_size", most=1 << 22)
    mask = next((n for n in _MASK_IDS if whole.said.get(n) is not None), _MASK_IDS[0])
    return HeadConfig(
        width=width,
        heads=heads,
        kv_heads=_dividing(layer.count("num_key_value_heads", heads, most=heads), heads),
        head_width=layer.count("head_dim", width // heads, most=1 << 12, even=True),
        inner=layer.count("intermediate_size", most=1 << 19),
        layers=layer.count("num_hidden_layers", 1, most=16),
        vocab_size=vocab,
        draft_vocab_size=whole.count("draft_vocab_size", vocab, most=vocab),
        target_width=whole.count("target_hidden_size", width, most=1 << 16),
        states=_states(whole, eagle),
        epsilon=layer.number("rms_norm_eps", 1e-6, least=0.0, most=1.0),
        rope=rope_of(layer),
        context=layer.count("max_position_embeddings", 2048, most=1 << 24),
        norm_before_residual=whole.flag("norm_before_residual", residual),
        norm_before_fc=eagle.flag("norm_before_fc", whole.flag("norm_before_fc")),
        fc_norm=whole.flag("fc_norm"),
        norm_output=whole.flag("norm_output"),
        logit_scale=whole.number("logit_scale", 1.0, least=-1e6, most=1e6),
        bias=layer.flag("attention_bias"),
        parallel=_parallel(whole) if masked else 0,
        mask_id=whole.count(mask, least=0, most=vocab - 1) if masked else 0,
        **_target(whole),
    )


_MASK_IDS = ("mask_token_id", "pard_token", "ptd_token_id")


def _refuse(whole: Fields, layer: Fields, eagle: Fields) -> None:
    """Raise ValueError for what would compute something else than this package does."""
    kind = layer.text("model_type") or "llama"
    if kind not in ("llama", "speculators"):
        raise ValueError(f"layers of {kind} are not supported; those of llama are")
    if (layer.text("hidden_act") or "silu") != "silu":
        raise ValueError(f"activation {layer.text('hidden_act')} is not supported; silu is")
    if layer.flag("mlp_bias"):
        raise ValueError("mlp_bias is not supported")
    if not eagle.flag("use_aux_hidden_state", True):
        raise ValueError("a head of the target's last states (use_aux_hidden_state false)")
    if "quantization_config" in whole.said or "quantization_config" in layer.said:
        one = whole if "quantization_config" in whole.said else layer
        method = one.inside("quantization_config").text("quant_method")
        if method != "compressed-tensors":
            raise ValueError(f"quantization {method} is not supported; compressed-tensors is")


def _dividing(count: int, heads: int) -> int:
    if heads % count:
        raise ValueError(f"{heads} heads do not share {count} K/V heads")
    return count


def _states(whole: Fields, eagle: Fields) -> tuple[int, ...] | None:
    name = "eagle_aux_hidden_state_layer_ids"
    listed = whole.counts(name) or eagle.counts(name)
    count = whole.count("num_aux_hidden_states", len(listed) or 3, most=64)
    if count != (len(listed) or 3):
        raise ValueError(f"{name}: {len(listed)} layers, but num_aux_hidden_states {count}")
    if len(set(listed)) < len(listed):
        raise ValueError(f"{name}: {list(listed)} names a layer twice")
    return tuple(sorted(listed)) or None


def _parallel(whole: Fields) -> int:
    """Tokens of a pass."""
    methods = whole.inside("speculators_config").said.get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods else {}
    own = Fields(first if isinstance(first, dict) else {})
    return own.count(
        "speculative_tokens", whole.count("num_depths", DEFAULT_PARALLEL, most=64), most=64
    )


def _target(whole: Fields) -> dict[str, str | None]:
    """The model that the head drafts for, if it says, and the digest of that one's weights."""
    own = whole.inside("paceline")
    named = whole.inside("speculators_config").inside("verifier").text("name_or_path")
    return {"target": own.text("target") or named, "target_weights": own.text("target_weights")}


_ROPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def rope_of(layer: Fields) -> dict[str, Any]:
    """Rotary positions: `rope_type`, `rope_theta`, and what the type needs."""
    given = next((n for n in ("rope_parameters", "rope_scaling") if layer.said.get(n)), "")
    own = layer.inside(given) if given else Fields({})
    kind = own.text("rope_type") or own.text("type") or "default"
    if kind not in _ROPES:
        raise ValueError(f"rope_type {kind!r} is not one of {', '.join(_ROPES)}")
    for one in (layer, own):
        if one.number("partial_rotary_factor", 1.0, least=0.0, most=1.0) != 1.0:
            raise ValueError("partial_rotary_factor is not supported")
    theta = own.number(
        "rope_theta", layer.number("rope_theta", 1e4, least=1.0, most=1e12), least=1.0, most=1e12
    )
    numbers = {name: own.number(name, least=1e-3, most=1e9) for name in _ROPES[kind]}
    return {"rope_type": kind, "rope_theta": theta, **numbers}

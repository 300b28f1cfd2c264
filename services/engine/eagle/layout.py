"""What an EAGLE-3 head (Li et al., 2503.01840) says of itself, in the two public layouts.

    speculators  config.json with `speculators_model_type`; tensors `layers.0.*`
    SpecForge    config.json as of a Llama, `eagle_config` in it; tensors `midlayer.*`; so do
                 ModelOpt, NeMo and the paper's authors

Nothing is believed before it is checked: every field is of its type and within bounds, and what
would be computed otherwise than here is refused, in one line that says what is wrong.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.contract.errors import StartError
from services.engine.checkpoint.heads import KIND, LLAMA, PARALLEL, is_known, named, read_json
from services.engine.eagle.fields import Fields
from services.engine.eagle.rope import kinds_of, rope_of, windows_of
from services.engine.eagle.stored import headers

KINDS = ("eagle3", "peagle")
"""What speculators call heads; the second one drafts in parallel."""
_MOST = 16
"""Layers of a head; more are tensors that are none of it."""
_ASKING = "self_attn.q_proj.weight"
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
    """Those stored."""
    said_layers: int
    """As the configuration says: of some heads it is the number of the target's."""
    vocab_size: int
    draft_vocab_size: int
    target_width: int
    states: tuple[int, ...] | None
    """The ids that it names of the target's layers; None: the usual three."""
    open_states: bool
    """Whether these may be ids of outputs of layers as well as of inputs; see `readings`."""
    by_speculators: bool
    """Of the two layouts, which."""
    open_norm: bool
    """Whether nothing says what `norm_before_residual` is."""
    epsilon: float
    rope: Mapping[str, Any]
    windows: tuple[int | None, ...]
    """How many of the last rows each layer sees; None: all."""
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    logit_scale: float
    bias: bool
    """Of attention."""
    head_norms: bool
    """Whether each head's queries and keys have norms, as Qwen 3's."""
    parallel: int
    """Tokens that one pass gives; 0: one after the other."""
    mask_id: int
    target: str | None
    target_weights: str | None
    """The digest of the target's weights, where the head names it."""


def read_config(folder: Path) -> HeadConfig:
    """What a head's folder says of itself; StartError, one line, for anything broken."""
    try:
        return _config(read_json(folder), headers(folder))
    except (StartError, ValueError, RecursionError) as error:
        raise StartError(f"head {folder}: {error}".splitlines()[0]) from error


def _config(said: dict[str, Any], stored: Container[str]) -> HeadConfig:
    """Of either layout; raises ValueError for what is not supported. `stored`: tensors' names."""
    whole = Fields(said)
    kind, name = whole.text(KIND), named(said)
    masked = any(whole.said.get(name) is not None for name in _MASK_IDS)
    if (kind == "peagle" or name == PARALLEL) and not masked:
        raise ValueError("mask_token_id is missing")
    if kind is None:
        if name is None:
            raise ValueError("config.json describes no EAGLE-3 head")
        if not is_known(name):
            raise ValueError(
                f"heads of {name[:80]} are not supported; EAGLE-3's of Llama's kind are"
            )
        return _of(whole, whole, stored, masked=masked, residual=False)
    if kind not in KINDS:
        raise ValueError(f"speculators_model_type {kind!r} is not one of {', '.join(KINDS)}")
    layer = whole.inside("transformer_layer_config")
    return _of(whole, layer, stored, masked=masked, residual=kind == "eagle3")


def _of(
    whole: Fields, layer: Fields, stored: Container[str], *, masked: bool, residual: bool
) -> HeadConfig:
    """`whole`: what is said of the head; `layer`: of its layers. `residual`: a default.

    `masked`: there is a token for masks, so that a pass drafts several tokens.
    """
    eagle = whole.inside("eagle_config")
    _refuse(whole, layer)
    _check_switches(eagle)
    if whole.flag("tie_word_embeddings") and "lm_head.weight" not in stored:
        raise ValueError("an output tied to embeddings (tie_word_embeddings) is not supported")

    layers = 1
    while layers < _MOST and f"layers.{layers}.{_ASKING}" in stored:
        layers += 1
    kinds = kinds_of(layer, layers)
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
        layers=layers,
        said_layers=layer.count("num_hidden_layers", layers, most=1 << 10),
        vocab_size=vocab,
        draft_vocab_size=whole.count("draft_vocab_size", vocab, most=vocab),
        target_width=whole.count("target_hidden_size", width, most=1 << 16),
        states=_states(whole, eagle),
        open_states="paceline" not in whole.said,
        by_speculators=layer is not whole,
        open_norm=whole.said.get(_NORM) is None and eagle.said.get(_NORM) is None,
        epsilon=layer.number("rms_norm_eps", 1e-6, least=0.0, most=1.0),
        rope=rope_of(layer, kinds),
        windows=windows_of(layer, kinds),
        **_norms(whole, eagle, residual),
        logit_scale=whole.number("logit_scale", 1.0, least=-1e6, most=1e6),
        bias=layer.flag("attention_bias") or "layers.0.self_attn.q_proj.bias" in stored,
        head_norms="layers.0.self_attn.q_norm.weight" in stored
        or (layer.text("model_type") == "qwen3" and not _is_llama(whole)),
        parallel=_parallel(whole) if masked else 0,
        mask_id=whole.count(mask, least=0, most=vocab - 1) if masked else 0,
        **_target(whole),
    )


_NORM = "norm_before_residual"
_MASK_IDS = ("mask_token_id", "pard_token", "ptd_token_id")


_SWITCHES = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
}
"""ModelOpt's, in `eagle_config`, and what they have to say."""
_READ = ("eagle_aux_hidden_state_layer_ids", _NORM, "norm_before_fc", "fc_norm", "norm_output")
_PARALLEL_STEPS = ("parallel_draft_step", "parallel_draft_heads_num_layers")


def _check_switches(eagle: Fields) -> None:
    """Raise ValueError for a switch that asks for something else, or that nobody knows."""
    for name, value in _SWITCHES.items():
        if eagle.flag(name, value) != value:
            raise ValueError(f"eagle_config: {name} {str(not value).lower()} is not supported")
    if eagle.count("parallel_draft_step", 1, most=64) > 1:
        raise ValueError("eagle_config: parallel_draft_step above 1 is not supported")
    for name, said in eagle.said.items():
        if said and name not in (*_SWITCHES, *_READ, *_PARALLEL_STEPS):
            raise ValueError(f"eagle_config: {name[:80]} is not known")


def _is_llama(whole: Fields) -> bool:
    """Whether the architecture says so, whatever the type of the layers says."""
    name = named(whole.said)
    return KIND not in whole.said and (name in LLAMA or (name or "").startswith("LlamaEagle3"))


def _refuse(whole: Fields, layer: Fields) -> None:
    """Raise ValueError for what would compute something else than this package does."""
    kind = layer.text("model_type") or "llama"
    if kind not in ("llama", "qwen3", "speculators") and not _is_llama(whole):
        raise ValueError(f"layers of {kind} are not supported; those of llama and qwen3 are")
    if (layer.text("hidden_act") or "silu") != "silu":
        raise ValueError(f"activation {layer.text('hidden_act')} is not supported; silu is")
    if layer.flag("mlp_bias"):
        raise ValueError("mlp_bias is not supported")
    for one in (whole, layer):
        method = one.inside("quantization_config").text("quant_method")
        if one.said.get("quantization_config") and method != "compressed-tensors":
            raise ValueError(f"quantization {method} is not supported; compressed-tensors is")


def _dividing(count: int, heads: int) -> int:
    if heads % count:
        raise ValueError(f"{heads} heads do not share {count} K/V heads")
    return count


def _states(whole: Fields, eagle: Fields) -> tuple[int, ...] | None:
    name = "eagle_aux_hidden_state_layer_ids"
    listed, inside = whole.counts(name), eagle.counts(name)
    if listed and inside and listed != inside:
        raise ValueError(f"{name}: {list(listed)}, and {list(inside)} in eagle_config")
    listed = listed or inside
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


def _norms(whole: Fields, eagle: Fields, residual: bool) -> dict[str, Any]:
    """Which there are, and where; `residual`: a default."""
    defaults = {_NORM: residual, "norm_before_fc": False, "fc_norm": False, "norm_output": False}
    return {n: eagle.flag(n, whole.flag(n, default)) for n, default in defaults.items()}


def _target(whole: Fields) -> dict[str, Any]:
    """The model that the head drafts for, if it says, and the digest of that one's weights."""
    own = whole.inside("paceline")
    named = whole.inside("speculators_config").inside("verifier").text("name_or_path")
    return {"target": own.text("target") or named, "target_weights": own.text("target_weights")}

"""An EAGLE-3 head on disk (Li et al., 2503.01840), in the two public layouts.

    speculators  config.json with `speculators_model_type`; tensors `layers.0.*`
    SpecForge    config.json as of a Llama, `eagle_config` in it; tensors `midlayer.*`

Nothing is believed before it is checked: names, shapes, dtypes and sizes are those of a head for
this very target, or there is one line that says what is wrong. Only safetensors are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.contract.errors import StartError
from services.engine.checkpoint.heads import KIND, is_named, read_json
from services.engine.eagle.fields import Fields
from services.engine.limits import free_memory

KINDS = {"eagle3": False, "peagle": True}
"""What speculators call heads, and whether such a one drafts in parallel."""
_FILES = 64
_FLOATS = ("F32", "BF16", "F16")
_IGNORED = ("t2d", "verifier_", "rotary_emb.inv_freq")
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


# --- The configuration --------------------------------------------------------------------


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
    if kind is None:
        if not is_named(said):
            raise ValueError("config.json describes no EAGLE-3 head")
        parallel = "PeagleLlamaForCausalLM" in said["architectures"]
        return _of(whole, whole, parallel or whole.flag("parallel_drafting"), residual=False)
    if kind not in KINDS:
        raise ValueError(f"speculators_model_type {kind!r} is not one of {', '.join(KINDS)}")
    layer = whole.inside("transformer_layer_config")
    return _of(whole, layer, KINDS[kind], residual=kind == "eagle3")


def _of(whole: Fields, layer: Fields, parallel: bool, *, residual: bool) -> HeadConfig:
    """`whole`: what is said of the head; `layer`: of its layers. `residual`: a default."""
    eagle = whole.inside("eagle_config")
    _refuse(whole, layer, eagle)
    width = layer.count("hidden_size", most=1 << 16)
    heads = layer.count("num_attention_heads", most=1 << 10)
    vocab = layer.count("vocab_size", most=1 << 22)
    mask = next((n for n in _MASK_IDS if n in whole.said), _MASK_IDS[0])
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
        parallel=_parallel(whole) if parallel else 0,
        mask_id=whole.count(mask, least=0, most=vocab - 1) if parallel else 0,
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


# --- The tensors --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stored:
    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]


class HeadTensors:
    """The tensors of a head's folder, by the names of the first layout; read when asked for."""

    def __init__(self, folder: Path, config: HeadConfig, states: int) -> None:
        """Check what is there, read nothing. `states`: how many of the target it reads.

        Raises StartError, one line.
        """
        self._folder = folder
        self._wanted = _shapes(config, states)
        try:
            self._stored = _headers(folder)
            self._check(config)
        except (StartError, ValueError) as error:
            raise StartError(f"head {folder}: {error}".splitlines()[0]) from error

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def __call__(self, name: str) -> Tensor:
        """A tensor of floats, finite; StartError for anything else."""
        value = self._read(name)
        if value.dtype is torch.int8:
            value = value.float() * self._read(f"{name}_scale").float().reshape(-1, 1)
        if not bool(torch.isfinite(value).all()):
            raise StartError(f"head {self._folder}: tensor {name} is not finite")
        return value

    def optional(self, name: str) -> Tensor | None:
        """The same, where it is there."""
        return self(name) if name in self else None

    def head_ids(self, config: HeadConfig) -> tuple[Tensor, Tensor | None]:
        """The tokens of the logits' columns, ascending; and in which order columns are then.

        None where they are in this order.
        """
        count = config.draft_vocab_size
        if "d2t" not in self:
            return torch.arange(count), None
        ids = torch.arange(count) + self._read("d2t").to(torch.int64)
        ids, order = ids.sort()
        known = int(ids[0]) >= 0 and int(ids[-1]) < config.vocab_size
        if not known or not bool((ids.diff() > 0).all()):
            raise StartError(f"head {self._folder}: d2t does not name {count} tokens, each once")
        return ids, None if bool((order.diff() > 0).all()) else order

    def _read(self, name: str) -> Tensor:
        from safetensors import SafetensorError, safe_open

        stored = self._stored[name]
        try:
            with safe_open(stored.file, framework="pt") as tensors:
                value: Tensor = tensors.get_tensor(stored.name)
        except (OSError, SafetensorError) as error:
            raise StartError(f"head {self._folder}: {error}".splitlines()[0]) from error
        return value

    def _check(self, config: HeadConfig) -> None:
        for name, stored in self._stored.items():
            self._check_one(name, stored)
        optional = ("embed_tokens.weight", "d2t")
        lacking = [
            n
            for n in self._wanted
            if n not in self._stored and n not in optional and not n.endswith("o_proj.bias")
        ]
        if lacking:
            raise ValueError(f"{len(lacking)} tensors are missing, first {lacking[0]}")
        if config.draft_vocab_size < config.vocab_size and "d2t" not in self._stored:
            raise ValueError("d2t is missing: which tokens the columns stand for")
        size = sum(_bytes(stored) for stored in self._stored.values())
        if size > free_memory():
            raise ValueError(f"its tensors take {size / 1e9:.1f} GB, more than is free")

    def _check_one(self, name: str, stored: _Stored) -> None:
        of = name.removesuffix("_scale")
        if of not in self._wanted or (of != name and not name.endswith(".weight_scale")):
            raise ValueError(f"tensor {stored.name} is none of a head's")
        shape, kinds = self._wanted[of], _kinds(name)
        if of != name:
            if stored.shape not in ((shape[0],), (shape[0], 1)) or self._stored[of].dtype != "I8":
                raise ValueError(f"tensor {stored.name}: no scale for each row of int8 weights")
        elif stored.shape != shape:
            raise ValueError(f"tensor {stored.name} is {list(stored.shape)}, not {list(shape)}")
        if stored.dtype == "I8" and f"{name}_scale" not in self._stored:
            raise ValueError(f"tensor {stored.name} is int8 without a scale")
        if stored.dtype not in kinds:
            raise ValueError(f"tensor {stored.name} holds {stored.dtype}, not {' or '.join(kinds)}")


def _kinds(name: str) -> tuple[str, ...]:
    """The dtypes that a tensor may have."""
    if name == "d2t":
        return "I64", "I32"
    matrix = name.endswith(("proj.weight", "fc.weight", "lm_head.weight"))
    return (*_FLOATS, "I8") if matrix else _FLOATS


def _bytes(stored: _Stored) -> int:
    size = {"I64": 8, "F32": 4, "I32": 4, "I8": 1}.get(stored.dtype, 2)
    for extent in stored.shape:
        size *= extent
    return size


def _shapes(config: HeadConfig, states: int) -> dict[str, tuple[int, ...]]:
    """Every tensor that a head may have."""
    width, read = config.width, states * config.target_width
    wanted: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (config.vocab_size, width),
        "fc.weight": (width, read),
        "norm.weight": (width,),
        "lm_head.weight": (config.draft_vocab_size, width),
        "d2t": (config.draft_vocab_size,),
    }
    if config.norm_before_fc:
        wanted["input_norm.weight"] = (read,)
    if config.fc_norm:
        wanted |= {f"fc_norm.{i}.weight": (config.target_width,) for i in range(states)}
    if config.parallel:
        wanted["mask_hidden"] = (read,)
    for number in range(config.layers):
        wanted |= _layer_shapes(config, number)
    return wanted


def _layer_shapes(config: HeadConfig, number: int) -> dict[str, tuple[int, ...]]:
    width, inner = config.width, config.inner
    asked, kept = (n * config.head_width for n in (config.heads, config.kv_heads))
    taken = width if number else 2 * width
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (asked, taken),
        "self_attn.k_proj.weight": (kept, taken),
        "self_attn.v_proj.weight": (kept, taken),
        "self_attn.o_proj.weight": (width, asked),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
    }
    if not number:
        shapes["hidden_norm.weight"] = (width,)
    if config.bias:
        outputs = {"q_proj": asked, "k_proj": kept, "v_proj": kept, "o_proj": width}
        shapes |= {f"self_attn.{name}.bias": (size,) for name, size in outputs.items()}
    return {f"layers.{number}.{name}": shape for name, shape in shapes.items()}


def _headers(folder: Path) -> dict[str, _Stored]:
    """What the folder's safetensors hold, by the names of the first layout."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        why = "; pickled files are not read" if pickled else ""
        raise ValueError(f"no *.safetensors in the folder{why}")
    if len(files) > _FILES:
        raise ValueError(f"{len(files)} files of tensors")
    found: dict[str, _Stored] = {}
    for file in files:
        for stored in _of_file(file):
            name = _usual(stored.name)
            if name.startswith(_IGNORED) or name.endswith(_IGNORED):
                continue
            if name in found:
                raise ValueError(f"tensor {stored.name} is there twice")
            found[name] = _flattened(name, stored)
    return found


def _usual(name: str) -> str:
    name = name.removeprefix("model.")
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


def _flattened(name: str, stored: _Stored) -> _Stored:
    """The mask's states are [1, 1, n] in some files."""
    if name != "mask_hidden" or not stored.shape or set(stored.shape[:-1]) - {1}:
        return stored
    return _Stored(stored.file, stored.name, stored.dtype, stored.shape[-1:])


def _of_file(file: Path) -> list[_Stored]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return [
                _Stored(file, name, one.get_dtype(), tuple(one.get_shape()))
                for name, one in slices.items()
            ]
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file.name}: {error}") from error

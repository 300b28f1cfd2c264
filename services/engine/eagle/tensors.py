"""The tensors of a head's folder, in either public layout; see `services.engine.eagle.layout`.

Only safetensors are read. Names, shapes, dtypes and sizes are checked by the files' headers,
before anything is allocated; values when they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from services.contract.errors import StartError
from services.engine.eagle.layout import HeadConfig
from services.engine.limits import free_memory

_FILES = 64
_FLOATS = ("F32", "BF16", "F16")
_IGNORED = ("t2d", "verifier_", "rotary_emb.inv_freq")


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
            self._stored = _headers(folder, masked=config.parallel > 0)
            self._check(config)
        except (StartError, ValueError) as error:
            raise StartError(f"head {folder}: {error}".splitlines()[0]) from error

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def __call__(self, name: str) -> Tensor:
        """A tensor of floats, finite; StartError for anything else."""
        value = self._read(name)
        if value.dtype is torch.int8:
            value = restored(value, self._read(f"{name}_scale"))
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


def restored(value: Tensor, scale: Tensor | None) -> Tensor:
    """Floats [rows, columns] of what is stored; `scale`: one for each row, of codes."""
    return value.float() if scale is None else value.float() * scale.float().reshape(-1, 1)


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


def _headers(folder: Path, *, masked: bool) -> dict[str, _Stored]:
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
            if name == "mask_hidden" and not masked:
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

"""The tensors of a head's folder, in either public layout; see `services.engine.eagle.layout`.

Only safetensors are read. Names, shapes, dtypes and sizes are checked by the files' headers,
before anything is allocated; values when they are read.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from services.contract.errors import StartError
from services.engine.eagle.layout import HeadConfig
from services.engine.eagle.stored import Stored, headers
from services.engine.limits import free_memory

EMBEDDINGS, COLUMNS = "embed_tokens.weight", "lm_head.weight"
_FLOATS = ("F32", "BF16", "F16")


class HeadTensors:
    """The tensors of a head's folder, by the names of the first layout; read when asked for."""

    def __init__(self, folder: Path, config: HeadConfig, states: int) -> None:
        """Check what is there, read nothing. `states`: how many of the target it reads.

        Raises StartError, one line.
        """
        self._folder = folder
        self._wanted = _shapes(config, states)
        try:
            self._stored = headers(folder)
            if not config.parallel:
                self._stored.pop("mask_hidden", None)
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

        None where they are in this order. `d2t` says how far a column's token is from its number,
        or which it is; `t2d`, if there, says which of both.
        """
        count = config.draft_vocab_size
        if "d2t" not in self:
            return torch.arange(count), None
        said = self._read("d2t").to(torch.int64)
        marked = self._read("t2d").nonzero().flatten() if "t2d" in self else None
        for ids, order in ((torch.arange(count) + said).sort(), said.sort()):
            once = bool((ids.diff() > 0).all())
            known = once and int(ids[0]) >= 0 and int(ids[-1]) < config.vocab_size
            if known and (marked is None or torch.equal(ids, marked)):
                return ids, None if bool((order.diff() > 0).all()) else order
        proved = "" if marked is None else ", those that t2d marks"
        raise StartError(
            f"head {self._folder}: d2t does not name {count} tokens, each once{proved}"
        )

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
        optional = [EMBEDDINGS, "d2t", "t2d"]
        if config.draft_vocab_size == config.vocab_size:
            optional.append(COLUMNS)
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

    def _check_one(self, name: str, stored: Stored) -> None:
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
    if name == "t2d":
        return "BOOL", "U8"
    matrix = name.endswith(("proj.weight", "fc.weight", "lm_head.weight"))
    return (*_FLOATS, "I8") if matrix else _FLOATS


def _bytes(stored: Stored) -> int:
    size = {"I64": 8, "F32": 4, "I32": 4, "I8": 1, "BOOL": 1, "U8": 1}.get(stored.dtype, 2)
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
        EMBEDDINGS: (config.vocab_size, width),
        "fc.weight": (width, read),
        "norm.weight": (width,),
        COLUMNS: (config.draft_vocab_size, width),
        "d2t": (config.draft_vocab_size,),
        "t2d": (config.vocab_size,),
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
    if config.head_norms:
        shapes |= {f"self_attn.{name}_norm.weight": (config.head_width,) for name in "qk"}
    if config.bias:
        outputs = {"q_proj": asked, "k_proj": kept, "v_proj": kept, "o_proj": width}
        shapes |= {f"self_attn.{name}.bias": (size,) for name, size in outputs.items()}
    return {f"layers.{number}.{name}": shape for name, shape in shapes.items()}

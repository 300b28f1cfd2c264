"""A drafter's folder: what was trained, and the name of the base it needs.

    draft.json          base model, layers, storage, card
    draft.safetensors   the student's own parameters and `head_ids` int32 [m]

Nothing of the base is copied: embeddings, tokenizer and configuration come from
it at load. Vectors are stored in float32, matrices in bfloat16 or as
`<name>.codes` and `<name>.scales` (see `quantize`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from services.contract.errors import StartError
from services.engine.native.described import Kind, read_described
from services.engine.native.student.quantize import (
    GROUP,
    Bits,
    dequantize,
    quantize,
    stored_shapes,
)
from services.engine.native.student.shape import Student, share_embeddings, shared_names, shell

Storage = Literal["bfloat16", "int8", "int4"]

KIND = Kind("paceline-draft", 1, "a drafter's")
JSON_NAME, TENSORS_NAME = "draft.json", "draft.safetensors"
HEAD_IDS = "head_ids"

_BITS: Mapping[Storage, Bits] = {"int8": 8, "int4": 4}


@dataclass(frozen=True, slots=True)
class DraftHeader:
    """What `draft.json` says.

    `base`: the base model's name; `base_weights`: the digest of its weights,
    whatever dtype they are run in. `card`: figures of its training, free-form.
    """

    base: str
    base_weights: str
    layers: tuple[int, ...]
    storage: Storage
    group: int
    card: Mapping[str, Any]


def save_student(
    student: Student,
    folder: Path,
    *,
    base: str,
    base_weights: str,
    storage: Storage,
    card: Mapping[str, Any],
) -> None:
    """Write a drafter's two files; other files of `folder` stay.

    A folder holds a whole drafter or none: `draft.json` appears last.
    Raises ValueError for weights that are not finite.
    """
    from safetensors.torch import save_file

    tensors = _stored(student, storage)
    described = _described(student, base, base_weights, storage, card)
    folder.mkdir(parents=True, exist_ok=True)
    written, noted = folder / f".{TENSORS_NAME}.new", folder / f".{JSON_NAME}.new"
    try:
        save_file(tensors, written, {"format": "pt"})
        noted.write_text(json.dumps(described, indent=2) + "\n")
        (folder / JSON_NAME).unlink(missing_ok=True)
        os.replace(written, folder / TENSORS_NAME)
        os.replace(noted, folder / JSON_NAME)
    finally:
        written.unlink(missing_ok=True)
        noted.unlink(missing_ok=True)


def _described(
    student: Student, base: str, base_weights: str, storage: Storage, card: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "format": KIND.format,
        "version": KIND.version,
        "base": {"model": base, "weights": base_weights},
        "layers": list(student.layers),
        "storage": storage,
        **({"group": GROUP} if storage in _BITS else {}),
        "card": dict(card),
    }


def _stored(student: Student, storage: Storage) -> dict[str, Tensor]:
    tensors = {HEAD_IDS: student.head_ids.cpu().to(torch.int32).contiguous()}
    for name, parameter in student.own().items():
        value = parameter.detach().cpu()
        if value.dim() < 2:
            tensors[name] = value.to(torch.float32).contiguous()
        elif storage == "bfloat16":
            tensors[name] = value.to(torch.bfloat16).contiguous()
        else:
            codes, scales = quantize(value, _BITS[storage])
            tensors |= {f"{name}.codes": codes, f"{name}.scales": scales}
    return tensors


def is_draft(folder: Path) -> bool:
    """Whether a folder holds a drafter, whole or broken, and no model of its own."""
    return any((folder / name).is_file() for name in (JSON_NAME, TENSORS_NAME))


def files_of(folder: Path) -> tuple[Path, ...]:
    """The files that make a drafter's folder."""
    return folder / JSON_NAME, folder / TENSORS_NAME


# --- Reading ------------------------------------------------------------------------


def read_draft_json(folder: Path) -> DraftHeader:
    """What a drafter's folder says of itself; StartError, one line, for anything broken."""
    return read_described(f"draft {folder}: {JSON_NAME}", folder / JSON_NAME, KIND, _header)


def _header(described: Any) -> DraftHeader:
    storage, group = described["storage"], described.get("group", GROUP)
    if storage not in get_args(Storage):
        raise ValueError(f"storage {storage!r} is not one of {', '.join(get_args(Storage))}")
    layers = tuple(described["layers"])
    whole_numbers = (group, *layers)
    if not layers or not all(type(number) is int for number in whole_numbers) or group < 1:
        raise ValueError("layers and group are not whole numbers")
    base, weights = described["base"]["model"], described["base"]["weights"]
    if not (isinstance(base, str) and base and isinstance(weights, str) and weights):
        raise ValueError("base lacks its model or its weights")
    return DraftHeader(base, weights, layers, storage, group, dict(described.get("card", {})))


def load_student(
    folder: Path,
    base_config: Any,
    base_tensors: Mapping[str, Tensor] | Callable[[str], Tensor],
    dtype: torch.dtype,
) -> Student:
    """The student saved in `folder`, on the base with this configuration.

    `base_tensors` gives a parameter of the base by its name; only embeddings are
    asked for. They are shared, not copied, where they already have `dtype`.
    Raises StartError, one line, for anything broken.
    """
    header = read_draft_json(folder)
    stored = _read_tensors(folder)
    try:
        head_ids = _head_ids(stored, base_config.get_text_config().vocab_size)
        student = shell(base_config, header.layers, head_ids, dtype)
        embeddings = _embeddings(student, base_tensors, dtype)
        share_embeddings(student, embeddings)
        _fill(student, stored, header)
    except (ValueError, StartError) as error:
        raise StartError(f"draft {folder}: {error}".splitlines()[0]) from error
    return student


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / TENSORS_NAME)
    except OSError as error:
        raise StartError(f"draft {folder}: {TENSORS_NAME}: not there or not readable") from error
    except SafetensorError as error:
        raise StartError(f"draft {folder}: {TENSORS_NAME}: {error}".splitlines()[0]) from error


def _head_ids(stored: Mapping[str, Tensor], vocab_size: int) -> Tensor:
    """int64 [m], m >= 2; raises ValueError unless ascending and inside the vocabulary."""
    ids = _named(stored, HEAD_IDS).to(torch.int64)
    if ids.dim() != 1 or len(ids) < 2 or not bool((ids.diff() > 0).all()):
        raise ValueError(f"{HEAD_IDS} are not two or more ascending token ids")
    if int(ids[0]) < 0 or int(ids[-1]) >= vocab_size:
        raise ValueError(f"{HEAD_IDS} {int(ids[0])}..{int(ids[-1])}: the base has {vocab_size}")
    return ids


def _embeddings(
    student: Student,
    base_tensors: Mapping[str, Tensor] | Callable[[str], Tensor],
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    give = base_tensors if callable(base_tensors) else lambda name: _named(base_tensors, name)
    found: dict[str, Tensor] = {}
    for name in sorted(shared_names(student.model)):
        found[name] = give(name).to(dtype)
        _require_shape(name, found[name], student.model.get_parameter(name).shape)
    return found


@torch.no_grad()
def _fill(student: Student, stored: Mapping[str, Tensor], header: DraftHeader) -> None:
    for name, parameter in student.own().items():
        parameter.copy_(_value(name, parameter.shape, stored, header))


def _value(
    name: str, shape: torch.Size, stored: Mapping[str, Tensor], header: DraftHeader
) -> Tensor:
    """One parameter as it was stored; raises ValueError when it is missing or of wrong shape."""
    if len(shape) < 2 or header.storage == "bfloat16":
        value = _named(stored, name)
        _require_shape(name, value, shape)
        return value
    codes, scales = _named(stored, f"{name}.codes"), _named(stored, f"{name}.scales")
    bits = _BITS[header.storage]
    wanted = stored_shapes(shape, bits, header.group)
    _require_shape(f"{name}.codes", codes, wanted[0])
    _require_shape(f"{name}.scales", scales, wanted[1])
    if codes.dtype is not (torch.int8 if bits == 8 else torch.uint8):
        raise ValueError(f"tensor {name}.codes holds {codes.dtype}, not codes of {bits} bits")
    return dequantize(codes, scales, shape[-1], header.group)


def _named(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise ValueError(f"tensor {name} is missing")
    return tensors[name]


def _require_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"tensor {name} is {list(tensor.shape)}, not {list(shape)}")

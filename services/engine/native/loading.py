"""From a model's name to a transformers model, a fingerprint and a tokenizer bundle.

Only safetensors and GGUF are read; code that comes with a model never runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from services.contract.errors import StartError
from services.engine.checkpoint import folder_model, gguf_model
from services.engine.checkpoint.bundle import read_bundle
from services.engine.checkpoint.files import (
    cache_folder,
    locate,
    one_line,
    require_tensors,
    weight_files,
)
from services.engine.checkpoint.fingerprint import combine, folder_fingerprint, gguf_digest
from services.engine.checkpoint.gguf import GGUF_SOURCE
from services.engine.checkpoint.stored import StandIns
from services.engine.native.device_memory import place
from services.engine.number_formats import number_format
from services.engine.spec import DTYPES, ModelSpec
from services.engine.stages import stage

if TYPE_CHECKING:
    from services.contract.types import TokenizerBundle


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A transformers model on its device, with what identifies it."""

    model: Any
    fingerprint: str
    bundle: TokenizerBundle


_Read = Callable[[torch.dtype, StandIns | None], Any]


def load_model(spec: ModelSpec, *, apart: bool = False) -> LoadedModel:
    """Load the weights and the tokenizer. Raises StartError, one line, when it cannot.

    `apart`: on a CPU matrices may stay in their files (`checkpoint.stored`): whoever runs the model
    packs or reads them first.
    """
    if spec.dtype not in DTYPES:
        raise StartError(f"dtype {spec.dtype!r} is not one of {', '.join(DTYPES)}")
    cache = cache_folder(spec.cache_dir)
    source = locate(spec.model)
    if spec.base is not None:
        raise StartError(f"model {spec.model}: no head, so it was made for no {spec.base}")
    if source.suffix == ".gguf":
        return _load_gguf(source, spec, cache, apart=apart)
    return _load_folder(source, spec, cache, apart=apart)


def _load_folder(folder: Path, spec: ModelSpec, cache: Path, *, apart: bool) -> LoadedModel:
    files = [*weight_files(folder, spec.model), folder / "config.json"]
    loaded = read_folder(folder, spec, apart=apart)
    fingerprint = folder_fingerprint(files, cache / "digests", spec.dtype)
    return _with_tokenizer(loaded, fingerprint, folder, spec)


def _load_gguf(file: Path, spec: ModelSpec, cache: Path, *, apart: bool) -> LoadedModel:
    digest = gguf_digest(file, cache / "digests")
    loaded = _loaded(partial(gguf_model.read_model, file), str(file), spec, apart=apart)
    fingerprint = combine(digest, GGUF_SOURCE, spec.dtype)
    return _with_tokenizer(loaded, fingerprint, file, spec)


def _with_tokenizer(loaded: Any, fingerprint: str, source: Path, spec: ModelSpec) -> LoadedModel:
    stage(f"reads the tokenizer of {spec.model}")
    return LoadedModel(loaded, fingerprint, read_bundle(source, loaded, spec.model))


def read_folder(folder: Path, spec: ModelSpec, *, apart: bool = False) -> Any:
    """The causal language model saved in a folder; StartError for anything broken."""
    read = partial(folder_model.read_model, folder)
    return _loaded(read, f"model {spec.model}", spec, apart=apart)


def _loaded(read: _Read, told: str, spec: ModelSpec, *, apart: bool) -> Any:
    apart = apart and spec.device.partition(":")[0] == "cpu"
    stand_ins = StandIns() if apart else None
    stage(f"reads {spec.model}")
    try:
        model, report = read(number_format(spec.dtype).read, stand_ins)
        require_tensors(report)
    except Exception as error:
        raise StartError(f"{told}: {one_line(error)}") from error
    if stand_ins is not None and not stand_ins.settle(model, report["unexpected_keys"]):
        return _loaded(read, told, spec, apart=False)
    return place(model, spec.model, spec.device)

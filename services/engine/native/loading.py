"""From a model's name to a transformers model, a fingerprint and a tokenizer bundle.

Only safetensors and GGUF are read; code that comes with a model never runs. Of
the base of a distilled drafter only tokenizer, configuration and embeddings are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.contract.errors import StartError
from services.engine.checkpoint.bundle import read_bundle, read_config, read_generation_config
from services.engine.checkpoint.files import (
    cache_folder,
    locate,
    one_line,
    require_weights,
    weight_files,
    weights_of,
)
from services.engine.checkpoint.fingerprint import combine, file_digest, folder_fingerprint
from services.engine.checkpoint.gguf import GGUF_SOURCE, converted
from services.engine.native.device_memory import place
from services.engine.number_formats import number_format
from services.engine.spec import DTYPES, ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

    from services.contract.types import TokenizerBundle


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A transformers model on its device, with what identifies it.

    `head_ids`: int64 [m], ascending, the tokens that the head of a distilled
    drafter knows; None where the head knows them all.
    """

    model: Any
    fingerprint: str
    bundle: TokenizerBundle
    head_ids: Tensor | None = None


def load_model(spec: ModelSpec) -> LoadedModel:
    """Load the weights and the tokenizer. Raises StartError, one line, when it cannot."""
    from services.engine.native.student import is_draft

    if spec.dtype not in DTYPES:
        raise StartError(f"dtype {spec.dtype!r} is not one of {', '.join(DTYPES)}")
    cache = cache_folder(spec.cache_dir)
    source = locate(spec.model)
    if is_draft(source):
        return _load_draft(source, spec, cache)
    if spec.base is not None:
        raise StartError(f"model {spec.model}: no distilled drafter, so it has no base {spec.base}")
    if source.suffix == ".gguf":
        return _load_gguf(source, spec, cache)
    return _load_folder(source, spec, cache)


def _load_folder(folder: Path, spec: ModelSpec, cache: Path) -> LoadedModel:
    files = [*weight_files(folder, spec.model), folder / "config.json"]
    loaded = read_folder(folder, spec)
    fingerprint = folder_fingerprint(files, cache / "digests", spec.dtype)
    return LoadedModel(loaded, fingerprint, read_bundle(folder, loaded, spec.model))


def _load_gguf(file: Path, spec: ModelSpec, cache: Path) -> LoadedModel:
    digest = file_digest(file, cache / "digests")
    folder = converted(file, digest, spec.dtype, cache)
    loaded = read_folder(folder, spec)
    fingerprint = combine(digest, GGUF_SOURCE, spec.dtype)
    return LoadedModel(loaded, fingerprint, read_bundle(folder, loaded, spec.model))


def _load_draft(folder: Path, spec: ModelSpec, cache: Path) -> LoadedModel:
    """A distilled drafter on its base; the base's digest is checked before anything is built."""
    from services.engine.native.student import base, storage

    header = storage.read_draft_json(folder)
    name = spec.base or header.base
    source = _base_source(folder, name)
    made = f"draft {folder}: was distilled from {header.base}"
    require_weights(made, header.base_weights, name, weights_of(source, name, cache))
    if source.suffix == ".gguf":
        source = converted(source, file_digest(source, cache / "digests"), spec.dtype, cache)
    config, embeddings = read_config(source, name), base.SavedTensors(source)
    student = storage.load_student(folder, config, embeddings, number_format(spec.dtype).read)
    model = place(student.model, spec.model, spec.device)
    model.generation_config = read_generation_config(source, name, config)
    bundle = read_bundle(source, model, name)
    digests = [file_digest(file, cache / "digests") for file in storage.files_of(folder)]
    fingerprint = combine(*digests, header.base_weights, spec.dtype)
    return LoadedModel(model, fingerprint, bundle, student.head_ids)


def _base_source(folder: Path, name: str) -> Path:
    try:
        return locate(name)
    except StartError as error:
        raise StartError(f"draft {folder}: its base: {error}") from error


def read_folder(folder: Path, spec: ModelSpec) -> Any:
    """The causal language model saved in a folder; StartError for anything broken."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            output_loading_info=True,
            dtype=number_format(spec.dtype).read,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            attn_implementation="eager",
        )
    except Exception as error:
        raise StartError(f"model {spec.model}: {one_line(error)}") from error
    if missing := sorted(report["missing_keys"]):
        raise StartError(f"model {spec.model}: {len(missing)} tensors missing, first {missing[0]}")
    return place(model, spec.model, spec.device)

"""From a model's name to a transformers model, a fingerprint and a tokenizer bundle.

Only safetensors and GGUF are read; code that comes with a model never runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.contract.errors import StartError
from services.engine.checkpoint.bundle import read_bundle
from services.engine.checkpoint.files import cache_folder, locate, one_line, weight_files
from services.engine.checkpoint.fingerprint import combine, file_digest, folder_fingerprint
from services.engine.checkpoint.gguf import GGUF_SOURCE, converted
from services.engine.native.device_memory import place
from services.engine.number_formats import number_format
from services.engine.spec import DTYPES, ModelSpec

if TYPE_CHECKING:
    from services.contract.types import TokenizerBundle


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A transformers model on its device, with what identifies it."""

    model: Any
    fingerprint: str
    bundle: TokenizerBundle


def load_model(spec: ModelSpec) -> LoadedModel:
    """Load the weights and the tokenizer. Raises StartError, one line, when it cannot."""
    if spec.dtype not in DTYPES:
        raise StartError(f"dtype {spec.dtype!r} is not one of {', '.join(DTYPES)}")
    cache = cache_folder(spec.cache_dir)
    source = locate(spec.model)
    if spec.base is not None:
        raise StartError(f"model {spec.model}: no head, so it was made for no {spec.base}")
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

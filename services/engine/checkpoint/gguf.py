"""GGUF files, converted once to safetensors in the cache folder.

    <cache>/models/<digest>-<dtype>/   model, config, tokenizer, and a mark that
                                       tells a whole conversion from a broken one

The conversion is written beside its place and renamed, so that processes which
start together never see half of it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from services.contract.errors import StartError

GGUF_SOURCE = "gguf-dequantized"
_MARK = "paceline.json"
_VERSION = 2
"""Of what a conversion writes; transformers 5.17 read some tokenizers in another way."""


def converted(file: Path, digest: str, dtype: str, cache: Path) -> Path:
    """The folder with the dequantized weights of a GGUF file, made if need be.

    Raises StartError when the file cannot be read or the cache not written.
    """
    folder = cache / "models" / f"{digest[:24]}-{dtype}"
    if is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder.parent))
    except OSError as error:
        raise StartError(f"cache folder {cache}: {error.strerror}") from error
    try:
        _convert(file, dtype, scratch)
        _mark(scratch)
        _move(scratch, folder)
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise StartError(f"{file}: {type(error).__name__}: {first[:300]}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def is_whole(folder: Path) -> bool:
    """Every file that the conversion wrote is there in its full size."""
    try:
        mark = json.loads((folder / _MARK).read_text())
        sizes = {name: (folder / name).stat().st_size for name in mark["sizes"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    return bool(mark.get("version") == _VERSION and sizes == mark["sizes"])


def _convert(file: Path, dtype: str, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    with _parsed_once():
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
        model.to(getattr(torch, dtype)).save_pretrained(target)
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(target)


@contextmanager
def _parsed_once() -> Iterator[None]:
    """Let transformers, which parses the file three times, and names for each module, do so once.

    That is most of a conversion's time: a vocabulary is parsed token by token.
    """
    import gguf

    parsers = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    for name, parse in parsers.items():
        setattr(gguf, name, lru_cache(maxsize=1)(parse))
    try:
        yield
    finally:
        for name, parse in parsers.items():
            setattr(gguf, name, parse)


def _mark(folder: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    (folder / _MARK).write_text(json.dumps({"version": _VERSION, "sizes": sizes}))


def _move(scratch: Path, folder: Path) -> None:
    """Put a finished conversion in its place, unless another process was first."""
    if folder.exists() and not is_whole(folder):
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        os.rename(scratch, folder)
    if not is_whole(folder):
        raise OSError(f"cannot write {folder}")

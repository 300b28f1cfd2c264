"""GGUF files, converted once to safetensors in the cache folder: for vLLM, and for training.

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
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from services.contract.errors import StartError, out_of_room
from services.engine.checkpoint.files import NAME_A_CACHE, one_line, require_tensors

if TYPE_CHECKING:
    import torch

GGUF_SOURCE = "gguf-dequantized"
_MARK = "paceline.json"
_SCRATCH = ".converting-"
_ABANDONED_S = 24 * 3600.0
"""A conversion that has begun no file for so long is nobody's: it may be on another machine."""
_VERSION = 3
"""Of what a conversion writes, which tokenizers and stretched positions are part of."""


def converted(file: Path, digest: str, dtype: str, cache: Path) -> Path:
    """The folder with the dequantized weights of a GGUF file for `dtype`, made if need be.

    Raises StartError when the file cannot be read or the cache not written.
    """
    from services.engine.number_formats import name_of, number_format

    read = number_format(dtype).read
    folder = cache / "models" / f"{digest[:24]}-{name_of(read)}"
    if is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=folder.parent))
    except OSError as error:
        raise StartError(f"cache folder {cache}: {error.strerror}; {NAME_A_CACHE}") from error
    try:
        _convert(file, read, scratch)
        _mark(scratch)
        _move(scratch, folder)
    except Exception as error:
        if out_of_room(error):
            told = f"cache folder {cache}: the disk is full; make room, or {NAME_A_CACHE}"
            raise StartError(told) from error
        raise StartError(f"{file}: {one_line(error)}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _sweep(models: Path) -> None:
    """Remove what conversions left that were killed; it may be gigabytes."""
    for scratch in models.glob(f"{_SCRATCH}*"):
        with suppress(OSError):
            if time.time() - scratch.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(scratch, ignore_errors=True)


def is_whole(folder: Path) -> bool:
    """Every file that the conversion wrote is there in its full size."""
    try:
        mark = json.loads((folder / _MARK).read_text())
        sizes = {name: (folder / name).stat().st_size for name in mark["sizes"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    return bool(mark.get("version") == _VERSION and sizes == mark["sizes"])


def _convert(file: Path, dtype: torch.dtype, target: Path) -> None:
    from services.engine.checkpoint import gguf_model

    model, report = gguf_model.read_model(file, dtype)
    require_tensors(report)
    model.save_pretrained(target)
    gguf_model.read_tokenizer(file).save_pretrained(target)


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

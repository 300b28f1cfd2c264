"""Digests that tell whether two workers run the same weights in the same way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from services.engine.checkpoint.gguf_parts import parts_of

_CHUNK = 1 << 22


def combine(*parts: str) -> str:
    """One digest of several texts, in order."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def file_digest(path: Path, memo: Path) -> str:
    """SHA-256 of a file's content.

    Remembered in the folder `memo` under the file's path, size and time of
    change, so that big weights are read for it once.
    """
    stat = path.stat()
    key = combine(str(path.resolve()), str(stat.st_size), str(stat.st_mtime_ns), str(stat.st_ino))
    note = memo / key
    with suppress(OSError):
        if digest := note.read_text():
            return digest
    digest = _hash_content(path)
    with suppress(OSError):
        memo.mkdir(parents=True, exist_ok=True)
        note.write_text(digest)
    return digest


def gguf_digest(file: Path, memo: Path) -> str:
    """The same of a GGUF file, with all its parts.

    Raises ValueError where one is missing.
    """
    digests = [file_digest(part, memo) for part in parts_of(file)]
    return digests[0] if len(digests) == 1 else combine(*digests)


def _hash_content(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def folder_fingerprint(files: Iterable[Path], memo: Path, dtype: str) -> str:
    """Fingerprint of a model saved in `files` (weights and config), run in `dtype`."""
    digests = [file_digest(path, memo) for path in sorted(files)]
    return combine(*digests, dtype)


def folder_weights(files: Iterable[Path], memo: Path) -> str:
    """Digest of the weights saved in safetensors `files`, whatever dtype they are run in."""
    return combine(*(file_digest(path, memo) for path in sorted(files)))


def gguf_weights(digest: str) -> str:
    """The same for a GGUF file with this digest."""
    return combine(digest, "gguf")


def model_fingerprint(model: Any, dtype: str) -> str:
    """Fingerprint of a model in memory: its configuration, parameters and dtype."""
    import torch

    digest = hashlib.sha256(model.config.to_json_string().encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return combine(digest.hexdigest(), dtype)

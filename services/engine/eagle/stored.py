"""What the files of a head's folder hold, by their headers alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_FILES = 64
_IGNORED = ("verifier_", "rotary_emb.inv_freq")


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]


def headers(folder: Path) -> dict[str, Stored]:
    """What the folder's safetensors hold, by the names of the first layout; ValueError."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        why = "; pickled files are not read: save them as safetensors" if pickled else ""
        raise ValueError(f"no *.safetensors in the folder{why}")
    if len(files) > _FILES:
        raise ValueError(f"{len(files)} files of tensors")
    found: dict[str, Stored] = {}
    for file in files:
        for stored in _of_file(file):
            name = _usual(stored.name)
            if name.startswith(_IGNORED) or name.endswith(_IGNORED):
                continue
            if name in found:
                raise ValueError(f"tensor {stored.name} is there twice")
            found[name] = _flattened(name, stored)
    return found


def _usual(name: str) -> str:
    name = name.removeprefix("model.")
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


def _flattened(name: str, stored: Stored) -> Stored:
    """The mask's states are [1, 1, n] in some files."""
    if name != "mask_hidden" or not stored.shape or set(stored.shape[:-1]) - {1}:
        return stored
    return Stored(stored.file, stored.name, stored.dtype, stored.shape[-1:])


def _of_file(file: Path) -> list[Stored]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return [
                Stored(file, name, one.get_dtype(), tuple(one.get_shape()))
                for name, one in slices.items()
            ]
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file.name}: {error}") from error

"""Tensors of a saved model, read one by one.

A head needs its target's embeddings, and nothing else of its weights is read.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from services.contract.errors import StartError


class SavedTensors:
    """Tensors of a folder's safetensors files, each read when it is asked for by name."""

    def __init__(self, folder: Path) -> None:
        """Look the names up, read nothing; StartError for a file that is broken."""
        from safetensors import SafetensorError, safe_open

        self._files: dict[str, Path] = {}
        for file in sorted(folder.glob("*.safetensors")):
            try:
                with safe_open(file, framework="pt") as tensors:
                    self._files |= dict.fromkeys(tensors.keys(), file)
            except (OSError, SafetensorError) as error:
                raise StartError(f"{file}: {error}".splitlines()[0]) from error

    def __call__(self, name: str) -> Tensor:
        """A parameter by the name it has in the model; ValueError when it is not there.

        Some files leave out the name of the model's body (`wte.weight` for
        `transformer.wte.weight`), or have it where the model does not.
        """
        from safetensors import safe_open

        stored = name if name in self._files else self._only(name.partition(".")[2], name)
        with safe_open(self._files[stored], framework="pt") as tensors:
            tensor: Tensor = tensors.get_tensor(stored)
        return tensor

    def _only(self, tail: str, name: str) -> str:
        found = [stored for stored in self._files if f".{stored}".endswith(f".{tail}")]
        if len(found) != 1:
            raise ValueError(f"its target has no tensor {name}")
        return found[0]

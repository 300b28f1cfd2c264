"""What a student needs of its saved base: configuration, generation settings, embeddings.

The base's other weights are never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
            raise ValueError(f"its base has no tensor {name}")
        return found[0]


def read_config(folder: Path, name: str) -> Any:
    """The base's configuration; StartError, one line, when it is broken."""
    from transformers import AutoConfig

    with _one_line(name):
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def read_generation_config(folder: Path, name: str, config: Any) -> Any:
    """The generation settings that a model was saved with, or those that follow from `config`."""
    from transformers import GenerationConfig

    with _one_line(name):
        if (folder / "generation_config.json").is_file():
            return GenerationConfig.from_pretrained(folder, local_files_only=True)
        return GenerationConfig.from_model_config(config)


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Turn what goes wrong inside into a StartError that names the model."""
    try:
        yield
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise StartError(f"model {name}: {type(error).__name__}: {first[:300]}") from error

"""What a saved model has a row of for each token: embeddings and output.

A head needs its target's embeddings, and some need its output; nothing else of its weights is read.
Families name these differently, and models that take images or sounds have them one floor deeper.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from services.contract.errors import StartError

_EMBEDDINGS = (
    *("embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings", "tok_embed"),
    "embeddings",
)
_OUTPUT = ("lm_head", "embed_out", "output", "output_layer")
_OTHER_SENSES = re.compile(r"(^|\.)(vision|visual|audio|image|speech|mtp|talker|layers\.\d+\.)")


class SavedTensors:
    """Tensors of a folder's safetensors files, each read when it is asked for."""

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

    def embeddings(self) -> Tensor:
        """Of texts; ValueError where there are none, or several."""
        return self._of(_EMBEDDINGS, "embeddings")

    def output(self) -> Tensor:
        """The output's matrix: that of the embeddings, where a model has none of its own."""
        return self._of(_OUTPUT if self._named(_OUTPUT) else _EMBEDDINGS, "output")

    def _of(self, names: Sequence[str], what: str) -> Tensor:
        found = self._named(names)
        if len(found) != 1:
            raise ValueError(f"its target's files have {len(found)} tensors of {what}, not one")
        return self._read(found[0])

    def _read(self, stored: str) -> Tensor:
        from safetensors import safe_open

        with safe_open(self._files[stored], framework="pt") as tensors:
            tensor: Tensor = tensors.get_tensor(stored)
        return tensor

    def _named(self, names: Sequence[str]) -> list[str]:
        tails = [f".{name}.weight" for name in names]
        return [
            stored
            for stored in self._files
            if f".{stored}".endswith(tuple(tails)) and not _OTHER_SENSES.search(stored)
        ]

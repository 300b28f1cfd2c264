"""Look-ahead embeddings: learned rows that stand for tokens not yet known.

PaSS (Monea, Joulin and Grave, 2311.13581): L rows appended to a text make its
model answer for the L tokens after the next one, in the same forward. They are
inputs, so they have the width and the scale of what the model's embedding module
puts out (a model that scales its embeddings gets them as they are, not scaled
once more). One safetensors file holds them:

    embeddings   [L, width], bfloat16 or float32
    metadata     format, version, base (the model's name), base_weights (digest of
                 its weights, whatever dtype they run in), card (JSON, free-form)

They mean something to the weights they were trained with, and to no others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.contract.errors import StartError
from services.engine.checkpoint.files import locate_lookahead, require_weights, weights_digest
from services.runtime.atomic_file import replacing

FORMAT, VERSION = "paceline-lookahead", "1"
TENSOR = "embeddings"
_DTYPES = (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class Lookahead:
    """What a file of look-ahead embeddings holds; `embeddings` is [L, width]."""

    embeddings: Tensor
    base: str
    base_weights: str
    card: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """L: how many tokens beyond the next one they answer for."""
        return len(self.embeddings)


def save_lookahead(path: Path, lookahead: Lookahead) -> None:
    """Write the file, whole or not at all; ValueError for values that are not finite."""
    from safetensors.torch import save

    embeddings = lookahead.embeddings.detach().cpu().contiguous()
    _check(embeddings)
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "base": lookahead.base,
        "base_weights": lookahead.base_weights,
        "card": json.dumps(dict(lookahead.card)),
    }
    with replacing(path) as scratch:
        scratch.write_bytes(save({TENSOR: embeddings}, metadata))


def read_lookahead(path: Path) -> Lookahead:
    """What a file holds; StartError, one line, for one that is missing or broken."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_format(metadata)
            embeddings = file.get_tensor(TENSOR)
        _check(embeddings)
        card = dict(json.loads(metadata.get("card", "{}")))
        return Lookahead(embeddings, metadata["base"], metadata["base_weights"], card)
    except OSError as error:
        raise StartError(f"lookahead {path}: not there or not readable") from error
    except KeyError as error:
        raise StartError(f"lookahead {path}: {error.args[0]} is missing") from error
    except (SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise StartError(f"lookahead {path}: {error}".splitlines()[0]) from error


def lookahead_for(
    name: str, base: str | None = None, cache_dir: Path | None = None
) -> tuple[Lookahead, str]:
    """The embeddings in a file (or of an alias), and the model to run them with.

    That is `base`, else the one that the file names. Raises StartError, one line, before
    any weights are loaded, for a bad file and for a model with other weights than those
    they were trained for.
    """
    path = locate_lookahead(name)
    lookahead = read_lookahead(path)
    model = base or lookahead.base
    made = f"lookahead {path}: was trained for {lookahead.base}"
    require_weights(made, lookahead.base_weights, model, weights_digest(model, cache_dir))
    return lookahead, model


def _check_format(metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise ValueError("no file of look-ahead embeddings")
    if metadata.get("version") != VERSION:
        raise ValueError(f"version {metadata.get('version')!r}; this Paceline reads {VERSION}")


def _check(embeddings: Tensor) -> None:
    """Raise ValueError unless these can be look-ahead embeddings of some model."""
    if embeddings.dim() != 2 or 0 in embeddings.shape:
        raise ValueError(f"{TENSOR} are {list(embeddings.shape)}, not [steps, width]")
    if embeddings.dtype not in _DTYPES:
        raise ValueError(f"{TENSOR} are {embeddings.dtype}, not bfloat16 or float32")
    if not bool(embeddings.isfinite().all()):
        raise ValueError(f"{TENSOR} are not all finite")

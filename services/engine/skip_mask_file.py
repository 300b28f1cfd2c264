"""The file of a mask: JSON, a few lines, bound to the weights it was searched for.

{"format": "paceline-skip-mask", "version": 1,
"model": {"name": …, "weights": digest}, "layers": 30,
"skip": {"attention": [1, 3], "mlp": [2]}, "measured": {…}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.contract.errors import StartError
from services.engine.checkpoint.files import require_weights, weights_digest
from services.engine.skip_mask import SkipMask
from services.runtime.atomic_file import replacing

FORMAT, VERSION = "paceline-skip-mask", 1


@dataclass(frozen=True, slots=True)
class MaskFile:
    """A mask, the model it is for, and what was measured with it.

    `weights`: the digest of that model's weights, whatever dtype they are run in.
    `measured`: figures of the search, free-form.
    """

    mask: SkipMask
    model: str
    weights: str
    measured: Mapping[str, Any] = field(default_factory=dict)


def write_mask(path: Path, content: MaskFile) -> None:
    """Write the file, whole or not at all."""
    described = {
        "format": FORMAT,
        "version": VERSION,
        "model": {"name": content.model, "weights": content.weights},
        "layers": content.mask.layers,
        "skip": {
            "attention": sorted(content.mask.attention),
            "mlp": sorted(content.mask.mlp),
        },
        "measured": dict(content.measured),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as scratch:
        scratch.write_text(json.dumps(described, indent=2) + "\n")


def read_mask(path: Path) -> MaskFile:
    """The content of a mask's file; StartError, one line, for anything broken."""
    try:
        return _content(json.loads(path.read_text()))
    except OSError as error:
        raise StartError(f"skip mask {path}: {error.strerror}") from error
    except KeyError as error:
        raise StartError(f"skip mask {path}: {error.args[0]} is missing") from error
    except ValueError as error:
        raise StartError(f"skip mask {path}: {error}".splitlines()[0]) from error
    except (TypeError, AttributeError, RecursionError) as error:
        raise StartError(f"skip mask {path}: not a skip mask's") from error


def _content(described: Any) -> MaskFile:
    if described["format"] != FORMAT:
        raise ValueError(f"format {described['format']!r} is not {FORMAT!r}")
    if described["version"] != VERSION:
        raise ValueError(f"version {described['version']!r}; this Paceline reads {VERSION}")
    name, weights = described["model"]["name"], described["model"]["weights"]
    if not (isinstance(name, str) and isinstance(weights, str) and weights):
        raise ValueError("model lacks its name or its weights")
    layers, skip = described["layers"], described["skip"]
    attention, mlp = _numbers(skip["attention"]), _numbers(skip["mlp"])
    if type(layers) is not int or layers < 1:
        raise ValueError(f"layers {layers!r} is no number of layers")
    mask = SkipMask.of(layers, attention, mlp)
    return MaskFile(mask, name, weights, dict(described.get("measured", {})))


def _numbers(listed: Any) -> list[int]:
    if not isinstance(listed, list) or not all(type(number) is int for number in listed):
        raise ValueError("skip does not list layers by their numbers")
    return listed


def mask_for(path: Path, model: str, cache_dir: Path | None = None) -> SkipMask:
    """The mask in a file; StartError unless it is for the weights of `model`."""
    content = read_mask(path)
    made = f"skip mask {path}: is for {content.model}"
    require_weights(made, content.weights, model, weights_digest(model, cache_dir))
    return content.mask

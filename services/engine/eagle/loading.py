"""From a head's folder and its target's name to an engine.

Of the target only configuration, tokenizer and, where the head has none, embeddings are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from services.contract.errors import StartError
from services.engine.checkpoint import gguf_model
from services.engine.checkpoint.bundle import bundle_beside
from services.engine.checkpoint.bundle import read_config as read_target
from services.engine.checkpoint.files import (
    cache_folder,
    locate,
    require_weights,
    weights_of,
)
from services.engine.checkpoint.fingerprint import combine, file_digest
from services.engine.checkpoint.saved_tensors import SavedTensors
from services.engine.eagle.engine import EagleEngine, Target
from services.engine.eagle.layout import HeadConfig, read_config
from services.engine.eagle.tensors import HeadTensors
from services.engine.limits import check_layers, max_context
from services.engine.number_formats import number_format
from services.engine.spec import DTYPES, ModelSpec
from services.engine.threads import pin

if TYPE_CHECKING:
    from torch import Tensor

_EMBEDDINGS = "embed_tokens.weight"
_OF_TARGET = "model.embed_tokens.weight"


def load_head(spec: ModelSpec) -> EagleEngine:
    """The head in the folder `spec.model`, for the target `spec.base` or the one that it names.

    Raises StartError, one line, for a folder that is broken or for another target.
    """
    if spec.dtype not in DTYPES:
        raise StartError(f"dtype {spec.dtype!r} is not one of {', '.join(DTYPES)}")
    pin(spec.threads)
    folder = locate(spec.model)
    config = read_config(folder)
    name = spec.base or config.target
    if name is None:
        raise StartError(f"head {folder}: names no model that it drafts for; give one")
    cache = cache_folder(spec.cache_dir)
    source = _source(folder, name)
    weights = weights_of(source, name, cache)
    if config.target_weights is not None:
        made = f"head {folder}: was made for {config.target}"
        require_weights(made, config.target_weights, name, weights)
    described = read_target(source, name)
    states = check_target(folder, config, described.get_text_config(), name)
    tensors = HeadTensors(folder, config, len(states))
    embeddings = _embeddings(folder, config, tensors, source, spec)
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    digests = [file_digest(file, cache / "digests") for file in files]
    target = _target(source, described, name)
    fingerprint = combine(*digests, weights, spec.dtype)
    return _engine(
        config, tensors, embeddings, target, spec, states=states, fingerprint=fingerprint
    )


def _engine(*args: Any, **named: Any) -> EagleEngine:
    spec: ModelSpec = args[4]
    try:
        return EagleEngine(*args, **named)
    except torch.OutOfMemoryError as error:
        raise StartError(f"head {spec.model}: does not fit {spec.device}") from error


def _source(folder: Path, name: str) -> Path:
    try:
        return locate(name)
    except StartError as error:
        raise StartError(f"head {folder}: its target: {error}") from error


def check_target(folder: Path, config: HeadConfig, target: Any, name: str) -> tuple[int, ...]:
    """The target's states that the head reads; StartError for a target that it is not for."""
    made = f"head {folder}: is not for {name}"
    for what, own, other in (
        ("width", config.target_width, target.hidden_size),
        ("vocabulary", config.vocab_size, target.vocab_size),
    ):
        if own != other:
            raise StartError(f"{made}: a {what} of {own}, but {name} has one of {other}")
    count = target.num_hidden_layers
    states = config.states or (2, count // 2, count - 3)
    try:
        check_layers(states, count, name)
    except StartError as error:
        raise StartError(f"{made}: {error}") from error
    return states


def _embeddings(
    folder: Path, config: HeadConfig, tensors: HeadTensors, source: Path, spec: ModelSpec
) -> Tensor:
    """The head's own, or the target's."""
    if _EMBEDDINGS in tensors:
        return tensors(_EMBEDDINGS)
    try:
        if source.suffix == ".gguf":
            found = gguf_model.read_embeddings(source, number_format(spec.dtype).read)
        else:
            found = SavedTensors(source)(_OF_TARGET)
    except (ValueError, OSError) as error:
        raise StartError(f"head {folder}: has no embeddings, and {error}") from error
    wanted = (config.vocab_size, config.width)
    if tuple(found.shape) != wanted or not found.is_floating_point():
        raise StartError(
            f"head {folder}: its target's embeddings are {list(found.shape)}, not {list(wanted)}"
        )
    return found


def _target(source: Path, described: Any, name: str) -> Target:
    text = described.get_text_config()
    return Target(
        text.num_hidden_layers,
        text.hidden_size,
        text.vocab_size,
        max_context(text, None),
        bundle_beside(source, described, name),
    )

"""From a head's folder and its target's name to an engine.

Of the target only configuration, tokenizer and, where the head has none, embeddings are read.
"""

from __future__ import annotations

import logging
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
from services.engine.eagle.engine import EagleEngine, Table, Target
from services.engine.eagle.layout import HeadConfig, read_config
from services.engine.eagle.readings import Reading, readings_of
from services.engine.eagle.tensors import COLUMNS, EMBEDDINGS, HeadTensors
from services.engine.limits import max_context
from services.engine.number_formats import number_format
from services.engine.spec import DTYPES, ModelSpec
from services.engine.threads import pin

if TYPE_CHECKING:
    from torch import Tensor

_log = logging.getLogger(__name__)
_PADDING = 512
"""Rows by which vocabularies of one tokenizer differ, at most."""


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
    readings = check_target(folder, config, described.get_text_config(), name)
    tensors = HeadTensors(folder, config, len(readings[0].layers))
    table = Table(
        *(_table(folder, config, tensors, source, spec, n) for n in (EMBEDDINGS, COLUMNS))
    )
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    digests = [file_digest(file, cache / "digests") for file in files]
    target = _target(source, described, name)
    _log.info("head %s is read with %s", folder, "; or with ".join(map(str, readings)))
    fingerprint = combine(*digests, weights, spec.dtype)
    return _engine(config, tensors, table, target, spec, readings=readings, fingerprint=fingerprint)


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


def check_target(folder: Path, config: HeadConfig, target: Any, name: str) -> list[Reading]:
    """The ways to read the head; StartError for a target that it is not for."""
    made = f"head {folder}: is not for {name}"
    own, other = config.target_width, target.hidden_size
    if own != other:
        raise StartError(f"{made}: a width of {own}, but {name} has one of {other}")
    own, other = config.vocab_size, target.vocab_size
    if abs(own - other) > min(_PADDING, max(own, other) // 64):
        raise StartError(f"{made}: a vocabulary of {own}, but {name} has one of {other}")
    depth = target.num_hidden_layers
    if config.said_layers not in (config.layers, depth):
        raise StartError(
            f"head {folder}: num_hidden_layers is {config.said_layers}, "
            f"but {config.layers} of them are stored"
        )
    try:
        return readings_of(config, depth, name)
    except StartError as error:
        raise StartError(f"{made}: {error}") from error


def _table(
    folder: Path, config: HeadConfig, tensors: HeadTensors, source: Path, spec: ModelSpec, name: str
) -> Tensor:
    """The head's own embeddings or output, or the target's."""
    if name in tensors:
        return tensors(name)
    what = "embeddings" if name == EMBEDDINGS else "output"
    try:
        if source.suffix == ".gguf":
            read = gguf_model.read_embeddings if name == EMBEDDINGS else gguf_model.read_output
            found = read(source, number_format(spec.dtype).read)
        else:
            saved = SavedTensors(source)
            found = saved.embeddings() if name == EMBEDDINGS else saved.output()
    except (ValueError, OSError) as error:
        raise StartError(f"head {folder}: has no {what}, and {error}") from error
    fits = found.dim() == 2 and found.shape[1] == config.width and found.is_floating_point()
    if not fits or abs(len(found) - config.vocab_size) > _PADDING:
        wanted = [config.vocab_size, config.width]
        raise StartError(
            f"head {folder}: its target's {what} are {list(found.shape)}, not {wanted}"
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

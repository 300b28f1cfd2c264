"""A target before its weights are read: configuration, tokenizer and size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from services.contract.errors import PacelineError, StartError
from services.contract.types import TokenizerBundle
from services.engine.checkpoint.bundle import (
    read_bundle,
    read_config,
    read_generation_config,
    source_folder,
)
from services.engine.checkpoint.files import one_line, weights_digest
from services.engine.limits import max_context
from services.engine.native.dialogue import Dialogue, dialogue_of, tokenizer_of


@dataclass(frozen=True, slots=True)
class Target:
    """The model to learn from.

    `folder`: its safetensors, converted if need be. `weights`: what identifies them.
    `parameters`: how many it has.
    """

    name: str
    folder: Path
    config: Any
    bundle: TokenizerBundle
    weights: str
    parameters: int
    tokenizer: Any
    dialogue: Dialogue

    @property
    def vocab_size(self) -> int:
        """Tokens it knows."""
        size: int = self.config.get_text_config().vocab_size
        return size

    @property
    def architecture(self) -> str:
        """Its model's class, as its configuration names it; empty where it does not."""
        name: str = (self.config.architectures or [""])[0]
        return name

    @property
    def layers(self) -> int:
        """Decoder layers of its stack."""
        count: int = self.config.get_text_config().num_hidden_layers
        return count

    @property
    def context(self) -> int:
        """Its longest text in tokens."""
        return max_context(self.config.get_text_config(), None)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, with nothing put around them."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids


def read_target(name: str) -> Target:
    """A target by its name, without its weights.

    Raises StartError for one that is not there, is of an unknown kind, or has no
    fast tokenizer.
    """
    folder = source_folder(name)
    config = read_config(folder, name)
    _require_decoder(config, name)
    model = _without_weights(config, name)
    model.generation_config = read_generation_config(folder, name, config)
    bundle = read_bundle(folder, model, name)
    tokenizer = tokenizer_of(bundle)
    return Target(
        name=name,
        folder=folder,
        config=config,
        bundle=bundle,
        weights=weights_digest(name),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        tokenizer=tokenizer,
        dialogue=dialogue_of(tokenizer),
    )


@contextmanager
def supported(name: str) -> Iterator[None]:
    """Turn what goes wrong inside into a StartError that names the target."""
    try:
        yield
    except PacelineError:
        raise
    except Exception as error:
        told = one_line(error)
        raise StartError(f"{name}: this architecture is not supported ({told})") from error


def _require_decoder(config: Any, name: str) -> None:
    text = config.get_text_config()
    for field in ("num_hidden_layers", "num_attention_heads", "max_position_embeddings"):
        if getattr(text, field, None) is None:
            raise StartError(f"{name}: this architecture is not supported (it has no {field})")


def _without_weights(config: Any, name: str) -> Any:
    from transformers import AutoModelForCausalLM

    with supported(name), torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)

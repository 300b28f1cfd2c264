"""Llama models with random weights, and what their weights and K/V take."""

from pathlib import Path
from typing import Any

import torch

from services.engine.number_formats import number_format

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 320,
        "initializer_range": 0.2,
    },
    "135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49_152,
        "tie_word_embeddings": True,
    },
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "tie_word_embeddings": True,
    },
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    },
}
"""Those of SmolLM2-135M, Llama 3.2 1B and Llama 3.1 8B, and one to check with.

Its heads are as wide as the narrowest that vLLM computes.
"""


def random_model(shape: str, device: str, dtype: str) -> Any:
    """A Llama model with random weights, made where it is to run."""
    from transformers import LlamaForCausalLM

    config = _config(shape)
    config.dtype = getattr(torch, dtype)
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(config)
    return model.to(getattr(torch, dtype)).eval()


def save(model: Any, folder: Path) -> None:
    """As workers load one; the tokenizer knows no text."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    model.save_pretrained(folder)
    _save_tokenizer(folder)


def save_without_weights(shape: str, folder: Path) -> None:
    """The same of a shape, without its weights: whoever loads it makes them up."""
    from safetensors.torch import save_file

    config = _config(shape)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    save_file({"none": torch.zeros(1)}, folder / "model.safetensors")
    _save_tokenizer(folder)


def weight_bytes(shape: str, dtype: str) -> int:
    """What the weights take; made nowhere to count them."""
    model = random_model(shape, "meta", dtype)
    return sum(int(tensor.nbytes) for tensor in model.parameters())


def bytes_per_token(shape: str, dtype: str, device: str) -> int:
    """What the K/V of a token takes where the model runs."""
    config = _config(shape)
    width: int = config.hidden_size // config.num_attention_heads
    elements = 2 * int(config.num_hidden_layers) * int(config.num_key_value_heads) * width
    return elements * number_format(dtype, device).computed.itemsize


def _config(shape: str) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**SHAPES[shape], max_position_embeddings=8192)


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE())).save_pretrained(folder)

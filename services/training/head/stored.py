"""The folder of a head, in the public layout of vLLM's `speculators`.

    config.json          sizes, which states it sees, its target, its card
    model.safetensors    fc, layers.0.*, norm, lm_head, d2t, t2d

Embeddings are the target's and not stored. int8 is that of compressed-tensors: symmetric, one
bfloat16 scale (`<name>_scale` [rows, 1]) for each output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.engine.eagle.layout import read_config
from services.engine.eagle.tensors import HeadTensors, restored
from services.training.head.head import EagleHead, HeadShape
from services.training.options import Storage
from services.training.target import Target

CONFIG, TENSORS = "config.json", "model.safetensors"
_LARGEST = 127.0


def save_head(
    head: EagleHead,
    head_ids: Tensor,
    target: Target,
    folder: Path,
    *,
    storage: Storage,
    drafted: int,
    card: Mapping[str, Any],
) -> None:
    """Write a head's two files; other files of `folder` stay. `drafted`: tokens it was trained for.

    Raises ValueError for weights that are not finite.
    """
    from safetensors.torch import save_file

    tensors = {**stored_tensors(head, storage), **_vocabulary(head_ids, target.vocab_size)}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / TENSORS, {"format": "pt"})
    described = _config(head.shape, target, storage, drafted)
    described["paceline"] = {
        "target": target.name,
        "target_weights": target.weights,
        "card": dict(card),
    }
    (folder / CONFIG).write_text(json.dumps(described, indent=2) + "\n")


def stored_tensors(head: EagleHead, storage: Storage) -> dict[str, Tensor]:
    """The head's parameters in the form in which they are stored."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in head.named_parameters():
        value = parameter.detach().cpu().float()
        if not bool(value.isfinite().all()):
            raise ValueError(f"{name} is not finite")
        if value.dim() > 1 and storage == "int8":
            tensors[name], tensors[f"{name}_scale"] = rounded(value)
        else:
            tensors[name] = value.to(torch.bfloat16).contiguous()
    return tensors


def rounded(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Codes int8 [rows, columns] and scales bfloat16 [rows, 1] of a matrix."""
    scales = (weights.abs().amax(-1, keepdim=True) / _LARGEST).to(torch.bfloat16)
    inverse = torch.where(scales == 0, 0.0, 1.0 / scales.float())
    codes = (weights * inverse).round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8)
    return codes.contiguous(), scales


@torch.no_grad()
def as_stored(head: EagleHead, storage: Storage) -> EagleHead:
    """The head with the values that its stored form has."""
    copy = EagleHead(head.shape)
    _fill(copy, stored_tensors(head, storage))
    return copy.to(head.fc.weight.device)


@torch.no_grad()
def read_head(folder: Path) -> tuple[EagleHead, Tensor]:
    """A head that `save_head` wrote, in float32, and the ids of its tokens; for measuring."""
    config = read_config(folder)
    shape = HeadShape(
        config.states or (),
        config.draft_vocab_size,
        config.width,
        config.heads,
        config.kv_heads,
        config.head_width,
        config.inner,
        config.epsilon,
        config.rope["rope_theta"],
    )
    tensors = HeadTensors(folder, config, len(shape.layers))
    head = EagleHead(shape)
    for name, parameter in head.named_parameters():
        parameter.copy_(tensors(name))
    ids, order = tensors.head_ids(config)
    if order is not None:
        head.lm_head.weight.copy_(head.lm_head.weight[order])
    return head, ids


def _fill(head: EagleHead, tensors: Mapping[str, Tensor]) -> None:
    for name, parameter in head.named_parameters():
        parameter.copy_(restored(tensors[name], tensors.get(f"{name}_scale")))


def _vocabulary(head_ids: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """How much to add to a column for its token, and which tokens the head knows."""
    known = torch.zeros(vocab_size, dtype=torch.bool)
    known[head_ids] = True
    ids = head_ids.cpu().to(torch.int64)
    return {"d2t": ids - torch.arange(len(ids)), "t2d": known}


def _config(shape: HeadShape, target: Target, storage: Storage, drafted: int) -> dict[str, Any]:
    described: dict[str, Any] = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": _speculators(target, drafted),
        "transformer_layer_config": _layer(shape, target),
        "eagle_aux_hidden_state_layer_ids": list(shape.layers),
        "draft_vocab_size": shape.tokens,
        "target_hidden_size": shape.width,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    if storage == "int8":
        described["quantization_config"] = _QUANTIZATION
    return described


def _speculators(target: Target, drafted: int) -> dict[str, Any]:
    return {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": drafted}],
        "verifier": {"name_or_path": target.name, "architectures": [target.architecture]},
    }


def _layer(shape: HeadShape, target: Target) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": shape.width,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.theta},
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": target.vocab_size,
        "max_position_embeddings": target.context,
        "tie_word_embeddings": False,
    }


_WEIGHTS = {
    "num_bits": 8,
    "type": "int",
    "strategy": "channel",
    "symmetric": True,
    "dynamic": False,
}
_QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": _WEIGHTS, "input_activations": None}
    },
    "ignore": [],
}

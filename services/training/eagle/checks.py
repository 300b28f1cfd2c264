"""What is refused before a head is trained, one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from services.contract.errors import StartError
from services.engine.limits import check_layers
from services.engine.native.student.shape import stack_path
from services.training.distill.checks import (
    CHECKPOINT_BYTES,
    LOGIT_BYTES,
    TRAINED_BYTES,
    WEIGHT_BYTES,
    Commission,
    check_head,
    ground_of,
    kv_bytes,
    planned,
)
from services.training.distill.options import DistillOptions
from services.training.distill.target import Target, supported
from services.training.distill.texts import LAW_BYTES
from services.training.eagle.head import EagleHead, HeadShape, default_layers, shape_of
from services.training.eagle.states import STATE_BYTES

MOST_STEPS = 8


@dataclass(frozen=True, slots=True)
class HeadJob(Commission):
    """A training of a head that passed all checks."""

    options: DistillOptions
    shape: HeadShape
    own_parameters: int


def check(options: DistillOptions) -> HeadJob:
    """The job that the options describe; StartError, one line, for what cannot be done."""
    _check_own(options)
    ground = ground_of(options, options.positions)
    target = ground.target
    layers = options.layers or default_layers(target.layers)
    check_layers(layers, target.layers, target.name)
    check_head(options, target)
    shape = shape_of(target.config, layers, options.head_tokens)
    own = _own_parameters(target, shape)
    work, plan = planned(
        options,
        ground,
        _training(options, shape),
        memory=memory_needed(options, target, own),
        disk=disk_needed(options, shape, own),
    )
    return HeadJob(options, *ground, work, plan, shape, own)


def _check_own(options: DistillOptions) -> None:
    if options.storage == "int4":
        raise StartError("--storage: a head is stored as bfloat16 or int8")
    weights = options.step_weights
    if not 1 <= len(weights) <= MOST_STEPS or not all(0 < weight < 100 for weight in weights):
        raise StartError(f"--step-weights: needed are 1 to {MOST_STEPS} numbers above 0")
    if not 0 < options.rate < 1:
        raise StartError(f"--learning-rate: {options.rate} is not allowed; allowed is 0 to 1")


def _own_parameters(target: Target, shape: HeadShape) -> int:
    """How many parameters a head has; StartError for a target that none can be made for."""
    from transformers import AutoModelForCausalLM

    with supported(target.name), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(target.config)
        _require_plain_ends(model, shape)
        stack_path(model)
        head = EagleHead(shape)
    return sum(parameter.numel() for parameter in head.parameters())


def _require_plain_ends(model: Any, shape: HeadShape) -> None:
    """Raise StartError unless embeddings and output rows are as wide as the states."""
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    widths = [end.weight.shape[-1] for end in ends if isinstance(end, nn.Embedding | nn.Linear)]
    if widths != [shape.width] * 2:
        raise StartError(f"{type(model).__name__}: its embeddings are not as wide as its states")


def _training(options: DistillOptions, shape: HeadShape) -> dict[str, Any]:
    """What decides a head beside its texts."""
    return {
        "kind": options.kind,
        "layers": shape.layers,
        "head_tokens": options.head_tokens,
        "step_weights": options.step_weights,
        "train": options.positions,
        "learning_rate": options.rate,
        "batch_positions": options.step_positions,
    }


def memory_needed(options: DistillOptions, target: Target, own: int) -> int:
    """Bytes, roughly: weights, distributions, and the larger of writing's and training's share."""
    always = target.parameters * WEIGHT_BYTES + options.write * LAW_BYTES
    logits = options.step_positions * options.head_tokens * LOGIT_BYTES
    steps = len(options.step_weights) * logits
    return always + max(kv_bytes(options, target), own * TRAINED_BYTES + steps)


def disk_needed(options: DistillOptions, shape: HeadShape, own: int) -> int:
    """Bytes: distributions, states of all tokens, and a checkpoint beside its successor.

    A text has at most as many tokens for each distribution as its longest prompt and answer.
    """
    whole = options.prompt_tokens + options.answer_tokens
    tokens = -(-options.write * whole // options.answer_tokens)
    states = tokens * shape.state_width * STATE_BYTES
    return options.write * LAW_BYTES + states + 2 * own * CHECKPOINT_BYTES

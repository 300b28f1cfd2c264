"""Cutting a student from its target, for any architecture of stacked decoder layers.

A student is a model of its target's own class with n of its layers. Token and
position embeddings are the target's, shared by reference and never trained. The
head knows m tokens only, the most frequent ones (FR-Spec, Zhao et al.,
2502.14856); nothing is lost by that, because the target judges with its whole law.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from services.contract.errors import StartError


@dataclass(frozen=True, slots=True)
class Student:
    """A small model and what its parts mean.

    `model`: a transformers model whose head has one row per entry of `head_ids`,
    int64 [m], ascending token ids. `layers`: the target's layers that its own
    began as, in order.
    """

    model: Any
    layers: tuple[int, ...]
    head_ids: Tensor

    def own(self) -> dict[str, nn.Parameter]:
        """The parameters that are not the target's: layers, last norm, head."""
        shared = shared_names(self.model)
        return {name: p for name, p in self.model.named_parameters() if name not in shared}


def shared_names(model: Any) -> frozenset[str]:
    """Names of the parameters that a student takes from its target: all embeddings."""
    return frozenset(
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        for name, _ in module.named_parameters(recurse=False)
    )


def stack_path(model: Any) -> str:
    """Where the decoder layers are, as in `model.get_submodule`.

    Raises StartError where there is not exactly one stack of them.
    """
    count = model.config.get_text_config().num_hidden_layers
    stacks: list[str] = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if len(stacks) != 1:
        kind = type(model).__name__
        raise StartError(f"{kind}: {len(stacks)} stacks of {count} decoder layers, not one")
    return stacks[0]


def shell(config: Any, layers: Sequence[int], head_ids: Tensor, dtype: torch.dtype) -> Student:
    """A student of the target with this config, in its shape but not with its weights.

    Raises StartError for a layer that the target does not have, or a head that
    is no linear layer.
    """
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    whole = config.get_text_config().num_hidden_layers
    if not layers or not all(0 <= number < whole for number in layers):
        raise StartError(f"layers {list(layers)}: the target has layers 0..{whole - 1}")
    with no_init_weights():  # every parameter is about to be replaced
        model = AutoModelForCausalLM.from_config(_shortened(config, layers), dtype=dtype).eval()
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise StartError(f"{type(model).__name__}: its head is no linear layer")
    bias = head.bias is not None
    small = nn.Linear(head.in_features, len(head_ids), bias=bias, dtype=dtype)
    model.set_output_embeddings(small)
    return Student(model, tuple(layers), head_ids)


def _shortened(config: Any, layers: Sequence[int]) -> Any:
    config = copy.deepcopy(config)
    text = config.get_text_config()
    types = getattr(text, "layer_types", None)
    text.num_hidden_layers = len(layers)
    if types is not None:
        text.layer_types = [types[number] for number in layers]
    config.tie_word_embeddings = False
    config._attn_implementation = None
    return config


@torch.no_grad()
def cut(target: Any, layers: Sequence[int], head_ids: Tensor) -> Student:
    """A student of `target` that begins with copies of its layers, norm and head rows.

    Embeddings are shared by reference. Raises StartError for an architecture
    whose layers or head cannot be told apart, or a layer that is not there.
    """
    path = stack_path(target)
    student = shell(target.config, layers, head_ids, target.dtype)
    share_embeddings(student, dict(target.named_parameters()))
    head = target.get_output_embeddings()
    heads = {id(p) for p in student.model.get_output_embeddings().parameters()}
    for name, parameter in student.own().items():
        if id(parameter) in heads:
            parameter.copy_(getattr(head, name.rpartition(".")[2])[head_ids])
        else:
            parameter.copy_(target.get_parameter(_original(name, path, layers)))
    return student


def share_embeddings(student: Student, tensors: dict[str, Tensor]) -> None:
    """Let the student's embeddings be these tensors, by their names in the target."""
    for name in shared_names(student.model):
        path, _, leaf = name.rpartition(".")
        parameter = nn.Parameter(tensors[name], requires_grad=False)
        setattr(student.model.get_submodule(path), leaf, parameter)


def _original(name: str, path: str, layers: Sequence[int]) -> str:
    """What the target calls a parameter of the student."""
    if not name.startswith(f"{path}."):
        return name
    number, _, rest = name[len(path) + 1 :].partition(".")
    return f"{path}.{layers[int(number)]}.{rest}"

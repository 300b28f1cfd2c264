"""Everything that can be refused before any work, one line each."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from services.common.engine.context import free_memory
from services.common.errors import StartError
from services.distill.options import DistillOptions
from services.distill.prompts import normalised, read_openings, read_prompts, refuse_excluded
from services.distill.target import Target, own_parameters, read_target
from services.distill.texts import LAW_BYTES
from services.distill.work import WorkFolder, plan_of

#: Texts whose number leaves this rest are held out.
HELD_EVERY, HELD_REST = 40, 7

_GIB = 1 << 30
_WEIGHT_BYTES = 4
_KV_BYTES = 4
#: Weights, gradients and two moments of AdamW in float32; a checkpoint has no gradients.
_TRAINED_BYTES, _CHECKPOINT_BYTES = 16, 12
#: Logits, their softmax and the gradients of both.
_LOGIT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Job:
    """A distillation that passed all checks.

    `prompts` and `openings` are empty where there is no such file; `excluded`
    holds prompts that must not be trained on, normalised.
    """

    options: DistillOptions
    target: Target
    layers: tuple[int, ...]
    own_parameters: int
    device: torch.device
    prompts: tuple[str, ...]
    openings: tuple[str, ...]
    excluded: frozenset[str]
    work: WorkFolder
    plan: Mapping[str, Any]


def check(options: DistillOptions) -> Job:
    """The job that the options describe; StartError, one line, for what cannot be done."""
    _check_place(options)
    prompts, openings, excluded = _read_files(options)
    _check_amounts(options)
    device = _device(options.device)
    target = read_target(options.target)
    layers = options.layers or default_layers(options.num_layers, target.layers)
    _check_head(options, target)
    own = own_parameters(target, layers, options.head_tokens)
    _check_context(options, target, openings)
    plan = plan_of(options, layers, target.weights)
    work = WorkFolder(options.work_folder)
    work.require_plan(plan)
    _check_room("memory", memory_needed(options, target, own), _free_memory(device))
    _check_room("disk", disk_needed(options, own), _free_disk(options.work_folder))
    return Job(options, target, layers, own, device, prompts, openings, excluded, work, plan)


def default_layers(count: int, whole: int) -> tuple[int, ...]:
    """`count` of `whole` layers: the first ones and the last ones, half of them each."""
    if not 1 <= count <= whole:
        raise StartError(f"--num-layers: {count} are asked for, the target has {whole} layers")
    first = (count + 1) // 2
    return (*range(first), *range(whole - (count - first), whole))


def memory_needed(options: DistillOptions, target: Target, own: int) -> int:
    """Bytes, roughly: weights and laws, and the larger of what writing and training add."""
    always = target.parameters * _WEIGHT_BYTES + options.write * LAW_BYTES
    step = options.batch_positions * options.head_tokens * _LOGIT_BYTES
    return always + max(_kv_bytes(options, target), own * _TRAINED_BYTES + step)


def disk_needed(options: DistillOptions, own: int) -> int:
    """Bytes: all laws, and a checkpoint beside the one that it replaces."""
    return options.write * LAW_BYTES + 2 * own * _CHECKPOINT_BYTES


def _kv_bytes(options: DistillOptions, target: Target) -> int:
    config = target.config.get_text_config()
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    per_layer = 2 * (getattr(config, "num_key_value_heads", None) or heads) * width
    tokens = options.batch * (options.prompt_tokens + options.answer_tokens)
    return int(tokens * target.layers * per_layer * _KV_BYTES)


def _check_room(kind: str, needed: int, free: int) -> None:
    if needed > free:
        raise StartError(
            f"too little {kind}: about {needed / _GIB:.1f} GiB are needed, "
            f"{free / _GIB:.1f} GiB are free"
        )


def _free_memory(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else free_memory()


def _free_disk(folder: Path) -> int:
    return shutil.disk_usage(_nearest(folder)).free


def _nearest(path: Path) -> Path:
    """The path itself, or the nearest folder above it that is there."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def _check_place(options: DistillOptions) -> None:
    if options.out.exists():
        raise StartError(f"--out: {options.out} exists already")
    if not os.access(_nearest(options.out), os.W_OK):
        raise StartError(f"--out: {options.out} cannot be written")
    if importlib.util.find_spec("matplotlib") is None:
        raise StartError("matplotlib is needed for the plot, and is not installed")


def _read_files(
    options: DistillOptions,
) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]:
    if options.prompts and options.openings:
        raise StartError("--openings: there are none where --prompts gives whole prompts")
    excluded = frozenset(
        normalised(turn)
        for path in options.exclude
        for prompt in read_prompts(path, "--exclude")
        for turn in prompt.turns
    )
    prompts = read_prompts(options.prompts) if options.prompts else []
    if options.prompts:
        refuse_excluded(options.prompts, prompts, excluded)
        if len(prompts) <= HELD_REST:
            raise StartError(
                f"--prompts: {options.prompts} has {len(prompts)} prompts; at least "
                f"{HELD_REST + 1} are needed, so that one can be held out"
            )
    openings = read_openings(options.openings) if options.openings else []
    return tuple(prompt.text for prompt in prompts), tuple(openings), excluded


def _check_amounts(options: DistillOptions) -> None:
    least = (HELD_REST + 1) * (options.prompt_tokens + options.answer_tokens)
    if options.write < least:
        raise StartError(
            f"--write: {options.write} laws may be too few for a text to hold out; "
            f"allowed is {least} or more (with these --prompt-tokens and --answer-tokens)"
        )
    if options.positions < 1:
        raise StartError(f"--train: {options.positions} is not allowed; allowed is 1 or more")
    if not options.temperatures or not all(0 <= heat < 100 for heat in options.temperatures):
        raise StartError("--temperatures: needed are one or more numbers of 0 or more")


def _check_head(options: DistillOptions, target: Target) -> None:
    least = len(set(target.bundle.eos_token_ids)) + 1
    if not least <= options.head_tokens <= target.vocab_size:
        raise StartError(
            f"--head-tokens: {options.head_tokens} is not allowed; the target's vocabulary "
            f"allows {least}..{target.vocab_size}"
        )


def _check_context(options: DistillOptions, target: Target, openings: Sequence[str]) -> None:
    around = len(target.dialogue.before) + len(target.dialogue.after)
    opening = max((len(target.encode(text)) for text in openings), default=0)
    if around + opening + options.prompt_tokens >= target.context:
        raise StartError(
            f"--prompt-tokens: {options.prompt_tokens} leave no room for an answer in the "
            f"target's context of {target.context} tokens"
        )


def _device(name: str) -> torch.device:
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise StartError("--device: there is no CUDA device")
    return torch.device("cuda" if there and name != "cpu" else "cpu")

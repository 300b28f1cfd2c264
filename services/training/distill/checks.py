"""Everything that can be refused before any work, one line each."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from services.contract.errors import StartError
from services.engine.limits import free_memory
from services.training.distill.options import DistillOptions, WritingOptions
from services.training.distill.prompts import normalised, read_openings, refuse_excluded
from services.training.distill.target import Target, own_parameters, read_target
from services.training.distill.texts import LAW_BYTES
from services.training.distill.work import WorkFolder, plan_of
from services.training.prompts import read_prompts

#: Texts whose number leaves this rest are held out.
HELD_EVERY, HELD_REST = 40, 7

_GIB = 1 << 30
WEIGHT_BYTES = 4
_KV_BYTES = 4
#: Weights, gradients and two moments of AdamW in float32; a checkpoint has no gradients.
TRAINED_BYTES, CHECKPOINT_BYTES = 16, 12
#: Logits, their softmax and the gradients of both.
LOGIT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Sources:
    """What the files of the options say.

    `prompts` and `openings` are empty where there is no such file; `excluded`
    holds prompts that must not be trained on, normalised.
    """

    prompts: tuple[str, ...]
    openings: tuple[str, ...]
    excluded: frozenset[str]


class Ground(NamedTuple):
    """The target, where it runs, and what it is to go on from."""

    target: Target
    device: torch.device
    sources: Sources


@dataclass(frozen=True, slots=True)
class Commission:
    """The texts of a training that passed all checks."""

    options: WritingOptions
    target: Target
    device: torch.device
    sources: Sources
    work: WorkFolder
    plan: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Job(Commission):
    """A distillation that passed all checks."""

    options: DistillOptions
    layers: tuple[int, ...]
    own_parameters: int


def check(options: DistillOptions) -> Job:
    """The job that the options describe; StartError, one line, for what cannot be done."""
    ground = ground_of(options, options.positions)
    target = ground.target
    layers = options.layers or default_layers(options.num_layers, target.layers)
    check_head(options, target)
    own = own_parameters(target, layers, options.head_tokens)
    work, plan = planned(
        options,
        ground,
        _training(options, layers),
        memory=memory_needed(options, target, own),
        disk=disk_needed(options, own),
    )
    return Job(options, *ground, work, plan, layers, own)


def ground_of(options: WritingOptions, positions: int) -> Ground:
    """What texts can be written with; StartError, one line, for what cannot be done.

    `positions`: so many are to be seen in training.
    """
    check_place(options)
    sources = read_sources(options)
    check_amounts(options, positions)
    device = device_of(options.device)
    target = read_target(options.target)
    check_context(options, target, sources.openings)
    return Ground(target, device, sources)


def planned(
    options: WritingOptions,
    ground: Ground,
    training: Mapping[str, Any],
    *,
    memory: int,
    disk: int,
) -> tuple[WorkFolder, Mapping[str, Any]]:
    """The folder of the work, and its plan; StartError if it holds another one's, or lacks room.

    `training`: what decides the result beside the texts. `memory` and `disk`: bytes needed.
    """
    plan = plan_of(options, ground.target.weights, training)
    work = WorkFolder(options.work_folder)
    work.require_plan(plan)
    check_room("memory", memory, free_bytes(ground.device))
    check_room("disk", disk, free_disk(work.path))
    return work, plan


def _training(options: DistillOptions, layers: tuple[int, ...]) -> dict[str, Any]:
    """What decides a distillation beside its texts."""
    return {
        "layers": layers,
        "head_tokens": options.head_tokens,
        "train": options.positions,
        "learning_rate": options.rate,
        "batch_positions": options.step_positions,
    }


def default_layers(count: int, whole: int) -> tuple[int, ...]:
    """`count` of `whole` layers: the first ones and the last ones, half of them each."""
    if not 1 <= count <= whole:
        raise StartError(f"--num-layers: {count} are asked for, the target has {whole} layers")
    first = (count + 1) // 2
    return (*range(first), *range(whole - (count - first), whole))


def memory_needed(options: DistillOptions, target: Target, own: int) -> int:
    """Bytes, roughly: weights, distributions, and the larger of writing's and training's share."""
    always = target.parameters * WEIGHT_BYTES + options.write * LAW_BYTES
    step = options.step_positions * options.head_tokens * LOGIT_BYTES
    return always + max(kv_bytes(options, target), own * TRAINED_BYTES + step)


def disk_needed(options: DistillOptions, own: int) -> int:
    """Bytes: all distributions, and a checkpoint beside the one that it replaces."""
    return options.write * LAW_BYTES + 2 * own * CHECKPOINT_BYTES


def kv_bytes(options: WritingOptions, target: Target) -> int:
    """Bytes of K/V while the target writes."""
    config = target.config.get_text_config()
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    per_layer = 2 * (getattr(config, "num_key_value_heads", None) or heads) * width
    tokens = options.batch * (options.prompt_tokens + options.answer_tokens)
    return int(tokens * target.layers * per_layer * _KV_BYTES)


def check_room(kind: str, needed: int, free: int) -> None:
    """Raise StartError when fewer bytes are free than needed."""
    if needed > free:
        raise StartError(
            f"too little {kind}: about {needed / _GIB:.1f} GiB are needed, "
            f"{free / _GIB:.1f} GiB are free"
        )


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else free_memory()


def free_disk(folder: Path) -> int:
    """Bytes that are free where a folder is, or will be."""
    return shutil.disk_usage(_nearest(folder)).free


def _nearest(path: Path) -> Path:
    """The path itself, or the nearest folder above it that is there."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def check_place(options: WritingOptions) -> None:
    """Raise StartError unless the result can be put where it is wanted."""
    if options.out.exists():
        raise StartError(f"--out: {options.out} exists already")
    if not os.access(_nearest(options.out), os.W_OK):
        raise StartError(f"--out: {options.out} cannot be written")
    if importlib.util.find_spec("matplotlib") is None:
        raise StartError("matplotlib is needed for the plot, and is not installed")


def read_sources(options: WritingOptions) -> Sources:
    """The files that the options name; StartError for one that is bad."""
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
    return Sources(tuple(prompt.text for prompt in prompts), tuple(openings), excluded)


def check_amounts(options: WritingOptions, positions: int) -> None:
    """Raise StartError for texts, or positions to see, that are too few or not possible."""
    least = (HELD_REST + 1) * (options.prompt_tokens + options.answer_tokens)
    if options.write < least:
        raise StartError(
            f"--write: {options.write} distributions may be too few for a text to hold out; "
            f"allowed is {least} or more (with these --prompt-tokens and --answer-tokens)"
        )
    if positions < 1:
        raise StartError(f"--train: {positions} is not allowed; allowed is 1 or more")
    if not options.temperatures or not all(0 <= heat < 100 for heat in options.temperatures):
        raise StartError("--temperatures: needed are one or more numbers of 0 or more")


def check_head(options: DistillOptions, target: Target) -> None:
    """Raise StartError for a head of too few tokens, or more than there are."""
    least = len(set(target.bundle.eos_token_ids)) + 1
    if not least <= options.head_tokens <= target.vocab_size:
        raise StartError(
            f"--head-tokens: {options.head_tokens} is not allowed; the target's vocabulary "
            f"allows {least}..{target.vocab_size}"
        )


def check_context(options: WritingOptions, target: Target, openings: Sequence[str]) -> None:
    """Raise StartError when a prompt may fill the target's context."""
    around = len(target.dialogue.before) + len(target.dialogue.after)
    opening = max((len(target.encode(text)) for text in openings), default=0)
    if around + opening + options.prompt_tokens >= target.context:
        raise StartError(
            f"--prompt-tokens: {options.prompt_tokens} leave no room for an answer in the "
            f"target's context of {target.context} tokens"
        )


def device_of(name: str) -> torch.device:
    """The device that `--device` asks for; StartError when it is not there."""
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise StartError("--device: there is no CUDA device")
    return torch.device("cuda" if there and name != "cpu" else "cpu")

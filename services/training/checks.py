"""What is refused before any work, one line each; what is left is a job."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from services.contract.errors import StartError
from services.engine.limits import free_memory
from services.engine.threads import pin
from services.training.options import WritingOptions
from services.training.prompts import normalised, read_openings, read_prompts
from services.training.reporting import Reporter
from services.training.target import Target, read_target
from services.training.texts import LAW_BYTES
from services.training.work import WorkFolder, plan_of

#: Texts whose number leaves this rest are held out.
HELD_EVERY, HELD_REST = 40, 7

#: Logits, their softmax and the gradients of both.
LOGIT_BYTES = 16
_WEIGHT_BYTES = _KV_BYTES = 4
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Sources:
    """What the files of the options say.

    `prompts` and `openings` are empty where there is no such file; `excluded`
    holds prompts that must not be trained on, normalised.
    """

    prompts: tuple[str, ...]
    openings: tuple[str, ...]
    excluded: frozenset[str]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a kind of training needs beside its texts.

    `plan`: what decides its result. `memory`: bytes, once nothing is written any more. `disk`:
    bytes beside the distributions.
    """

    plan: Mapping[str, Any]
    memory: int = 0
    disk: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A training that passed all checks."""

    options: WritingOptions
    target: Target
    device: torch.device
    sources: Sources
    work: WorkFolder
    plan: Mapping[str, Any]


def check(
    options: WritingOptions,
    positions: int,
    needs: Callable[[Target], Needs],
    reporter: Reporter,
) -> Job:
    """The job that the options describe; StartError, one line, for what cannot be done.

    `positions`: so many are to be seen in training. `needs` may refuse the target, too.
    """
    reporter.say(f"checking {options.target} and the options")
    pin(options.threads, options.cpus)
    check_place(options.out)
    sources = _read_sources(options)
    _check_amounts(options, positions)
    device = _device_of(options.device)
    target = read_target(options.target)
    _check_context(options, target, sources.openings)
    own = needs(target)
    plan = plan_of(options, target.weights, own.plan)
    work = WorkFolder(options.work_folder)
    work.require_plan(plan)
    _check_room("memory", memory_needed(options, target, own.memory), free_bytes(device))
    disk = options.write * LAW_BYTES + own.disk
    _check_room("disk", disk, shutil.disk_usage(_nearest(work.path)).free)
    return Job(options, target, device, sources, work, plan)


def memory_needed(options: WritingOptions, target: Target, training: int) -> int:
    """Bytes, roughly: weights, distributions, and the larger of writing's and `training`'s."""
    config = target.config.get_text_config()
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    per_layer = 2 * (getattr(config, "num_key_value_heads", None) or heads) * width
    tokens = options.batch * (options.prompt_tokens + options.answer_tokens)
    writing = tokens * target.layers * per_layer * _KV_BYTES
    always = target.parameters * _WEIGHT_BYTES + options.write * LAW_BYTES
    return always + max(int(writing), training)


def check_place(out: Path) -> None:
    """Raise StartError unless the result can be put where it is wanted, and drawn."""
    if out.exists():
        raise StartError(f"--out: {out} exists already")
    if not os.access(_nearest(out), os.W_OK):
        raise StartError(f"--out: {out} cannot be written")
    if importlib.util.find_spec("matplotlib") is None:
        raise StartError("matplotlib is needed for the plot, and is not installed")


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else free_memory()


def _check_room(kind: str, needed: int, free: int) -> None:
    if needed > free:
        raise StartError(
            f"too little {kind}: about {needed / _GIB:.1f} GiB are needed, "
            f"{free / _GIB:.1f} GiB are free"
        )


def _nearest(path: Path) -> Path:
    """The path itself, or the nearest folder above it that is there."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def _read_sources(options: WritingOptions) -> Sources:
    if options.prompts and options.openings:
        raise StartError("--openings: there are none where --prompts gives whole prompts")
    excluded = frozenset(
        normalised(turn)
        for path in options.exclude
        for prompt in read_prompts(path, "--exclude")
        for turn in prompt.turns
    )
    prompts = _read_prompts(options.prompts, excluded) if options.prompts else ()
    openings = read_openings(options.openings) if options.openings else []
    return Sources(prompts, tuple(openings), excluded)


def _read_prompts(path: Path, excluded: frozenset[str]) -> tuple[str, ...]:
    prompts = read_prompts(path)
    for prompt in prompts:
        if normalised(prompt.text) in excluded:
            raise StartError(f"--prompts: {path} line {prompt.line} is a prompt of --exclude")
    if len(prompts) <= HELD_REST:
        raise StartError(
            f"--prompts: {path} has {len(prompts)} prompts; at least {HELD_REST + 1} are needed, "
            "so that one can be held out"
        )
    return tuple(prompt.text for prompt in prompts)


def _check_amounts(options: WritingOptions, positions: int) -> None:
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


def _check_context(options: WritingOptions, target: Target, openings: Sequence[str]) -> None:
    around = len(target.dialogue.before) + len(target.dialogue.after)
    opening = max((len(target.encode(text)) for text in openings), default=0)
    if around + opening + options.prompt_tokens >= target.context:
        raise StartError(
            f"--prompt-tokens: {options.prompt_tokens} leave no room for an answer in the "
            f"target's context of {target.context} tokens"
        )


def _device_of(name: str) -> torch.device:
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise StartError("--device: there is no CUDA device")
    return torch.device("cuda" if there and name != "cpu" else "cpu")

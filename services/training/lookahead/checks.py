"""What is refused before a training of look-ahead embeddings begins, one line each."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from services.contract.errors import StartError
from services.training.distill.checks import (
    LOGIT_BYTES,
    WEIGHT_BYTES,
    Commission,
    ground_of,
    kv_bytes,
    planned,
)
from services.training.distill.target import Target
from services.training.distill.texts import LAW_BYTES, shards
from services.training.lookahead.options import LookaheadOptions

MOST_STEPS = 32


def check(options: LookaheadOptions) -> Commission:
    """The texts and the place that the options describe; StartError for what cannot be done."""
    _check_own(options)
    ground = ground_of(options, options.train)
    _check_texts(options, ground.target)
    work, plan = planned(
        options,
        ground,
        _training(options),
        memory=memory_needed(options, ground.target),
        disk=0 if options.texts else options.write * LAW_BYTES,
    )
    return Commission(options, *ground, work, plan)


def memory_needed(options: LookaheadOptions, target: Target) -> int:
    """Bytes, roughly: weights, distributions, and the larger of writing's and a text's rows'."""
    always = target.parameters * WEIGHT_BYTES + options.write * LAW_BYTES
    rows = options.prompt_tokens + options.answer_tokens
    return always + max(kv_bytes(options, target), rows * target.vocab_size * LOGIT_BYTES)


def _check_own(options: LookaheadOptions) -> None:
    if options.out.suffix != ".safetensors":
        raise StartError(f"--out: {options.out} is no name of a .safetensors file")
    if not 1 <= options.steps <= MOST_STEPS:
        raise StartError(f"--steps: {options.steps} is not allowed; allowed is 1..{MOST_STEPS}")
    if not 0 < options.learning_rate < 100:
        raise StartError(f"--learning-rate: {options.learning_rate} is not allowed")
    if options.texts and (options.prompts or options.openings):
        raise StartError("--texts: they are written already, so they take no prompts or openings")


def _check_texts(options: LookaheadOptions, target: Target) -> None:
    for folder in options.texts:
        if not shards(folder):
            raise StartError(f"--texts: {folder} has no texts")
        if _written_by(folder) not in (None, target.weights):
            raise StartError(f"--texts: those of {folder} were written by another target")


def _written_by(folder: Path) -> str | None:
    """What identifies the weights of the texts' writer, where the folder's run tells."""
    try:
        plan: dict[str, Any] = json.loads((folder.parent / "plan.json").read_text())
        return plan.get("weights of the target")
    except (OSError, ValueError, AttributeError):
        return None


def _training(options: LookaheadOptions) -> dict[str, Any]:
    """What decides the embeddings beside their texts."""
    return {
        "steps": options.steps,
        "train": options.train,
        "learning_rate": options.learning_rate,
        "batch_positions": options.batch_positions,
        "content of texts": [_digest(folder) for folder in options.texts],
    }


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in shards(folder):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

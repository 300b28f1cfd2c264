"""A drafter's card: what it is, what it learnt from, how well it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.distill.checks import Job
from services.distill.learning import Score
from services.distill.training import Point


@dataclass(frozen=True, slots=True)
class Story:
    """What happened on the way: data, times in seconds, and the curve from the untrained start."""

    head_mass: float
    texts: int
    laws: int
    held_texts: int
    held_laws: int
    writing_seconds: float
    curve: Sequence[Point]


def card_of(job: Job, story: Story, stored: Score, size: int) -> dict[str, Any]:
    """The card as JSON has it; `acceptance` and `greedy` are those of the stored drafter."""
    start, end = story.curve[0], story.curve[-1]
    return {
        "acceptance": _rounded(stored.acceptance),
        "greedy": _rounded(stored.greedy),
        "before_storage": _figures(end),
        "untrained": _figures(start),
        "target": job.options.target,
        "layers": list(job.layers),
        "target_layers": job.target.layers,
        "parameters": job.own_parameters,
        "bytes": size,
        "storage": job.options.storage,
        "head_tokens": job.options.head_tokens,
        "head_mass": _rounded(story.head_mass),
        **_data(job, story),
        **_training(job, end),
        "command": job.options.command,
        "curve": [[point.positions, *_figures(point).values()] for point in story.curve],
    }


def _data(job: Job, story: Story) -> dict[str, Any]:
    options = job.options
    return {
        "prompts": f"{len(job.prompts)} from a file" if job.prompts else "written by the target",
        "texts": story.texts,
        "laws": story.laws,
        "held_out_texts": story.held_texts,
        "held_out_laws": story.held_laws,
        "excluded_prompts": len(job.excluded),
        "temperatures": list(options.temperatures),
        "writing_dtype": options.dtype,
        "writing_seconds": round(story.writing_seconds),
    }


def _training(job: Job, end: Point) -> dict[str, Any]:
    return {
        "positions": end.positions,
        "training_seconds": round(end.seconds),
        "learning_rate": job.options.learning_rate,
        "batch_positions": job.options.batch_positions,
        "seed": job.options.seed,
        "device": job.device.type,
    }


def _figures(point: Point) -> dict[str, float]:
    return {"acceptance": _rounded(point.acceptance), "greedy": _rounded(point.greedy)}


def _rounded(value: float) -> float:
    return round(value, 4)


def readme(card: Mapping[str, Any]) -> str:
    """The card for people, in Markdown."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in _rows(card))
    return _README.format(rows=rows, **card)


_README = """# A drafter for {target}

Distilled from its target: it proposes tokens, the target judges them, and the text keeps
the target's law exactly. It needs its target beside it (embeddings, tokenizer), and no other.

    paceline up --target {target} --draft DIR

| | |
|---|---|
{rows}

Acceptance is the mean of Σ min(p, q) over held-out positions, p and q the laws of target and
drafter at temperature 1: the chance that a drafted token is kept. Greedy agreement is how often
both have the same likeliest token. Both were measured on texts whose prompts were not trained
on, with the drafter as it is stored, in float32.

![acceptance against positions seen](acceptance.svg)

Made by

    {command}
"""


def _rows(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    start, before = card["untrained"], card["before_storage"]
    return [
        ("acceptance, greedy agreement", f"**{card['acceptance']:.3f}**, **{card['greedy']:.3f}**"),
        ("before it was stored", f"{before['acceptance']:.3f}, {before['greedy']:.3f}"),
        ("untrained start", f"{start['acceptance']:.3f}, {start['greedy']:.3f}"),
        ("layers", f"{_listed(card['layers'])} of {card['target_layers']}"),
        ("parameters of its own", f"{card['parameters'] / 1e6:.1f} million"),
        ("storage", f"{card['storage']}, {card['bytes'] / 1e6:.1f} MB"),
        ("head", f"{card['head_tokens']} tokens, {card['head_mass']:.1%} of the target's law"),
        ("texts", f"{card['texts']}, with {card['laws']} laws"),
        ("held out", f"{card['held_out_texts']}, with {card['held_out_laws']} laws"),
        ("prompts", f"{card['prompts']}; {card['excluded_prompts']} excluded"),
        ("written", _written(card)),
        ("trained", _trained(card)),
    ]


def _written(card: Mapping[str, Any]) -> str:
    heats = _listed(sorted(set(card["temperatures"])))
    return f"at temperatures {heats} in {card['writing_dtype']}, {_time(card['writing_seconds'])}"


def _trained(card: Mapping[str, Any]) -> str:
    return (
        f"{card['positions']} positions, {_time(card['training_seconds'])} ({card['device']}), "
        f"learning rate {card['learning_rate']}, {card['batch_positions']} positions a step, "
        f"seed {card['seed']}"
    )


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"

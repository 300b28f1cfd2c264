"""A drafter's card: what it is, what it learnt from, how well it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.training.distill.checks import Commission, Job
from services.training.distill.learning import Score
from services.training.distill.training import Point


@dataclass(frozen=True, slots=True)
class Course:
    """What happened on the way: data, times in seconds, and the curve from the untrained start."""

    texts: int
    laws: int
    held_texts: int
    held_laws: int
    writing_seconds: float
    curve: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Story(Course):
    """That of a drafter, whose head has a share `head_mass` of the target's distribution."""

    head_mass: float


def card_of(job: Job, story: Story, stored: Score, size: int) -> dict[str, Any]:
    """The card as JSON has it; `acceptance` and `greedy` are those of the stored drafter."""
    start, end = story.curve[0], story.curve[-1]
    return {
        "acceptance": rounded(stored.acceptance),
        "greedy": rounded(stored.greedy),
        "before_storage": _figures(end),
        "untrained": _figures(start),
        "target": job.options.target,
        "layers": list(job.layers),
        "target_layers": job.target.layers,
        "parameters": job.own_parameters,
        "bytes": size,
        "storage": job.options.storage,
        "head_tokens": job.options.head_tokens,
        "head_mass": rounded(story.head_mass),
        **data_of(job, story),
        **training_of(job, end, job.options.rate, job.options.step_positions),
        "command": job.options.command,
        "curve": [[point.positions, *_figures(point).values()] for point in story.curve],
    }


def data_of(job: Commission, course: Course) -> dict[str, Any]:
    """What was learnt from."""
    options, prompts = job.options, job.sources.prompts
    return {
        "prompts": f"{len(prompts)} from a file" if prompts else "written by the target",
        "texts": course.texts,
        "laws": course.laws,
        "held_out_texts": course.held_texts,
        "held_out_laws": course.held_laws,
        "excluded_prompts": len(job.sources.excluded),
        "temperatures": list(options.temperatures),
        "writing_dtype": options.dtype,
        "writing_seconds": round(course.writing_seconds),
    }


def training_of(job: Commission, end: Point, rate: float, batch_positions: int) -> dict[str, Any]:
    """How it was learnt."""
    return {
        "positions": end.positions,
        "training_seconds": round(end.seconds),
        "learning_rate": rate,
        "batch_positions": batch_positions,
        "seed": job.options.seed,
        "device": job.device.type,
    }


def _figures(point: Point) -> dict[str, float]:
    return {"acceptance": rounded(point.acceptance), "greedy": rounded(point.greedy)}


def rounded(value: float) -> float:
    """A figure as the card has it."""
    return round(value, 4)


def readme(card: Mapping[str, Any]) -> str:
    """The card for people, in Markdown."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in _rows(card))
    return _README.format(rows=rows, **card)


_README = """# A drafter for {target}

Distilled from its target: it proposes tokens and the target verifies them, so the output
distribution is exactly the target's. It needs that target's embeddings and tokenizer.

    paceline up --target {target} --draft DIR

| | |
|---|---|
{rows}

Acceptance is the mean of Σ min(p, q) over held-out positions, p and q the distributions of
target and drafter at temperature 1: the chance that a drafted token is kept. Greedy agreement
is how often both have the same likeliest token. Both were measured on texts whose prompts were
not trained on, with the drafter as it is stored, in float32.

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
        ("layers", f"{listed(card['layers'])} of {card['target_layers']}"),
        ("parameters of its own", f"{card['parameters'] / 1e6:.1f} million"),
        ("storage", f"{card['storage']}, {card['bytes'] / 1e6:.1f} MB"),
        (
            "head",
            f"{card['head_tokens']} tokens, {card['head_mass']:.1%} of the target's probability",
        ),
        ("texts", f"{card['texts']}, with {card['laws']} distributions"),
        ("held out", f"{card['held_out_texts']}, with {card['held_out_laws']} distributions"),
        ("prompts", f"{card['prompts']}; {card['excluded_prompts']} excluded"),
        ("written", written_at(card)),
        ("trained", trained_on(card)),
    ]


def written_at(card: Mapping[str, Any]) -> str:
    """How the texts were drawn, in words."""
    heats = listed(sorted(set(card["temperatures"])))
    return f"at temperatures {heats} in {card['writing_dtype']}, {time_of(card['writing_seconds'])}"


def trained_on(card: Mapping[str, Any]) -> str:
    """How the training went, in words."""
    return (
        f"{card['positions']} positions, {time_of(card['training_seconds'])} ({card['device']}), "
        f"learning rate {card['learning_rate']}, {card['batch_positions']} positions a step, "
        f"seed {card['seed']}"
    )


def listed(values: Sequence[object]) -> str:
    """Values with commas between them."""
    return ", ".join(map(str, values))


def time_of(seconds: float) -> str:
    """Seconds as people say them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"

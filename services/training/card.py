"""What was made: its card, its curve, and how it is put into place as a whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.training.checks import Job
from services.training.learning import Score
from services.training.material import Material
from services.training.svg import drawing
from services.training.trainer import Point, TrainingPlan

_SERIES = (("acceptance", "acceptance Σ min(p, q)", "#1f77b4"), ("greedy", "greedy", "#d62728"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a training went: its curve, and each draft step's score before it and as stored."""

    curve: Sequence[Point]
    untrained: Sequence[Score]
    stored: Sequence[Score]


def data_of(job: Job, material: Material) -> dict[str, Any]:
    """What was learnt from, as a card has it in JSON."""
    options, prompts = job.options, job.sources.prompts
    texts, laws, held, held_laws = material.counts
    return {
        "prompts": f"{len(prompts)} from a file" if prompts else "written by the target",
        "texts": texts,
        "laws": laws,
        "held_out_texts": held,
        "held_out_laws": held_laws,
        "excluded_prompts": len(job.sources.excluded),
        "temperatures": list(options.temperatures),
        "writing_dtype": options.dtype,
        "writing_seconds": round(job.work.seconds),
        "seed": options.seed,
        "command": options.command,
    }


def training_of(job: Job, plan: TrainingPlan, rate: float, outcome: Outcome) -> dict[str, Any]:
    """How it was learnt, and how well; lists have one entry for each draft step."""
    end = outcome.curve[-1]
    return {
        "acceptance": [rounded(score.acceptance) for score in outcome.stored],
        "greedy": [rounded(score.greedy) for score in outcome.stored],
        "untrained_acceptance": [rounded(score.acceptance) for score in outcome.untrained],
        "untrained_greedy": [rounded(score.greedy) for score in outcome.untrained],
        "target": job.options.target,
        "positions": end.positions,
        "training_seconds": round(end.seconds),
        "learning_rate": rate,
        "batch_positions": plan.batch_positions,
        "device": job.device.type,
        "curve": [
            [point.positions, rounded(point.acceptance), rounded(point.greedy)]
            for point in outcome.curve
        ],
    }


def rounded(value: float) -> float:
    """A figure as the card has it."""
    return round(value, 4)


def steps_table(card: Mapping[str, Any], first: int = 1) -> str:
    """Rows of figures in Markdown, one for each draft step; that of the first is `first`."""
    names = ("acceptance", "greedy", "untrained_acceptance", "untrained_greedy")
    steps = enumerate(zip(*(card[name] for name in names), strict=True), first)
    return "\n".join(
        f"| {step} | {' | '.join(f'{value:.3f}' for value in values)} |" for step, values in steps
    )


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


def plot_curve(curve: Sequence[Point], path: Path) -> None:
    """Draw acceptance and agreement against positions; dotted lines are the untrained start."""
    start, *trained = curve
    with drawing(path) as (_, axes):
        seen = [point.positions for point in trained]
        for name, label, colour in _SERIES:
            values = [getattr(point, name) for point in trained]
            axes.plot(seen, values, marker=".", color=colour, label=label)
            axes.axhline(getattr(start, name), linestyle=":", color=colour)
        axes.set(xscale="log", xlabel="positions seen", ylabel="held-out texts", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(title="dotted: untrained")


@contextmanager
def folder_of(out: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `out` in the end."""
    scratch = out.with_name(f".{out.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    yield scratch
    # safetensors makes files that only their owner may read; what is made is served by others too.
    mode = (scratch / "README.md").stat().st_mode
    for path in scratch.iterdir():
        path.chmod(mode)
    os.rename(scratch, out)

"""What was made: its card, its curve, and how it is put into place as a whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.training.checks import Job
from services.training.material import Material
from services.training.reporting import Reporter
from services.training.svg import drawing
from services.training.trainer import Learner, TrainingPlan, train

_SERIES = (("acceptance Σ min(p, q)", "#1f77b4"), ("greedy", "#d62728"))


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


def taught(
    job: Job,
    learner: Learner,
    stored: Callable[[], Learner],
    plan: TrainingPlan,
    material: Material,
    reporter: Reporter,
) -> dict[str, Any]:
    """Train a learner in place; how it was learnt, and how well, as a card has it in JSON.

    `stored`: what is measured in the end. Lists have one entry for each draft step.
    """
    untrained = learner.scores(material.held)
    count = sum(parameter.numel() for parameter in learner.own.values())
    reporter.say(f"training {count} parameters on {job.device.type}")
    curve = train(learner, plan, material, job.work.path, reporter)
    reporter.say("measuring what is stored")
    scores = {"": stored().scores(material.held), "untrained_": untrained}
    end = curve[-1]
    return {
        **data_of(job, material),
        **{
            f"{when}{figure}": [rounded(getattr(score, figure)) for score in each]
            for when, each in scores.items()
            for figure in ("acceptance", "greedy")
        },
        "target": job.options.target,
        "positions": end.positions,
        "training_seconds": round(end.seconds),
        "learning_rate": plan.learning_rate,
        "batch_positions": plan.batch_positions,
        "device": job.device.type,
        "curve": [
            [point.positions, rounded(point.acceptance), rounded(point.greedy)] for point in curve
        ],
    }


def rounded(value: float) -> float:
    """A figure as the card has it."""
    return round(value, 4)


def page(
    card: Mapping[str, Any],
    title: str,
    about: str,
    rows: Sequence[tuple[str, object]],
    figures: str,
    curve: str = "",
) -> str:
    """The card for people, in Markdown; `rows` come before those that every kind has."""
    table = "\n".join(f"| {name} | {value} |" for name, value in (*rows, *_made_of(card)))
    drawn = f"![acceptance and greedy agreement, mean over the steps, by positions]({curve})"
    parts = (f"# {title}", about, figures, f"| | |\n|---|---|\n{table}", curve and drawn)
    return "\n\n".join((*filter(None, parts), f"Made by\n\n    {card['command']}")) + "\n"


def step_figures(card: Mapping[str, Any], first: int = 1) -> str:
    """Acceptance and agreement of each draft step, the first of which drafts token `first`."""
    names = ("acceptance", "greedy", "untrained_acceptance", "untrained_greedy")
    steps = enumerate(zip(*(card[name] for name in names), strict=True), first)
    rows = (f"| {step} | {' | '.join(f'{one:.3f}' for one in values)} |" for step, values in steps)
    return "\n".join((_STEPS, *rows, "", _MEANING))


_STEPS = """| drafted token | acceptance | greedy agreement | untrained: acceptance | greedy |
|---|---|---|---|---|"""
_MEANING = """Measured, as it is stored, on texts whose prompts were not trained on, given that the
tokens before were drafted right: acceptance is the mean of Σ min(p, q), p and q the distributions
of target and draft at temperature 1; greedy agreement is how often both have the same likeliest
token."""


def _made_of(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What it was learnt from, and how."""
    yield "texts", f"{card['texts']}, with {card['laws']} distributions"
    yield "held out", f"{card['held_out_texts']}, with {card['held_out_laws']} distributions"
    yield "prompts", f"{card['prompts']}; {card['excluded_prompts']} excluded"
    if card["temperatures"]:
        heats = listed(sorted(set(card["temperatures"])))
        took = time_of(card["writing_seconds"])
        yield "written", f"at temperatures {heats} in {card['writing_dtype']}, {took}"
    if "positions" in card:
        yield (
            "trained",
            f"{card['positions']} positions, {time_of(card['training_seconds'])} "
            f"({card['device']}), learning rate {card['learning_rate']}, "
            f"{card['batch_positions']} positions a step, seed {card['seed']}",
        )


def listed(values: Sequence[object]) -> str:
    """Values with commas between them."""
    return ", ".join(map(str, values))


def time_of(seconds: float) -> str:
    """Seconds as people say them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def plot_curve(card: Mapping[str, Any], path: Path) -> None:
    """Draw acceptance and agreement against positions; dotted lines are the untrained start."""
    (_, *start), *trained = card["curve"]
    with drawing(path) as (_, axes):
        seen, *series = zip(*trained, strict=True)
        for values, begun, (label, colour) in zip(series, start, _SERIES, strict=True):
            axes.plot(seen, values, marker=".", color=colour, label=label)
            axes.axhline(begun, linestyle=":", color=colour)
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

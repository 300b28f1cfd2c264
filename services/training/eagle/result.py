"""The finished head's folder: stored, measured as it is stored, described, renamed into place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from services.training.distill.card import (
    Story,
    data_of,
    listed,
    rounded,
    trained_on,
    training_of,
    written_at,
)
from services.training.distill.learning import Score
from services.training.distill.plot import plot_curve
from services.training.distill.texts import Text
from services.training.eagle.checks import HeadJob
from services.training.eagle.learner import EagleLearner
from services.training.eagle.stored import HeadTarget, as_stored, save_head


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened on the way, and the scores of each step before training."""

    story: Story
    untrained: Sequence[Score]


def publish(
    job: HeadJob, learner: EagleLearner, head_ids: Tensor, held: Sequence[Text], outcome: Outcome
) -> None:
    """Write the folder of a trained head; its figures are those of what was stored."""
    out = job.options.out
    scratch = out.with_name(f".{out.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    _save(job, learner, head_ids, scratch, {})
    stored = learner.exactly(as_stored(learner.head, _storage(job))).scores(held)
    card = card_of(job, outcome, stored, sum(path.stat().st_size for path in scratch.iterdir()))
    _save(job, learner, head_ids, scratch, card)
    (scratch / "README.md").write_text(readme(card))
    plot_curve(outcome.story.curve, scratch / "acceptance.svg")
    _share(scratch)
    os.rename(scratch, out)


def _save(
    job: HeadJob, learner: EagleLearner, head_ids: Tensor, folder: Path, card: Mapping[str, Any]
) -> None:
    target = job.target
    save_head(
        learner.head,
        head_ids,
        HeadTarget(
            target.name,
            target.weights,
            (target.config.architectures or [""])[0],
            target.vocab_size,
            target.context,
        ),
        folder,
        storage=_storage(job),
        drafted=len(job.options.step_weights),
        card=card,
    )


def _storage(job: HeadJob) -> Any:
    return job.options.storage


def _share(folder: Path) -> None:
    # safetensors makes files that only their owner may read; a head is served by others too.
    mode = (folder / "README.md").stat().st_mode
    for path in folder.iterdir():
        path.chmod(mode)


def card_of(job: HeadJob, outcome: Outcome, stored: Sequence[Score], size: int) -> dict[str, Any]:
    """The card as JSON has it; figures have one entry for each draft step."""
    options, story = job.options, outcome.story
    return {
        "acceptance": [rounded(score.acceptance) for score in stored],
        "greedy": [rounded(score.greedy) for score in stored],
        "untrained_acceptance": [rounded(score.acceptance) for score in outcome.untrained],
        "untrained_greedy": [rounded(score.greedy) for score in outcome.untrained],
        "target": options.target,
        "layers": list(job.shape.layers),
        "target_layers": job.target.layers,
        "parameters": job.own_parameters,
        "bytes": size,
        "storage": options.storage,
        "head_tokens": options.head_tokens,
        "head_mass": rounded(story.head_mass),
        "step_weights": list(options.step_weights),
        **data_of(job, story),
        **training_of(job, story.curve[-1], options.rate, options.step_positions),
        "command": options.command,
        "curve": [
            [point.positions, rounded(point.acceptance), rounded(point.greedy)]
            for point in story.curve
        ],
    }


def readme(card: Mapping[str, Any]) -> str:
    """The card for people, in Markdown."""
    figures = ("acceptance", "greedy", "untrained_acceptance", "untrained_greedy")
    steps = "\n".join(
        f"| {step} | {' | '.join(f'{value:.3f}' for value in values)} |"
        for step, values in enumerate(zip(*(card[name] for name in figures), strict=True), 1)
    )
    rows = "\n".join(f"| {name} | {value} |" for name, value in _rows(card))
    return _README.format(**card, steps=steps, rows=rows)


_README = """# An EAGLE-3 head for {target}

One layer that drafts from its target's own states (Li et al., 2503.01840), trained on texts that
the target wrote: it proposes tokens and the target verifies them, so the output distribution is
exactly the target's. It needs that target's states, embeddings and tokenizer. The layout is that
of vLLM's speculators.

| drafted token | acceptance | greedy agreement | untrained: acceptance | greedy |
|---|---|---|---|---|
{steps}

Measured on texts whose prompts were not trained on, with the head as it is stored, in float32,
given that the tokens before were drafted right: acceptance is the mean of Σ min(p, q), p and q the
distributions of target and head at temperature 1; greedy agreement is how often both have the same
likeliest token. The first token is drafted from the target's states, the others from the head's
own features.

| | |
|---|---|
{rows}

![acceptance and greedy agreement, mean over the steps, against positions seen](acceptance.svg)

Made by

    {command}
"""


def _rows(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    mass = f"{card['head_mass']:.1%}"
    return [
        ("states", f"what goes into layers {listed(card['layers'])} of {card['target_layers']}"),
        ("parameters of its own", f"{card['parameters'] / 1e6:.1f} million"),
        ("storage", f"{card['storage']}, {card['bytes'] / 1e6:.1f} MB"),
        ("head", f"{card['head_tokens']} tokens, {mass} of the target's probability"),
        ("weights of the steps in training", listed(card["step_weights"])),
        ("texts", f"{card['texts']}, with {card['laws']} distributions"),
        ("held out", f"{card['held_out_texts']}, with {card['held_out_laws']} distributions"),
        ("prompts", f"{card['prompts']}; {card['excluded_prompts']} excluded"),
        ("written", written_at(card)),
        ("trained", trained_on(card)),
    ]

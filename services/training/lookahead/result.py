"""The finished file of look-ahead embeddings, with its card in it and beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Any

from services.engine.lookahead_file import Lookahead, save_lookahead
from services.training.distill.card import (
    Course,
    data_of,
    rounded,
    trained_on,
    training_of,
    written_at,
)
from services.training.distill.checks import Commission
from services.training.distill.learning import Score
from services.training.distill.plot import plot_curve
from services.training.lookahead.options import LookaheadOptions


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What happened on the way, and the scores per step before training and as stored."""

    course: Course
    untrained: Sequence[Score]
    stored: Sequence[Score]


def publish(
    job: Commission, options: LookaheadOptions, lookahead: Lookahead, outcome: TrainingResult
) -> None:
    """Write the file with its card; for people, the card as text and the curve go beside it."""
    card = card_of(job, options, lookahead, outcome)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    plot_curve(outcome.course.curve, options.out.with_suffix(".svg"))
    options.out.with_suffix(".md").write_text(readme(card, options.out.stem))
    save_lookahead(options.out, replace(lookahead, card=card))


def card_of(
    job: Commission, options: LookaheadOptions, lookahead: Lookahead, outcome: TrainingResult
) -> dict[str, Any]:
    """The card as JSON has it; lists have one entry per step."""
    course = outcome.course
    data = data_of(job, course)
    if options.texts:
        data |= {"prompts": "texts of an earlier run", "temperatures": [], "writing_seconds": 0}
    return {
        "acceptance": [rounded(score.acceptance) for score in outcome.stored],
        "greedy": [rounded(score.greedy) for score in outcome.stored],
        "untrained_acceptance": [rounded(score.acceptance) for score in outcome.untrained],
        "untrained_greedy": [rounded(score.greedy) for score in outcome.untrained],
        "measured_places": outcome.stored[0].positions,
        "target": options.target,
        "steps": lookahead.steps,
        "width": lookahead.embeddings.shape[1],
        **data,
        **training_of(job, course.curve[-1], options.learning_rate, options.batch_positions),
        "command": options.command,
        "curve": [
            [point.positions, rounded(point.acceptance), rounded(point.greedy)]
            for point in course.curve
        ],
    }


def right_tokens(shares: Sequence[float]) -> float:
    """Mean tokens of a draft that are right: the first always is, each other if all before are."""
    return 1.0 + math.fsum(accumulate(shares, mul))


def readme(card: Mapping[str, Any], name: str) -> str:
    """The card for people, in Markdown; `name` is that of the files beside it."""
    steps = "\n".join(
        f"| {step + 2} | {a:.3f} | {g:.3f} | {b:.3f} | {h:.3f} |"
        for step, (a, g, b, h) in enumerate(
            zip(
                card["acceptance"],
                card["greedy"],
                card["untrained_acceptance"],
                card["untrained_greedy"],
                strict=True,
            )
        )
    )
    return _README.format(
        **card,
        name=name,
        table=steps,
        written=_written(card),
        trained=trained_on(card),
        sampled_tokens=right_tokens(card["acceptance"]),
        greedy_tokens=right_tokens(card["greedy"]),
    )


def _written(card: Mapping[str, Any]) -> str:
    if not card["temperatures"]:
        return "written by the target for an earlier run"
    return f"written by the target {written_at(card)}"


_README = """# Look-ahead embeddings for {target}

{steps} learned embeddings of width {width} (PaSS, Monea, Joulin and Grave, 2311.13581). Appended
to a text, they let the target itself propose {steps} tokens beyond the next one in one forward;
the target verifies them, so the output distribution is exactly the target's.

| drafted token | acceptance | greedy agreement | untrained: acceptance | greedy |
|---|---|---|---|---|
| 1 | 1 | 1 | 1 | 1 |
{table}

Measured at {measured_places} places of texts that were not trained on, given that the tokens
before were drafted right: acceptance is the mean of Σ min(p, q) at temperature 1, p and q the
distributions of the target and of the row; greedy agreement is how often both have the same
likeliest token. The first token comes from the target's own row. So a draft has
{sampled_tokens:.2f} right tokens at temperature 1 and {greedy_tokens:.2f} in greedy decoding, if
steps fail independently of each other.

Texts: {texts} with {laws} distributions to learn from, {held_out_texts} held out; {written};
{excluded_prompts} prompts excluded. Trained: {trained}; the learning rate is in units of the
spread of the target's embeddings.

![acceptance and greedy agreement, mean over the steps, against rows seen]({name}.svg)

Made by

    {command}
"""

"""`paceline train lookahead`: texts, a frozen target, training, the file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

import torch

from services.contract.errors import StartError
from services.engine.lookahead_file import Lookahead, save_lookahead
from services.engine.native import NativeEngine
from services.engine.spec import ModelSpec
from services.training.card import page, plot_curve, step_figures, taught
from services.training.checks import LOGIT_BYTES, Job, Needs, check
from services.training.lookahead.learner import LookaheadLearner, fresh_embeddings
from services.training.material import allowed, divide, written
from services.training.options import LookaheadOptions
from services.training.reporting import Reporter
from services.training.target import Target
from services.training.texts import Text, load_texts, shards
from services.training.trainer import TrainingPlan
from services.training.work import digest

MOST_STEPS = 32


def train_lookahead(options: LookaheadOptions, reporter: Reporter) -> Path:
    """Train look-ahead embeddings; returns their file.

    Raises StartError before any work for options that cannot be carried out.
    What `reporter` raises ends the run; the same options go on with it.
    """
    job = _check(options, reporter)
    material = divide(job, _texts(job, options, reporter))
    reporter.say(f"loading {options.target} in float32 on {job.device.type}")
    model = _frozen(job, options)
    job.work.make(job.plan)
    fresh = fresh_embeddings(model, material.train, options.steps, options.seed)
    learner = LookaheadLearner(model, fresh)
    plan = TrainingPlan(
        options.train,
        options.batch_positions,
        options.learning_rate * learner.spread,
        seed=options.seed,
        points=8,
        point_laws=400,
    )

    def stored() -> LookaheadLearner:
        return LookaheadLearner(model, learner.embeddings.detach().to(torch.bfloat16))

    card = taught(job, learner, stored, plan, material, reporter)
    steps, width = fresh.shape
    card |= {"learning_rate": options.learning_rate, "steps": steps, "width": width}
    if options.texts:
        card |= {"prompts": "written by the target for an earlier run", "temperatures": []}
    embeddings = learner.embeddings.detach().to(torch.bfloat16)
    _publish(options, Lookahead(embeddings, options.target, job.target.weights, card))
    return options.out


def _check(options: LookaheadOptions, reporter: Reporter) -> Job:
    """The job that the options describe; StartError for what cannot be done."""
    if options.out.suffix != ".safetensors":
        raise StartError(f"--out: {options.out} is no name of a .safetensors file")
    if not 1 <= options.steps <= MOST_STEPS:
        raise StartError(f"--steps: {options.steps} is not allowed; allowed is 1..{MOST_STEPS}")
    if not 0 < options.learning_rate < 100:
        raise StartError(f"--learning-rate: {options.learning_rate} is not allowed")
    if options.texts and (options.prompts or options.openings):
        raise StartError("--texts: they are written already, so they take no prompts or openings")
    return check(options, options.train, lambda target: _needs(options, target), reporter)


def _needs(options: LookaheadOptions, target: Target) -> Needs:
    """What embeddings need beside their texts; StartError for texts that are not the target's."""
    for folder in options.texts:
        if not shards(folder):
            raise StartError(f"--texts: {folder} has no texts")
        if _written_by(folder) not in (None, target.weights):
            raise StartError(f"--texts: those of {folder} were written by another target")
    deciding = ("steps", "train", "learning_rate", "batch_positions")
    plan = {name: getattr(options, name) for name in deciding}
    plan["content of texts"] = [
        digest(path.read_bytes() for path in shards(folder)) for folder in options.texts
    ]
    rows = options.prompt_tokens + options.answer_tokens
    return Needs(plan, memory=rows * target.vocab_size * LOGIT_BYTES)


def _written_by(folder: Path) -> str | None:
    """What identifies the weights of the texts' writer, where the folder's run tells."""
    try:
        plan: dict[str, Any] = json.loads((folder.parent / "plan.json").read_text())
        return plan.get("weights of the target")
    except (OSError, ValueError, AttributeError):
        return None


def _texts(job: Job, options: LookaheadOptions, reporter: Reporter) -> Sequence[Text]:
    """Texts of an earlier run where there are some, else those of the plan."""
    if not options.texts:
        return written(job, reporter)
    texts = [text for folder in options.texts for text in load_texts(folder)]
    size = job.target.vocab_size
    if any(int(max(text.token_ids.max(), text.law_ids.max())) >= size for text in texts):
        raise StartError(f"--texts: they hold tokens that {options.target} does not know")
    return [text for text in texts if allowed(job, text)]


def _frozen(job: Job, options: LookaheadOptions) -> Any:
    """The target's model on the ragged attention, checked against its own."""
    spec = ModelSpec(
        options.target, device=job.device.type, threads=options.threads, differentiable=True
    )
    return NativeEngine.load(spec).model


def _publish(options: LookaheadOptions, lookahead: Lookahead) -> None:
    """Write the file with its card; for people, the card as text and the curve go beside it."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    plot_curve(lookahead.card, options.out.with_suffix(".svg"))
    options.out.with_suffix(".md").write_text(readme(lookahead.card, options.out.stem))
    save_lookahead(options.out, lookahead)


def right_tokens(shares: Sequence[float]) -> float:
    """Mean tokens of a draft that are right: the first always is, each other if all before are."""
    return 1.0 + math.fsum(accumulate(shares, mul))


def readme(card: Mapping[str, Any], name: str) -> str:
    """The card for people, in Markdown; `name` is that of the files beside it."""
    rows = (
        ("embeddings", f"{card['steps']} of width {card['width']}"),
        (
            "right tokens of a draft, if steps fail independently of each other",
            f"{right_tokens(card['acceptance']):.2f} at temperature 1, "
            f"{right_tokens(card['greedy']):.2f} in greedy decoding",
        ),
    )
    title = f"Look-ahead embeddings for {card['target']}"
    return page(card, title, _ABOUT, rows, step_figures(card, first=2), f"{name}.svg")


_ABOUT = """Learned embeddings (PaSS, Monea, Joulin and Grave, 2311.13581). Appended to a text, they
let the target itself propose as many tokens beyond the next one in one forward; the target
verifies them, so the output distribution is exactly the target's. The first token comes from the
target's own row. The learning rate is in units of the spread of the target's embeddings."""

"""A whole training of look-ahead embeddings: texts, a frozen target, training, the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from services.contract.errors import StartError
from services.engine.lookahead_file import Lookahead
from services.engine.native import NativeEngine
from services.engine.spec import ModelSpec
from services.engine.threads import pin
from services.training.distill.card import Course
from services.training.distill.checks import Commission
from services.training.distill.material import Material, allowed, divide, written
from services.training.distill.texts import Text, load_texts
from services.training.distill.training import Trainer, TrainingPlan, train
from services.training.lookahead.checks import check
from services.training.lookahead.learner import LookaheadLearner, fresh_embeddings
from services.training.lookahead.options import LookaheadOptions
from services.training.lookahead.result import TrainingResult, publish
from services.training.reporting import Reporter

#: Held-out distributions for the figures, and for each point of the curve.
_MEASURED, _POINT = 4000, 400
_POINTS = 8


def train_lookahead(options: LookaheadOptions, reporter: Reporter) -> Path:
    """Train look-ahead embeddings; returns their file.

    Raises StartError before any work for options that cannot be carried out.
    What `reporter` raises ends the run; the same options go on with it.
    """
    reporter.say(f"checking {options.target} and the options")
    pin(options.threads, options.cpus)
    job = check(options)
    material = divide(job, _texts(job, options, reporter))
    reporter.say(f"loading {options.target} in float32 on {job.device.type}")
    model = _frozen(job, options)
    job.work.make(job.plan)
    measured = _beginning(material.held, _MEASURED)
    learner = LookaheadLearner(
        model, fresh_embeddings(model, material.train, options.steps, options.seed)
    )
    untrained = learner.scores(measured)
    trainer = _train(job, options, learner, material, reporter)
    reporter.say("measuring what is stored")
    stored = Lookahead(
        learner.embeddings.detach().to(torch.bfloat16), options.target, job.target.weights
    )
    figures = LookaheadLearner(model, stored.embeddings).scores(measured)
    course = Course(*material.counts, job.work.seconds, tuple(trainer.curve))
    publish(job, options, stored, TrainingResult(course, untrained, figures))
    return options.out


def _texts(job: Commission, options: LookaheadOptions, reporter: Reporter) -> Sequence[Text]:
    """Texts of an earlier run where there are some, else those of the plan."""
    if not options.texts:
        return written(job, reporter)
    texts = [text for folder in options.texts for text in load_texts(folder)]
    size = job.target.vocab_size
    if any(int(max(text.token_ids.max(), text.law_ids.max())) >= size for text in texts):
        raise StartError(f"--texts: they hold tokens that {options.target} does not know")
    return [text for text in texts if allowed(job, text)]


def _frozen(job: Commission, options: LookaheadOptions) -> Any:
    """The target's model on the ragged attention, checked against its own."""
    spec = ModelSpec(
        options.target, device=job.device.type, threads=options.threads, differentiable=True
    )
    return NativeEngine.load(spec).model


def _beginning(texts: Sequence[Text], laws: int) -> Sequence[Text]:
    """The first texts that hold so many distributions together, or all of them."""
    count = total = 0
    while count < len(texts) and total < laws:
        total += len(texts[count].prefixes)
        count += 1
    return texts[:count]


def _train(
    job: Commission,
    options: LookaheadOptions,
    learner: LookaheadLearner,
    material: Material,
    reporter: Reporter,
) -> Trainer:
    rows, width = learner.embeddings.shape
    reporter.say(f"training {rows} embeddings of width {width} on {job.device.type}")
    plan = TrainingPlan(
        options.train,
        batch_positions=options.batch_positions,
        learning_rate=options.learning_rate * learner.spread,
        seed=options.seed,
        points=_POINTS,
    )
    held = _beginning(material.held, _POINT)
    trainer = Trainer(learner, plan, material.train, held, job.work.path)
    train(trainer, reporter)
    return trainer

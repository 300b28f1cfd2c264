"""A whole training of a head: texts, the target's states, training, the folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from services.engine.native import NativeEngine
from services.engine.native.loading import read_folder
from services.engine.native.packing import has_bfloat16
from services.engine.spec import ModelSpec
from services.engine.threads import pin
from services.training.distill.card import Story
from services.training.distill.frequency import Head, frequent
from services.training.distill.material import Material, divide, written
from services.training.distill.options import DistillOptions
from services.training.distill.texts import Text, shards
from services.training.distill.training import Trainer, TrainingPlan, train
from services.training.eagle.checks import HeadJob, check
from services.training.eagle.head import fresh_head
from services.training.eagle.learner import EagleLearner
from services.training.eagle.result import Outcome, publish
from services.training.eagle.states import PASS_TOKENS, StateStore, compute_states, missing_states
from services.training.reporting import Reporter


def train_head(options: DistillOptions, reporter: Reporter) -> Path:
    """Make an EAGLE-3 head; returns its folder.

    Raises StartError before any work for options that cannot be carried out.
    What `reporter` raises ends the run; the same options go on with it.
    """
    reporter.say(f"checking {options.target} and the options")
    pin(options.threads, options.cpus)
    job = check(options)
    material = divide(job, written(job, reporter))
    job.work.make(job.plan)
    keep_states(job, reporter)
    head = frequent(
        material.train, job.target.vocab_size, options.head_tokens, job.target.bundle.eos_token_ids
    )
    reporter.say(f"head: {len(head.ids)} tokens, {head.mass:.1%} of the target's probability")
    learner = _learner(job, head)
    untrained = learner.scores(material.held)
    trainer = _train(job, learner, material, reporter)
    reporter.say(f"storing it as {options.storage}, and measuring what was stored")
    story = Story(
        *material.counts,
        writing_seconds=job.work.seconds,
        curve=tuple(trainer.curve),
        head_mass=head.mass,
    )
    publish(job, learner, head.ids, material.held, Outcome(story, untrained))
    return options.out


def keep_states(job: HeadJob, reporter: Reporter) -> None:
    """Compute the states of all texts that have none yet."""
    options, layers = job.options, job.shape.layers
    missing = missing_states(job.work.texts, layers)
    if not missing:
        return
    reporter.say(f"loading {options.target} in {options.dtype} on {job.device.type}")
    spec = ModelSpec(
        options.target,
        dtype=options.dtype,
        device=job.device.type,
        threads=options.threads,
        kv_capacity_tokens=PASS_TOKENS + job.target.context,
    )
    engine = NativeEngine.load(spec)
    count = len(shards(job.work.texts))
    reporter.stage("states of the target, files", count, count - len(missing))
    for place, shard in enumerate(missing, count - len(missing) + 1):
        compute_states(engine, layers, shard)
        reporter.advance(place)


def _learner(job: HeadJob, known: Head) -> EagleLearner:
    """A fresh head beside the target's embeddings."""
    model: Any = read_folder(job.target.folder, ModelSpec(job.options.target))
    head = fresh_head(job.shape, model, known.ids, job.options.seed).to(job.device)
    embeddings = model.get_input_embeddings().weight.detach().to(job.device)
    return EagleLearner(
        head,
        known.ids,
        embeddings,
        StateStore(job.work.texts),
        job.options.step_weights,
        fast=fast_on(job.device),
    )


def fast_on(device: torch.device) -> bool:
    """Whether products in bfloat16 are faster than in float32."""
    return device.type == "cuda" or has_bfloat16()


def _train(job: HeadJob, learner: EagleLearner, material: Material, reporter: Reporter) -> Trainer:
    options = job.options
    reporter.say(f"training {job.own_parameters / 1e6:.1f} M parameters on {job.device.type}")
    plan = TrainingPlan(
        options.positions,
        batch_positions=options.step_positions,
        learning_rate=options.rate,
        seed=options.seed,
    )
    trainer = Trainer(learner, plan, material.train, _measured(material.held), job.work.path)
    train(trainer, reporter)
    return trainer


def _measured(held: Sequence[Text], laws: int = 4000) -> Sequence[Text]:
    """The first held-out texts that hold so many distributions, for the points of the curve."""
    count = total = 0
    while count < len(held) and total < laws:
        total += len(held[count].prefixes)
        count += 1
    return held[:count]

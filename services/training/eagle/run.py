"""A whole training of a head: texts, the target's states, training, the folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.engine import number_formats
from services.engine.native import NativeEngine
from services.engine.native.loading import read_folder
from services.engine.spec import ModelSpec
from services.engine.threads import pin
from services.runtime.atomic_file import replacing
from services.training.distill.frequency import Head
from services.training.distill.material import Material, divide, written
from services.training.distill.options import DistillOptions
from services.training.distill.run import head_for, story_of
from services.training.distill.texts import Text, shards
from services.training.distill.training import Trainer, TrainingPlan, train
from services.training.eagle.beginning import begin, sample
from services.training.eagle.checks import HeadJob, check
from services.training.eagle.head import EagleHead, fresh_head
from services.training.eagle.learner import EagleLearner
from services.training.eagle.result import Outcome, publish
from services.training.eagle.states import PASS_TOKENS, StateStore, compute_states, missing_states
from services.training.reporting import Reporter

_BEGINNING = "beginning.safetensors"
#: Tokens of the texts that the beginning is fitted to.
FITTED_TOKENS = 30_000
#: Held-out distributions for each point of the curve.
_POINT_LAWS = 4000
_WARMUP_STEPS = 100


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
    head = head_for(job, options, material, reporter)
    learner = _learner(job, head, material.train, reporter)
    untrained = learner.scores(material.held)
    trainer = _train(job, learner, material, reporter)
    reporter.say(f"storing it as {options.storage}, and measuring what was stored")
    story = story_of(job, material, head, trainer.curve)
    publish(job, learner, head.ids, material.held, Outcome(story, untrained))
    return options.out


def keep_states(job: HeadJob, reporter: Reporter) -> None:
    """Compute the states of all texts that have none yet."""
    layers = job.shape.layers
    missing = missing_states(job.work.texts, layers)
    if not missing:
        return
    engine = _engine(job, reporter)
    count = len(shards(job.work.texts))
    reporter.stage("states of the target, files", count, count - len(missing))
    for place, shard in enumerate(missing, count - len(missing) + 1):
        compute_states(engine, layers, shard)
        reporter.advance(place)


def _engine(job: HeadJob, reporter: Reporter) -> NativeEngine:
    options = job.options
    reporter.say(f"loading {options.target} in {options.dtype} on {job.device.type}")
    spec = ModelSpec(
        options.target,
        dtype=options.dtype,
        device=job.device.type,
        threads=options.threads,
        kv_capacity_tokens=PASS_TOKENS + job.target.context,
    )
    return NativeEngine.load(spec)


def _learner(job: HeadJob, known: Head, texts: Sequence[Text], reporter: Reporter) -> EagleLearner:
    """A head at its beginning, beside the target's embeddings."""
    model: Any = read_folder(job.target.folder, ModelSpec(job.options.target))
    embeddings = model.get_input_embeddings().weight.detach()
    head = fresh_head(job.shape, model, known.ids, job.options.seed)
    _begin(job, head, texts, embeddings, reporter)
    embeddings = embeddings.to(job.device)
    return EagleLearner(
        head.to(job.device),
        known.ids,
        embeddings,
        StateStore(job.work.texts),
        job.options.step_weights,
        fast=fast_on(job.device),
    )


def _begin(
    job: HeadJob,
    head: EagleHead,
    texts: Sequence[Text],
    embeddings: Tensor,
    reporter: Reporter,
) -> None:
    """Fit a head, or read the fit of an earlier run."""
    from safetensors.torch import load_file, save_file

    fitted = job.work.path / _BEGINNING
    if not fitted.exists():
        engine = _engine(job, reporter)
        reporter.say("fitting what the head begins as")
        some = beginning_of(texts, FITTED_TOKENS, lambda text: len(text.token_ids))
        begin(head, sample(engine, some, job.shape.layers, embeddings), job.options.seed)
        with replacing(fitted) as scratch:
            save_file(dict(head.state_dict()), scratch)
    head.load_state_dict(load_file(fitted))


def fast_on(device: torch.device) -> bool:
    """Whether products in bfloat16 are faster than in float32."""
    return device.type == "cuda" or number_formats.cpu().bfloat16


def _train(job: HeadJob, learner: EagleLearner, material: Material, reporter: Reporter) -> Trainer:
    options = job.options
    reporter.say(f"training {job.own_parameters / 1e6:.1f} M parameters on {job.device.type}")
    plan = TrainingPlan(
        options.positions,
        batch_positions=options.step_positions,
        learning_rate=options.rate,
        warmup_steps=_WARMUP_STEPS,
        seed=options.seed,
    )
    held = beginning_of(material.held, _POINT_LAWS, lambda text: len(text.prefixes))
    trainer = Trainer(learner, plan, material.train, held, job.work.path)
    train(trainer, reporter)
    return trainer


def beginning_of(texts: Sequence[Text], enough: int, size: Callable[[Text], int]) -> Sequence[Text]:
    """The first texts whose sizes come to `enough`, or all of them."""
    count = total = 0
    while count < len(texts) and total < enough:
        total += size(texts[count])
        count += 1
    return texts[:count]

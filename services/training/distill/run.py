"""A whole distillation: write texts, choose the head, cut, train, store, measure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.engine.native.student import Student
from services.engine.threads import pin
from services.training.distill.card import Story
from services.training.distill.checks import Job, check
from services.training.distill.frequency import Head, frequent
from services.training.distill.learning import StudentLearner
from services.training.distill.material import Material, divide, written
from services.training.distill.options import DistillOptions
from services.training.distill.result import publish
from services.training.distill.texts import Text
from services.training.distill.training import Point, Trainer, TrainingPlan, train
from services.training.reporting import Reporter


def distill(options: DistillOptions, reporter: Reporter) -> Path:
    """Make a drafter; returns its folder.

    Raises StartError before any work for options that cannot be carried out.
    What `reporter` raises ends the run; the same options go on with it.
    """
    reporter.say(f"checking {options.target} and the options")
    pin(options.threads, options.cpus)
    job = check(options)
    material = divide(job, written(job, reporter))
    head = _head(job, material.train)
    reporter.say(f"head: {len(head.ids)} tokens, {head.mass:.1%} of the target's probability")
    student = job.target.cut(job.layers, head.ids, job.device)
    trainer = _train(job, student, material, reporter)
    reporter.say(f"storing it as {options.storage}, and measuring what was stored")
    story = _story(job, material, head, trainer.curve)
    publish(job, student, material.held, story)
    return options.out


def _head(job: Job, texts: Sequence[Text]) -> Head:
    eos = job.target.bundle.eos_token_ids
    return frequent(texts, job.target.vocab_size, job.options.head_tokens, eos)


def _train(job: Job, student: Student, material: Material, reporter: Reporter) -> Trainer:
    options = job.options
    reporter.say(f"training {job.own_parameters / 1e6:.1f} M parameters on {job.device.type}")
    plan = TrainingPlan(
        options.positions,
        batch_positions=options.step_positions,
        learning_rate=options.rate,
        seed=options.seed,
    )
    trainer = Trainer(StudentLearner(student), plan, material.train, material.held, job.work.path)
    train(trainer, reporter)
    return trainer


def _story(job: Job, material: Material, head: Head, curve: Sequence[Point]) -> Story:
    return Story(
        *material.counts, writing_seconds=job.work.seconds, curve=tuple(curve), head_mass=head.mass
    )

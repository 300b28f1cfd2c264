"""A whole distillation: write texts, choose the head, cut, train, store, measure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.engine.native.student import Student
from services.engine.threads import pin
from services.training.distill.card import Story
from services.training.distill.checks import Commission, Job, check
from services.training.distill.frequency import Head, frequent
from services.training.distill.learning import StudentLearner
from services.training.distill.material import Material, divide, written
from services.training.distill.options import DistillOptions
from services.training.distill.result import publish
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
    head = head_for(job, options, material, reporter)
    student = job.target.cut(job.layers, head.ids, job.device)
    trainer = _train(job, student, material, reporter)
    reporter.say(f"storing it as {options.storage}, and measuring what was stored")
    story = story_of(job, material, head, trainer.curve)
    publish(job, student, material.held, story)
    return options.out


def head_for(
    job: Commission, options: DistillOptions, material: Material, reporter: Reporter
) -> Head:
    """The tokens that a drafter is to know, by what the target wrote."""
    eos, size = job.target.bundle.eos_token_ids, job.target.vocab_size
    head = frequent(material.train, size, options.head_tokens, eos)
    reporter.say(f"head: {len(head.ids)} tokens, {head.mass:.1%} of the target's probability")
    return head


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


def story_of(job: Commission, material: Material, head: Head, curve: Sequence[Point]) -> Story:
    """What the card is to tell of the way."""
    return Story(
        *material.counts, writing_seconds=job.work.seconds, curve=tuple(curve), head_mass=head.mass
    )

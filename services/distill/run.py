"""A whole distillation: write texts, choose the head, cut, train, store, measure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from services.common.engine import Engine, ModelSpec, pin
from services.common.engine.student import Student
from services.common.errors import StartError
from services.distill.card import Story
from services.distill.checks import HELD_EVERY, HELD_REST, Job, check
from services.distill.frequency import Head, frequent
from services.distill.options import DistillOptions
from services.distill.prompts import overlapping
from services.distill.reporting import Reporter
from services.distill.result import publish
from services.distill.series import Series
from services.distill.texts import Text
from services.distill.training import Point, Trainer, TrainingPlan
from services.distill.writing import Plan, Writer


@dataclass(frozen=True, slots=True)
class Material:
    """Texts to learn from and texts to measure with."""

    train: Sequence[Text]
    held: Sequence[Text]


def distill(options: DistillOptions, reporter: Reporter) -> Path:
    """Make a drafter; returns its folder.

    Raises StartError before any work for options that cannot be carried out.
    What `reporter` raises ends the run; the same options go on with it.
    """
    reporter.say(f"checking {options.target} and the options")
    pin(options.threads, options.cpus)
    job = check(options)
    material = _divide(job, _texts(job, reporter))
    head = _head(job, material.train)
    reporter.say(f"head: {len(head.ids)} tokens, {head.mass:.1%} of the target's law")
    student = job.target.cut(job.layers, head.ids, job.device)
    trainer = _train(job, student, material, reporter)
    reporter.say(f"storing it as {options.storage}, and measuring what was stored")
    story = _story(job, material, head, trainer.curve)
    publish(job, student, material.held, story)
    return options.out


def _texts(job: Job, reporter: Reporter) -> list[Text]:
    """All texts of the plan, those that are missing written now."""
    series = Series(job.work, job.options.write, lambda text: _allowed(job, text))
    if not series.complete:
        reporter.say(f"loading {job.target.name} in {job.options.dtype} on {job.device.type}")
        writer = _writer(job)
        job.work.make(job.plan)
        reporter.stage("writing texts", job.options.write, series.laws)
        with closing(series.write(writer)) as steps:
            for laws in steps:
                last = "the last texts come to their ends" if laws >= job.options.write else ""
                reporter.advance(min(laws, job.options.write), last)
    return series.texts()


def _allowed(job: Job, text: Text) -> bool:
    """Whether the text's prompt contains none of those excluded."""
    if not job.excluded or job.prompts:
        return True
    words = job.target.dialogue.words_of(text.token_ids.tolist())
    return not overlapping([job.target.tokenizer.decode(words)], job.excluded)


def _writer(job: Job) -> Writer:
    options, plan = job.options, _writing_plan(job)
    words = max(map(len, plan.prompts or plan.openings)) + options.prompt_tokens
    around = len(plan.dialogue.before) + 2 * len(plan.dialogue.after)
    spec = ModelSpec(
        options.target,
        dtype=options.dtype,
        device=job.device.type,
        threads=options.threads,
        # One more text for the header that all texts begin with.
        kv_capacity_tokens=(options.batch + 1) * (around + words + options.answer_tokens),
    )
    return Writer(Engine.load(spec), plan, options.batch)


def _writing_plan(job: Job) -> Plan:
    options = job.options
    return Plan(
        job.target.dialogue,
        seed=options.seed,
        prompts=[job.target.encode(text)[: options.prompt_tokens] for text in job.prompts],
        openings=[job.target.encode(text) for text in job.openings or ("",)],
        temperatures=options.temperatures,
        prompt_tokens=options.prompt_tokens,
        answer_tokens=options.answer_tokens,
    )


def _divide(job: Job, texts: Sequence[Text]) -> Material:
    """Every fortieth prompt is held out, with all its texts where a prompt has several."""
    prompts = len(job.prompts)
    train: list[Text] = []
    held: list[Text] = []
    for text in texts:
        number = text.number % prompts if prompts else text.number
        (held if number % HELD_EVERY == HELD_REST else train).append(text)
    if not (train and held):
        raise StartError("--write: too few texts are left without those of --exclude; write more")
    return Material(train, held)


def _head(job: Job, texts: Sequence[Text]) -> Head:
    eos = job.target.bundle.eos_token_ids
    return frequent(texts, job.target.vocab_size, job.options.head_tokens, eos)


def _train(job: Job, student: Student, material: Material, reporter: Reporter) -> Trainer:
    options = job.options
    reporter.say(f"training {job.own_parameters / 1e6:.1f} M parameters on {job.device.type}")
    plan = TrainingPlan(
        options.positions,
        batch_positions=options.batch_positions,
        learning_rate=options.learning_rate,
        seed=options.seed,
    )
    trainer = Trainer(student, plan, material.train, material.held, job.work.path)
    reporter.stage("training", options.positions, trainer.positions)
    for positions in trainer.run():
        try:
            reporter.advance(min(positions, options.positions), _figures(trainer.curve[-1]))
        except BaseException:
            # Between two steps all is consistent; an error within one keeps the last checkpoint.
            trainer.checkpoint()
            raise
    return trainer


def _figures(point: Point) -> str:
    return f"held out: acceptance {point.acceptance:.3f}, greedy {point.greedy:.3f}"


def _story(job: Job, material: Material, head: Head, curve: Sequence[Point]) -> Story:
    return Story(
        head_mass=head.mass,
        texts=len(material.train),
        laws=sum(len(text.prefixes) for text in material.train),
        held_texts=len(material.held),
        held_laws=sum(len(text.prefixes) for text in material.held),
        writing_seconds=job.work.seconds,
        curve=tuple(curve),
    )

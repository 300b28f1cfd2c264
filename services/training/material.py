"""Texts of a target: written, or found where an earlier run left them, and divided in two."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from services.contract.errors import StartError
from services.engine.native import NativeEngine
from services.engine.spec import ModelSpec
from services.training.checks import HELD_EVERY, HELD_REST, Job
from services.training.prompts import overlapping
from services.training.reporting import Reporter
from services.training.series import Series
from services.training.texts import Text
from services.training.writing import Writer, WritingPlan


@dataclass(frozen=True, slots=True)
class Material:
    """Texts to learn from and texts to measure with."""

    train: Sequence[Text]
    held: Sequence[Text]

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Texts and distributions to learn from, texts and distributions held out."""
        return len(self.train), _laws(self.train), len(self.held), _laws(self.held)


def _laws(texts: Sequence[Text]) -> int:
    return sum(len(text.prefixes) for text in texts)


def written(job: Job, reporter: Reporter) -> list[Text]:
    """All texts of the plan, those that are missing written now."""
    series = Series(job.work, job.options.write, lambda text: allowed(job, text))
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


def allowed(job: Job, text: Text) -> bool:
    """Whether the text's prompt contains none of those excluded."""
    if not job.sources.excluded or job.sources.prompts:
        return True
    words = job.target.dialogue.words_of(text.token_ids.tolist())
    return not overlapping([job.target.tokenizer.decode(words)], job.sources.excluded)


def spec_of(job: Job, kv_tokens: int, model: str = "", base: str | None = None) -> ModelSpec:
    """The target as it writes, or another model in its place."""
    options = job.options
    return ModelSpec(
        model or options.target,
        dtype=options.dtype,
        device=job.device.type,
        threads=options.threads,
        kv_capacity_tokens=kv_tokens,
        base=base,
    )


def engine_of(job: Job, kv_tokens: int, model: str = "") -> NativeEngine:
    """The engine of the target, or of that model; loaded now."""
    return NativeEngine.load(spec_of(job, kv_tokens, model))


def _writer(job: Job) -> Writer:
    options, plan = job.options, _writing_plan(job)
    words = max(map(len, plan.prompts or plan.openings)) + options.prompt_tokens
    around = len(plan.dialogue.before) + 2 * len(plan.dialogue.after)
    # One more text for the header that all texts begin with.
    room = (options.batch + 1) * (around + words + options.answer_tokens)
    return Writer(engine_of(job, room), plan, options.batch)


def _writing_plan(job: Job) -> WritingPlan:
    options = job.options
    return WritingPlan(
        job.target.dialogue,
        seed=options.seed,
        prompts=[job.target.encode(text)[: options.prompt_tokens] for text in job.sources.prompts],
        openings=[job.target.encode(text) for text in job.sources.openings or ("",)],
        temperatures=options.temperatures,
        prompt_tokens=options.prompt_tokens,
        answer_tokens=options.answer_tokens,
    )


def divide(job: Job, texts: Sequence[Text]) -> Material:
    """Every fortieth prompt is held out, with all its texts where a prompt has several."""
    prompts = len(job.sources.prompts)
    train: list[Text] = []
    held: list[Text] = []
    for text in texts:
        number = text.number % prompts if prompts else text.number
        (held if number % HELD_EVERY == HELD_REST else train).append(text)
    if not (train and held):
        raise StartError("--write: too few texts are left without those of --exclude; write more")
    return Material(train, held)

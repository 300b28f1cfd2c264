"""The making of an n-gram file: single tokens, texts, mean distributions, weights, the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from services.contract.errors import StartError
from services.contract.top_rows import MOST_ROWS
from services.engine import start
from services.engine.native import NativeEngine
from services.engine.ngram_file import Laws, Lesson, NgramFile, code_of, save_ngrams
from services.engine.spec import ModelSpec
from services.engine.threads import pin
from services.training.distill.checks import Commission
from services.training.distill.material import Material, written
from services.training.distill.texts import LAW_TOKENS, Text
from services.training.ngrams.checks import check, first_bytes
from services.training.ngrams.firsts import ROWS, Firsts
from services.training.ngrams.informants import head_says, logits_of, model_says, told
from services.training.ngrams.laws import learn_laws
from services.training.ngrams.options import Fit, NgramOptions
from services.training.ngrams.result import card_of, readme
from services.training.ngrams.rows import TargetReader
from services.training.reporting import Reporter

LEAST_FIRST = 0.002
"""What follows a token less often than this is not kept."""
_HEADER_BYTES = 16_384
HELD_EVERY = 4
_LESSON_TOKENS = 32
_LEAST_ANSWER = 8
_GREEDY = 0.97
"""A text is taken for a greedy one where so many of its tokens are the likeliest."""


def learn_ngrams(options: NgramOptions, reporter: Reporter, fit: Fit) -> Path:
    """Make an n-gram file; returns its path.

    `fit` finds the weights. Raises StartError before any work for options that cannot be
    carried out. What `reporter` raises ends the run; the same options go on with it.
    """
    reporter.say(f"checking {options.target} and the options")
    pin(options.threads, options.cpus)
    job, given = check(options)
    job.work.make(job.plan)
    firsts = _firsts(job, options, reporter)
    texts = written(job, reporter) + _read(job, options, given, reporter)
    material = _divided(texts)
    reporter.say("merging distributions, and fitting the weights of the sources")
    room = options.most_bytes - first_bytes(job.target.vocab_size) - _HEADER_BYTES
    vocab_size = job.target.vocab_size
    trial = _file(job, firsts, learn_laws(material.train, vocab_size, room))
    lessons = _informed(job, options, _lessons(job, material.held), reporter)
    reader = TargetReader(*_reading(job, options, lessons))
    weights = fit(lessons, trial, reader)
    reader.close()
    file = _file(job, firsts, learn_laws(texts, vocab_size, room), weights)
    card = card_of(job, options, file, material)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    save_ngrams(options.out, replace(file, card=card))
    options.out.with_suffix(".md").write_text(readme(card))
    return options.out


def _divided(texts: Sequence[Text]) -> Material:
    """Every fourth text weighs the sources; too few of them would fit chance."""
    train = [text for text in texts if text.number < 0 or text.number % HELD_EVERY]
    held = [text for text in texts if text.number >= 0 and text.number % HELD_EVERY == 0]
    return Material(train, held)


def _firsts(job: Commission, options: NgramOptions, reporter: Reporter) -> Firsts:
    """What follows each token alone, as far as an earlier run found it out, and the rest now."""
    firsts, kept = Firsts(job.target.vocab_size), job.work.path / "firsts.npz"
    firsts.load(kept)
    if firsts.done < job.target.vocab_size:
        header = job.target.dialogue.prompt(())
        engine = _engine(job, options, len(header) + ROWS)
        reporter.stage("asking for what follows each token", job.target.vocab_size, firsts.done)
        with closing(firsts.learn(engine, header, kept)) as steps:
            for done in steps:
                reporter.advance(done)
    return firsts


def _engine(
    job: Commission,
    options: NgramOptions,
    tokens: int,
    model: str | None = None,
    base: str | None = None,
) -> NativeEngine:
    """One of the target, or of another model."""
    return NativeEngine.load(_spec(job, options, tokens, model or options.target, base))


def _spec(
    job: Commission, options: NgramOptions, tokens: int, model: str, base: str | None = None
) -> ModelSpec:
    return ModelSpec(
        model,
        dtype=options.dtype,
        device=job.device.type,
        threads=options.threads,
        kv_capacity_tokens=tokens,
        base=base,
    )


def _reading(
    job: Commission, options: NgramOptions, lessons: Sequence[Lesson]
) -> tuple[NativeEngine, int]:
    """The target, and how long a text with a draft behind it gets."""
    longest = max((len(lesson.tokens) for lesson in lessons), default=0) + MOST_ROWS
    return _engine(job, options, longest), longest


def _read(
    job: Commission, options: NgramOptions, given: Sequence[str], reporter: Reporter
) -> list[Text]:
    """The given texts, in parts as long as an answer, with the target's distributions."""
    header = job.target.dialogue.prompt(())
    tokens = [token for text in given for token in job.target.encode(text)]
    parts = [
        tokens[i : i + options.answer_tokens] for i in range(0, len(tokens), options.answer_tokens)
    ]
    if not parts:
        return []
    engine = _engine(job, options, len(header) + options.answer_tokens)
    reporter.stage("reading texts", len(tokens), 0)
    read: list[Text] = []
    for part in parts:
        # Numbers below those of texts that are written: none is held out.
        read.append(_laws_of(engine, header, part, -1 - len(read)))
        reporter.advance(sum(len(text.prefixes) for text in read))
    return read


def _laws_of(engine: NativeEngine, header: Sequence[int], part: Sequence[int], number: int) -> Text:
    logits = logits_of(engine, [*header, *part], len(header))
    best = torch.topk(logits.log_softmax(-1), min(LAW_TOKENS, logits.shape[-1]))
    places = np.arange(len(header), len(header) + len(logits), dtype=np.int32)
    return Text(
        number,
        np.array([*header, *part], dtype=np.int32),
        places,
        best.indices.to(torch.int32).cpu().numpy(),
        best.values.to(torch.float16).cpu().numpy(),
    )


def _lessons(job: Commission, held: Sequence[Text]) -> list[Lesson]:
    """The answers of texts held out."""
    return [found for text in held if (found := _lesson(job, text)) is not None]


def _lesson(job: Commission, text: Text) -> Lesson | None:
    """The answer of a text, if there is enough of it."""
    dialogue, tokens = job.target.dialogue, text.token_ids.tolist()
    start = len(dialogue.prompt(dialogue.words_of(tokens))) if dialogue.after else 1
    rows = text.prefixes >= start
    if rows.sum() < _LEAST_ANSWER:
        return None
    ids, logs = text.law_ids[rows][:, :_LESSON_TOKENS], text.law_logs[rows][:, :_LESSON_TOKENS]
    drawn = text.token_ids[text.prefixes[rows][:-1]]
    greedy = float(np.mean(ids[:-1, 0] == drawn)) > _GREEDY
    return Lesson(tokens, start, ids.tolist(), logs.astype(float).tolist(), greedy)


def _informed(
    job: Commission, options: NgramOptions, lessons: list[Lesson], reporter: Reporter
) -> list[Lesson]:
    """The lessons with what a draft model and a head say, where those are to draft beside."""
    if options.draft is not None:
        reporter.stage("asking the draft model", len(lessons), 0)
        says = model_says(_draft(job, options, options.draft))
        lessons = [replace(one, draft=law) for one, law in told(says, lessons, reporter)]
    if options.head is not None:
        reporter.stage("asking the head", len(lessons), 0)
        longest = max((len(lesson.tokens) for lesson in lessons), default=1)
        head = start.head(_spec(job, options, job.target.context, options.head, options.target))
        says = head_says(head, _engine(job, options, longest))
        lessons = [replace(one, head=law) for one, law in told(says, lessons, reporter)]
    return lessons


def _draft(job: Commission, options: NgramOptions, model: str) -> NativeEngine:
    """The draft model that is to draft beside the file."""
    engine = _engine(job, options, job.target.context, model, options.draft_base)
    known = job.target.bundle.fingerprint
    if engine.bundle is None or engine.bundle.fingerprint != known:
        raise StartError(f"--draft: {options.draft} has another tokenizer than {options.target}")
    return engine


def _file(
    job: Commission,
    firsts: Firsts,
    laws: tuple[Laws, ...],
    weights: Mapping[str, float] | None = None,
) -> NgramFile:
    chances = firsts.probabilities.ravel().tolist()
    return NgramFile(
        job.target.name,
        job.target.weights,
        job.target.bundle.fingerprint,
        job.target.vocab_size,
        firsts.ids.ravel().tolist(),
        bytes(code_of(chance) if chance >= LEAST_FIRST else 0 for chance in chances),
        laws,
        weights or {},
    )

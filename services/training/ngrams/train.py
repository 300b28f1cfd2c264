"""`paceline train ngrams`: single tokens, texts, mean distributions, weights, the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.contract.errors import StartError
from services.contract.top_rows import MOST_ROWS
from services.engine import start
from services.engine.native import NativeEngine
from services.engine.ngram_file import (
    FIRSTS,
    Laws,
    Lesson,
    NgramFile,
    code_of,
    extend_key,
    save_ngrams,
)
from services.training.card import data_of, listed, page
from services.training.checks import Job, Needs, check
from services.training.material import Material, engine_of, spec_of, written
from services.training.ngrams.firsts import ROWS, Firsts
from services.training.ngrams.fitting import fit
from services.training.ngrams.informants import (
    TargetReader,
    head_says,
    logits_of,
    model_says,
    told,
)
from services.training.ngrams.laws import learn_laws
from services.training.options import NgramOptions
from services.training.prompts import text_of
from services.training.reporting import Reporter
from services.training.target import Target
from services.training.texts import LAW_TOKENS, Text
from services.training.work import digest

LARGEST_TEXT = 1 << 26
LEAST_FIRST = 0.002
"""What follows a token less often than this is not kept."""
HELD_EVERY = 4
_HEADER_BYTES = 16_384
_LESSON_TOKENS = 32
_LEAST_ANSWER = 8
_GREEDY = 0.97
"""A text is taken for a greedy one where so many of its tokens are the likeliest."""


def train_ngrams(options: NgramOptions, reporter: Reporter) -> Path:
    """Make an n-gram file; returns its path.

    Raises StartError before any work for options that cannot be carried out. What `reporter`
    raises ends the run; the same options go on with it.
    """
    given = [text_of(path, "--texts", LARGEST_TEXT) for path in options.texts]
    job = check(options, 1, lambda target: _needs(options, target, given), reporter)
    job.work.make(job.plan)
    firsts = _firsts(job, reporter)
    texts = written(job, reporter) + _read(job, options, given, reporter)
    material = _divided(texts)
    reporter.say("merging distributions, and fitting the weights of the sources")
    vocab_size = job.target.vocab_size
    room = options.most_bytes - first_bytes(vocab_size) - _HEADER_BYTES
    trial = _file(job, firsts, learn_laws(material.train, vocab_size, room))
    lessons = [found for text in material.held if (found := _lesson(job, text)) is not None]
    lessons = _informed(job, options, lessons, reporter)
    weights = _weighed(job, lessons, trial)
    file = _file(job, firsts, learn_laws(texts, vocab_size, room), weights)
    card = card_of(job, options, file, material)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    save_ngrams(options.out, replace(file, card=card))
    options.out.with_suffix(".md").write_text(readme(card))
    return options.out


def _needs(options: NgramOptions, target: Target, given: Sequence[str]) -> Needs:
    least = first_bytes(target.vocab_size) + 65_536
    if options.most_bytes < least:
        raise StartError(
            f"--most-bytes: {options.most_bytes} are too few; what follows each of "
            f"{target.vocab_size} tokens alone takes {least}"
        )
    digests = [digest([text.encode()]) for text in given]
    return Needs({"content of texts": digests}, disk=options.most_bytes)


def first_bytes(vocab_size: int) -> int:
    """What the tokens after one token take in a file: each an id and a code."""
    return vocab_size * FIRSTS * (3 if vocab_size <= 1 << 16 else 5)


def _divided(texts: Sequence[Text]) -> Material:
    """Every fourth text weighs the sources; too few of them would fit chance."""
    train = [text for text in texts if text.number < 0 or text.number % HELD_EVERY]
    held = [text for text in texts if text.number >= 0 and text.number % HELD_EVERY == 0]
    return Material(train, held)


def _firsts(job: Job, reporter: Reporter) -> Firsts:
    """What follows each token alone, as far as an earlier run found it out, and the rest now."""
    firsts, kept = Firsts(job.target.vocab_size), job.work.path / "firsts.npz"
    firsts.load(kept)
    if firsts.done < job.target.vocab_size:
        header = job.target.dialogue.prompt(())
        engine = engine_of(job, len(header) + ROWS)
        reporter.stage("asking for what follows each token", job.target.vocab_size, firsts.done)
        with closing(firsts.learn(engine, header, kept)) as steps:
            for done in steps:
                reporter.advance(done)
    return firsts


def _weighed(job: Job, lessons: Sequence[Lesson], trial: NgramFile) -> dict[str, float]:
    """The weights of the sources, found with the target beside."""
    longest = max((len(lesson.tokens) for lesson in lessons), default=0) + MOST_ROWS
    with closing(TargetReader(engine_of(job, longest), longest)) as reader:
        return fit(lessons, trial, reader)


def _read(job: Job, options: NgramOptions, given: Sequence[str], reporter: Reporter) -> list[Text]:
    """The given texts, in parts as long as an answer, with the target's distributions."""
    header = job.target.dialogue.prompt(())
    tokens = [token for text in given for token in job.target.encode(text)]
    parts = [
        tokens[i : i + options.answer_tokens] for i in range(0, len(tokens), options.answer_tokens)
    ]
    if not parts:
        return []
    engine = engine_of(job, len(header) + options.answer_tokens)
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


def _lesson(job: Job, text: Text) -> Lesson | None:
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
    job: Job, options: NgramOptions, lessons: list[Lesson], reporter: Reporter
) -> list[Lesson]:
    """The lessons with what a draft model and a head say, where those are to draft beside."""
    if options.draft is not None:
        reporter.stage("asking the draft model", len(lessons), 0)
        says = model_says(_draft(job, options.draft))
        lessons = [replace(one, draft=law) for one, law in told(says, lessons, reporter)]
    if options.head is not None:
        reporter.stage("asking the head", len(lessons), 0)
        longest = max((len(lesson.tokens) for lesson in lessons), default=1)
        spec = spec_of(job, job.target.context, options.head, options.target)
        says = head_says(start.head(spec), engine_of(job, longest))
        lessons = [replace(one, head=law) for one, law in told(says, lessons, reporter)]
    return lessons


def _draft(job: Job, model: str) -> NativeEngine:
    """The draft model that is to draft beside the file."""
    engine = engine_of(job, job.target.context, model)
    known = job.target.bundle.fingerprint
    if engine.bundle is None or engine.bundle.fingerprint != known:
        raise StartError(f"--draft: {model} has another tokenizer than {job.target.name}")
    return engine


def _file(
    job: Job,
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


def card_of(job: Job, options: NgramOptions, file: NgramFile, material: Material) -> dict[str, Any]:
    """The card as JSON has it; its texts are all, those held out included."""
    texts, laws, held, held_laws = material.counts
    return data_of(job, material) | {
        "target": options.target,
        "contexts": [len(part.keys) for part in file.laws],
        "texts": texts + held,
        "laws": laws + held_laws,
        "given_texts": len(options.texts),
        "draft": options.draft or "",
        "coverage": coverage(file, material.held),
    }


def coverage(file: NgramFile, texts: Sequence[Text]) -> list[float]:
    """How often the likeliest token is named after a token alone, and after 1 to 4 tokens."""
    found, places = [0] * (1 + len(file.laws)), 0
    for text in texts:
        tokens = text.token_ids.tolist()
        for prefix, ids in zip(text.prefixes.tolist(), text.law_ids[:, 0].tolist(), strict=True):
            places += 1
            _note(file, tokens[max(0, prefix - 4) : prefix], ids, found)
    return [round(count / max(1, places), 3) for count in found]


def _note(file: NgramFile, context: Sequence[int], token: int, found: list[int]) -> None:
    alone = slice(context[-1] * FIRSTS, (context[-1] + 1) * FIRSTS)
    named = zip(file.first_ids[alone], file.first_codes[alone], strict=True)
    found[0] += any(code and first == token for first, code in named)
    key = 0
    for order, laws in enumerate(file.laws[: len(context)]):
        key = extend_key(key, context[-1 - order])
        law = laws.find(key)
        if law >= 0:
            found[order + 1] += token in laws.ids[laws.starts[law] : laws.starts[law + 1]]


def readme(card: Mapping[str, Any]) -> str:
    """The card for people, in Markdown."""
    rows = (
        ("contexts of 1, 2, 3, 4 tokens", listed(card["contexts"])),
        ("text files given", card["given_texts"]),
        ("weighed beside a draft model", card["draft"] or "none"),
    )
    covered = " | ".join(f"{share:.0%}" for share in card["coverage"])
    title = f"What {card['target']} says after a few tokens"
    return page(card, title, _ABOUT, rows, f"{_COVERAGE}\n| {covered} |")


_ABOUT = """An n-gram file for the drafting method `ngram`: no model runs to use it. It was made
from its target, which verifies every drafted token, so the output distribution is the target's.
Texts that are held out weigh the sources; in the end the file learns from them, too."""
_COVERAGE = """Of the places of those texts, so often is the target's likeliest token named after

| one token alone | 1 | 2 | 3 | 4 tokens |
|---|---|---|---|---|"""

"""On-policy texts: what a target itself writes, and its distribution at every token it draws.

A drafter is judged on the texts that its target writes, so it learns from those
(on-policy distillation for speculative decoding: DistillSpec, Zhou et al.,
2310.08461). Prompts come from a file, or the target writes them as well: given the
beginning of a user's turn, an instruct model goes on with a user's words (Magpie,
Xu et al., 2406.08464).

Text number n of a series is drawn with random numbers of its own, so that the
series is the same however many texts are written side by side, and whenever the
run was stopped.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
import torch
from torch import Tensor

from services.engine.native import NativeEngine
from services.engine.native.dialogue import Dialogue
from services.engine.port import KVCache, Segment
from services.training.texts import LAW_TOKENS, Text


@dataclass(frozen=True, slots=True)
class WritingPlan:
    """How a series of texts is written.

    `prompts`: user's words, in token ids, taken in turn; empty: the target writes
    them, each after one of `openings` (token ids too; often no token at all). Every
    answer is drawn at one of `temperatures`.
    """

    dialogue: Dialogue
    seed: int
    prompts: Sequence[Sequence[int]] = ()
    openings: Sequence[Sequence[int]] = ((),)
    temperatures: Sequence[float] = (0.0, 0.7, 1.0, 1.0)
    prompt_temperature: float = 0.8
    prompt_tokens: int = 384
    answer_tokens: int = 192


class _Part(Enum):
    PROMPT = auto()
    ANSWER = auto()


@dataclass(slots=True)
class _Page:
    """One text in the making."""

    number: int
    chance: random.Random
    temperature: float
    answer_temperature: float
    cache: KVCache
    part: _Part
    unfed: list[int]
    tokens: list[int]
    left: int
    prefixes: list[int] = field(default_factory=list)
    law_ids: list[Tensor] = field(default_factory=list)
    law_logs: list[Tensor] = field(default_factory=list)

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        self.unfed.extend(tokens)

    def finished(self) -> Text:
        return Text(
            self.number,
            np.array(self.tokens, dtype=np.int32),
            np.array(self.prefixes, dtype=np.int32),
            torch.stack(self.law_ids).numpy(),
            torch.stack(self.law_logs).numpy(),
        )


class Writer:
    """Writes texts of a plan, `batch` at a time, with a target's engine."""

    def __init__(self, engine: NativeEngine, plan: WritingPlan, batch: int) -> None:
        self._engine = engine
        self._plan = plan
        self._batch = batch
        # Texts begin in waves, so that few steps carry whole prompts.
        self._wave = max(1, batch // 8)
        self._header = self._read_header()
        self._ends = frozenset(engine.eos_token_ids) | set(plan.dialogue.after[:1])

    def write(self, numbers: Iterator[int]) -> Iterator[tuple[list[Text], int]]:
        """Write the texts of these numbers; after each step, those it finished and tokens drawn.

        New numbers are asked for only when texts can begin.
        """
        pages: list[_Page] = []
        while True:
            if len(pages) <= self._batch - self._wave:
                fresh = itertools.islice(numbers, self._batch - len(pages))
                pages += [self._open(number) for number in fresh]
            if not pages:
                return
            ready = self._ready(pages)
            done = self._step(ready)
            pages = [page for page in pages if page not in done]
            yield [page.finished() for page in done], len(ready)

    def _ready(self, pages: Sequence[_Page]) -> Sequence[_Page]:
        """Who takes part in the next step.

        Texts that are fed several tokens at once wait for each other: a step
        with masks costs the others half as much again.
        """
        quick = [page for page in pages if len(page.unfed) == 1]
        if quick and len(pages) - len(quick) < self._wave:
            return quick
        return pages

    def _open(self, number: int) -> _Page:
        plan = self._plan
        chance = random.Random(f"{plan.seed}:{number}")
        temperature = chance.choice(plan.temperatures)
        if plan.prompts:
            words = plan.prompts[number % len(plan.prompts)]
            start, part, left = plan.dialogue.prompt(words), _Part.ANSWER, plan.answer_tokens
            heat = temperature
        else:
            opening = chance.choice(plan.openings)
            start = [*plan.dialogue.before, *opening]
            part, left, heat = _Part.PROMPT, plan.prompt_tokens, plan.prompt_temperature
        longest = len(start) + plan.prompt_tokens + len(plan.dialogue.after) + plan.answer_tokens
        cache = self._header.fork(min(longest, self._engine.max_context_length))
        unfed = start[cache.length :]
        return _Page(number, chance, heat, temperature, cache, part, unfed, start, left)

    def _read_header(self) -> KVCache:
        """K/V of what all texts begin with, but for its last token."""
        header = self._plan.dialogue.before[:-1]
        cache = self._engine.new_cache(max(1, len(header)))
        if header:
            self._engine.forward([Segment(cache, header, logits_from=len(header))])
        return cache

    def _step(self, pages: Sequence[_Page]) -> list[_Page]:
        """Draw a token for every page; returns those that are finished."""
        segments = [Segment(p.cache, p.unfed, logits_from=len(p.unfed) - 1) for p in pages]
        logits = torch.cat(self._engine.forward(segments))
        best = torch.topk(logits, min(LAW_TOKENS, logits.shape[-1]))
        logs = best.values - logits.logsumexp(-1, keepdim=True)
        heads = logs.to(torch.float16).cpu(), best.indices.to(torch.int32).cpu()
        tokens = [
            _draw(row, top.tolist(), page.temperature, page.chance.random())
            for page, row, top in zip(pages, logits, best.indices, strict=True)
        ]
        for page, token, law_logs, law_ids in zip(pages, tokens, *heads, strict=True):
            page.prefixes.append(len(page.tokens))
            page.law_ids.append(law_ids)
            page.law_logs.append(law_logs)
            page.unfed = []
            page.left -= 1
            self._take(page, token)
        done = [page for page in pages if not page.unfed]
        for page in done:
            page.cache.free()
        return done

    def _take(self, page: _Page, token: int) -> None:
        """Go on with the token; nothing is left unfed when the text is at its end."""
        ended = token in self._ends
        if not ended:
            page.extend([token])
        if page.part is _Part.PROMPT and (ended or page.left == 0) and self._plan.dialogue.after:
            page.extend(self._plan.dialogue.after)
            page.part, page.left = _Part.ANSWER, self._plan.answer_tokens
            page.temperature = page.answer_temperature
        elif ended or page.left == 0 or page.cache.length + 1 >= page.cache.reserve:
            page.unfed = []


def _draw(logits: Tensor, best: Sequence[int], heat: float, u: float) -> int:
    """One token of a row [V] at a temperature, by inversion."""
    if heat == 0.0:
        return best[0]
    mass = torch.softmax(logits / heat, -1).cumsum(-1, dtype=torch.float64)
    place = torch.searchsorted(mass, u * mass[-1], right=True)
    return min(int(place), len(mass) - 1)

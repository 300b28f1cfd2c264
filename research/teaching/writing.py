"""Waves of texts that a target writes side by side, a token of each at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from research.teaching.target import Target
from services.engine.native.dialogue import Dialogue

KEPT = 32
"""Tokens kept of each distribution."""
CONTEXT = 4
"""Tokens before a distribution that are kept with it."""
_LOOK_EVERY = 16
_ENOUGH = 0.97
"""A wave ends when this share of its texts has; the others are cut off."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How texts are drawn: answers each at one of `temperatures`.

    `prompt_tokens`: most of a prompt that the target writes; `room`: most before any answer.
    """

    dialogue: Dialogue
    ends: Sequence[int]
    temperatures: Sequence[float] = (0.0, 0.0, 0.7, 1.0, 1.0)
    prompt_temperature: float = 0.9
    prompt_tokens: int = 160
    answer_tokens: int = 192
    room: int = 384


@dataclass(frozen=True, slots=True)
class Wave:
    """What was written; padding is 0.

    tokens int64 [B, T]. Answers begin at `starts`, end before `ends`, and were drawn at the
    temperatures `heats` [B]. Of each token drawn in an answer, all texts one after the other:
    `texts` [R], its text; `places` [R], how many tokens come before it; `ids` int32 and `chances`
    float16 [R, KEPT], the likeliest at temperature 1. `mass` float64 [V]: summed probability.
    """

    tokens: Tensor
    starts: Tensor
    ends: Tensor
    heats: Tensor
    texts: Tensor
    places: Tensor
    ids: Tensor
    chances: Tensor
    mass: Tensor

    def without(self, numbers: Sequence[int]) -> Wave:
        """The same, these texts without answers."""
        gone = torch.tensor(numbers, device=self.tokens.device)
        ends = self.ends.clone()
        ends[gone] = 0
        return replace(self, ends=ends)

    def contexts(self) -> Tensor:
        """The tokens before each distribution, the last one first: int64 [R, CONTEXT]."""
        back = torch.arange(1, CONTEXT + 1, device=self.tokens.device)
        return self.tokens[self.texts[:, None], self.places[:, None] - back]


class Pen:
    """Writes waves of as many texts as `batch`."""

    def __init__(self, target: Target, plan: Plan, batch: int, seed: int) -> None:
        self._target, self._plan, self._batch = target, plan, batch
        self._chance = random.Random(seed)
        self.longest = plan.room + plan.answer_tokens + 1
        self._cache = target.cache(batch, self.longest)

    def own(self, openings: Sequence[Sequence[int]]) -> Wave:
        """Texts whose prompts the target writes, too, each after one of `openings`."""
        before = list(self._plan.dialogue.before)
        starts = [before + list(self._chance.choice(openings)) for _ in range(self._batch)]
        return self._write(starts, asking=True)

    def answers(self, prompts: Sequence[Sequence[int]], temperature: float | None = None) -> Wave:
        """Answers to prompts, whole beginnings of texts in token ids, `Plan.room` at most."""
        return self._write(prompts, asking=False, temperature=temperature)

    @torch.inference_mode()
    def _write(
        self,
        beginnings: Sequence[Sequence[int]],
        *,
        asking: bool,
        temperature: float | None = None,
    ) -> Wave:
        plan, target = self._plan, self._target
        device, count = target.device, len(beginnings)
        known = [len(beginning) for beginning in beginnings]
        limit = max(known) + plan.answer_tokens + 1
        if asking:
            limit += plan.prompt_tokens + len(plan.dialogue.after)
        limit = min(limit, self.longest)
        given = torch.full((count, limit + 16), -1, dtype=torch.int64)
        for line, beginning in zip(given, beginnings, strict=True):
            line[: len(beginning)] = torch.tensor(beginning)
        page = _Page(target, plan, given.to(device), torch.tensor(known, device=device), asking)
        heats = [self._chance.choice(plan.temperatures) for _ in range(count)]
        page.heats = torch.tensor(
            heats if temperature is None else [temperature] * count, device=device
        )
        cache = self._cache[:, :, :count]
        tokens = page.given[:, 0]
        first = min(known)
        for place in range(limit - 1):
            logits = target.step(cache, tokens, place)
            if place + 1 < first:
                tokens = page.given[:, place + 1]
                continue
            tokens = page.turn(logits, place)
            if place % _LOOK_EVERY == 0 and float(page.done.float().mean()) > _ENOUGH:
                break
        return page.wave()


class _Page:
    """The state of a wave."""

    def __init__(
        self, target: Target, plan: Plan, given: Tensor, known: Tensor, asking: bool
    ) -> None:
        count, device = len(given), given.device
        self._plan, self.given = plan, given
        self._after = torch.tensor(plan.dialogue.after, device=device)
        self._stops = torch.tensor([*plan.ends], device=device)
        self._asking = torch.full((count,), asking, device=device)
        self._began = known
        self._starts = torch.zeros_like(known) if asking else known.clone()
        self._ends = torch.zeros_like(known)
        self.done = torch.zeros(count, dtype=torch.bool, device=device)
        self.heats = torch.zeros(count, device=device)
        self._mass = torch.zeros(target.vocab_size, dtype=torch.float64, device=device)
        self._rows: list[tuple[Tensor, ...]] = []

    def turn(self, logits: Tensor, place: int) -> Tensor:
        """Choose the token at `place` + 1 of every text."""
        logits = logits.float()
        following = self.given[:, place + 1]
        free = following < 0
        drawn = free & ~self._asking & ~self.done
        self._keep(logits, drawn, place + 1)
        heats = torch.where(self._asking, self._plan.prompt_temperature, self.heats)[:, None]
        noise = torch.empty_like(logits).exponential_().log_()
        scaled = logits.div_(heats.clamp_min(1e-3)).sub_(noise.mul_((heats > 0).float()))
        chosen = torch.where(free, scaled.argmax(-1), following)
        ended = torch.isin(chosen, self._stops) & free
        asked = self._asking & (ended | (place + 1 - self._began >= self._plan.prompt_tokens))
        asked &= free
        self._close(asked, place + 1)
        chosen = torch.where(asked, self.given[:, place + 1], chosen)
        chosen = torch.where(self.done, 0, chosen)
        self.given[:, place + 1] = chosen
        full = place + 2 - self._starts >= self._plan.answer_tokens
        finished = drawn & (ended | full)
        self._ends = torch.where(drawn, place + 2, self._ends)
        self.done |= finished
        return chosen

    def _close(self, asked: Tensor, place: int) -> None:
        """End the prompts of these texts at `place`."""
        size = len(self._after)
        there = slice(place, place + size)
        room = self.given[:, there]
        self.given[:, there] = torch.where(asked[:, None], self._after[: room.shape[1]], room)
        self._starts = torch.where(asked, place + size, self._starts)
        self._asking &= ~asked

    def _keep(self, logits: Tensor, drawn: Tensor, place: int) -> None:
        if place % _LOOK_EVERY == 0 and not bool(drawn.any()):
            return
        shares = logits.softmax(-1)
        self._mass += (drawn.float() @ shares).double()
        best = shares.topk(KEPT)
        texts = drawn.nonzero()[:, 0]
        places = torch.full_like(texts, place)
        ids, chances = best.indices[texts].int(), best.values[texts].half()
        self._rows.append((texts, places, ids, chances))

    def wave(self) -> Wave:
        """All that was written."""
        texts, places, ids, chances = (torch.cat(part) for part in zip(*self._rows, strict=True))
        order = torch.argsort(texts * self.given.shape[1] + places)
        tokens = self.given.clamp_min(0)
        inside = torch.arange(tokens.shape[1], device=tokens.device) < self._ends[:, None]
        return Wave(
            tokens * inside,
            self._starts,
            self._ends,
            self.heats,
            texts[order],
            places[order],
            ids[order],
            chances[order],
            self._mass,
        )

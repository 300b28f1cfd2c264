"""Whether a head was read right: how often it says what its target says next.

The target answers a few questions, greedily and all at once. The head is fed these texts with the
target's states, under each reading that its layout leaves open, and the best one is kept. A head
that is read wrong, or is another target's, hardly ever says the next token, and is refused.

None of this changes a text: drafts are judged. A head that is misread drafts in vain.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from services.contract.errors import Overloaded, StartError
from services.engine.native.dialogue import Dialogue, dialogue_of, tokenizer_of
from services.engine.port import Capability, Segment, freed_on_error
from services.engine.stages import stage

if TYPE_CHECKING:
    from services.engine.eagle.engine import EagleEngine
    from services.engine.eagle.readings import Reading
    from services.engine.port import Engine, HiddenStates, KVCache

QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Explain how a bicycle stays upright.",
    "Write a short letter to a friend who has moved away.",
    "List the steps to make a cup of tea.",
    "Write a Python function that adds two numbers.",
    "Why is the sky blue?",
    "Tell me a story about a fox and a crow.",
    "What is 17 times 6?",
)
LENGTH = 25
"""Tokens of an answer."""
LEAST = 8
"""Tokens of an answer, however slow the target is."""
MOST_S = 5.0
"""At a start, no step of the target begins later."""

_log = logging.getLogger(__name__)
Clock = Callable[[], float]
Late = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many of so many tokens of the target's a head says, read so."""

    reading: Reading
    hits: int
    tokens: int

    @property
    def share(self) -> float:
        """Of the tokens."""
        return self.hits / max(1, self.tokens)

    def __str__(self) -> str:
        return f"{self.share:.0%} with {self.reading}"


@dataclass(frozen=True, slots=True)
class _Answer:
    """A text of the target's, and its states: by layer, [tokens - 1, width]."""

    token_ids: list[int]
    start: int
    """Where the answer begins."""
    states: dict[int, Tensor]


def settle(
    head: EagleEngine, target: Engine, floor: float, clock: Clock = time.perf_counter
) -> None:
    """Let a head be read as it says most of what its target says. `clock`: seconds.

    Raises StartError where that is less than `floor`, of 1.
    """
    stage(f"measures the head {head.model_id}")
    try:
        until = clock() + MOST_S
        found = agreements(head, target, lambda: clock() > until)
    except (Overloaded, ValueError) as error:
        _log.warning("head %s was not measured: %s", head.model_id, error)
        return
    best, *others = sorted(found, key=lambda one: -one.share)
    head.read_as(best.reading)
    rest = f"; {', '.join(map(str, others))}" if others else ""
    told = f"says {best.tokens} tokens of {target.model_id}: {best}{rest}"
    if best.share < floor:
        raise StartError(
            f"head {head.model_id}: {told}; less than {floor:.0%} is hardly a head of this model "
            "(--head-floor 0 takes it as it is)"
        )
    _log.info("head %s %s", head.model_id, told)


def agreements(head: EagleEngine, target: Engine, late: Late = lambda: False) -> list[Agreement]:
    """Of each reading of the head, in their order; the head is read as it was before.

    `late`: whether answers are to end where they are.
    Raises ValueError for a target that shows no states or has no tokenizer, Overloaded without
    room. What both held is free again.
    """
    if Capability.HIDDEN_STATES not in target.capabilities:
        raise ValueError(f"{target.model_id} shows no states")
    layers = sorted({layer for reading in head.readings for layer in reading.layers})
    answers = _answers(cast("HiddenStates", target), layers, _prompts(target), late)
    before = head.reading
    try:
        return [_agreement(head, reading, answers) for reading in head.readings]
    finally:
        head.read_as(before)


def _prompts(target: Engine) -> list[list[int]]:
    """The questions, as a user asks them."""
    if target.bundle is None:
        raise ValueError(f"{target.model_id} has no tokenizer")
    tokenizer = tokenizer_of(target.bundle)
    try:
        dialogue = dialogue_of(tokenizer)
    except Exception:
        # Any template; plain text tells as well which reading is right.
        dialogue = Dialogue((tokenizer.bos_token_id or 0,), ())
    asked = tokenizer(list(QUESTIONS), add_special_tokens=False)["input_ids"]
    return [dialogue.prompt(words) for words in asked]


def _answers(
    target: HiddenStates, layers: Sequence[int], prompts: Sequence[list[int]], late: Late
) -> list[_Answer]:
    try:
        target.watch(layers)
    except StartError as error:
        raise ValueError(f"no states: {error}") from error
    caches: list[KVCache] = []
    try:
        for prompt in prompts:
            # One by one: those made are freed where the next one finds no room.
            caches.append(target.new_cache(len(prompt) + LENGTH))  # noqa: PERF401
        return _written(target, layers, prompts, caches, late)
    finally:
        for cache in caches:
            cache.free()


def _written(
    target: HiddenStates,
    layers: Sequence[int],
    prompts: Sequence[list[int]],
    caches: Sequence[KVCache],
    late: Late,
) -> list[_Answer]:
    texts, fed = [list(prompt) for prompt in prompts], [list(prompt) for prompt in prompts]
    known: list[list[Tensor]] = [[] for _ in prompts]
    for count in range(LENGTH):
        if count >= LEAST and late():
            break
        segments = [
            Segment(cache, tokens, logits_from=len(tokens) - 1)
            for cache, tokens in zip(caches, fed, strict=True)
        ]
        logits, states = target.forward_with_states(segments)
        fed = [[int(rows[-1].argmax())] for rows in logits]
        for text, parts, new, rows in zip(texts, known, fed, states, strict=True):
            text.extend(new)
            parts.append(rows.float().cpu())
    return [
        _Answer(text, len(prompt), _by_layer(parts, layers))
        for text, prompt, parts in zip(texts, prompts, known, strict=True)
    ]


def _by_layer(parts: Sequence[Tensor], layers: Sequence[int]) -> dict[int, Tensor]:
    return dict(zip(layers, torch.cat(list(parts)).chunk(len(layers), -1), strict=True))


def _agreement(head: EagleEngine, reading: Reading, answers: Sequence[_Answer]) -> Agreement:
    head.read_as(reading)
    said = [_said(head, answer) for answer in answers]
    hits = sum(
        sum(map(int.__eq__, tokens, answer.token_ids[answer.start :]))
        for tokens, answer in zip(said, answers, strict=True)
    )
    return Agreement(reading, hits, sum(map(len, said)))


def _said(head: EagleEngine, answer: _Answer) -> list[int]:
    """The head's likeliest token at each place of the answer."""
    text, first = answer.token_ids[:-1], answer.start - 1
    with freed_on_error(head.new_cache(len(text))) as cache:
        states = torch.cat([answer.states[layer] for layer in head.layers], -1)
        cache.anchor(0, states[: len(text) - 1])
        [rows] = head.forward([Segment(cache, text, logits_from=first)])
    cache.free()
    best = rows.argmax(-1).cpu()
    ids = best if head.head_ids is None else head.head_ids[best]
    found: list[int] = ids.tolist()
    return found

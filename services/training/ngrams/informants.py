"""What the target, a draft model, or a head says of a text, for the weights beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from services.contract.top_rows import WIDTH
from services.contract.types import DraftTree
from services.engine.native import NativeEngine
from services.engine.ngram_file import DraftLaw, Lesson
from services.engine.port import Engine, Segment, StateDrafting
from services.engine.sampling import head_of, kept_laws, likeliest
from services.training.head.states import states_at
from services.training.reporting import Reporter

OWN_STEPS = (0, 1, 2)
"""Steps of a head on its own features before a place: a tree that waits for two or three steps
has places of each."""

Says = Callable[[Lesson], list[DraftLaw]]
"""The distribution after each place of a lesson."""


def told(
    says: Says, lessons: Sequence[Lesson], reporter: Reporter
) -> Iterator[tuple[Lesson, list[DraftLaw]]]:
    """Each lesson with what is said at its places."""
    for done, lesson in enumerate(lessons, 1):
        yield lesson, says(lesson)
        reporter.advance(done)


def model_says(engine: Engine) -> Says:
    """What a draft model says, which reads a lesson at once."""
    head = head_of(engine)

    def says(lesson: Lesson) -> list[DraftLaw]:
        logits = logits_of(engine, lesson.tokens, lesson.start)[: len(lesson.law_ids)]
        return kept_laws(logits.log_softmax(-1), head)

    return says


def head_says(head: StateDrafting, target: NativeEngine) -> Says:
    """What a head says, after as many steps of its own as places of a tree are deep."""
    columns = head_of(head)
    target.watch(head.layers)

    def says(lesson: Lesson) -> list[DraftLaw]:
        [states] = states_at(target, [lesson.tokens])
        places = range(lesson.start, lesson.start + len(lesson.law_ids))
        rows: dict[int, Tensor] = {}
        for own in OWN_STEPS:
            mine = [place for place in places if place % len(OWN_STEPS) == own]
            rows |= _after(head, lesson.tokens, states, mine, own)
        return kept_laws(torch.stack([rows[place] for place in places]).log_softmax(-1), columns)

    return says


def _after(
    head: StateDrafting, tokens: Sequence[int], states: Tensor, places: Sequence[int], own: int
) -> dict[int, Tensor]:
    """Logits after the first `place` tokens, the last `own` of them read on own features."""
    cache, rows, known = head.new_cache(len(tokens)), {}, 0
    try:
        for place in places:
            # The last token's feature is that of the one before it.
            end = max(known, place - 1 - own)
            cache.anchor(known, states[known:end])
            cache.refresh()
            fresh = tokens[cache.length : place]
            (logits,) = head.forward([Segment(cache, fresh, logits_from=len(fresh) - 1)])
            rows[place], known = logits[0], end
    finally:
        cache.free()
    return rows


def logits_of(engine: Engine, tokens: Sequence[int], start: int) -> Tensor:
    """Logits [R, V] after the first `start` tokens of a text, and after every token from there."""
    cache = engine.new_cache(len(tokens))
    try:
        (logits,) = engine.forward([Segment(cache, tokens, logits_from=start - 1)])
    finally:
        cache.free()
    return logits


class TargetReader:
    """Verifies drafts of one text after the other, for their rows alone."""

    def __init__(self, engine: NativeEngine, longest: int) -> None:
        """`longest`: tokens of a text with its draft."""
        self._engine = engine
        self._cache = engine.new_cache(longest)
        self._text: list[int] = []

    def close(self) -> None:
        """Give the K/V back."""
        self._cache.free()

    def __call__(self, text: Sequence[int], tree: DraftTree) -> list[list[int]]:
        """The likeliest tokens after the text, and after each node of a draft behind it."""
        goes_on = list(text[: len(self._text)]) == self._text
        known = min(len(self._text) if goes_on else 0, len(text) - 1)
        self._cache.rollback(known)
        fresh = len(text) - known
        parents = [*range(-1, fresh - 1), *(fresh + above for above in tree.every_parent)]
        tokens = [*text[known:], *tree.token_ids]
        (logits,) = self._engine.forward([Segment(self._cache, tokens, parents, fresh - 1)])
        self._cache.keep_path(known, range(fresh))
        self._text = list(text)
        return likeliest(logits, min(WIDTH, logits.shape[-1])).tolist()

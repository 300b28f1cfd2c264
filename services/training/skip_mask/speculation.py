"""A target that drafts for itself and verifies, in one process, timed.

Greedy self-speculation as Draft & Verify measures a mask (Zhang et al., 2309.08168).
Between the rounds a plain step of the same text is timed: on a machine that is not
always equally fast, a cost against plain decoding says more than seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import eq

from torch import Tensor

from services.contract.errors import StartError
from services.engine.native import NativeEngine
from services.engine.port import KVCache, Segment
from services.engine.skip_mask import SkipMask
from services.training.options import Placement
from services.training.skip_mask.figures import MaskStats, total


@dataclass(frozen=True, slots=True)
class Rules:
    """How a draft ends, how much is written per prompt, and where a draft starts from."""

    tokens: int
    max_draft: int
    threshold: float
    placement: Placement = "pool"

    @property
    def reserve(self) -> int:
        """Tokens of K/V beside a prompt."""
        return self.tokens + 2 * (self.max_draft + 1)


class Speculation:
    """Prompts that were read once, and the text after each of them by any mask.

    `clock` gives seconds. The prompts' reading is not timed, nor is the first token,
    which is the whole model's. Raises StartError where no prompt has an answer.
    """

    def __init__(
        self,
        engine: NativeEngine,
        prompts: Sequence[Sequence[int]],
        rules: Rules,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine, self._rules, self._clock = engine, rules, clock
        self._stop_ids = frozenset(engine.eos_token_ids)
        self._starts = [self._start(prompt) for prompt in prompts]
        if all(start.text[-1] in self._stop_ids for start in self._starts):
            raise StartError("--prompts: the target answers none of them")

    def measure(self, mask: SkipMask) -> MaskStats:
        """Write after every prompt; the figures of all rounds."""
        return total(figures for start in self._starts for figures in self._rounds(start, mask))

    def _start(self, prompt: Sequence[int]) -> _Start:
        verified = self._engine.new_cache(len(prompt) + self._rules.reserve)
        segment = Segment(verified, prompt, logits_from=len(prompt) - 1)
        first = int(self._engine.forward([segment])[0][-1].argmax())
        beside = self._rules.placement == "beside"
        drafting = verified if beside else verified.fork(verified.reserve)
        return _Start((*prompt, first), verified, drafting)

    def _rounds(self, start: _Start, mask: SkipMask) -> Iterator[MaskStats]:
        text, goal = list(start.text), len(start.text) + self._rules.tokens
        for cache in (start.verified, start.drafting):
            cache.rollback(len(text) - 1)
        while len(text) < goal and text[-1] not in self._stop_ids:
            plain = self._timed_plain(start, text)
            began = self._clock()
            drafted = self._draft(start, text, mask)
            drawn = self._clock()
            fresh = self._until_stop(self._verify(start, text, drafted))
            ended = self._clock()
            text += fresh
            start.drafting.rollback(min(start.drafting.length, len(text) - 1))
            yield MaskStats(
                verified=len(fresh),
                drafted=len(drafted),
                accepted=sum(map(eq, fresh, drafted)),
                rounds=1,
                draft_seconds=drawn - began,
                verify_seconds=ended - drawn,
                plain_steps=1,
                plain_seconds=plain,
            )

    def _timed_plain(self, start: _Start, text: Sequence[int]) -> float:
        """Seconds of one step of plain decoding, whose token nobody takes."""
        began = self._clock()
        rows = self._forward(start.verified, text[-1:])
        int(rows[-1].argmax())
        elapsed = self._clock() - began
        start.verified.rollback(len(text) - 1)
        return elapsed

    def _draft(self, start: _Start, text: Sequence[int], mask: SkipMask) -> list[int]:
        """Tokens of the skipping model, the last one being unsure or one too many."""
        drafted: list[int] = []
        fresh = text[start.drafting.length :]
        while True:
            row = self._forward(start.drafting, fresh, mask)[-1]
            token = int(row.argmax())
            sure = float((row[token] - row.logsumexp(-1)).exp())
            drafted.append(token)
            if len(drafted) == self._rules.max_draft or sure < self._rules.threshold:
                return drafted
            fresh = [token]

    def _verify(self, start: _Start, text: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """The whole model's own tokens as far as the draft has them, and one more."""
        base = len(text) - 1
        start.verified.rollback(base)
        own = self._forward(start.verified, [text[-1], *drafted]).argmax(-1).tolist()
        wrong = (place for place, token in enumerate(drafted) if own[place] != token)
        accepted = next(wrong, len(drafted))
        start.verified.rollback(base + 1 + accepted)
        return own[: accepted + 1]

    def _until_stop(self, tokens: Sequence[int]) -> Sequence[int]:
        """Up to the first token that ends a text, which is the last one then."""
        stops = (place for place, token in enumerate(tokens) if token in self._stop_ids)
        return tokens[: next(stops, len(tokens)) + 1]

    def _forward(
        self, cache: KVCache, tokens: Sequence[int], mask: SkipMask | None = None
    ) -> Tensor:
        first = len(tokens) - 1 if mask is not None else 0
        return self._engine.forward([Segment(cache, tokens, logits_from=first)], mask)[0]


@dataclass(frozen=True, slots=True)
class _Start:
    """A prompt with its first token: `text[:-1]` is in both caches, which may be one."""

    text: tuple[int, ...]
    verified: KVCache
    drafting: KVCache

"""What a client can measure of one generation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from paceline import Chunk, Complete, DraftSource, Event, RoundStats, Started


@dataclass(frozen=True, slots=True)
class Measured:
    """One finished generation. Times in seconds since the request was sent.

    `arrivals` holds (time, tokens) of every chunk.
    """

    started: Started
    complete: Complete
    token_ids: tuple[int, ...]
    arrivals: tuple[tuple[float, int], ...]
    rounds: tuple[RoundStats, ...]
    total_s: float

    @property
    def tokens(self) -> int:
        """Output tokens."""
        return len(self.token_ids)

    @property
    def first_token_s(self) -> float:
        """Time to the first token."""
        return self.arrivals[0][0] if self.arrivals else self.total_s

    @property
    def later_tokens(self) -> int:
        """Output tokens that came after the first chunk."""
        return sum(count for _, count in self.arrivals[1:])

    @property
    def decode_rate(self) -> float:
        """Output tokens per second after the first chunk; 0 where there is none."""
        spent = self.total_s - self.first_token_s
        return self.later_tokens / spent if spent > 0 else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Output tokens by the whole time, the prompt's included."""
        return self.tokens / self.total_s if self.total_s else 0.0

    @property
    def block_efficiency(self) -> float:
        """Output tokens per target forward; plain decoding = 1."""
        return self.complete.speculation.block_efficiency

    @property
    def gaps_s(self) -> list[float]:
        """Time between a chunk and the next one."""
        return [now - before for (before, _), (now, _) in pairwise(self.arrivals)]

    @property
    def latencies_s(self) -> list[float]:
        """Time per token after the first chunk: each gap shared by the tokens it brought."""
        latencies: list[float] = []
        for gap, (_, count) in zip(self.gaps_s, self.arrivals[1:], strict=True):
            latencies += [gap / count] * count
        return latencies


@dataclass
class Stopwatch:
    """Watches the events of one generation; make it when the request leaves."""

    clock: Callable[[], float] = time.perf_counter
    _began: float = field(init=False)
    _started: Started | None = None
    _chunks: list[tuple[float, Chunk]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = self.clock()

    def see(self, event: Event) -> Measured | None:
        """Note an event; the figures once it is the last one."""
        now = self.clock() - self._began
        match event:
            case Started():
                self._started = event
            case Chunk():
                self._chunks.append((now, event))
            case Complete():
                return self._figures(event, now)
        return None

    def _figures(self, complete: Complete, now: float) -> Measured:
        assert self._started is not None
        chunks = [chunk for _, chunk in self._chunks]
        return Measured(
            started=self._started,
            complete=complete,
            token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
            arrivals=tuple(
                (when, len(chunk.token_ids)) for when, chunk in self._chunks if chunk.token_ids
            ),
            rounds=tuple(stats for chunk in chunks for stats in chunk.rounds),
            total_s=now,
        )


def summary(measured: Measured) -> str:
    """The figures in one line."""
    speculation = measured.complete.speculation
    parts = [
        f"{measured.tokens} tokens in {measured.total_s:.2f} s",
        f"first token after {measured.first_token_s:.2f} s",
        f"{measured.decode_rate:.1f} tokens/s after it",
        f"block efficiency {speculation.block_efficiency:.2f}",
    ]
    if speculation.num_draft_tokens:
        rate = f"{speculation.draft_acceptance_rate:.0%}"
        parts.append(f"{rate} of {speculation.num_draft_tokens} drafted tokens accepted")
    return " · ".join(parts)


NAMES = {
    DraftSource.THIS_TEXT: "this text",
    DraftSource.OTHER_TEXTS: "other texts",
    DraftSource.LAWS: "the target's texts",
    DraftSource.FIRSTS: "single tokens",
    DraftSource.MODEL: "the draft model",
    DraftSource.EAGLE: "the head",
    DraftSource.TEXT: "a draft model's text",
    DraftSource.GRAPH: "the draft graph",
    DraftSource.SKIP: "skipped layers",
    DraftSource.LOOKAHEAD: "look-ahead",
    DraftSource.TARGET_ROWS: "the target's rows",
    DraftSource.UNKNOWN: "unnamed sources",
}
"""Where draft tokens come from, as it is shown."""


def by_source(measured: Measured) -> str:
    """Draft tokens and accepted ones by source, in one line; empty without drafts."""
    told = [
        f"{one.num_accepted_draft_tokens} of {one.num_draft_tokens} from {NAMES[one.source]}"
        for one in measured.complete.speculation.sources
    ]
    return f"drafts kept: {', '.join(told)}" if told else ""

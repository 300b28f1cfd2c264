"""A session's speculation in numbers, summed over its rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from orchestrator.steering.rounds import RoundRecord


@dataclass(slots=True)
class SpecTotals:
    """Sums over rounds.

    `histogram[i]` counts rounds with a draft in which exactly i tokens were accepted;
    `by_source` has (drafted, accepted) of each `DraftSource` that had any; `ms`: milliseconds that
    the rounds took, their queue included.
    """

    target_steps: int = 0
    emitted_tokens: int = 0
    spec_steps: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    histogram: list[int] = field(default_factory=list)
    by_source: dict[int, tuple[int, int]] = field(default_factory=dict)
    ms: float = 0.0

    def add(self, record: RoundRecord) -> None:
        """Count one verified round."""
        self.target_steps += 1
        self.ms += record.round_ms
        self.emitted_tokens += record.emitted_tokens
        if record.draft_tokens:
            accepted = record.accepted_tokens
            self.spec_steps += 1
            self.draft_tokens += record.draft_tokens
            self.accepted_tokens += accepted
            self.histogram.extend([0] * (accepted + 1 - len(self.histogram)))
            self.histogram[accepted] += 1
        self.count_sources(record.sources)

    def count_sources(self, counts: Iterable[tuple[int, int, int]]) -> None:
        """Count draft tokens by (source, drafted, accepted)."""
        for source, drafted, accepted in counts:
            before = self.by_source.get(source, (0, 0))
            self.by_source[source] = (before[0] + drafted, before[1] + accepted)

    def join(self, other: SpecTotals) -> None:
        """Add another's sums."""
        self.target_steps += other.target_steps
        self.emitted_tokens += other.emitted_tokens
        self.ms += other.ms
        self.spec_steps += other.spec_steps
        self.draft_tokens += other.draft_tokens
        self.accepted_tokens += other.accepted_tokens
        self.histogram.extend([0] * (len(other.histogram) - len(self.histogram)))
        for accepted, count in enumerate(other.histogram):
            self.histogram[accepted] += count
        self.count_sources([(source, *counts) for source, counts in other.by_source.items()])

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / rounds with a draft, as vLLM defines it; 0 without such a round."""
        return 1 + self.accepted_tokens / self.spec_steps if self.spec_steps else 0.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted; 0 when nothing was drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def block_efficiency(self) -> float:
        """Emitted tokens / target forwards; plain decoding = 1; 0 before the first."""
        return self.emitted_tokens / self.target_steps if self.target_steps else 0.0

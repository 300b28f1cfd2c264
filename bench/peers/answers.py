"""What a peer answered, in the same figures as one of our own generations. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline import (
    Complete,
    FinishReason,
    Method,
    RoundStats,
    SpecDecodeMetrics,
    Started,
    Usage,
)

from services.cluster.figures import Measured


@dataclass
class PeerAnswer:
    """Gathers the tokens of one answer as they come; times in seconds since it was asked."""

    id: int
    prompt_tokens: int
    seed: int
    rule: Method
    token_ids: list[int] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    rounds: list[RoundStats] = field(default_factory=list)

    def add(self, now: float, token_ids: list[int], drafted: int | None) -> None:
        """New tokens; of one verification of `drafted` tokens, unless that is None."""
        if token_ids:
            self.token_ids += token_ids
            self.arrivals.append((now, len(token_ids)))
        if drafted is not None:
            accepted = min(drafted, max(0, len(token_ids) - 1))
            self.rounds.append(self._round(drafted, accepted, len(token_ids)))

    def finish(self, now: float, reason: str, cached: int = 0) -> Measured:
        """The figures. A peer's forwards are known where its verifications are.

        `cached`: prompt tokens that it found in a cache.
        """
        return Measured(
            started=Started(f"peer-{self.id}", self.prompt_tokens, self.seed),
            complete=Complete(
                FinishReason(reason),
                Usage(self.prompt_tokens, len(self.token_ids), cached),
                self._speculation(),
                "",
            ),
            token_ids=tuple(self.token_ids),
            arrivals=tuple(self.arrivals),
            rounds=tuple(self.rounds),
            total_s=now,
        )

    def _round(self, drafted: int, accepted: int, emitted: int) -> RoundStats:
        """Without times: a peer does not tell how long each part took."""
        return RoundStats(
            index=len(self.rounds) + 1,
            epoch=1,
            draft_tokens=drafted,
            accepted_tokens=accepted,
            emitted_tokens=emitted,
            batch_size=1,
            rejection_sample_method=self.rule,
        )

    def _speculation(self) -> SpecDecodeMetrics:
        drafts = [one for one in self.rounds if one.draft_tokens]
        drafted = sum(one.draft_tokens for one in drafts)
        accepted = sum(one.accepted_tokens for one in drafts)
        steps = len(self.rounds)
        return SpecDecodeMetrics(
            num_spec_steps=len(drafts),
            num_draft_tokens=drafted,
            num_accepted_draft_tokens=accepted,
            mean_acceptance_length=1.0 + accepted / len(drafts) if drafts else 1.0,
            draft_acceptance_rate=accepted / drafted if drafted else 0.0,
            acceptance_histogram=(),
            num_target_steps=steps,
            block_efficiency=len(self.token_ids) / steps if steps else 0.0,
        )

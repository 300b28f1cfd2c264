"""What follows from the trials of a synthetic run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.figures import (
    Measure,
    Percentiles,
    Spread,
    cpu_per_round,
    decode_rate,
    first_token_s,
    overhead_ms,
    ratio,
    ratios,
    whole_rate,
)
from bench.runner import Trial


@dataclass(frozen=True, slots=True)
class SyntheticFigures:
    """One way to decode. Times in milliseconds; spreads are over the repeats.

    `ms_per_token`: all time over all tokens, as each session saw it; `decode_ms` is the
    same without the time to the first token. `tokens_per_second`: of all sessions
    together. `speed_up`: over the ways named, in the same repeat. `overhead`: of a round
    beyond the verifier's queue and forward.
    """

    way: str
    ms_per_token: Spread | None
    decode_ms: Spread | None
    first_token: Spread | None
    tokens_per_second: Spread | None
    speed_up: dict[str, Spread | None]
    rounds_per_session: float
    block_efficiency: float
    drafted_per_token: float
    acceptance: float
    verify: Percentiles | None
    overhead: Percentiles | None
    cpu_per_round: Spread | None


def figures_of(trials: Sequence[Trial], way: str, baselines: Sequence[str]) -> SyntheticFigures:
    """The figures of one way, beside its baselines."""
    own = [trial for trial in trials if trial.configuration == way]
    results = [result for trial in own for result in trial.results]
    rounds = [stats for result in results for stats in result.rounds]
    tokens = sum(trial.tokens for trial in own)
    drafted = sum(stats.draft_tokens for stats in rounds)

    def over(measure: Measure) -> Spread | None:
        return Spread.of([measure([trial]) for trial in own])

    return SyntheticFigures(
        way=way,
        ms_per_token=over(lambda trials: ratio(1e3, session_rate(trials))),
        decode_ms=over(lambda trials: ratio(1e3, decode_rate(trials))),
        first_token=over(lambda trials: 1e3 * first_token_s(trials)),
        tokens_per_second=over(whole_rate),
        speed_up={one: Spread.of(speed_ups(trials, way, one)) for one in baselines if one != way},
        rounds_per_session=ratio(len(rounds), len(results)),
        block_efficiency=ratio(tokens, len(rounds)),
        drafted_per_token=ratio(drafted, tokens),
        acceptance=ratio(sum(stats.accepted_tokens for stats in rounds), drafted),
        verify=Percentiles.of([1e-3 * stats.verify_ms for stats in rounds]),
        overhead=Percentiles.of([1e-3 * overhead_ms(stats) for stats in rounds]),
        cpu_per_round=Spread.of(cpu_per_round(own)),
    )


def session_rate(trials: Sequence[Trial]) -> float:
    """Tokens over the time of their sessions."""
    spent = sum(result.total_s for trial in trials for result in trial.results)
    return ratio(sum(trial.tokens for trial in trials), spent)


def speed_ups(trials: Sequence[Trial], way: str, baseline: str) -> list[float]:
    """Time per token of the baseline over that of the way, for each repeat that both have."""
    return ratios(trials, way, baseline, session_rate)

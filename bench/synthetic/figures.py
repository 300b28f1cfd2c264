"""What follows from the trials of a synthetic run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.figures import Percentiles, Spread, overhead_ms, ratio
from bench.synthetic.measuring import Trial


@dataclass(frozen=True, slots=True)
class Figures:
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


def figures_of(trials: Sequence[Trial], way: str, baselines: Sequence[str]) -> Figures:
    """The figures of one way, beside its baselines."""
    own = [trial for trial in trials if trial.way == way]
    rounds = [stats for trial in own for result in trial.results for stats in result.rounds]
    tokens = sum(trial.tokens for trial in own)
    drafted = sum(stats.draft_tokens for stats in rounds)
    accepted = sum(stats.accepted_tokens for stats in rounds)
    return Figures(
        way=way,
        ms_per_token=_over(own, ms_per_token),
        decode_ms=_over(own, decode_ms),
        first_token=_over(own, lambda trial: _mean([1e3 * r.first_token_s for r in trial.results])),
        tokens_per_second=_over(own, lambda trial: trial.tokens / trial.wall_s),
        speed_up={one: Spread.of(speed_ups(trials, way, one)) for one in baselines if one != way},
        rounds_per_session=ratio(len(rounds), sum(len(trial.results) for trial in own)),
        block_efficiency=ratio(tokens, len(rounds)),
        drafted_per_token=ratio(drafted, tokens),
        acceptance=ratio(accepted, drafted),
        verify=Percentiles.of([1e-3 * stats.verify_ms for stats in rounds]),
        overhead=Percentiles.of([1e-3 * overhead_ms(stats) for stats in rounds]),
        cpu_per_round=_over(own, lambda trial: ratio(1e3 * trial.cpu_s, trial.rounds)),
    )


def ms_per_token(trial: Trial) -> float:
    """Time of the sessions over their tokens."""
    return ratio(1e3 * sum(result.total_s for result in trial.results), trial.tokens)


def decode_ms(trial: Trial) -> float:
    """Time after the first chunk over the tokens after it."""
    spent = sum(result.total_s - result.first_token_s for result in trial.results)
    later = sum(count for result in trial.results for _, count in result.arrivals[1:])
    return ratio(1e3 * spent, later)


def speed_ups(trials: Sequence[Trial], way: str, baseline: str) -> list[float]:
    """Time per token of the baseline over that of the way, for each repeat that both have."""
    took = {(trial.way, trial.repeat): ms_per_token(trial) for trial in trials}
    repeats = [trial.repeat for trial in trials if trial.way == way]
    pairs = [((way, repeat), (baseline, repeat)) for repeat in repeats]
    return [ratio(took[two], took[one]) for one, two in pairs if one in took and two in took]


def _over(trials: Sequence[Trial], figure: Callable[[Trial], float]) -> Spread | None:
    return Spread.of([figure(trial) for trial in trials])


def _mean(values: Sequence[float]) -> float:
    return ratio(sum(values), len(values))

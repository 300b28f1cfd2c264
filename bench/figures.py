"""From trials to the figures of a configuration. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from paceline import RoundStats

from bench.runner import Trial

POSITIONS = 8


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of one number over the repeats."""

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None when there are no values."""
        if not values:
            return None
        return cls(median(values), min(values), max(values), len(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of a time, in milliseconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles | None:
        """Of times in seconds; None when there are none."""
        if not seconds:
            return None
        ordered = sorted(seconds)
        return cls(*(1e3 * _percentile(ordered, share) for share in (0.50, 0.95, 0.99)))


@dataclass(frozen=True, slots=True)
class Figures:
    """One configuration over all its trials.

    Rates are total tokens over total time, prompts included; `decode_rate` leaves the
    time to the first token out. `speed_up` is against plain decoding on the same
    prompts of the same repeat. `overhead` is what a round takes beyond the verifier's
    own queue and forward. `wasted_share`: drafted tokens that were verified in vain.
    `rules`: those the rounds with a draft were judged by. `same_text_as_plain`: how many
    answers, of how many; None where equal text is not promised.
    """

    configuration: str
    tokens: int
    tokens_per_second: Spread | None
    decode_rate: float
    speed_up: Spread | None
    speed_up_all_cores: Spread | None
    first_token: Percentiles | None
    per_token: Percentiles | None
    overhead: Percentiles | None
    block_efficiency: float
    target_calls_per_token: float
    drafted_per_token: float
    acceptance_rate: float
    acceptance_per_position: tuple[float, ...]
    wasted_share: float
    rules: tuple[str, ...]
    same_text_as_plain: tuple[int, int] | None


def figures_of(
    trials: Sequence[Trial],
    name: str,
    plain: str = "plain",
    plain_all: str = "",
    *,
    exact: bool = True,
) -> Figures:
    """The figures of the configuration `name`; `plain` and `plain_all` name the baselines.

    `exact`: its text is promised to be that of plain decoding.
    """
    own = [trial for trial in trials if trial.configuration == name]
    results = [result for trial in own for result in trial.results]
    rounds = [stats for result in results for stats in result.rounds]
    tokens = sum(trial.tokens for trial in own)
    drafted = sum(stats.draft_tokens for stats in rounds)
    accepted = sum(stats.accepted_tokens for stats in rounds)
    steps = sum(result.complete.speculation.num_target_steps for result in results)
    return Figures(
        configuration=name,
        tokens=tokens,
        tokens_per_second=Spread.of(list(_rates(own).values())),
        decode_rate=_ratio(
            sum(result.tokens - _first(result.arrivals) for result in results),
            sum(result.total_s - result.first_token_s for result in results),
        ),
        speed_up=Spread.of(speed_ups(trials, name, plain)),
        speed_up_all_cores=Spread.of(speed_ups(trials, name, plain_all)) if plain_all else None,
        first_token=Percentiles.of([result.first_token_s for result in results]),
        per_token=Percentiles.of([one for result in results for one in result.latencies_s]),
        overhead=Percentiles.of([1e-3 * overhead_ms(stats) for stats in rounds]),
        block_efficiency=_ratio(tokens, steps),
        target_calls_per_token=_ratio(steps, tokens),
        drafted_per_token=_ratio(drafted, tokens),
        acceptance_rate=_ratio(accepted, drafted),
        acceptance_per_position=acceptance_per_position(rounds),
        wasted_share=_ratio(drafted - accepted, drafted),
        rules=tuple(sorted({r.rejection_sample_method.value for r in rounds if r.draft_tokens})),
        same_text_as_plain=same_texts(trials, name, plain) if exact else None,
    )


def speed_ups(trials: Sequence[Trial], name: str, baseline: str) -> list[float]:
    """Total time of the baseline over total time, per repeat, on the groups that both finished.

    Times are per token: texts of unequal length would count otherwise.
    """
    ratios = []
    for repeat in sorted({trial.repeat for trial in trials}):
        ours, theirs = (_by_group(trials, one, repeat) for one in (name, baseline))
        both = ours.keys() & theirs.keys()
        if both and name != baseline:
            ratios.append(_rate([ours[g] for g in both]) / _rate([theirs[g] for g in both]))
    return ratios


def acceptance_per_position(rounds: Sequence[RoundStats]) -> tuple[float, ...]:
    """For each place in a draft: how often it was accepted, given that all before it were."""
    rates = []
    for place in range(1, POSITIONS + 1):
        reached = [r for r in rounds if r.draft_tokens >= place and r.accepted_tokens >= place - 1]
        if not reached:
            break
        rates.append(sum(r.accepted_tokens >= place for r in reached) / len(reached))
    return tuple(rates)


def overhead_ms(stats: RoundStats) -> float:
    """Milliseconds of a round beyond the verifier's queue and forward."""
    return max(0.0, stats.round_ms - stats.verify_ms - stats.queue_ms)


def same_texts(trials: Sequence[Trial], name: str, baseline: str) -> tuple[int, int]:
    """How many answers have exactly the baseline's tokens, and of how many."""
    texts = _texts(trials, name)
    expected = _texts(trials, baseline)
    both = texts.keys() & expected.keys()
    return sum(texts[key] == expected[key] for key in both), len(both)


Key = tuple[int, int]


def _texts(trials: Sequence[Trial], name: str) -> dict[Key, tuple[int, ...]]:
    return {
        (trial.repeat, prompt.question_id): result.token_ids
        for trial in trials
        if trial.configuration == name
        for prompt, result in zip(trial.prompts, trial.results, strict=True)
    }


def _by_group(trials: Sequence[Trial], name: str, repeat: int) -> dict[int, Trial]:
    return {
        trial.group: trial
        for trial in trials
        if trial.configuration == name and trial.repeat == repeat
    }


def _rates(trials: Sequence[Trial]) -> dict[int, float]:
    """Tokens per second of every repeat."""
    repeats = sorted({trial.repeat for trial in trials})
    return {one: _rate([trial for trial in trials if trial.repeat == one]) for one in repeats}


def _rate(trials: Sequence[Trial]) -> float:
    return _ratio(sum(trial.tokens for trial in trials), sum(trial.wall_s for trial in trials))


def _first(arrivals: Sequence[tuple[float, int]]) -> int:
    return arrivals[0][1] if arrivals else 0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between the neighbours."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])

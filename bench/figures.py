"""From trials to the figures of a configuration. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from paceline import RoundStats

from bench.runner import ORCHESTRATOR, Trial
from services.cluster.figures import Measured

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
class RoundSplit:
    """Where the time of a round goes, in milliseconds, means over the rounds.

    `queue` (the wait for a step) and `verify` (the step). `draft`: the drafter's time for what was
    judged, before the round or, where the pacing is asynchronous, while another one runs.
    """

    draft: float
    verify: float
    queue: float

    @classmethod
    def of(cls, rounds: Sequence[RoundStats]) -> RoundSplit | None:
        """Over the rounds with times; None when there are none."""
        timed = _timed(rounds)
        if not timed:
            return None
        return cls(
            draft=fmean(one.draft_ms for one in timed),
            verify=fmean(one.verify_ms for one in timed),
            queue=fmean(one.queue_ms for one in timed),
        )


@dataclass(frozen=True, slots=True)
class ConfigurationFigures:
    """One configuration over all its trials at one level of concurrency.

    Three measures: `decoding` (a session's tokens a second after its first token), the time to
    the `first_token`, and `tokens_per_second` (all tokens over all time, prompts included). Each
    has ratios to plain decoding and to plain decoding on all cores, on the same prompts of the
    same repeat; for times, less than 1 is better. `latency` is that of whole answers.
    `cached_share`: the share of prompt tokens from a cache; `recalled_tokens`: drafted from other
    sessions' texts, None if not counted. `gap`: between two chunks of an answer. `cpu_ms`: CPU
    time per token of each process, by role. `split`: where a round's time goes;
    `orchestrator_cpu_ms`: the orchestrator's CPU time per round, all work for an answer included.
    `block_efficiency` and `target_calls_per_token` are 0 where the target's forwards are not known;
    `drafted_per_token`: verified draft tokens per output token, the calls of a drafter that writes
    one token a call. `wasted_share`: the share of rejected draft tokens. `rules`: those of the
    rounds with a draft.
    `same_text_as_plain`: equal answers, of how many; None where equal text is not promised.
    """

    configuration: str
    dtype: str
    tokens: int
    decoding: Spread | None
    decoding_ratio: Spread | None
    decoding_ratio_all_cores: Spread | None
    first_token: Percentiles | None
    first_token_ratio: Spread | None
    first_token_ratio_all_cores: Spread | None
    tokens_per_second: Spread | None
    speed_up: Spread | None
    speed_up_all_cores: Spread | None
    cached_share: float
    recalled_tokens: int | None
    per_token: Percentiles | None
    gap: Percentiles | None
    cpu_ms: dict[str, Spread]
    latency: Percentiles | None
    split: RoundSplit | None
    orchestrator_cpu_ms: Spread | None
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
    dtype: str = "",
) -> ConfigurationFigures:
    """The figures of the configuration `name`; `plain` and `plain_all` name the baselines.

    `exact`: its text is promised to be that of plain decoding. `dtype`: its number format.
    """
    own = [trial for trial in trials if trial.configuration == name]
    results, rounds = results_of(own), rounds_of(own)
    tokens, drafted = output_tokens(own), drafted_tokens(own)

    def over(baseline: str, measure: Measure) -> Spread | None:
        return Spread.of(ratios(trials, name, baseline, measure))

    return ConfigurationFigures(
        configuration=name,
        dtype=dtype,
        tokens=tokens,
        decoding=Spread.of(_each_repeat(own, decode_rate)),
        decoding_ratio=over(plain, decode_rate),
        decoding_ratio_all_cores=over(plain_all, decode_rate),
        first_token=Percentiles.of([result.first_token_s for result in results]),
        first_token_ratio=over(plain, first_token_s),
        first_token_ratio_all_cores=over(plain_all, first_token_s),
        tokens_per_second=Spread.of(_each_repeat(own, whole_rate)),
        speed_up=over(plain, whole_rate),
        speed_up_all_cores=over(plain_all, whole_rate),
        cached_share=ratio(
            sum(result.complete.usage.cached_tokens for result in results),
            sum(result.complete.usage.prompt_tokens for result in results),
        ),
        recalled_tokens=_recalled(own),
        per_token=Percentiles.of([one for result in results for one in result.latencies_s]),
        gap=Percentiles.of([one for result in results for one in result.gaps_s]),
        cpu_ms=cpu_per_token(own),
        latency=Percentiles.of([result.total_s for result in results]),
        split=RoundSplit.of(rounds),
        orchestrator_cpu_ms=Spread.of(cpu_per_round(own)),
        block_efficiency=block_efficiency(own),
        target_calls_per_token=ratio(target_steps(own), tokens),
        drafted_per_token=ratio(drafted, tokens),
        acceptance_rate=acceptance(own),
        acceptance_per_position=acceptance_per_position(rounds),
        wasted_share=1.0 - acceptance(own) if drafted else 0.0,
        rules=tuple(sorted({r.rejection_sample_method.value for r in rounds if r.draft_tokens})),
        same_text_as_plain=same_texts(trials, name, plain) if exact else None,
    )


Measure = Callable[[Sequence[Trial]], float]
"""One number of some trials together."""


def whole_rate(trials: Sequence[Trial]) -> float:
    """Tokens per second of whole answers, prompts included, all sessions together.

    A ratio of rates is one of times per token: texts of unequal length would count otherwise.
    """
    return ratio(output_tokens(trials), sum(trial.wall_s for trial in trials))


def output_tokens(trials: Sequence[Trial]) -> int:
    """Output tokens of all answers."""
    return sum(trial.tokens for trial in trials)


def decode_rate(trials: Sequence[Trial]) -> float:
    """Tokens per second of a session after its first, of the time after the first."""
    results = results_of(trials)
    return ratio(
        sum(result.later_tokens for result in results),
        sum(result.total_s - result.first_token_s for result in results),
    )


def first_token_s(trials: Sequence[Trial]) -> float:
    """Mean time to the first token, in seconds: less is better."""
    results = results_of(trials)
    return ratio(sum(result.first_token_s for result in results), len(results))


def block_efficiency(trials: Sequence[Trial]) -> float:
    """Tokens per target forward; 0 where these are not known."""
    return ratio(output_tokens(trials), target_steps(trials))


def acceptance(trials: Sequence[Trial]) -> float:
    """Share of the draft tokens that was accepted."""
    told = [result.complete.speculation for result in results_of(trials)]
    return ratio(sum(one.num_accepted_draft_tokens for one in told), drafted_tokens(trials))


def accepted_per_round(trials: Sequence[Trial]) -> float:
    """Accepted draft tokens per round that had a draft."""
    drafted = [stats for stats in rounds_of(trials) if stats.draft_tokens]
    return ratio(sum(stats.accepted_tokens for stats in drafted), len(drafted))


def target_steps(trials: Sequence[Trial]) -> int:
    """Forwards of the target."""
    return sum(one.complete.speculation.num_target_steps for one in results_of(trials))


def drafted_tokens(trials: Sequence[Trial]) -> int:
    """Draft tokens that were verified."""
    return sum(one.complete.speculation.num_draft_tokens for one in results_of(trials))


def results_of(trials: Sequence[Trial]) -> list[Measured]:
    """Every answer."""
    return [result for trial in trials for result in trial.results]


def rounds_of(trials: Sequence[Trial]) -> list[RoundStats]:
    """The rounds of the answers that were asked for theirs."""
    return [stats for result in results_of(trials) for stats in result.rounds]


def ratios(
    trials: Sequence[Trial], name: str, baseline: str, measure: Measure = whole_rate
) -> list[float]:
    """The measure over the baseline's, per repeat, on the groups that both finished."""
    found = []
    for repeat in sorted({trial.repeat for trial in trials}):
        ours, theirs = (_by_group(trials, one, repeat) for one in (name, baseline))
        both = ours.keys() & theirs.keys()
        under = measure([theirs[group] for group in both])
        if both and under and name != baseline:
            found.append(measure([ours[group] for group in both]) / under)
    return found


def by_task(
    trials: Sequence[Trial], name: str, baseline: str, measure: Measure = whole_rate
) -> dict[str, Spread]:
    """Ratios by category, from the trials of a single prompt."""
    alone = [trial for trial in trials if len(trial.prompts) == 1]
    spreads = {}
    for task in sorted({trial.prompts[0].category for trial in alone}):
        own = [trial for trial in alone if trial.prompts[0].category == task]
        spread = Spread.of(ratios(own, name, baseline, measure))
        if spread is not None:
            spreads[task] = spread
    return spreads


def cpu_per_round(trials: Sequence[Trial]) -> list[float]:
    """Milliseconds of the orchestrator's CPU time per round, of every repeat."""
    return _cpu_ms(trials, ORCHESTRATOR, target_steps)


def cpu_per_token(trials: Sequence[Trial]) -> dict[str, Spread]:
    """Milliseconds of each process's CPU time per output token, by role, over the repeats."""
    roles = dict.fromkeys(role for trial in trials for role in trial.cpu_s)
    each = {role: Spread.of(_cpu_ms(trials, role, output_tokens)) for role in roles}
    return {role: spread for role, spread in each.items() if spread is not None}


def _cpu_ms(
    trials: Sequence[Trial], role: str, count: Callable[[Sequence[Trial]], int]
) -> list[float]:
    figures = []
    for repeat in sorted({trial.repeat for trial in trials}):
        own = [one for one in trials if one.repeat == repeat and role in one.cpu_s]
        if counted := count(own):
            figures.append(1e3 * sum(trial.cpu_s[role] for trial in own) / counted)
    return figures


def acceptance_per_position(rounds: Sequence[RoundStats]) -> tuple[float, ...]:
    """For each place in a draft: how often it was accepted, given that all before it were."""
    rates = []
    for place in range(1, POSITIONS + 1):
        reached = [r for r in rounds if r.draft_tokens >= place and r.accepted_tokens >= place - 1]
        if not reached:
            break
        rates.append(sum(r.accepted_tokens >= place for r in reached) / len(reached))
    return tuple(rates)


def _timed(rounds: Sequence[RoundStats]) -> list[RoundStats]:
    """Those that tell their times: a peer's do not."""
    return [one for one in rounds if one.round_ms > 0.0]


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


def _each_repeat(trials: Sequence[Trial], measure: Measure) -> list[float]:
    repeats = sorted({trial.repeat for trial in trials})
    return [measure([trial for trial in trials if trial.repeat == one]) for one in repeats]


def _recalled(trials: Sequence[Trial]) -> int | None:
    counted = [trial.recalled for trial in trials if trial.recalled is not None]
    return sum(counted) if counted else None


def ratio(part: float, whole: float) -> float:
    """A part of a whole; 0 of nothing."""
    return part / whole if whole else 0.0


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between the neighbours."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])

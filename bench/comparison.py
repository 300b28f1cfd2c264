"""Rejection rules against one of them, on the same prompts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from bench.figures import Spread, decode_rate, ratios
from bench.runner import Trial
from services.cluster.figures import Measured


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over some generations; `drafted_rounds` are those with a draft."""

    tokens: int
    steps: int
    drafted: int
    accepted: int
    drafted_rounds: int

    @classmethod
    def of(cls, results: Sequence[Measured]) -> Tally:
        """Everything that was verified for these results."""
        rounds = [stats for result in results for stats in result.rounds]
        return cls(
            tokens=sum(result.tokens for result in results),
            steps=sum(result.complete.speculation.num_target_steps for result in results),
            drafted=sum(stats.draft_tokens for stats in rounds),
            accepted=sum(stats.accepted_tokens for stats in rounds),
            drafted_rounds=sum(stats.draft_tokens > 0 for stats in rounds),
        )


def block_efficiency(tally: Tally) -> float:
    """Tokens per target forward."""
    return tally.tokens / max(1, tally.steps)


def acceptance(tally: Tally) -> float:
    """Share of the draft tokens that was accepted."""
    return tally.accepted / max(1, tally.drafted)


def accepted_per_round(tally: Tally) -> float:
    """Accepted draft tokens per round that had a draft."""
    return tally.accepted / max(1, tally.drafted_rounds)


Measure = Callable[[Tally], float]


@dataclass(frozen=True, slots=True)
class Paired:
    """A difference taken prompt by prompt: its mean, and that mean's standard error."""

    mean: float
    error: float
    prompts: int

    @classmethod
    def of(cls, differences: Sequence[float]) -> Paired | None:
        """None with fewer than two: no error could be told."""
        if len(differences) < 2:
            return None
        error = stdev(differences) / len(differences) ** 0.5
        return cls(fmean(differences), error, len(differences))

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ± {self.error:.3f}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One configuration beside another one.

    Ratios are per repeat; differences are per prompt, all its repeats together.
    """

    configuration: str
    baseline: str
    decoding: Spread | None
    speed: Spread | None
    block_efficiency: Spread | None
    acceptance: Spread | None
    block_efficiency_gain: Paired | None
    accepted_per_round_gain: Paired | None


def compare(trials: Sequence[Trial], name: str, baseline: str) -> Comparison:
    """`name` beside `baseline`."""
    return Comparison(
        configuration=name,
        baseline=baseline,
        decoding=Spread.of(ratios(trials, name, baseline, decode_rate)),
        speed=Spread.of(ratios(trials, name, baseline)),
        block_efficiency=Spread.of(_ratios(trials, name, baseline, block_efficiency)),
        acceptance=Spread.of(_ratios(trials, name, baseline, acceptance)),
        block_efficiency_gain=Paired.of(_gains(trials, name, baseline, block_efficiency)),
        accepted_per_round_gain=Paired.of(_gains(trials, name, baseline, accepted_per_round)),
    )


def _ratios(trials: Sequence[Trial], name: str, baseline: str, measure: Measure) -> list[float]:
    """Per repeat, over the groups that both finished; none where the baseline has nothing."""
    ratios = []
    for repeat in sorted({trial.repeat for trial in trials}):
        ours, theirs = (
            {t.group: t for t in trials if t.configuration == one and t.repeat == repeat}
            for one in (name, baseline)
        )
        both = ours.keys() & theirs.keys()
        under = measure(_tally([theirs[group] for group in both]))
        if both and under:
            ratios.append(measure(_tally([ours[group] for group in both])) / under)
    return ratios


def _gains(trials: Sequence[Trial], name: str, baseline: str, measure: Measure) -> list[float]:
    """Per prompt that both answered, all repeats together."""
    ours, theirs = (_by_prompt(trials, one) for one in (name, baseline))
    both = sorted(ours.keys() & theirs.keys())
    return [measure(Tally.of(ours[key])) - measure(Tally.of(theirs[key])) for key in both]


def _by_prompt(trials: Sequence[Trial], name: str) -> dict[int, list[Measured]]:
    by_prompt: dict[int, list[Measured]] = {}
    for trial in trials:
        if trial.configuration == name:
            for prompt, result in zip(trial.prompts, trial.results, strict=True):
                by_prompt.setdefault(prompt.question_id, []).append(result)
    return by_prompt


def _tally(trials: Sequence[Trial]) -> Tally:
    return Tally.of([result for trial in trials for result in trial.results])

"""Rejection rules against one of them, on the same prompts. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from bench.figures import (
    Measure,
    Spread,
    acceptance,
    accepted_per_round,
    block_efficiency,
    decode_rate,
    ratios,
)
from bench.runner import Trial


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
        block_efficiency=Spread.of(ratios(trials, name, baseline, block_efficiency)),
        acceptance=Spread.of(ratios(trials, name, baseline, acceptance)),
        block_efficiency_gain=Paired.of(_gains(trials, name, baseline, block_efficiency)),
        accepted_per_round_gain=Paired.of(_gains(trials, name, baseline, accepted_per_round)),
    )


def _gains(trials: Sequence[Trial], name: str, baseline: str, measure: Measure) -> list[float]:
    """Per prompt that both answered, all repeats together."""
    ours, theirs = (_by_prompt(trials, one) for one in (name, baseline))
    both = sorted(ours.keys() & theirs.keys())
    return [measure(ours[key]) - measure(theirs[key]) for key in both]


def _by_prompt(trials: Sequence[Trial], name: str) -> dict[int, list[Trial]]:
    """Trials of one answer each, by the prompt's number."""
    found: dict[int, list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.configuration == name:
            for prompt, result in zip(trial.prompts, trial.results, strict=True):
                found[prompt.question_id].append(
                    replace(trial, prompts=(prompt,), results=(result,))
                )
    return found

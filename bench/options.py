"""What a bench measures, and the configurations that follow from it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.prompts import SPEC_BENCH
from bench.runner import Configuration
from services.common.errors import StartError
from services.console.cores import CorePlan, plan_cores
from services.console.tether import available_cores

PACINGS = ("fixed", "eager")
RULES = ("standard", "block", "coupled")
PLAIN = "plain"
PLAIN_ALL = "plain, all cores"
NO_DRAFTS: Mapping[str, Any] = {"disable_speculative_decoding": True}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure.

    `rejection_sample_methods` None: the server's own choice, at every pacing of
    `pacings` (None: all). Several are told apart at the asynchronous pacing,
    unless `pacings` says otherwise. `out` None: a file in bench/results.
    """

    target: str
    draft: str | None = None
    method: str = ""
    dtype: str = "float32"
    draft_dtype: str | None = None
    prompts: Path = SPEC_BENCH
    num_prompts: int = 6
    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 1
    pacings: tuple[str, ...] | None = None
    rejection_sample_methods: tuple[str, ...] | None = None
    num_candidates: int = 1
    num_speculative_tokens: int | None = None
    repeats: int = 3
    concurrency: int = 1
    out: Path | None = None

    def check(self) -> None:
        """Raises StartError naming the flag of a name that is not known."""
        _check("--pacings", self.pacings, PACINGS)
        _check("--rejection-sample-methods", self.rejection_sample_methods, RULES)

    @property
    def cores(self) -> CorePlan:
        """The cores of verifier and drafter."""
        return plan_cores(available_cores(), 1, 0 if self.draft is None else 1)

    @property
    def served_pacings(self) -> tuple[str, ...]:
        """One orchestrator each."""
        return self.pacings or (("eager",) if self.rejection_sample_methods else PACINGS)

    @property
    def sampling(self) -> dict[str, Any]:
        """What every configuration is asked with."""
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
        }

    def speculation(self, rule: str) -> dict[str, Any]:
        """What drafting configurations are asked with beside; an empty `rule` is the server's."""
        given = {
            "rejection_sample_method": rule or None,
            "num_candidates": self.num_candidates if self.num_candidates > 1 else None,
            "num_speculative_tokens": self.num_speculative_tokens,
        }
        return {name: value for name, value in given.items() if value is not None}

    def promises_equal_text(self, rule: str) -> bool:
        """Whether drafts change no token: float32, and greedy or coupled.

        With a seed, as here, the server's own choice is coupled.
        """
        return self.dtype == "float32" and (self.temperature == 0 or rule in ("", "coupled"))


def drafting(options: BenchOptions, addresses: Sequence[str]) -> Iterator[Configuration]:
    """Every pacing with every rule; `addresses` are those of the pacings."""
    cores = cores_in_words(options.cores)
    for pacing, address in zip(options.served_pacings, addresses, strict=True):
        for rule in options.rejection_sample_methods or ("",):
            yield Configuration(
                name=drafting_name(pacing, rule),
                address=address,
                cores=f"{cores['verifier']} + {cores['drafter']}",
                options=options.speculation(rule),
                exact=options.promises_equal_text(rule),
            )


def plain(options: BenchOptions, name: str, address: str, cores: str) -> Configuration:
    """Decoding without drafts."""
    return Configuration(name, address, cores, NO_DRAFTS, exact=options.dtype == "float32")


def baselines(options: BenchOptions) -> Iterator[tuple[str, str]]:
    """(configuration, baseline): each rule beside the first of its pacing, `standard` if there."""
    rules = options.rejection_sample_methods or ()
    first = "standard" if "standard" in rules else rules[0] if rules else ""
    for pacing in options.served_pacings:
        for rule in rules:
            if rule != first:
                yield drafting_name(pacing, rule), drafting_name(pacing, first)


def drafting_name(pacing: str, rule: str) -> str:
    """The name of a configuration."""
    return f"{pacing}, {rule}" if rule else pacing


def cores_in_words(plan: CorePlan) -> dict[str, str]:
    """How many cores each role has."""
    drafter = len(plan.drafters[0]) if plan.drafters else "none of its own"
    return {"verifier": f"verifier {len(plan.verifiers[0])}", "drafter": f"drafter {drafter}"}


def _check(flag: str, given: Sequence[str] | None, allowed: Collection[str]) -> None:
    for name in given or ():
        if name not in allowed:
            raise StartError(f"{flag}: {name!r} is not one of {', '.join(allowed)}")

"""The configurations of our own that follow from what a bench measures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

from bench.options import FIXED, NO_DRAFTS, BenchOptions
from bench.runner import ORCHESTRATOR, Configuration
from services.cluster.cores import CorePlan

Recalled = Callable[[], Awaitable[int]]


def drafting(
    options: BenchOptions,
    addresses: Sequence[str],
    drafter: str = "",
    pids: Sequence[int | None] = (),
    recalled: Recalled | None = None,
) -> Iterator[Configuration]:
    """Every pacing of one cluster with every rule.

    `addresses` and `pids` are those of the pacings' orchestrators; `drafter` names the
    cluster where there are several; `recalled` counts what its drafters took from other texts.
    """
    cores = cores_in_words(options.cores)
    known = pids or (None,) * len(addresses)
    served = zip(options.served_pacings, addresses, known, strict=True)
    for pacing, address, pid in served:
        for window in options.windows(pacing):
            for rule in options.rejection_sample_methods or ("",):
                yield Configuration(
                    name=drafting_name(paced(options, pacing, window), rule, drafter),
                    address=address,
                    cores=f"{cores['verifier']} + {cores['drafter']}",
                    options=options.speculation(rule, window),
                    exact=options.promises_equal_text(rule),
                    pids={ORCHESTRATOR: pid} if pid is not None else {},
                    baseline=pacing == FIXED,
                    dtype=options.number_format,
                    recalled=recalled,
                )


def plain(
    options: BenchOptions, name: str, address: str, cores: str, pid: int | None = None
) -> Configuration:
    """Decoding without drafts."""
    return Configuration(
        name,
        address,
        cores,
        NO_DRAFTS,
        exact=options.equal_to_the_bit,
        pids={ORCHESTRATOR: pid} if pid is not None else {},
        baseline=True,
        dtype=options.number_format,
    )


def baselines(options: BenchOptions) -> Iterator[tuple[str, str]]:
    """(configuration, baseline): each rule beside the first of its pacing, `standard` if there."""
    rules = options.rejection_sample_methods or ("",)
    first = "standard" if "standard" in rules else rules[0]
    for drafter in options.drafters or ("",):
        for name in _paced(options):
            for rule in rules:
                if rule != first:
                    yield (
                        drafting_name(name, rule, drafter),
                        drafting_name(name, first, drafter),
                    )


def _paced(options: BenchOptions) -> Iterator[str]:
    for pacing in options.served_pacings:
        for window in options.windows(pacing):
            yield paced(options, pacing, window)


def paced(options: BenchOptions, pacing: str, window: int | None) -> str:
    """A pacing, with its window where there are several."""
    return f"{pacing} {window}" if len(options.windows(pacing)) > 1 else pacing


def drafting_name(pacing: str, rule: str, drafter: str = "") -> str:
    """The name of a configuration."""
    name = f"{drafter} {pacing}" if drafter else pacing
    return f"{name}, {rule}" if rule else name


def cores_in_words(plan: CorePlan) -> dict[str, str]:
    """How many cores each role has."""
    drafter = len(plan.drafters[0]) if plan.drafters else "none of its own"
    return {"verifier": f"verifier {len(plan.verifiers[0])}", "drafter": f"drafter {drafter}"}

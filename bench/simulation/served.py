"""What is served by default on texts that a target wrote, beside plain decoding and the ideal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.simulation.ideal import Ideal, ideal
from bench.simulation.round_kinds import RoundKind
from bench.simulation.run import Simulation
from bench.simulation.scenario import PLAIN, Scenario, StepTime
from bench.simulation.session import Account
from bench.simulation.tree_drafter import TreeDrafts
from services.engine.ngram_file import NgramFile

ALL = "all"
SOURCES = ("text", "firsts", "file")
VERIFY = StepTime(16.3, table=((1, 16.3), (2, 17.44), (5, 19.23), (8, 21.03), (12, 24.45)))
"""The demo model in bfloat16 on one core with AVX-512 (docs/benchmarks.md, one step)."""
COSTS = Scenario(verify=VERIFY, hop_ms=0.15, cpu_ms=0.1, persist_ms=0.5)
"""With four hops, a tree of 0.3 ms and two events, a round with a draft takes 1.1 ms outside the
verifier; over gRPC 1.2 ms were measured in a good hour (docs/benchmarks.md, real models)."""


@dataclass(frozen=True, slots=True)
class Row:
    """The texts of one category, or all.

    The round that brings the first token, without a draft, counts for `tokens_a_round` alone,
    here and in the ideal; all else is of those after it. Speed-ups are over plain decoding in
    the same world. `shares`: what the rounds left as, by `RoundKind`, 1 in all. Means of a round:
    its nodes; `wait_ms`, how long the free verifier stood idle for a tree; `outside_ms`, all of
    its milliseconds but the verifier's step, waits included.
    """

    category: str
    texts: int
    tokens: int
    tokens_a_round: float
    speed_up: float
    shares: dict[str, float]
    nodes: float
    wait_ms: float
    outside_ms: float
    ideal_tokens_a_round: float
    ideal_speed_up: float
    ideal_nodes: float


def sources_of(file: NgramFile | None, name: str) -> NgramFile | None:
    """The part of a file that is used: `text` none, `firsts` after single tokens, `file` all."""
    if file is None or name == "text":
        return None
    return replace(file, laws=()) if name == "firsts" else file


def scenario_of(trees: TreeDrafts) -> Scenario:
    """Each text once, one after the other, at the costs that were measured."""
    return replace(COSTS, trees=trees, sessions=len(trees.texts))


def served(scenario: Scenario) -> list[Row]:
    """A row for every category in the order they come in, and one for all, the last.

    `scenario`: that of `scenario_of`, or one with other costs.
    """
    trees, verify = scenario.trees, scenario.verify
    assert trees is not None
    made = trees.trees()
    ideals = [ideal(text, trees, made, verify) for text in trees.texts]
    drafted, plain = _accounts(scenario), _accounts(replace(scenario, pacing=PLAIN))
    trials = list(zip(drafted, plain, ideals, strict=True))
    return [
        _row(name, [trials[place] for place in places], verify.at(1, 1))
        for name, places in _groups(trees)
    ]


_Trial = tuple[Account, Account, Ideal]
"""One text: as served, by plain decoding, and at best."""


def _accounts(scenario: Scenario) -> list[Account]:
    """Of every session, in the order of their texts."""
    simulation = Simulation(scenario)
    simulation.run()
    ended = sorted(simulation.ended_sessions, key=lambda session: int(session.name))
    return [session.account for session in ended]


def _groups(trees: TreeDrafts) -> Iterator[tuple[str, Iterable[int]]]:
    categories = [text.category for text in trees.texts]
    for name in dict.fromkeys(categories):
        yield name, [place for place, category in enumerate(categories) if category == name]
    yield ALL, range(len(categories))


def _row(category: str, trials: Sequence[_Trial], plain_step_ms: float) -> Row:
    accounts = [one for one, _, _ in trials]
    plain_ms = sum(plain.decode_ms for _, plain, _ in trials)
    ideals = [one for _, _, one in trials]
    tokens, texts = sum(one.tokens for one in accounts), len(trials)
    sent = sum((one.kinds for one in accounts), Counter[RoundKind]())
    rounds, ideal_rounds = sent.total(), sum(one.rounds for one in ideals)
    return Row(
        category,
        texts,
        tokens,
        tokens / (texts + rounds),
        _ratio(plain_ms, sum(one.decode_ms for one in accounts)),
        {kind.value: _ratio(sent[kind], rounds) for kind in RoundKind},
        _ratio(sum(one.sent for one in accounts), rounds),
        _ratio(sum(one.waited_ms for one in accounts), rounds),
        _ratio(sum(one.outside_ms for one in accounts), rounds),
        tokens / (texts + ideal_rounds),
        _ratio(plain_step_ms * (tokens - texts), sum(one.ms for one in ideals)),
        _ratio(sum(one.nodes for one in ideals), ideal_rounds),
    )


def _ratio(part: float, whole: float) -> float:
    """0 where there is nothing: all texts are of one token."""
    return part / whole if whole else 0.0

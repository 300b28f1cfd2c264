"""What a simulation is of: sessions, their texts, and how long everything takes."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from random import Random

from bench.simulation.texts import Agreement, Independent
from bench.simulation.tree_drafter import TreeDrafts
from orchestrator.core.pacing import POLICIES, Policy, make_policy

PLAIN = "plain"
"""The pacing without a drafter."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Milliseconds of one forward.

    `one_ms`: one session of one row; `several_ms`: more rows of some session (None: no
    other base). On top `row_ms` for each row of a session beyond its first, and `session_ms`
    for each session beyond the first, its first row included. With a `table` of (rows in
    all, milliseconds), ascending, that stands for bases and rows: straight lines between its
    points and beyond the last.
    """

    one_ms: float
    row_ms: float = 0.0
    session_ms: float = 0.0
    several_ms: float | None = None
    table: tuple[tuple[int, float], ...] = ()

    def at(self, sessions: int, rows: int) -> float:
        """A forward of `rows` rows in all; `rows` > `sessions` means that some have several."""
        further = self.session_ms * (sessions - 1)
        if self.table:
            return self._looked_up(rows) + further
        base = self.one_ms
        if self.several_ms is not None and rows > sessions:
            base = self.several_ms
        return base + self.row_ms * (rows - sessions) + further

    def _looked_up(self, rows: int) -> float:
        table = self.table
        if len(table) == 1 or rows <= table[0][0]:
            return table[0][1]
        right = min(max(1, bisect_left(table, (rows,))), len(table) - 1)
        (fewer, low), (more, high) = table[right - 1], table[right]
        return low + (high - low) * (rows - fewer) / (more - fewer)


@dataclass(frozen=True, slots=True)
class Prompts:
    """`tokens` of each prompt, and what each of them adds to a forward of the verifier.

    `every`: only one session of so many has one, the first among them; the others go on with an
    answer that is cut in pieces.
    """

    tokens: int = 0
    row_ms: float = 0.0
    every: int = 1

    def of(self, session: int) -> int:
        """Tokens of the prompt of a session, by its number."""
        return self.tokens if session % self.every == 0 else min(1, self.tokens)


@dataclass(frozen=True, slots=True)
class KeptBranches:
    """Preparing for likely verification outcomes (SSD / Saguaro, Kumar et al. 2603.03251).

    When a verdict puts another token where the drafter had one of its own, then with
    chance `hit_rate` that token is an alternative the drafter had kept and drafted
    after. It began when it drafted its own token there, and went one row a step
    in the forwards of its main line, so it holds after the alternative as many tokens
    as it had drafted after its own; and one more for each further step that fits into the time
    in which it had nothing else to do. All of them leave with the commit that
    names the alternative; whether they are right, the text says. `beside` False: only
    in that idle time. A row more in the drafter's forward costs nothing here (it is
    bound by memory), and only one alternative is followed: `hit_rate` is what that one hits.
    """

    hit_rate: float = 0.0
    beside: bool = True


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything a simulation needs; the same scenario gives the same run.

    `sessions` texts of `tokens` each, `concurrency` of them at a time: when one ends, the
    next begins. They are dealt out to `verifiers` and `drafters` in turn. `hop_ms` is
    one way between the orchestrator and a worker (`drafter_hop_ms`: a drafter, if that is
    another), `jitter_ms` the most that is added at random. `cpu_ms` is what the one
    orchestrator computes for an event of any session, `persist_ms` what the store takes.
    `arrivals_per_s` > 0: sessions come at random at that rate instead (Poisson), `concurrency` of
    them are served at a time, the others wait in line, and each worker with the fewest takes the
    next. `prompts`: 0 tokens take a plain forward that delays nobody. `gather_ms`: the longest that
    a verifier waits for sessions that are about to come back. `plain_ahead`: plain blocks leave
    with the opening, and behind others. `beside`: drafter n is on verifier n's node, and their
    forwards take turns. `spread`: texts are longer and shorter by up to this share of `tokens`, at
    random, and those that begin together are cut at random, so that they end one by one.
    `pause_ms`: the most, at random, between the end of one session and the beginning of the next.
    `policy` stands in for that of `pacing`. `learning`: a session starts from what those
    before it learned, as served. `trees`: texts that were written before, drafted by the
    default trees; they stand in for `text`, `draft`, `tokens` and `window`, and what a session
    learned of their hits is for no other.
    """

    pacing: str = "eager"
    text: Agreement = field(default_factory=lambda: Independent(0.8))
    verify: StepTime = field(default_factory=lambda: StepTime(30.0))
    draft: StepTime = field(default_factory=lambda: StepTime(5.0))
    hop_ms: float = 0.5
    drafter_hop_ms: float | None = None
    jitter_ms: float = 0.0
    persist_ms: float = 0.5
    cpu_ms: float = 0.0
    sessions: int = 1
    concurrency: int = 1
    tokens: int = 64
    window: int = 16
    fallback: bool = True
    learning: bool = True
    max_in_flight: int = 1
    verifiers: int = 1
    drafters: int = 1
    arrivals_per_s: float = 0.0
    prompts: Prompts = field(default_factory=Prompts)
    gather_ms: float = 0.0
    plain_ahead: bool = False
    beside: bool = False
    spread: float = 0.0
    pause_ms: float = 0.0
    kept: KeptBranches = field(default_factory=KeptBranches)
    policy: Policy | None = None
    trees: TreeDrafts | None = None
    seed: int = 1

    @property
    def speculates(self) -> bool:
        """Whether there is a drafter at all."""
        return self.pacing != PLAIN or self.policy is not None

    @property
    def longest_window(self) -> int:
        """Most tokens a drafter may be ahead."""
        return max(self.window, self.policy.window if self.policy else 0)

    def tokens_of(self, session: int) -> int:
        """How long the text of a session is, by its number."""
        if not self.spread:
            return self.tokens
        drawn = Random(f"{self.seed}/length/{session}").random()
        if not self.arrivals_per_s and session < self.concurrency:
            return max(2, round(drawn * self.tokens))
        return max(2, round(self.tokens * (1.0 + self.spread * (2.0 * drawn - 1.0))))

    def new_policy(self) -> Policy:
        """The policy that a session begins with. Raises ValueError for an unknown pacing."""
        if self.policy is not None:
            return self.policy
        if self.trees is not None:
            return self.trees.policy(rests=self.fallback)
        pacing = POLICIES[0] if self.pacing == PLAIN else self.pacing
        chained = {"chained": True} if self.max_in_flight > 1 else {}
        return make_policy(pacing, self.window, fallback=self.fallback, **chained)

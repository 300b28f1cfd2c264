"""What is simulated, and when callers come."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from research.size.workers import Times


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster, its load, and what breaks. The same one runs the same way.

    `sessions` of `tokens` each come within `seconds`, the share `in_bursts` of them in
    `bursts` bursts of `burst_s` seconds each. Their prompts are one of `prefixes` texts of `shared`
    tokens, and `own` tokens behind. `kv_tokens`: of one verifier. At second `event_at`
    the share `killed` of the orchestrators dies, and `joining` more verifiers come. `subset`: as
    `--worker-subset`.
    """

    sessions: int = 1000
    verifiers: int = 10
    drafters: int = 3
    orchestrators: int = 3
    seconds: float = 10.0
    in_bursts: float = 0.5
    bursts: int = 2
    burst_s: float = 0.5
    tokens: int = 32
    prefixes: int = 50
    shared: int = 256
    own: int = 64
    kv_tokens: int = 100_000
    event_at: float = 5.0
    killed: float = 0.1
    joining: int = 0
    max_sessions: int = 1024
    acceptance: float = 0.8
    chunk: int = 4
    window: int = 8
    shards: int = 3
    call_us: float = 30.0
    subset: int = 0
    zones: int = 1
    times: Times = field(default_factory=Times)
    seed: int = 1

    def zone(self, number: int) -> str:
        """Of the orchestrator or worker of a number: in turns."""
        return f"zone-{number % self.zones}"

    def arrivals(self) -> Iterator[float]:
        """The second at which each session comes, in order."""
        random = Random(f"{self.seed}/arrivals")
        starts = [random.uniform(0.0, self.seconds - self.burst_s) for _ in range(self.bursts)]
        burst = int(self.sessions * self.in_bursts) if self.bursts else 0
        times = [random.choice(starts) + random.uniform(0.0, self.burst_s) for _ in range(burst)]
        times += [random.uniform(0.0, self.seconds) for _ in range(self.sessions - burst)]
        return iter(sorted(times))

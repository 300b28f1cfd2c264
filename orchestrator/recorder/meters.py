"""What the orchestrator counts and measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product

from orchestrator.session.totals import SpecTotals
from orchestrator.steering.rounds import RoundRecord
from services.contract.states import Fate
from services.contract.types import DraftSource, Progress, Role, VerifyMode
from services.runtime.telemetry import Telemetry, names
from services.runtime.telemetry.names import (
    FAILURES,
    FALLBACKS,
    FINISHES,
    LAST_POSITION,
    OUTCOMES,
    POSITIONS,
)

_SOURCES = tuple(source.name.lower() for source in DraftSource)


class Meters:
    """Counters and histograms of rounds and sessions. Belongs to the event loop.

    Those with a public name are fed by the recorder itself.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        counter, histogram = telemetry.counter, telemetry.histogram
        positions = [(position,) for position in POSITIONS]
        self.rounds = counter(names.ROUND_COUNT, [(outcome,) for outcome in OUTCOMES])
        self._drafts = counter(names.DRAFT_COUNT)
        self._drafted = counter(names.DRAFTED)
        self._accepted = counter(names.ACCEPTED)
        self._accepted_at = counter(names.ACCEPTED_AT, positions)
        for name, counted in (
            (names.SPEC_DRAFTS, self._drafts),
            (names.SPEC_DRAFTED, self._drafted),
            (names.SPEC_ACCEPTED, self._accepted),
            (names.SPEC_ACCEPTED_AT, self._accepted_at),
        ):
            telemetry.total(name, counted.read)
        sources = [(source,) for source in _SOURCES]
        self._drafted_by = counter(names.DRAFTED_BY, sources)
        self._accepted_by = counter(names.ACCEPTED_BY, sources)
        self._emitted = counter(names.EMITTED)
        self.fallbacks = counter(names.FALLBACK_ROUNDS, [(reason,) for reason in FALLBACKS])
        self.starved = counter(names.STARVED)
        self._errors = counter(names.SESSION_ERRORS, [(failure,) for failure in FAILURES])
        self.store_seconds = histogram(names.STORE_SECONDS)
        self._bad_q_rows = counter(names.BAD_Q_COUNT)
        self.dropped_writes = counter(names.DROPPED_WRITES)
        self.fenced_writes = counter(names.FENCED_WRITES)
        self.migrations = counter(names.MIGRATIONS, [("verifier",), ("drafter",)])
        self._prefilled = counter(names.PREFILLED, [("computed",), ("cached",)])
        self._round_seconds = histogram(names.ROUND_SECONDS)
        self._draft_seconds = histogram(names.DRAFT_SECONDS)
        self._verify_seconds = histogram(names.VERIFY_SECONDS)
        self._queue_seconds = histogram(names.QUEUE_SECONDS)
        self._round_accepted = histogram(names.ROUND_ACCEPTED)
        self.first_token = histogram(names.FIRST_TOKEN_SECONDS)
        self.per_token = histogram(names.TOKEN_SECONDS)
        fates = [("orchestrator", fate.value) for fate in Fate]
        self._states = counter(names.STATE_BYTES, fates)
        speculating = list(product(names.METHODS, names.MODES))
        self._acceptance = histogram(names.REQUEST_ACCEPTANCE, speculating)
        self._efficiency = histogram(names.REQUEST_EFFICIENCY, speculating)
        self._request = histogram(names.REQUEST_SECONDS, [(finish,) for finish in FINISHES])

    def round(self, record: RoundRecord, outcome: str) -> None:
        """A round has its verdict."""
        self.rounds.add(1, outcome)
        self._emitted.add(record.emitted_tokens)
        self._bad_q_rows.add(record.bad_q_rows)
        self._round_seconds.record(record.round_ms / 1e3)
        self._verify_seconds.record(record.verify_ms / 1e3)
        self._queue_seconds.record(record.queue_ms / 1e3)
        if record.hold_ms:
            self.starved.add(record.hold_ms / 1e3)
        if record.draft_tokens:
            self._draft(record)

    def _draft(self, record: RoundRecord) -> None:
        self._drafts.add(1)
        self._drafted.add(record.draft_tokens)
        self._accepted.add(record.accepted_tokens)
        for position in range(record.accepted_tokens):
            self._accepted_at.add(1, POSITIONS[min(position, LAST_POSITION + 1)])
        for source, of_draft, taken in record.sources:
            self._drafted_by.add(of_draft, _SOURCES[source])
            self._accepted_by.add(taken, _SOURCES[source])
        self._draft_seconds.record(record.draft_ms / 1e3)
        self._round_accepted.record(record.accepted_tokens)

    def prefilled(self, tokens: int, cached: int) -> None:
        """A verifier prefilled so many tokens, some of them from its prefix cache."""
        self._prefilled.add(tokens - cached, "computed")
        self._prefilled.add(cached, "cached")

    def states(self, fate: Fate, size: int) -> None:
        """Bytes of the target's states came, left or were dropped."""
        self._states.add(size, "orchestrator", fate.value)

    def drafted(self, totals: SpecTotals, methods: Sequence[str], mode: VerifyMode) -> None:
        """A session came to its end that had draft tokens verified."""
        known = methods[0] if methods and methods[0] in names.METHODS else "other"
        labels = (known if len(methods) < 2 else "several", mode.name.lower())
        self._acceptance.record(totals.draft_acceptance_rate, *labels)
        self._efficiency.record(totals.block_efficiency, *labels)

    def ended(self, seconds: float, reason: str, error: str) -> None:
        """A session is over here; `error` is empty or the name of one."""
        self._request.record(seconds, reason)
        if error:
            self._errors.add(1, error)


def watch_memory(telemetry: Telemetry, reports: Callable[[Role], Sequence[Progress]]) -> None:
    """Show the K/V of workers as their orchestrators know it: these gauges outlive the workers.

    All orchestrators report the same workers, so take one figure or the maximum, not the sum.
    `reports`: of the workers of a role, called in any thread.
    """

    def total(of: Callable[[Progress], int]) -> Iterable[tuple[float, tuple[str, ...]]]:
        return [(sum(map(of, reports(role))), (role.value,)) for role in Role]

    telemetry.gauge(names.HEARD_KV_USED, lambda: total(lambda heard: heard.kv_tokens_used))
    telemetry.gauge(names.HEARD_KV_CAPACITY, lambda: total(lambda heard: heard.kv_tokens_capacity))

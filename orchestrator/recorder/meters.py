"""What the orchestrator counts and measures."""

from __future__ import annotations

from orchestrator.core.events import RoundRecord
from services.common.telemetry import Telemetry, names
from services.common.telemetry.names import LAST_POSITION, OUTCOMES, POSITIONS, Outcome


class Meters:
    """Counters and histograms of rounds and sessions. Belongs to the event loop."""

    def __init__(self, telemetry: Telemetry) -> None:
        counter, histogram = telemetry.counter, telemetry.histogram
        positions = [(position,) for position in POSITIONS]
        self._rounds = counter(names.ROUND_COUNT, [(outcome,) for outcome in OUTCOMES])
        self._drafts = (counter(names.DRAFT_COUNT), counter(names.SPEC_DRAFTS))
        self._drafted = (counter(names.DRAFTED), counter(names.SPEC_DRAFTED))
        self._accepted = (counter(names.ACCEPTED), counter(names.SPEC_ACCEPTED))
        self._accepted_at = (
            counter(names.ACCEPTED_AT, positions),
            counter(names.SPEC_ACCEPTED_AT, positions),
        )
        self._emitted = counter(names.EMITTED)
        self._discarded = counter(names.DISCARDED)
        self._bad_q_rows = counter(names.BAD_Q_COUNT)
        self._dropped_writes = counter(names.DROPPED_WRITES)
        self._migrations = counter(names.MIGRATIONS, [("verifier",), ("drafter",)])
        self._round_seconds = histogram(names.ROUND_SECONDS)
        self._draft_seconds = histogram(names.DRAFT_SECONDS)
        self._verify_seconds = histogram(names.VERIFY_SECONDS)
        self._queue_seconds = histogram(names.QUEUE_SECONDS)
        self._round_accepted = histogram(names.ROUND_ACCEPTED)
        self._first_token = histogram(names.FIRST_TOKEN_SECONDS)
        self._per_token = histogram(names.TOKEN_SECONDS)
        self._request = histogram(names.REQUEST_SECONDS)

    def round(self, record: RoundRecord, outcome: str) -> None:
        """A round has its verdict."""
        self._rounds.add(1, outcome)
        if outcome == Outcome.DISCARDED:
            self._discarded.add(record.discarded_tokens)
            return
        self._emitted.add(record.emitted_tokens)
        self._bad_q_rows.add(record.bad_q_rows)
        self._round_seconds.record(record.round_ms / 1e3)
        self._verify_seconds.record(record.verify_ms / 1e3)
        self._queue_seconds.record(record.queue_ms / 1e3)
        if record.draft_tokens:
            self._draft(record)

    def _draft(self, record: RoundRecord) -> None:
        for drafts, drafted, accepted in zip(
            self._drafts, self._drafted, self._accepted, strict=True
        ):
            drafts.add(1)
            drafted.add(record.draft_tokens)
            accepted.add(record.accepted_tokens)
        for position in range(record.accepted_tokens):
            label = POSITIONS[min(position, LAST_POSITION + 1)]
            for counter in self._accepted_at:
                counter.add(1, label)
        self._draft_seconds.record(record.draft_ms / 1e3)
        self._round_accepted.record(record.accepted_tokens)

    def abandoned(self) -> None:
        """A round ended without a verdict."""
        self._rounds.add(1, Outcome.ABANDONED)

    def dropped_writes(self, count: int) -> None:
        """The session store did not take commits in time."""
        self._dropped_writes.add(count)

    def migrated(self, role: str) -> None:
        """A session was opened again on a worker."""
        self._migrations.add(1, role)

    def first_token(self, seconds: float) -> None:
        """The first token left."""
        self._first_token.record(seconds)

    def finished(self, seconds_per_token: float) -> None:
        """A session of two tokens or more came to its end."""
        self._per_token.record(seconds_per_token)

    def ended(self, seconds: float, reason: str) -> None:
        """A session is over here."""
        self._request.record(seconds, reason)

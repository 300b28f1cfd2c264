"""The time of each part of a round, computed from the figures that the server keeps.

A round lasts from when its session could have been in a step until that step's end. The verifier
reports the wait and the step's time, which are all of it. In rounds that an earlier version made
the rest is the way there and back, and nothing is drawn of it. Drafting is asynchronous, and drawn
to end where the step begins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from paceline import Origin

from services.console.timeline.records import Record, Trace

ACCEPTED, RECOVERED, OWN = Origin.ACCEPTED, Origin.RECOVERED, Origin.BONUS
REJECTED, UNJUDGED = "rejected", "unjudged"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Milliseconds since the timeline's zero."""

    start: float
    end: float

    @property
    def length(self) -> float:
        """In milliseconds."""
        return self.end - self.start

    def shared_with(self, other: Stretch) -> float:
        """Milliseconds in both."""
        return max(0.0, min(self.end, other.end) - max(self.start, other.start))


@dataclass(frozen=True, slots=True)
class Token:
    """A token's text, and what became of it: accepted, recovered, bonus, rejected, unjudged."""

    text: str
    fate: str


@dataclass(frozen=True, slots=True)
class Round:
    """One round on the timeline. `draft` and `void` are None where nothing was drafted."""

    record: Record
    whole: Stretch
    queue: Stretch
    verify: Stretch
    draft: Stretch | None
    void: Stretch | None
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """All rounds of a session, from its first draft on."""

    trace: Trace
    rounds: tuple[Round, ...]

    @property
    def end(self) -> float:
        """Milliseconds from the zero to the last verdict."""
        return max((one.whole.end for one in self.rounds), default=0.0)

    @property
    def tokens(self) -> int:
        """Tokens that became final."""
        return sum(one.record.stats.emitted_tokens for one in self.rounds)

    @property
    def drafted(self) -> int:
        """Draft tokens that were verified."""
        return sum(one.record.stats.draft_tokens for one in self.rounds)

    @property
    def accepted(self) -> int:
        """Draft tokens that were accepted."""
        return sum(one.record.stats.accepted_tokens for one in self.rounds)

    @property
    def unjudged(self) -> int:
        """Draft tokens that were not verified."""
        return sum(len(one.record.unjudged) for one in self.rounds)

    @property
    def drafting_ms(self) -> float:
        """All drafting, of what was thrown away, too."""
        return sum(draft.length for draft in self._drafts())

    @property
    def hidden_ms(self) -> float:
        """Drafting while a block of this session was verified: the overlap that pays."""
        verifying = sorted((one.verify for one in self.rounds), key=lambda one: one.start)
        starts = [one.start for one in verifying]
        longest = max((one.length for one in verifying), default=0.0)
        shared = 0.0
        for draft in self._drafts():
            first = bisect_left(starts, draft.start - longest)
            after = bisect_left(starts, draft.end)
            shared += sum(draft.shared_with(one) for one in verifying[first:after])
        return shared

    def _drafts(self) -> list[Stretch]:
        parts = chain.from_iterable((one.draft, one.void) for one in self.rounds)
        return [part for part in parts if part is not None]


def timeline(trace: Trace) -> Timeline:
    """The rounds in the order in which their blocks left."""
    records = sorted(trace.records, key=lambda one: one.started_unix_ms)
    zero = min((one.started_unix_ms - one.stats.draft_ms for one in records), default=0.0)
    return Timeline(trace, tuple(_round(record, zero) for record in records))


def _round(record: Record, zero: float) -> Round:
    stats = record.stats
    start = record.started_unix_ms - zero
    whole = Stretch(start, start + stats.round_ms)
    # What other clocks measured may not fit into ours by a hair.
    verify_ms = min(stats.verify_ms, stats.round_ms)
    queue_ms = min(stats.queue_ms, stats.round_ms - verify_ms)
    there = (stats.round_ms - verify_ms - queue_ms) / 2
    queue = Stretch(start + there, start + there + queue_ms)
    verify = Stretch(queue.end, queue.end + verify_ms)
    draft = Stretch(verify.start - stats.draft_ms, verify.start) if stats.draft_tokens else None
    return Round(record, whole, queue, verify, draft, _void(record, whole), _tokens(record))


def _void(record: Record, whole: Stretch) -> Stretch | None:
    if not record.unjudged:
        return None
    stats = record.stats
    if not stats.draft_tokens:
        return whole
    each = stats.draft_ms / stats.draft_tokens
    return Stretch(whole.start, min(whole.end, whole.start + each * len(record.unjudged)))


def _tokens(record: Record) -> tuple[Token, ...]:
    final = zip_longest(record.pieces, record.origins[: len(record.pieces)], fillvalue="")
    return (
        *(Token(text, fate) for text, fate in final),
        *_all(record.rejected, REJECTED),
        *_all(record.unjudged, UNJUDGED),
    )


def _all(texts: Sequence[str], fate: str) -> list[Token]:
    return [Token(text, fate) for text in texts]

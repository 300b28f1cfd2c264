"""A round of zeros, for tests that care for a few of its fields."""

from __future__ import annotations

from orchestrator.core.events import RoundRecord

NOTHING = RoundRecord(
    round=1,
    epoch=0,
    base_len=0,
    draft_tokens=0,
    accepted_tokens=0,
    emitted_tokens=0,
    draft_ms=0.0,
    verify_ms=0.0,
    queue_ms=0.0,
    round_ms=0.0,
    batch_size=0,
    drafter="",
    verifier="",
    mode=None,
    started_at=0.0,
    ended_at=0.0,
)

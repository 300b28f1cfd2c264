"""Events of a generation, as a client sees them."""

from __future__ import annotations

from paceline import (
    Chunk,
    Complete,
    FinishReason,
    Method,
    Origin,
    RoundStats,
    SpecDecodeMetrics,
    Started,
    Usage,
)

STARTED = Started(session_id="s", prompt_tokens=5, seed=7)


def stats(draft: int, accepted: int, **times: float) -> RoundStats:
    """One round that emitted one token more than it accepted."""
    took = {"draft_ms": 0.0, "verify_ms": 10.0, "queue_ms": 1.0, "round_ms": 12.0} | times
    return RoundStats(
        index=1,
        epoch=1,
        draft_tokens=draft,
        accepted_tokens=accepted,
        emitted_tokens=accepted + 1,
        batch_size=1,
        drafter="d",
        verifier="v",
        rejection_sample_method=Method.GREEDY,
        **took,
    )


def chunk(*pieces: tuple[str, Origin], offset: int = 0, rounds=()) -> Chunk:
    texts, origins = tuple(text for text, _ in pieces), tuple(origin for _, origin in pieces)
    ids = tuple(range(offset, offset + len(pieces)))
    return Chunk(offset, ids, "".join(texts), rounds=rounds, pieces=texts, origins=origins)


def complete(tokens: int, steps: int, drafted: int = 0, accepted: int = 0) -> Complete:
    speculation = SpecDecodeMetrics(
        num_spec_steps=1 if drafted else 0,
        num_draft_tokens=drafted,
        num_accepted_draft_tokens=accepted,
        mean_acceptance_length=1.0,
        draft_acceptance_rate=accepted / drafted if drafted else 0.0,
        acceptance_histogram=(),
        num_target_steps=steps,
        block_efficiency=tokens / steps,
    )
    return Complete(FinishReason.LENGTH, Usage(5, tokens, 0), speculation, "text")

"""What spans say of requests, rounds and sessions: counts, times and names, never a text."""

from __future__ import annotations

from opentelemetry.util.types import AttributeValue

from orchestrator.steering.config import SessionConfig
from orchestrator.steering.rounds import RoundRecord
from services.runtime.telemetry import names

Attributes = dict[str, AttributeValue]

_SERVICE = "paceline.v1.InferenceService"


def of_call(method: str) -> Attributes:
    """The RPC that a span serves."""
    return {names.RPC_SYSTEM: "grpc", names.RPC_METHOD: f"{_SERVICE}/{method}"}


def of_resume(session: str, offset: int) -> Attributes:
    """A call that goes on with a session."""
    return {names.SESSION_ID: session, names.OFFSET: offset, **of_call("Resume")}


def of_request(session: str, config: SessionConfig, model: str) -> Attributes:
    """A session as it begins here."""
    sampling = config.sampling
    return {
        names.SESSION_ID: session,
        names.TERM: config.term,
        names.METHOD: config.method,
        names.MODE: config.mode.name.lower(),
        names.OPERATION: "text_completion",
        names.PROVIDER: "paceline",
        names.RESPONSE_MODEL: model,
        names.MAX_TOKENS: sampling.max_tokens,
        names.TEMPERATURE: sampling.temperature,
        names.TOP_P: sampling.top_p,
        names.TOP_K: sampling.top_k,
        names.STREAM: True,
        names.INPUT_TOKENS: len(config.prompt),
        **of_call("Generate" if config.term == 1 else "Resume"),
    }


def of_round(record: RoundRecord, outcome: str) -> Attributes:
    """A round with its verdict."""
    about: Attributes = {
        names.ROUND_INDEX: record.round,
        names.OPENING: record.epoch,
        names.ROUND_OUTCOME: outcome,
        names.DRAFT_TOKENS: record.draft_tokens,
        names.ACCEPTED_TOKENS: record.accepted_tokens,
        names.EMITTED_TOKENS: record.emitted_tokens,
        names.DRAFT_MS: record.draft_ms,
        names.VERIFY_MS: record.verify_ms,
        names.QUEUE_MS: record.queue_ms,
        names.BATCH_SIZE: record.batch_size,
        names.DRAFTER: record.drafter,
        names.VERIFIER: record.verifier,
        names.MODE: record.mode.name.lower() if record.mode else "",
    }
    if record.draft_tokens:
        about[names.ACCEPTANCE_RATE] = record.accepted_tokens / record.draft_tokens
        about[names.DRAFT_AGE] = record.age_ms
    if record.hold_ms:
        about[names.HOLD_MS] = record.hold_ms
    if record.bad_q_rows:
        about[names.BAD_Q_ROWS] = record.bad_q_rows
    if record.mode is not None and record.mode.exact_match:
        about[names.NEAR_TIES] = record.near_ties
    return about

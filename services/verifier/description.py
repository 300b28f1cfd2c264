"""What a verifier says of itself."""

from __future__ import annotations

from services.contract.types import RESPONSE_FORMAT, Role, WorkerDescription
from services.engine.port import Capability, Engine

RULES = ("coupled", "greedy")


def describe(
    engine: Engine, worker_id: str, version: str = "", structured: bool = False
) -> WorkerDescription:
    """The description of a verifier that runs `engine`.

    `structured`: it serves outputs of a given form.
    """
    trees = ("tree",) if Capability.TREES in engine.capabilities else ()
    formats = (RESPONSE_FORMAT,) if structured else ()
    return WorkerDescription(
        worker_id=worker_id,
        role=Role.VERIFIER,
        model=engine.model_id,
        model_fingerprint=engine.fingerprint,
        tokenizer_fingerprint=engine.bundle.fingerprint if engine.bundle else "",
        vocab_size=engine.vocab_size,
        max_context_length=engine.max_context_length,
        kv_capacity_tokens=engine.kv_tokens_capacity,
        version=version,
        capabilities=(*trees, *RULES, *formats),
        dtype=engine.dtype,
    )

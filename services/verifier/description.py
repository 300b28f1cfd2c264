"""What a verifier says of itself."""

from __future__ import annotations

from typing import cast

from services.contract.types import (
    LATER_FORMATS,
    RESPONSE_FORMAT,
    SCORES,
    STATES,
    TOKEN_LIMITS,
    Role,
    WorkerDescription,
)
from services.engine.port import Capability, Engine, HiddenStates

RULES = ("coupled", "greedy")


def states_of(engine: Engine) -> HiddenStates | None:
    """The engine, if it can tell states of its layers."""
    return cast(HiddenStates, engine) if Capability.HIDDEN_STATES in engine.capabilities else None


def describe(
    engine: Engine, worker_id: str, version: str = "", structured: bool = False
) -> WorkerDescription:
    """The description of a verifier that runs `engine`.

    `structured`: it serves outputs of a given form.
    """
    trees = ("tree",) if Capability.TREES in engine.capabilities else ()
    formats = (RESPONSE_FORMAT, *LATER_FORMATS) if structured else ()
    watched = states_of(engine)
    states = () if watched is None else (STATES,)
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
        capabilities=(*trees, *RULES, *formats, TOKEN_LIMITS, *states, SCORES),
        dtype=engine.dtype,
        hidden_width=0 if watched is None else watched.hidden_width,
        hidden_layers=0 if watched is None else watched.num_layers,
    )

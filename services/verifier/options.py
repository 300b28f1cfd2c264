"""What a verifier's core is told, apart from its engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from services.contract.states import OnStates
from services.engine.lending import Lending
from services.engine.structure import Structures
from services.runtime.step_records import OnChoices, OnStep


@dataclass(frozen=True, slots=True)
class VerifierOptions:
    """`max_step_tokens`: rows of one forward; `target_step_ms`: how long a prefill may make it.

    `prefill_slowdown`: how many times as long it may make a step that others decode in;
    more where fewer decode than wait for prompts.
    `prefix_cache_tokens`: what the K/V of texts that ended may hold; None: half of the budget.
    `lending`: where what drafts in this process finds the K/V of the sessions. `structures`
    compiles response formats; without it none is served. `clock` is in seconds and only
    measures; no decision about a token depends on it.
    """

    max_step_tokens: int = 2048
    target_step_ms: float = 500.0
    prefill_slowdown: float = 1.75
    prefix_cache_tokens: int | None = None
    version: str = ""
    lending: Lending | None = None
    structures: Structures | None = None
    clock: Callable[[], float] = time.perf_counter
    on_step: OnStep | None = None
    on_preempt: Callable[[], object] | None = None
    on_states: OnStates | None = None
    on_choices: OnChoices | None = None

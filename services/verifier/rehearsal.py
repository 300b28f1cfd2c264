"""Made-up sessions on a verifier's core, which step when they are told to, before anyone comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from services.contract.frames import (
    DraftName,
    DraftRow,
    StepFrame,
    draft_frame,
    grants,
    step_rows,
)
from services.contract.types import (
    EMPTY_HASH,
    DraftTree,
    Proposal,
    ResolvedSampling,
    SparseRow,
    VerifyMode,
    extend_hash,
)
from services.contract.worker_messages import SessionGone, StartVerify, VerifierEvent
from services.engine.port import Capability, Engine
from services.scheduling.draft_budget import EAGER
from services.verifier.options import VerifierOptions
from services.verifier.running.core import RunningCore

WINDOW = 16


@dataclass(slots=True)
class _Made:
    """What a session has said so far: how many tokens, and their hash."""

    mode: VerifyMode
    length: int = 0
    hash: int = EMPTY_HASH


class Rehearsal:
    """At most one session of each mode, on this engine; `clock` is in seconds.

    `failed` is told of each session that fails, by its mode, and why; nothing raises.
    """

    def __init__(
        self,
        engine: Engine,
        failed: Callable[[VerifyMode, str], object],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        options = VerifierOptions(prefix_cache_tokens=0, clock=clock)
        self._engine, self._failed = engine, failed
        self._core = RunningCore(engine, emit=self._hear, worker_id="rehearsal", options=options)
        self._sessions: dict[int, _Made] = {}
        self._steps = 0
        self._took: float | None = None

    def open(self, modes: Collection[VerifyMode], prompt: int, room: int) -> None:
        """Read prompts of so many tokens, or of what fits; `room` for more is behind them."""
        for mode in modes:
            opening = _opening(self._engine, mode, prompt, room)
            self._sessions[opening.handle] = _Made(mode)
            self._core.handle(0, opening)
        self._finish()

    def step(self, modes: Collection[VerifyMode], size: int) -> float | None:
        """One step of those that have not failed, which verifies `size` draft tokens of each.

        In milliseconds; None where there was none.
        """
        self._took = None
        self._steps += 1
        name = DraftName(1, self._steps)
        chosen = {at: own for at, own in self._sessions.items() if own.mode in modes}
        drafts = [
            DraftRow(at, name, own.length, own.hash, self._draft(own.mode, size), final=True)
            for at, own in chosen.items()
        ]
        self._core.handle(0, draft_frame(drafts))
        self._core.handle(0, grants([(at, own.length + 1) for at, own in chosen.items()]))
        self._finish()
        return self._took

    def end(self) -> None:
        """Free what the sessions hold."""
        self._core.drop_link(0)

    def _finish(self) -> None:
        while self._core.step():
            pass

    def _draft(self, mode: VerifyMode, size: int) -> DraftTree:
        """A tree of two children a node where drafts are matched exactly; else a drawn chain."""
        tokens = tuple(node % self._engine.vocab_size for node in range(size))
        if not mode.exact_match:
            rows = tuple(SparseRow((token,), (1.0,)) for token in tokens)
            return DraftTree(tokens, None, rows, Proposal.SAMPLED)
        if Capability.TREES not in self._engine.capabilities:
            return DraftTree(tokens)
        return DraftTree(tokens, tuple((node + 1) // 2 - 1 for node in range(size)))

    def _hear(self, _: int, event: VerifierEvent) -> None:
        match event:
            case StepFrame():
                self._took = event.step_ms
                for row in step_rows(event):
                    own = self._sessions[row.handle]
                    own.length += len(row.tokens)
                    own.hash = extend_hash(own.hash, row.tokens)
            case SessionGone():
                self._failed(self._sessions.pop(event.handle).mode, event.message)


def _opening(engine: Engine, mode: VerifyMode, prompt: int, room: int) -> StartVerify:
    """Without any credit, so that no token follows the prompt by itself."""
    length = max(1, min(prompt, engine.max_context_length - room))
    heat = 0.0 if mode is VerifyMode.GREEDY else 1.0
    return StartVerify(
        handle=tuple(VerifyMode).index(mode) + 1,
        opening=1,
        session_id=mode.name,
        term=1,
        prompt=tuple(place % engine.vocab_size for place in range(length)),
        output=(),
        limit=0,
        mode=mode,
        sampling=ResolvedSampling(temperature=heat, top_p=0.95, max_tokens=room),
        seed=1,
        window=WINDOW,
        drafted_for=True,
        pacing=EAGER,
    )

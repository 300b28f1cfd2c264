"""What a device loads where it is first used, before the first session comes.

The libraries of a GPU load a kernel when it is first run: on an H200 the first step of the first
session took 0.9 s, later ones 0.03 s. So made-up sessions decode some blocks first, in every mode,
without a draft and with drafts of several sizes, side by side and each alone.
"""

from __future__ import annotations

import logging
from itertools import product

from services.contract.types import (
    DraftTree,
    OpenVerify,
    Proposal,
    ResolvedSampling,
    SessionFailed,
    SparseRow,
    Verdict,
    VerifierEvent,
    Verify,
    VerifyMode,
)
from services.engine.port import Capability, Engine
from services.verifier.core import VerifierCore
from services.verifier.options import VerifierOptions

BLOCKS = (0, 1, 2, 4, 8, 12)
"""Draft tokens of a session's blocks."""
WINDOW = 16
PROMPT = 64
ROOM = 256
"""Tokens behind the prompt, at most: twelve blocks of a session."""

_log = logging.getLogger(__name__)


def warm_up(engine: Engine) -> None:
    """Decode on this engine; what it held then is free again. What fails is logged, a line each."""
    ends: dict[str, int] = {}

    def hear(_: int, event: VerifierEvent) -> None:
        match event:
            case Verdict():
                ends[event.session] = event.base_len + len(event.token_ids)
            case SessionFailed():
                ends.pop(event.session, None)
                _log.warning("warming up: %s: %s", event.session, event.message)

    options = VerifierOptions(gather_ms=0.0, prefix_cache_tokens=0)
    core = VerifierCore(engine, emit=hear, worker_id="warming up", options=options)
    for mode in VerifyMode:
        ends[mode.name] = 0
        core.handle(0, made_up_opening(engine, mode))
    finish(core)
    everyone = tuple(VerifyMode)
    groups = [everyone, *((mode,) for mode in everyone)]
    for number, (group, size) in enumerate(product(groups, BLOCKS), 1):
        for mode in group:
            if mode.name in ends:
                draft = made_up_draft(engine, mode, size)
                core.handle(0, Verify(mode.name, 1, number, ends[mode.name], draft))
        finish(core)
    core.drop_link(0)


def finish(core: VerifierCore) -> None:
    """Take steps until there is nothing more to do."""
    while core.step():
        pass


def made_up_opening(
    engine: Engine, mode: VerifyMode, prompt: int = PROMPT, room: int = ROOM
) -> OpenVerify:
    """A session with a prompt of so many tokens, or what fits, and `room` for more behind it."""
    length = max(1, min(prompt, engine.max_context_length - room))
    tokens = tuple(place % engine.vocab_size for place in range(length))
    heat = 0.0 if mode is VerifyMode.GREEDY else 1.0
    sampling = ResolvedSampling(temperature=heat, top_p=0.95, max_tokens=room)
    return OpenVerify(mode.name, 1, 1, tokens, (), mode, sampling, seed=1, window=WINDOW)


def made_up_draft(engine: Engine, mode: VerifyMode, size: int) -> DraftTree:
    """A tree of two children a node where drafts are matched exactly, and else a drawn chain."""
    tokens = tuple(node % engine.vocab_size for node in range(size))
    if not mode.exact_match:
        rows = tuple(SparseRow((token,), (1.0,)) for token in tokens)
        return DraftTree(tokens, None, rows, Proposal.SAMPLED)
    trees = Capability.TREES in engine.capabilities
    return DraftTree(tokens, tuple((node + 1) // 2 - 1 for node in range(size)) if trees else None)

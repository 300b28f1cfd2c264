"""What a device loads where it is first used, before the first session comes.

The libraries of a GPU load a kernel when it is first run: on an H200 the first step of the first
session took 0.9 s, later ones 0.03 s. So made-up sessions decode some blocks first, in every mode,
without a draft and with drafts of several sizes, side by side and each alone.
"""

from __future__ import annotations

import logging
from itertools import product

from services.contract.types import VerifyMode
from services.engine.port import Engine
from services.verifier.rehearsal import Rehearsal

BLOCKS = (0, 1, 2, 4, 8, 12)
"""Draft tokens of a session's blocks."""
PROMPT = 64
ROOM = 256
"""Tokens behind the prompt, at most: twelve blocks of a session."""

_log = logging.getLogger(__name__)


def warm_up(engine: Engine) -> None:
    """Decode on this engine; what it held then is free again. What fails is logged, a line each."""
    everyone = tuple(VerifyMode)
    rehearsal = Rehearsal(engine, _failed)
    rehearsal.open(everyone, PROMPT, ROOM)
    for group, size in product((everyone, *((mode,) for mode in everyone)), BLOCKS):
        rehearsal.step(group, size)
    rehearsal.end()


def _failed(mode: VerifyMode, message: str) -> None:
    _log.warning("warming up: %s: %s", mode.name, message)

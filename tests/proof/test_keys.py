"""No random number decides twice, in the whole life of a session.

Every key passes through `noise.derive_key`; here it is listened to while the real
machine and the real cores live through deaths, broken links, doubled messages and
takeovers.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import pytest

from orchestrator.core import rounds
from orchestrator.core.turn import Turn
from services.common.engine import noise
from services.common.engine.noise import Stream
from services.common.types import VerifyMode
from services.drafter.candidates import Place
from services.verifier import judging
from tests.proof.joined import Joined, Luck

STANDARD, BLOCK, COUPLED = VerifyMode.STANDARD, VerifyMode.BLOCK, VerifyMode.COUPLED


@contextmanager
def listening(monkeypatch):
    """Counts every key that is derived."""
    keys = Counter()
    derive = noise.derive_key

    def derive_key(seed, stream, *counters):
        keys[seed, stream, counters] += 1
        return derive(seed, stream, *counters)

    with monkeypatch.context() as patch:
        patch.setattr(noise, "derive_key", derive_key)
        yield keys


def lives(monkeypatch, mode, candidates=1, seeds=range(12), **luck):
    """Sessions run to their end: all keys, and what they went through."""
    seen = Counter()
    with listening(monkeypatch) as keys:
        for seed in seeds:
            seen += Joined(seed, mode, candidates, Luck(**luck)).run().seen
    return keys, seen


def repeated(keys):
    return {key: times for key, times in keys.items() if times > 1}


@pytest.mark.parametrize("candidates", [1, 3])
@pytest.mark.parametrize("mode", [STANDARD, BLOCK], ids=lambda mode: mode.name)
def test_no_key_is_drawn_twice(monkeypatch, mode, candidates):
    keys, seen = lives(monkeypatch, mode, candidates)
    assert not repeated(keys)
    streams = Counter(stream for _, stream, _ in keys)
    assert streams.keys() == {Stream.DRAFT, Stream.ACCEPT, Stream.RESIDUAL, Stream.BONUS}
    assert min(streams.values()) > 50
    assert min(seen[name] for name in ("death", "broken link", "takeover", "fenced", "twice")) > 5
    assert seen["tree" if candidates > 1 else "chained"] > 20

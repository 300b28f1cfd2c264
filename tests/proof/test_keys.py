"""No random number decides twice, in the whole life of a session.

Every key passes through `noise.derive_key`; here it is listened to while the real
machine and the real cores live through deaths, broken links, doubled messages and
takeovers.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from contextlib import contextmanager

import pytest
from orchestrator.core import rounds
from orchestrator.core.turn import Turn

from services.drafter.methods.model.candidates import Place
from services.engine import noise
from services.engine.noise import Stream
from services.verifier import judging
from tests.proof.joined import Joined
from tests.proof.setups import BLOCK, COUPLED, MODES


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


def lives(monkeypatch, mode, candidates=1, seeds=range(3)):
    """Sessions run to their end: all keys, and what they went through."""
    seen = Counter()
    with listening(monkeypatch) as keys:
        for seed in seeds:
            seen += Joined(seed, mode, candidates).run().seen
    return keys, seen


def repeated(keys):
    """The streams of which a key came more than once."""
    return {stream for (_, stream, _), times in keys.items() if times > 1}


@pytest.mark.parametrize("candidates", [1, 3], ids=["chains", "trees"])
@MODES
def test_no_key_is_drawn_twice(monkeypatch, mode, candidates):
    keys, seen = lives(monkeypatch, mode, candidates, seeds=range(6))
    assert not repeated(keys)
    streams = Counter(stream for _, stream, _ in keys)
    assert streams.keys() == {Stream.DRAFT, Stream.ACCEPT, Stream.RESIDUAL, Stream.BONUS}
    assert min(streams.values()) > 10
    assert min(seen[name] for name in ("death", "broken link", "takeover", "fenced", "twice")) > 2
    assert min(seen[name] for name in KINDS[candidates]) > 20


KINDS = {1: ("chained", "without bonus"), 3: ("tree",)}


@pytest.mark.parametrize("candidates", [1, 3], ids=["chains", "trees"])
def test_shared_noise_chooses_one_token_at_a_place_however_often_it_is_derived(
    monkeypatch, candidates
):
    for seed in range(6):
        with listening(monkeypatch) as keys:
            joined = Joined(seed, COUPLED, candidates).run()
        assert {stream for _, stream, _ in keys} == {Stream.GUMBEL}
        assert max(keys.values()) > 1
        assert {counters for _, _, counters in keys} >= {(at,) for at in range(len(joined.stored))}
        most = joined.config.sampling.max_tokens
        for verdict in joined.said:
            # What goes on beyond the length limit is never stored.
            tokens = list(verdict.token_ids)[: most - verdict.base_len]
            end = verdict.base_len + len(tokens)
            assert tokens == joined.stored[verdict.base_len : end]


# --- keys that are wrong, which the audit must tell ---------------------------------


def drawn_without(missing):
    """A drafter that leaves one counter out: 0 the epoch, 2 the position, 4 the candidate."""

    def draw(place, candidate):
        counters = [*place.key, candidate]
        del counters[missing]
        return noise.uniform(place.row.seed, Stream.DRAFT, *counters)

    return draw


def accepted_by_position(block):
    """A verifier whose numbers belong to a place in the text, not to a round."""

    def number(stream, node, candidate):
        position = block.task.base_len + node
        return noise.uniform(block.session.opening.seed, stream, position, candidate)

    return number


def accepted_without(missing):
    """A verifier that leaves one counter out: 2 the round, 3 the row."""

    def uniforms(block):
        opening, command = block.session.opening, block.task.block.command

        def number(stream, node, candidate):
            counters = [opening.term, command.epoch, command.round, node, candidate]
            del counters[missing]
            return noise.uniform(opening.seed, stream, *counters)

        return number

    return uniforms


@pytest.mark.parametrize(
    ("name", "missing", "candidates"),
    [("the epoch", 0, 1), ("the position", 2, 1), ("the node", 3, 3), ("the candidate", 4, 3)],
)
def test_draft_keys_without_one_of_their_counters_are_seen(monkeypatch, name, missing, candidates):
    monkeypatch.setattr(Place, "uniform", drawn_without(missing))
    keys, _ = lives(monkeypatch, BLOCK, candidates)
    assert repeated(keys) == {Stream.DRAFT}, name


@pytest.mark.parametrize(
    ("name", "uniforms"),
    [
        ("keyed by position", accepted_by_position),
        ("without the round", accepted_without(2)),
        ("without the row", accepted_without(3)),
    ],
)
def test_verification_keys_that_come_again_are_seen(monkeypatch, name, uniforms):
    monkeypatch.setattr(judging.Judged, "number", lambda own, *draw: uniforms(own)(*draw))
    keys, _ = lives(monkeypatch, BLOCK)
    assert Stream.ACCEPT in repeated(keys), name


def test_terms_that_share_their_epochs_are_seen(monkeypatch):
    monkeypatch.setattr(rounds, "EPOCHS_PER_TERM", 0)
    keys, _ = lives(monkeypatch, BLOCK, seeds=range(8))
    assert repeated(keys) == {Stream.DRAFT}


def test_a_machine_that_voids_the_tail_without_a_new_epoch_is_seen(monkeypatch):
    monkeypatch.setattr(Turn, "bump_epoch", lambda turn: turn.set(tail=(), resync=False))
    with listening(monkeypatch) as keys, contextlib.suppress(AssertionError):
        for seed in range(6):
            Joined(seed, BLOCK).run()
    assert Stream.DRAFT in repeated(keys)

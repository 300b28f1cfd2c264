"""No random number decides twice, in the whole life of a session.

Every key passes through `noise.derive_key`; here it is listened to while the real machine, hub and
cores live through deaths, broken links, messages in the middle of a step, and takeovers.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import pytest

from services.contract.frames import DraftName, draft_key
from services.drafter.hypotheses import session as hypotheses
from services.drafter.methods.model.candidates import Place
from services.engine import noise
from services.engine.noise import Stream
from services.verifier.running.turns import Turn
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
    keys, seen = lives(monkeypatch, mode, candidates, seeds=range(8))
    assert not repeated(keys)
    streams = Counter(stream for _, stream, _ in keys)
    assert streams.keys() == {Stream.DRAFT, Stream.ACCEPT, Stream.RESIDUAL, Stream.BONUS}
    assert min(streams.values()) > 10
    assert min(seen[name] for name in MISFORTUNES) > 2
    assert min(seen[name] for name in KINDS[candidates]) > 20


MISFORTUNES = ("death", "broken link", "takeover", "fenced", "twice", "during a step")
KINDS = {1: ("late", "joined"), 3: ("tree", "joined")}


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
        for row in joined.said:
            # What goes on beyond the length limit is never stored.
            tokens = list(row.tokens)[: most - row.position]
            end = row.position + len(tokens)
            assert tokens == joined.stored[row.position : end]


# --- keys that are wrong, which the audit must tell ---------------------------------


def drawn_without(missing):
    """A drafter that leaves a counter out, of key, position, node and candidate."""

    def draw(place, candidate):
        counters = [*place.key, candidate]
        del counters[missing]
        return noise.uniform(place.row.seed, Stream.DRAFT, *counters)

    return draw


def accepted_by_position(turn, stream, node, candidate):
    """A verifier whose numbers belong to a place in the text, not to a step."""
    return noise.uniform(turn.session.opening.seed, stream, turn.base_len + node, candidate)


def accepted_without(*missing):
    """A verifier that leaves counters out: 0 the term, 1 the opening, 2 the step, 3 the row."""

    def number(turn, stream, node, candidate):
        opening = turn.session.opening
        counters = [opening.term, opening.opening, turn.step, node, candidate]
        kept = [own for place, own in enumerate(counters) if place not in missing]
        return noise.uniform(opening.seed, stream, *kept)

    return number


@pytest.mark.parametrize(
    ("name", "missing", "candidates"),
    [("the key", 0, 1), ("the position", 1, 1), ("the node", 2, 3), ("the candidate", 3, 3)],
)
def test_draft_keys_without_one_of_their_counters_are_seen(monkeypatch, name, missing, candidates):
    monkeypatch.setattr(Place, "uniform", drawn_without(missing))
    keys, _ = lives(monkeypatch, BLOCK, candidates)
    assert repeated(keys) == {Stream.DRAFT}, name


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("keyed by position", accepted_by_position),
        ("without the term", accepted_without(0)),
        ("without the opening", accepted_without(1)),
        ("without the step", accepted_without(2)),
        ("without the row", accepted_without(3)),
    ],
)
def test_verification_keys_that_come_again_are_seen(monkeypatch, name, number):
    monkeypatch.setattr(Turn, "number", number)
    keys, _ = lives(monkeypatch, BLOCK, seeds=range(8))
    assert repeated(keys) & {Stream.ACCEPT, Stream.BONUS}, name


# That of the number is in tests/services/test_hypothesis_law.py.
@pytest.mark.parametrize(
    "key",
    [
        lambda term, name: draft_key(1, name),
        lambda term, name: draft_key(term, DraftName(1, name.number)),
    ],
    ids=["the term", "the opening"],
)
def test_drafts_of_which_a_part_of_the_name_is_no_key_are_seen(monkeypatch, key):
    monkeypatch.setattr(hypotheses, "draft_key", key)
    keys, _ = lives(monkeypatch, BLOCK, seeds=range(8))
    assert repeated(keys) == {Stream.DRAFT}

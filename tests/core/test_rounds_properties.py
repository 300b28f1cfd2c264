"""The five properties of the round machine, over any interleaving."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.events import NeedWorker, Tick
from orchestrator.core.rounds import new_session
from orchestrator.steering.config import Phase
from services.contract.types import VerifyMode
from tests.core.world import Faults, World
from tests.tries import tries

FAULTS = st.builds(
    Faults,
    accuracy=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    duplicates=st.sampled_from([0.0, 0.3]),
    reorder=st.sampled_from([0.0, 0.5]),
    lose_drafter=st.sampled_from([0.0, 0.02]),
    lose_verifier=st.sampled_from([0.0, 0.01]),
    drafter_speed=st.sampled_from([0.1, 1.0]),
    verifier_speed=st.sampled_from([0.5, 1.0]),
    caps=st.sampled_from([0.0, 0.1]),
)
WORLDS = {
    "seed": st.integers(0, 2**32),
    "faults": FAULTS,
    "pacing": st.sampled_from(["eager", "matched", "thompson", "fixed", "levels"]),
    "fallback": st.booleans(),
    "mode": st.sampled_from(VerifyMode),
    "max_in_flight": st.sampled_from([1, 2, 3]),
    "num_candidates": st.sampled_from([1, 1, 3]),
}


@tries(300)
@given(**WORLDS)
def test_every_session_ends_with_a_text_of_the_target_whatever_happens(seed, faults, **world):
    """Lossless, fresh, live and growing at once: `World.check` looks after every event."""
    sim = World(seed, faults, **world).run()
    assert sim.finished
    assert sim.lawful()


@tries(150)
@given(
    seed=st.integers(0, 2**32),
    duplicates=st.sampled_from([0.0, 0.3]),
    pacing=WORLDS["pacing"],
    mode=WORLDS["mode"],
    max_in_flight=WORLDS["max_in_flight"],
    window=st.sampled_from([2, 6]),
)
def test_a_perfect_drafter_is_never_rolled_back(seed, duplicates, **world):
    sim = World(seed, Faults(accuracy=1.0, duplicates=duplicates), **world).run()
    assert sim.finished
    assert not sim.wasted()
    assert sim.state.epoch == 1 or not sim.state.config.mode.exact_match


@tries(50)
@given(seed=st.integers(0, 2**32), mode=WORLDS["mode"])
def test_plain_decoding_needs_no_drafter(seed, mode):
    sim = World(seed, Faults(), mode=mode, method="").run()
    assert sim.lawful()
    assert not sim.drafters
    assert sim.state.epoch == 1


@pytest.mark.parametrize("pacing", ["eager", "fixed"])
def test_a_session_without_a_verifier_is_suspended_in_time(pacing):
    sim = World(1, Faults(), pacing=pacing)
    perform = sim.perform
    sim.perform = lambda action: None if isinstance(action, NeedWorker) else perform(action)
    sim.run(steps=50)
    assert not sim.suspended
    sim.now = 61.0
    sim.feed(Tick(sim.now))
    assert sim.suspended
    assert sim.state.phase is Phase.SUSPENDED


@tries(50)
@given(seed=st.integers(0, 2**32), turns=st.integers(1, 400), mode=WORLDS["mode"])
def test_a_new_owner_goes_on_from_what_was_stored(seed, turns, mode):
    first = World(seed, Faults(accuracy=0.7), mode=mode).run(steps=turns)
    second = World(seed + 1, Faults(accuracy=0.7), mode=mode)
    config = replace(second.state.config, term=2)
    second.state = new_session(config, second.state.policy, tuple(first.persisted))
    second.persisted, second.emitted = list(first.persisted), list(first.persisted)
    if not first.finished:
        second.run()
    assert second.lawful()
    assert second.state.epoch > first.state.epoch

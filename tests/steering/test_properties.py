"""The five properties of a steered session, over any interleaving."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.steering import events
from orchestrator.steering.config import Phase
from orchestrator.steering.state import new_session
from services.contract.types import VerifyMode
from tests.steering.world import Faults, World
from tests.tries import tries

FAULTS = st.builds(
    Faults,
    accuracy=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    duplicates=st.sampled_from([0.0, 0.3]),
    reorder=st.sampled_from([0.0, 0.05]),
    lose_drafter=st.sampled_from([0.0, 0.02]),
    lose_verifier=st.sampled_from([0.0, 0.01]),
    drafter_speed=st.sampled_from([0.1, 1.0]),
    verifier_speed=st.sampled_from([0.2, 1.0]),
    store_speed=st.sampled_from([0.1, 1.0]),
    caps=st.sampled_from([0.0, 0.1]),
)
MODES = st.sampled_from(VerifyMode)


@tries(300)
@given(seed=st.integers(0, 2**32), faults=FAULTS, mode=MODES)
def test_every_session_ends_with_a_text_of_the_target_whatever_happens(seed, faults, mode):
    """Lossless, fresh, live and growing at once: world and book look after every event."""
    sim = World(seed, faults, mode=mode).run()
    assert sim.finished
    assert sim.lawful()


@tries(150)
@given(
    seed=st.integers(0, 2**32),
    duplicates=st.sampled_from([0.0, 0.3]),
    lose_verifier=st.sampled_from([0.0, 0.01]),
    caps=st.sampled_from([0.0, 0.1]),
    mode=MODES,
    window=st.sampled_from([2, 6]),
)
def test_a_perfect_drafter_is_never_rolled_back(
    seed, duplicates, lose_verifier, caps, mode, window
):
    """Where drafts are judged by chance: by no step that judged its draft to the end."""
    faults = Faults(1.0, duplicates, lose_verifier=lose_verifier, caps=caps, verifier_speed=0.3)
    sim = World(seed, faults, mode=mode, window=window).run()
    assert sim.lawful()
    assert not any(record.rejected for commit in sim.commits for record in commit.records)
    assert sim.rollbacks == 0 or not mode.exact_match


@tries(100)
@given(seed=st.integers(0, 2**32), mode=MODES, lose_verifier=st.sampled_from([0.0, 0.01]))
def test_a_drafter_misses_no_step_of_the_text_that_it_was_opened_with(seed, mode, lose_verifier):
    sim = World(seed, Faults(lose_drafter=0.02, lose_verifier=lose_verifier), mode=mode).run()
    assert sim.lawful()
    assert sim.gaps == 0


@tries(50)
@given(seed=st.integers(0, 2**32), mode=MODES)
def test_what_a_drafter_had_sent_to_a_verifier_that_died_it_drafts_for_the_next_one(seed, mode):
    sim = World(seed, Faults(1.0, verifier_speed=0.1), mode=mode)
    sim.feed(events.Begin(sim.now))
    while not any(len(drafter.tail) == drafter.window for drafter in sim.drafters.values()):
        sim.turn()
    sim.lose_verifier()
    while not sim.finished:
        sim.turn()
    records = [record for commit in sim.commits for record in commit.records]
    assert {record.epoch for record in records if record.draft_tokens} >= {2}


@tries(50)
@given(seed=st.integers(0, 2**32), mode=MODES)
def test_plain_decoding_needs_no_drafter(seed, mode):
    sim = World(seed, Faults(), mode=mode, method="").run()
    assert sim.lawful()
    assert not sim.drafters


def test_a_session_without_a_verifier_is_suspended_in_time():
    sim = World(1, Faults())
    sim.perform = lambda action: setattr(sim, "suspended", isinstance(action, events.Suspend))
    sim.run(steps=50)
    assert not sim.suspended
    sim.now = 61.0
    sim.feed(events.Tick(sim.now))
    assert sim.suspended
    assert sim.state.phase is Phase.SUSPENDED


@tries(50)
@given(seed=st.integers(0, 2**32), turns=st.integers(1, 400), mode=MODES)
def test_a_new_owner_goes_on_from_what_was_stored(seed, turns, mode):
    first = World(seed, Faults(), mode=mode).run(steps=turns)
    second = World(seed + 1, Faults(), mode=mode)
    second.book = first.book
    config = second.state.config
    second.state = new_session(replace(config, term=2), 2, tuple(first.persisted))
    second.persisted, second.emitted = list(first.persisted), list(first.persisted)
    if not first.finished:
        second.run()
        assert second.lawful()

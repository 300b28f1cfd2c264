"""Drafters of sessions that rest hear of some steps together, and miss none."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.steering.resting import MOST_UNHEARD
from services.contract.frames import StepFrame, StepRow, step_frame, step_rows
from services.contract.types import Role
from services.contract.wire.checks import check_step
from services.contract.worker_messages import StartDraft
from services.drafter.hypotheses.session import HypothesisSession
from tests.orchestrator.hub_kit import PLENTY, WINDOW, World
from tests.tries import tries


class Drafter:
    """Links to a drafter "d", of which the bookkeeping of its sessions is real."""

    def __init__(self):
        self.texts, self.closed_with, self.frames = {}, None, 0

    def send(self, worker, handle, command):
        assert (worker, type(command)) == ("d", StartDraft)
        self.texts[handle] = HypothesisSession(command)

    def forward(self, worker, command):
        assert (worker, type(command)) == ("d", StepFrame)
        self.frames += 1
        check_step(command)
        for row in step_rows(command):
            # Raises where a step does not follow.
            assert self.texts[row.handle].take(row.position, row.tokens) is not None

    def release(self, worker, handle):
        if worker == "d":
            self.closed_with = self.known(handle)

    def known(self, handle):
        text = self.texts[handle]
        return text.text[text.prompt_length :]


class Texts:
    """Sessions whose steps bring 1, 2, 3, …"""

    def __init__(self, sessions=2):
        self.drafter = Drafter()
        self.world = World(sessions, "d", links=self.drafter)
        self.said = {handle: [] for handle in self.world.handles}
        self.openings = dict.fromkeys(self.said, 1)
        self.numbers = count(1)

    def step(self, *, size=1, window=None, of=None):
        rows = []
        for handle in of or self.said:
            tokens = tuple(next(self.numbers) % 900 for _ in range(size))
            opening, position = self.openings[handle], len(self.said[handle])
            rows.append(StepRow(handle, opening, position, tokens, size - 1, tokens[:-1]))
            self.said[handle] += tokens
        told = () if window is None else [window] * len(rows)
        self.world.hub.heard("v", Role.VERIFIER, step_frame(StepFrame(1), rows, told))
        self.world.loop.run()

    @property
    def up_to_date(self):
        return all(self.drafter.known(handle) == said for handle, said in self.said.items())


def test_steps_behind_which_nothing_is_drafted_are_told_together():
    texts = Texts()
    texts.step(window=0)
    before = texts.drafter.frames
    for _ in range(MOST_UNHEARD):
        texts.step()
    assert texts.drafter.frames == before
    assert not texts.up_to_date
    texts.step()
    assert texts.drafter.frames == before + 2
    assert texts.up_to_date


def test_a_drafter_that_is_to_draft_has_heard_everything_before():
    texts = Texts()
    texts.step(window=0)
    for _ in range(5):
        texts.step()
    texts.step(window=4)
    assert texts.up_to_date
    texts.step()
    assert texts.up_to_date


def test_one_session_that_is_drafted_for_keeps_all_of_its_frame_up_to_date():
    texts = Texts()
    first, _ = texts.said
    texts.step(window=0)
    texts.step(window=4, of=[first])
    texts.step()
    assert texts.up_to_date


@pytest.mark.parametrize("rare", ["top_rows", "states"])
def test_what_a_drafter_keeps_beside_the_text_does_not_wait(rare):
    texts = Texts(1)
    [handle] = texts.said
    texts.step(window=0)
    before = texts.drafter.frames
    row = StepRow(handle, 1, 1, (5,))._replace(**{rare: b"1234"})
    texts.world.hub.heard("v", Role.VERIFIER, step_frame(StepFrame(1), [row]))
    assert texts.drafter.frames == before + 1


def test_who_leaves_has_told_all_of_its_text():
    texts = Texts()
    first, other = texts.said
    texts.step(window=0)
    texts.step()
    texts.world.hub.leave(first)
    assert texts.drafter.closed_with == texts.said[first]
    assert texts.drafter.known(other) != texts.said[other]


def test_a_drafter_that_a_session_leaves_was_told_all_of_its_text():
    texts = Texts()
    first, other = texts.said
    texts.step(window=0)
    texts.step()
    texts.world.hub.drafted_by(first, None)
    assert texts.drafter.known(first) == texts.said[first]
    assert texts.drafter.known(other) != texts.said[other]


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(1, WINDOW)),
        st.tuples(st.just("window"), st.integers(0, 3)),
        st.tuples(st.just("one"), st.integers(0, 2)),
        st.tuples(st.just("reopened"), st.integers(0, 2)),
        st.tuples(st.just("moved"), st.integers(0, 2)),
    ),
    max_size=60,
)


@tries(300)
@given(MOVES)
def test_no_step_is_missed_or_told_twice_whatever_happens(moves):
    texts = Texts(3)
    handles = list(texts.said)
    texts.step(window=0)
    for kind, what in moves:
        match kind:
            case "step":
                texts.step(size=what)
            case "window":
                texts.step(window=what)
                assert texts.up_to_date
            case "one":
                texts.step(of=[handles[what]])
            case "reopened":
                handle = handles[what]
                known = texts.world.sessions[what].tokens
                texts.world.drafts_at(handle, "d", len(moves), known)
            case "moved":
                handle = handles[what]
                texts.openings[handle] += 1
                opening, received = texts.openings[handle], len(texts.said[handle])
                texts.world.hub.flush(handle)
                texts.world.hub.verified_by(handle, "v", opening, received, PLENTY, WINDOW)
    texts.step(window=1)
    assert texts.up_to_date

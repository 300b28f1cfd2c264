"""Hidden states on their way through the round machine: as they came, in order, or not at all."""

from dataclasses import replace

import pytest

from orchestrator.core import events, rounds
from orchestrator.core.drafts import Piece
from orchestrator.core.pacing import make_policy
from orchestrator.core.state import Block, State
from orchestrator.steering.config import SessionConfig
from services.contract import types as t
from services.contract.states import NO_STATES, StateShape

SHAPE = StateShape((0, 2), 4)
PROMPT = (1, 2, 3)
ROW = SHAPE.row_bytes


def rows(first: int, count: int) -> bytes:
    """Rows that differ."""
    return b"".join(bytes([first + row]) * ROW for row in range(count))


class Session:
    """A session whose verifier and drafter are the test."""

    def __init__(self, shape: StateShape = SHAPE, **more) -> None:
        config = SessionConfig(
            "s", PROMPT, t.VerifyMode.GREEDY, t.ResolvedSampling(max_tokens=50), seed=1,
            method="eagle", window=4, vocab_size=50, states=shape, **more,
        )  # fmt: skip
        self.state: State = rounds.new_session(config, make_policy("eager", 4))
        self.sent: list[object] = []
        self.feed(events.Begin(0.0))

    def feed(self, event: events.Event) -> list[object]:
        self.state, actions = rounds.step(self.state, event)
        found = [
            action.message
            for action in actions
            if isinstance(action, events.SendToDrafter | events.SendVerify | events.OpenOnWorker)
        ]
        self.sent += found
        return found

    def attach(self, role: t.Role, worker: str, beside: str = "") -> list[object]:
        return self.feed(events.WorkerAttached(0.0, role, worker, beside=beside))

    def open(self, *, beside: str = "") -> list[object]:
        opened = self.attach(t.Role.VERIFIER, "v") + self.attach(t.Role.DRAFTER, "d", beside)
        self.feed(events.WorkerOpened(0.0, t.Role.VERIFIER, "v", self.state.epoch))
        self.feed(events.WorkerOpened(0.0, t.Role.DRAFTER, "d", self.state.epoch))
        return opened

    def verdict(self, tokens: tuple[int, ...], states: bytes, **more) -> list[object]:
        """The answer to a block without a draft, which may take one at the verifier."""
        state, takes = self.state, "taken" in more
        piece, base_len = Piece(t.DraftTree()), len(state.committed)
        block = Block(state.next_round, state.epoch, base_len, piece, 0.0, takes=takes)
        self.state = replace(state, in_flight=(block,), next_round=block.round + 1)
        verdict = t.Verdict("s", block.epoch, block.round, len(self.state.committed), tokens,
                            all_accepted=True, states=states, **more)  # fmt: skip
        return self.feed(events.VerdictArrived(0.0, "v", verdict))

    def told(self, position: int, states: bytes, worker: str = "v", epoch: int = 1) -> list[object]:
        return self.feed(events.StatesArrived(0.0, worker, t.States("s", epoch, position, states)))

    def commits(self) -> list[t.CommitDraft]:
        return [sent for sent in self.sent if isinstance(sent, t.CommitDraft)]


def test_the_verifier_is_asked_for_what_the_drafter_needs_and_for_nothing_else():
    [asked] = [sent for sent in Session().open() if isinstance(sent, t.OpenVerify)]
    assert asked.state_layers == SHAPE.layers
    [asked] = [sent for sent in Session(NO_STATES).open() if isinstance(sent, t.OpenVerify)]
    assert asked.state_layers == ()


def test_states_go_with_the_commit_as_they_came_with_the_verdict():
    session = Session()
    session.open()
    session.verdict((5,), rows(1, 1))
    [commit] = session.commits()
    assert (commit.token_ids, commit.states) == ((5,), rows(1, 1))


@pytest.mark.parametrize("states", [b"", rows(1, 2), rows(1, 1)[:-1], b"\0"])
def test_states_that_do_not_fit_the_tokens_are_left_out(states):
    session = Session()
    session.open()
    session.verdict((5,), states)
    [commit] = session.commits()
    assert (commit.token_ids, commit.states) == ((5,), b"")


def test_nobody_is_told_what_was_not_asked_for():
    session = Session(NO_STATES)
    session.open()
    session.verdict((5,), rows(1, 1))
    session.told(0, rows(1, 1))
    assert [commit.states for commit in session.commits()] == [b""]
    assert not any(isinstance(sent, t.DraftStates) for sent in session.sent)


@pytest.mark.parametrize("missing", [None, 0, 2])
def test_a_commit_for_several_verdicts_has_the_states_of_all_or_of_none(missing):
    session = Session()
    session.open(beside="v")
    parts = [rows(number, 1) if number != missing else b"" for number in range(4)]
    for number, states in enumerate(parts):
        session.verdict((number,), states, taken=t.TakenDraft())
    [commit] = session.commits()
    assert commit.token_ids == (0, 1, 2, 3)
    assert commit.states == (b"".join(parts) if missing is None else b"")


def test_a_prompts_states_go_to_the_drafter_behind_its_opening():
    session = Session()
    session.attach(t.Role.VERIFIER, "v")
    assert session.told(0, rows(0, 1)) == []
    session.attach(t.Role.DRAFTER, "d")
    [passed] = session.told(1, rows(1, 1))
    assert passed == t.DraftStates("s", session.state.epoch, 1, rows(1, 1))
    opened = [type(sent) for sent in session.sent]
    assert opened.index(t.OpenDraft) < opened.index(t.DraftStates)


@pytest.mark.parametrize(
    ("position", "states", "worker", "epoch"),
    [
        (0, rows(0, 1), "other", 1),
        (0, rows(0, 1), "v", 0),
        (0, rows(0, 1), "v", 2),
        (0, rows(0, 1)[1:], "v", 1),
        (0, b"", "v", 1),
        (2, rows(0, 2), "v", 1),
        (1 << 31, rows(0, 1), "v", 1),
    ],
)
def test_states_of_another_text_verifier_or_opening_are_dropped(position, states, worker, epoch):
    session = Session()
    session.open()
    assert session.told(position, states, worker, epoch) == []


def test_they_carry_the_epoch_that_the_drafter_knows():
    session = Session()
    session.open()
    session.feed(events.WorkerLost(0.0, t.Role.DRAFTER, "d"))
    session.feed(events.Tick(10.0))
    session.attach(t.Role.DRAFTER, "e")
    [passed] = session.told(0, rows(0, 1))
    assert passed.epoch == session.state.epoch > 1


def test_a_drafter_that_comes_later_is_told_nothing_of_the_text_before():
    session = Session()
    session.open(beside="v")
    session.verdict((4,), rows(1, 1), taken=t.TakenDraft())
    assert session.state.untold_states
    session.feed(events.WorkerLost(0.0, t.Role.DRAFTER, "d"))
    session.feed(events.Tick(10.0))
    session.attach(t.Role.DRAFTER, "e")
    assert session.state.untold_states == ()
    session.verdict((5,), rows(2, 1))
    commit = session.commits()[-1]
    assert (commit.base_len, commit.token_ids, commit.states) == (1, (5,), rows(2, 1))

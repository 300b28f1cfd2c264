"""Hidden states on links and at drafters: bounded, in order, and of the text that they say."""

import pytest

from services.contract import types as t
from services.contract.states import (
    MESSAGE_BYTES,
    NO_STATES,
    Fate,
    StateRows,
    StateShape,
    gives,
    needed,
    row_count,
    rows_a_message,
)
from services.contract.wire import VERIFIER_LINK, in_messages
from services.contract.wire.codecs import STATES_BYTES
from services.contract.worker_messages import SessionGone, SessionStarted, TextStates
from services.drafter.anchors import place
from services.drafter.hypotheses.session import HypothesisSession
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.runtime.serving.links import STATE_PORTION, Outbox
from tests.services.hypothesis_kit import Worker, brought, starting, step

SHAPE = StateShape((0, 2), 4)
ROW = SHAPE.row_bytes


def rows(count, value=1):
    return bytes([value]) * ROW * count


# --- what they are ----------------------------------------------------------------------


def test_only_whole_rows_are_counted():
    assert [row_count(states, 4) for states in (b"", rows(1), rows(3), rows(1)[1:])] == [0, 1, 3, 0]
    assert row_count(rows(1), 0) == 0


def test_a_row_that_no_message_holds_is_none():
    assert rows_a_message(MESSAGE_BYTES // 2) == 1
    assert rows_a_message(MESSAGE_BYTES) == 0
    assert rows_a_message(0) == 0


def verifier(**more):
    about = {"capabilities": ("states",), "hidden_layers": 2, "hidden_width": 2}
    return t.WorkerDescription("v", t.Role.VERIFIER, **(about | more))


@pytest.mark.parametrize(
    ("shape", "more", "fits"),
    [
        (SHAPE, {}, True),
        (SHAPE, {"capabilities": ()}, False),
        (SHAPE, {"hidden_layers": 1}, False),
        (SHAPE, {"hidden_width": 3}, False),
        (StateShape((2, 0), 4), {}, False),
        (NO_STATES, {}, False),
        (StateShape((0,), 1 << 30), {"hidden_width": 1 << 30}, False),
    ],
)
def test_a_verifier_gives_the_layers_that_it_has_as_wide_as_they_are(shape, more, fits):
    assert gives(verifier(**more), shape) is fits


def test_a_drafter_needs_states_for_the_methods_that_say_so():
    drafter = t.WorkerDescription(
        "d", t.Role.DRAFTER, capabilities=("eagle:states",), state_layers=(0, 2), state_width=4
    )
    assert needed(drafter, ("ngram", "eagle")) == SHAPE
    assert needed(drafter, ("ngram",)) == NO_STATES


# --- on their way -----------------------------------------------------------------------


def told(session, position=0, size=10):
    return t.States(session, 1, position, b"\0" * size)


async def test_an_outbox_gives_states_in_portions_and_drops_what_it_has_no_room_for(monkeypatch):
    monkeypatch.setattr("services.runtime.serving.links.MOST_STATE_BYTES", 3 * STATE_PORTION)
    dropped = []
    outbox = Outbox(on_states=lambda fate, size: dropped.append((fate, size)))
    outbox.put([told("a", number, STATE_PORTION) for number in range(4)])
    outbox.put([t.Verdict("b", 1, 1, 0, (4,))])
    assert dropped == [(Fate.DROPPED, STATE_PORTION)]
    taken = [await outbox.take() for _ in range(3)]
    assert [[event.session for event in some] for some in taken] == [["b", "a"], ["a"], ["a"]]
    assert [some[-1].position for some in taken] == [0, 1, 2]
    outbox.put([told("a", 3, STATE_PORTION)])
    assert len(dropped) == 1


def test_a_batch_of_states_is_cut_before_it_is_encoded():
    encoded = []

    def encode(batch):
        encoded.append(len(batch))
        return VERIFIER_LINK.encode_response(batch)

    batch = [told("a", number, STATES_BYTES // 4 - 100) for number in range(32)]
    assert len(list(in_messages(encode, batch))) == len(encoded) == 8


# --- at the drafter ---------------------------------------------------------------------


PROMPT = (1, 2, 3)


@pytest.mark.parametrize(
    ("given", "placed"),
    [
        (StateRows(0, rows(3)), True),
        (StateRows(0, rows(5)), True),
        (StateRows(0, rows(6)), None),
        (StateRows(1 << 31, rows(1)), None),
        (StateRows(-1, rows(1)), False),
        (StateRows(0, rows(1)[1:]), False),
        (StateRows(2, rows(2), (7, 8)), True),
        (StateRows(2, rows(2), (7, 9)), False),
        (StateRows(3, rows(2), (8, 9)), None),
        (StateRows(2, rows(2), (7,)), False),
    ],
)
def test_rows_are_of_the_known_text_or_of_one_to_come_or_of_none(given, placed):
    session = HypothesisSession(starting(prompt=PROMPT, output=(7, 8)))
    assert place(session, given, SHAPE.width) is placed


class Recording(NgramDrafter):
    """Notes what it is given."""

    needed_states = SHAPE

    def __init__(self):
        super().__init__()
        self.got = []

    def anchor(self, key, position, states):
        if states == rows(1, 99):
            raise RuntimeError("no room")
        self.got.append((key, position, states))


class Bench(Worker):
    """A core with the recording method."""

    def __init__(self, **others):
        self.drafter, self.counted = Recording(), []
        super().__init__(
            {"eagle": self.drafter} | others,
            on_states=lambda fate, size: self.counted.append((fate, size // ROW)),
        )

    def give(self, *commands):
        for command in commands:
            self.core.handle(0, command)
        while self.core.step():
            pass
        got, self.drafter.got = [own[1:] for own in self.drafter.got], []
        return got


def stated(position, states, handle=1):
    """States of a text that is read."""
    return TextStates(handle, 1, position, states)


def grown(position, *tokens, states):
    """A step with states of the tokens before those it brings."""
    return step(brought(1, position, *tokens, states=states))


def test_a_drafter_says_what_it_needs():
    worker = Bench().core.describe()
    assert "eagle:states" in worker.capabilities
    assert (worker.state_layers, worker.state_width) == SHAPE
    plain = Worker({"ngram": NgramDrafter()}).core.describe()
    assert (plain.state_layers, plain.state_width) == NO_STATES


def test_states_come_after_the_step_that_brings_the_tokens():
    bench = Bench()
    assert bench.give(starting(prompt=PROMPT), stated(0, rows(2))) == [(0, rows(2))]
    assert bench.give(grown(0, 4, 5, states=rows(2, 7))) == [(2, rows(2, 7))]
    assert bench.counted == [(Fate.RECEIVED, 2), (Fate.RECEIVED, 2)]


@pytest.mark.parametrize(
    "command",
    [
        grown(0, 4, states=rows(2)),
        grown(0, 4, states=rows(1)[1:]),
        grown(0, 4, states=rows(1, 99)),
        stated(1 << 31, rows(1)),
        stated(9, rows(1)),
        stated(0, b"\0"),
        stated(0, rows(1), handle=9),
    ],
)
def test_what_fits_nowhere_is_dropped_and_costs_no_session(command):
    bench = Bench()
    bench.give(starting(prompt=PROMPT))
    assert bench.give(command) == []
    assert {fate for fate, _ in bench.counted} == {Fate.DROPPED}
    assert not any(isinstance(event, SessionGone) for _, event in bench.events)


def test_a_method_that_needs_none_is_given_none():
    worker = Worker({"ngram": NgramDrafter()})
    events = worker.send(starting(prompt=PROMPT), grown(0, 4, states=rows(1)))
    assert events == [(0, SessionStarted(1, 1))]


def test_several_methods_together_hand_them_on():
    bench = Bench(ngram=NgramDrafter())
    commands = starting(prompt=PROMPT, method="ngram,eagle"), grown(0, 4, states=rows(1))
    assert bench.give(*commands) == [(2, rows(1))]

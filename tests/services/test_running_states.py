"""Hidden states that verifiers tell: a row for each token, once, whatever the text went through."""

import struct

import pytest
import torch

from services.contract import states
from services.contract.errors import StartError
from services.contract.frames import StepFrame
from services.contract.states import MOST_LAYERS, Fate
from services.contract.types import DraftTree, FailureReason
from services.contract.worker_messages import (
    EndSession,
    SessionGone,
    SessionStarted,
    TextStates,
)
from tests.fake_engine import FakeEngine
from tests.services.running_bench import (
    FREE,
    PROMPT,
    TEXT,
    Running,
    draft,
    limit,
    of_kind,
    only,
    other,
    start,
)

LAYERS = (1, 3)
WIDTH = len(LAYERS) * FakeEngine.hidden_width


def rows_of(carried):
    """Rows [count, width] of what a message carries."""
    assert len(carried) % (2 * WIDTH) == 0
    numbers = [word << 16 for (word,) in struct.iter_unpack("<H", carried)]
    whole = b"".join(struct.pack("<I", number) for number in numbers)
    return torch.frombuffer(bytearray(whole), dtype=torch.float32).view(-1, WIDTH)


class Listener:
    """A core whose events' states are put together by position, each of which comes once."""

    def __init__(self, engine=None, prompt=PROMPT, **options):
        self.table = Running(engine, **options)
        self.rows, self.sizes = {}, []
        self.prompt = prompt

    def step(self, *commands):
        """One step; what was said in it."""
        events = self.table.run(*commands, steps=1)
        for event in events:
            match event:
                case TextStates(_, _, position, carried):
                    self.put(position, carried)
                case StepFrame():
                    for row in self.table.rows_of([event]):
                        assert self.put(len(self.prompt) + row.position - 1, row.states) == len(
                            row.tokens
                        )
        return events

    def put(self, position, carried):
        rows = rows_of(carried)
        for number, row in enumerate(rows, position):
            assert number not in self.rows
            self.rows[number] = row
        self.sizes.append(len(rows))
        return len(rows)

    def check(self, text, first=0):
        """Whether there is a row for each token of a text but the last, from `first` on."""
        assert sorted(self.rows) == list(range(first, len(text) - 1))
        for position, row in self.rows.items():
            state = self.table.engine.state(text[: position + 1])
            assert torch.equal(row, state.bfloat16().float())


def begun(engine=None, prompt=PROMPT, **more):
    """Behind its first token; what may follow comes from the drafts of each test."""
    listener = Listener(engine, prompt)
    listener.step(start(prompt=prompt, state_layers=LAYERS, limit=1, **more))
    return listener


def test_a_prompt_and_the_first_token_leave_no_gap():
    listener = begun()
    listener.check([*PROMPT, *TEXT[:1]])


def test_a_prompt_is_told_in_the_chunks_in_which_it_is_read():
    listener = Listener(prompt=PROMPT * 20, max_step_tokens=16)
    events = listener.step(start(prompt=PROMPT * 20, state_layers=LAYERS, limit=1))
    while not listener.table.output():
        events += listener.step()
    assert len(of_kind(TextStates, events)) > 1
    listener.check([*PROMPT * 20, *listener.table.output()])


def test_a_chunk_of_many_rows_leaves_in_messages_of_a_bounded_size(monkeypatch):
    monkeypatch.setattr(states, "MESSAGE_BYTES", 2 * WIDTH * 3)
    listener = begun(prompt=PROMPT * 3)
    assert sorted(listener.rows) == list(range(3 * len(PROMPT)))
    # The prompt, and the row of the first token.
    assert set(listener.sizes[:-1]) == {3, 2}


def test_of_rejected_tokens_nothing_is_told():
    listener = begun()
    listener.step(limit(3), draft((TEXT[1], other(TEXT[2]), TEXT[3]), TEXT[:1]))
    listener.check([*PROMPT, *TEXT[:3]])
    listener.step(limit(4), draft((other(TEXT[3]),), TEXT[:3], number=2))
    listener.check([*PROMPT, *TEXT[:4]])


def test_of_a_tree_the_accepted_path_is_told():
    listener = begun()
    tokens = (other(TEXT[1]), TEXT[1], other(TEXT[2]), TEXT[2])
    tree = DraftTree(tokens, (-1, -1, 1, 1))
    listener.step(limit(9), draft((), TEXT[:1], tree=tree))
    listener.check([*PROMPT, *TEXT[:4]])


def test_what_was_in_a_cache_is_not_told():
    listener = Listener(prompt=tuple(token % 10 for token in range(40)))
    listener.table.run(start(1, prompt=listener.prompt, cache_scope="x", limit=1))
    listener.table.give(EndSession(1))
    again = start(2, prompt=listener.prompt, cache_scope="x", state_layers=LAYERS, limit=1)
    cached = only(SessionStarted, listener.step(again)).cached_tokens
    assert cached > 0
    listener.check([*listener.prompt, *listener.table.output(2)], first=cached)


def test_a_text_that_is_read_again_is_not_told_again():
    listener = begun(FakeEngine(capacity=100), max_tokens=20)
    [session] = listener.table.core._sessions.every.values()
    for length in (3, 5):
        listener.step(limit(length), draft(TEXT[length - 2 : length], TEXT[: length - 2], length))
        listener.table.core._sessions.caches._preempt(session)
        while session.preempted or not session.filled:
            listener.step()
    listener.step(limit(6))
    listener.check([*PROMPT, *listener.table.output()])
    assert len(listener.table.output()) >= 6


def test_a_session_that_is_opened_anew_tells_its_text_anew():
    listener = begun()
    listener.rows.clear()
    listener.step(start(state_layers=LAYERS, output=TEXT[:2], opening=2, limit=3))
    listener.check([*PROMPT, *TEXT[:3]])


def test_what_is_told_is_counted():
    counted = []
    listener = Listener(on_states=lambda fate, size: counted.append((fate, size)))
    listener.step(start(state_layers=LAYERS, limit=1))
    listener.step(limit(2), draft(TEXT[1:3], TEXT[:1]))
    assert {fate for fate, _ in counted} == {Fate.SENT}
    assert sum(size for _, size in counted) == 2 * WIDTH * sum(listener.sizes)


def said(table, *commands):
    """The rows of a few steps; nothing else of states may leave."""
    events = table.run(*commands)
    assert not of_kind(TextStates, events)
    return table.rows_of(events)


def test_nothing_is_told_that_nobody_asked_for():
    table = Running()
    assert {row.states for row in said(table, start())} == {b""}
    assert table.engine.watched == ()


def test_other_layers_than_those_that_are_watched_are_not_told():
    listener = begun()
    assert {row.states for row in said(listener.table, start(2, state_layers=(0, 1)))} == {b""}
    listener.table.run(EndSession(1), EndSession(2))
    listener.table.run(start(3, state_layers=(0, 1)))
    assert listener.table.engine.watched == (0, 1)


@pytest.mark.parametrize("layers", [(99,), (0, 5)])
def test_layers_that_there_are_not_cost_no_session(layers):
    table = Running()
    assert {row.states for row in said(table, start(state_layers=layers))} == {b""}
    assert table.output() == TEXT


def test_more_layers_than_any_drafter_needs_are_refused():
    layers = tuple(range(MOST_LAYERS + 1))
    gone = only(SessionGone, Running().run(start(state_layers=layers)))
    assert gone.reason is FailureReason.INVALID


def test_an_engine_that_fails_with_states_goes_on_without():
    class Failing(FakeEngine):
        def forward_with_states(self, segments):
            raise StartError("no states")

    table = Running(Failing())
    assert {row.states for row in said(table, start(state_layers=LAYERS))} == {b""}
    assert table.output() == TEXT


def test_rows_too_large_for_a_message_are_not_told():
    class Wide(FakeEngine):
        hidden_width = 1 << 20

    table = Running(Wide())
    rows = said(table, start(state_layers=LAYERS, max_tokens=3, limit=FREE))
    assert {row.states for row in rows} == {b""}

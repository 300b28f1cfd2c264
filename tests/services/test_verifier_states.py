"""Hidden states that verifiers tell: a row for each token, once, whatever the text went through."""

import struct

import pytest
import torch

from services.contract import states
from services.contract import types as t
from services.contract.errors import StartError
from services.contract.states import MOST_LAYERS, Fate, StateShape
from services.engine.lending import Lending
from tests.fake_engine import FakeEngine
from tests.services.verifier_bench import PROMPT, TEXT, Table, block, only, opening, other

LAYERS = (1, 3)
WIDTH = len(LAYERS) * FakeEngine.hidden_width


def rows_of(carried):
    """Rows [count, width] of what a message carries."""
    assert len(carried) % (2 * WIDTH) == 0
    numbers = [word << 16 for (word,) in struct.iter_unpack("<H", carried)]
    whole = b"".join(struct.pack("<I", number) for number in numbers)
    return torch.frombuffer(bytearray(whole), dtype=torch.float32).view(-1, WIDTH)


class Listener:
    """A table whose events' states are put together by position, each of which comes once."""

    def __init__(self, engine=None, prompt=PROMPT, **options):
        self.table = Table(engine, **options)
        self.rows = {}
        self.prompt = prompt
        self.sizes = []

    def run(self, *commands):
        events = self.table.run(*commands)
        for event in events:
            match event:
                case t.States(_, _, position, carried):
                    self.put(position, carried)
                case t.Verdict() if event.states:
                    rows = self.put(len(self.prompt) + event.base_len - 1, event.states)
                    assert rows == len(event.token_ids)
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
    listener = Listener(engine, prompt)
    listener.run(opening(prompt=prompt, state_layers=LAYERS, **more))
    return listener


def test_a_prompt_and_the_first_verdict_leave_no_gap():
    listener = begun()
    assert sorted(listener.rows) == list(range(len(PROMPT) - 1))
    listener.run(block(1, 0))
    listener.check([*PROMPT, *TEXT[:1]])


def test_a_prompt_is_told_in_the_chunks_in_which_it_is_read():
    listener = Listener(prompt=PROMPT * 20, max_step_tokens=16)
    events = listener.run(opening(prompt=PROMPT * 20, state_layers=LAYERS))
    chunks = [event for event in events if isinstance(event, t.States)]
    assert len(chunks) > 1
    assert isinstance(events[-1], t.VerifyOpened)
    [verdict] = listener.run(block(1, 0))
    listener.check([*PROMPT * 20, *verdict.token_ids])


def test_a_chunk_of_many_rows_leaves_in_messages_of_a_bounded_size(monkeypatch):
    monkeypatch.setattr(states, "MESSAGE_BYTES", 2 * WIDTH * 3)
    listener = begun(prompt=PROMPT * 3)
    assert sorted(listener.rows) == list(range(3 * len(PROMPT) - 1))
    assert set(listener.sizes) == {3, 2}


def test_a_block_in_the_step_that_ends_the_prompt_is_told_apart_from_it():
    listener = Listener()
    listener.run(opening(state_layers=LAYERS), block(1, 0, TEXT[:2]))
    listener.check([*PROMPT, *TEXT[:3]])


def test_of_rejected_tokens_nothing_is_told():
    listener = begun()
    listener.run(block(1, 0, (TEXT[0], other(TEXT[1]), TEXT[2])))
    listener.check([*PROMPT, *TEXT[:2]])
    listener.run(block(2, 2, (other(TEXT[2]),)))
    listener.check([*PROMPT, *TEXT[:3]])


def test_of_a_tree_the_accepted_path_is_told():
    listener = begun()
    tokens = (other(TEXT[0]), TEXT[0], other(TEXT[1]), TEXT[1])
    listener.run(block(1, 0, tokens, (-1, -1, 1, 1)))
    listener.check([*PROMPT, *TEXT[:3]])


def test_the_row_behind_a_block_without_a_bonus_comes_with_the_next_verdict():
    listener = begun()
    listener.run(block(1, 0, TEXT[:2], want_bonus=False))
    listener.check([*PROMPT, *TEXT[:2]])
    listener.run(block(2, 2, TEXT[2:4], extends_round=1, want_bonus=False))
    listener.check([*PROMPT, *TEXT[:4]])
    listener.run(block(3, 4))
    listener.check([*PROMPT, *TEXT[:5]])


def test_a_tree_behind_a_row_that_is_held_is_told():
    listener = begun()
    listener.run(block(1, 0, TEXT[:1], want_bonus=False))
    tokens = (other(TEXT[1]), TEXT[1], TEXT[2])
    listener.run(block(2, 1, tokens, (-1, -1, 1)))
    listener.check([*PROMPT, *TEXT[:4]])


def test_a_verdict_that_is_asked_for_again_has_no_states():
    listener = begun()
    [first] = listener.run(block(1, 0, TEXT[:2]))
    [again] = listener.table.run(block(1, 0, TEXT[:2]))
    assert first.states
    assert again == first._replace(states=b"")


def test_what_was_in_a_cache_is_not_told():
    engine = FakeEngine()
    listener = Listener(engine)
    prompt = tuple(token % 10 for token in range(40))
    listener.table.run(opening("a", prompt=prompt, cache_scope="x"))
    listener.table.run(t.CloseVerify("a"))
    opened = only(
        t.VerifyOpened,
        listener.run(opening(prompt=prompt, cache_scope="x", state_layers=LAYERS)),
    )
    assert opened.cached_tokens > 0
    assert sorted(listener.rows) == list(range(opened.cached_tokens, len(prompt) - 1))


def test_a_text_that_is_read_again_is_not_told_again():
    listener = begun(FakeEngine(capacity=100), max_tokens=20)
    session = next(iter(listener.table.core._sessions.values()))
    for wanted in (True, False):
        base = session.output_len
        listener.run(block(1 + base, base, TEXT[base : base + 1], want_bonus=wanted))
        listener.table.core._caches._preempt(session)
        listener.run()
    base = session.output_len
    listener.run(block(1 + base, base, TEXT[base : base + 1]))
    listener.check([*PROMPT, *TEXT[: base + 2]])


def test_a_session_that_is_opened_anew_tells_its_text_anew():
    listener = begun()
    listener.run(block(1, 0, TEXT[:2]))
    listener.rows.clear()
    listener.run(opening(state_layers=LAYERS, committed=TEXT[:2], epoch=2))
    listener.run(block(2, 2, (), epoch=2))
    listener.check([*PROMPT, *TEXT[:3]])


def test_nothing_is_told_that_nobody_asked_for():
    table = Table()
    table.opened()
    assert table.verdict(block(1, 0, TEXT[:2])).states == b""
    assert table.engine.watched == ()


def test_other_layers_than_those_that_are_watched_are_not_told():
    listener = begun()
    assert only(t.VerifyOpened, listener.run(opening("b", state_layers=(0, 1))))
    [verdict] = listener.table.run(block(1, 0, session="b"))
    assert verdict.states == b""
    listener.table.run(t.CloseVerify("s"), t.CloseVerify("b"))
    assert listener.table.run(opening("c", state_layers=(0, 1)))
    assert listener.table.engine.watched == (0, 1)


@pytest.mark.parametrize("layers", [(99,), (0, 5)])
def test_layers_that_there_are_not_cost_no_session(layers):
    table = Table()
    table.opened(state_layers=layers)
    assert table.verdict(block(1, 0)).states == b""


@pytest.mark.parametrize("layers", [(1, 1), (2, 1), tuple(range(MOST_LAYERS + 1))])
def test_lists_of_layers_that_no_drafter_needs_are_refused(layers):
    failure = Table().failure(opening(state_layers=layers))
    assert failure.reason is t.FailureReason.INVALID


def test_an_engine_that_fails_with_states_goes_on_without():
    class Failing(FakeEngine):
        def forward_with_states(self, segments):
            raise StartError("no states")

    table = Table(Failing())
    table.opened(state_layers=LAYERS)
    verdict = table.verdict(block(1, 0, TEXT[:1], want_bonus=False))
    assert (verdict.token_ids, verdict.states) == (TEXT[:1], b"")
    verdict = table.verdict(block(2, 1, TEXT[1:2]))
    assert (verdict.token_ids, verdict.states) == (TEXT[1:3], b"")


def test_rows_too_large_for_a_message_are_not_told():
    class Wide(FakeEngine):
        hidden_width = 1 << 20

    table = Table(Wide())
    table.opened(state_layers=LAYERS)
    assert table.verdict(block(1, 0)).states == b""


def test_a_drafter_in_the_process_gets_all_and_the_wire_nothing():
    lending, counted = Lending(), []
    exchange = lending.handover.states
    exchange.needed = StateShape(LAYERS, WIDTH)
    exchange.listening.add("s")
    table = Table(lending=lending, on_states=lambda fate, size: counted.append((fate, size)))
    table.opened(state_layers=LAYERS)
    assert table.verdict(block(1, 0, TEXT[:1])).states == b""
    prompt, verdict = exchange.take("s")
    assert (prompt.position, len(rows_of(prompt.states))) == (0, len(PROMPT) - 1)
    assert (verdict.position, verdict.tokens) == (len(PROMPT) - 1, TEXT[:2])
    assert {fate for fate, _ in counted} == {Fate.SENT}


def test_a_drafter_elsewhere_gets_the_verdicts_of_a_verifier_with_one_in_its_process():
    lending = Lending()
    lending.handover.states.needed = StateShape(LAYERS, WIDTH)
    table = Table(lending=lending)
    table.opened(state_layers=LAYERS)
    # Its opening may be on the way.
    assert table.verdict(block(1, 0, TEXT[:1])).states == b""
    assert len(rows_of(table.verdict(block(2, 2, TEXT[2:3])).states)) == 2
    assert lending.handover.states.take("s") == []


def test_what_is_decided_after_the_drafter_in_the_process_left_stays_there_too():
    lending = Lending()
    exchange = lending.handover.states
    exchange.needed = StateShape(LAYERS, WIDTH)
    exchange.listening.add("s")
    table = Table(lending=lending)
    table.opened(state_layers=LAYERS)
    table.verdict(block(1, 0, TEXT[:1]))
    exchange.listening.clear()
    assert table.verdict(block(2, 2, TEXT[2:3])).states == b""
    assert exchange.take("s") == []

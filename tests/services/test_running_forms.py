"""Response formats in a verifier that runs its sessions."""

import itertools

import numpy as np
import pytest

from services.contract import types as t
from services.contract.errors import Overloaded
from services.contract.frames import StepFrame, WaitReason
from services.contract.types import FailureReason
from services.contract.worker_messages import EndSession, SessionGone, SessionStarted
from services.engine.structure import StructureError
from services.runtime.host import WorkerHost
from services.verifier.options import VerifierOptions
from services.verifier.running.core import RunningCore
from tests.fake_engine import FakeEngine
from tests.services.fakes import Sink
from tests.services.forms_kit import Anything, Compiler
from tests.services.running_bench import (
    EXACT,
    TEXT,
    VOCAB,
    Running,
    draft,
    limit,
    of_kind,
    only,
    start,
    text_of,
)
from tests.waiting import until

FORM = t.ResponseFormat(t.FormatKind.REGEX, ("a+",))


class NoRepeats(Anything):
    """Allows every token but the last one."""

    def __init__(self):
        super().__init__()
        self.said = []

    def extend(self, tokens):
        for token in tokens:
            if self.said and self.said[-1] == token:
                return False
            self.said.append(token)
        return super().extend(tokens)

    def advance(self, tokens, seconds):
        self.said += tokens
        return super().advance(tokens, seconds)

    def mask(self, path):
        allowed = np.ones(VOCAB, dtype=bool)
        before = [*self.said, *path]
        if before:
            allowed[before[-1]] = False
        return allowed


class Refuses(Anything):
    """Finds out late that a text is none of its own."""

    def extend(self, tokens):
        return super().extend(tokens) and self.length < 3


@pytest.fixture
def compiler():
    return Compiler()


def test_a_session_whose_form_is_compiled_is_read_meanwhile_and_holds_nobody_up(compiler):
    table = Running(structures=compiler)
    events = table.run(start(1, response_format=FORM), start(2, prompt=(7,)))
    assert [event.handle for event in of_kind(SessionStarted, events)] == [2]
    assert (table.output(1), len(table.output(2))) == ((), 40)
    [session] = [own for key, own in table.core._sessions.every.items() if key == (1, 1)]
    assert (session.filled, session.reason) == (True, WaitReason.FORMAT)
    compiler.finish()
    assert table.core.patience() == 0
    assert only(SessionStarted, table.run()).handle == 1
    assert table.output(1) == TEXT


def test_a_text_is_followed_to_its_form_before_it_goes_on(compiler):
    table = Running(structures=compiler)
    table.run(start(output=TEXT[:5], response_format=FORM))
    compiler.finish()
    table.run()
    [session] = table.core._sessions.every.values()
    assert session.matcher.length == len(table.output()) == 40


@pytest.mark.parametrize("mode", EXACT)
def test_drafts_are_judged_by_the_masked_law_at_each_of_their_places(mode, compiler):
    compiler.matcher = NoRepeats
    plain, table = Running(structures=compiler), Running(structures=compiler)
    command = start(mode=mode, response_format=FORM)
    for own in (plain, table):
        own.give(command)
        compiler.finish()
    plain.run()
    text = plain.output()
    assert all(a != b for a, b in itertools.pairwise(text))
    assert text != text_of(command, 40)
    accepted = 0
    for number in range(40):
        said = table.output()
        tail = text[len(said) : len(said) + 3]
        rows = table.step(*([draft((*tail, tail[-1]), said, number)] if tail else ()))
        accepted += sum(row.accepted for row in rows)
    assert table.output() == text
    assert accepted > 20


def test_a_form_that_cannot_be_kept_to_ends_its_session_alone(compiler):
    table = Running(structures=compiler)
    table.run(start(1, response_format=FORM))
    compiler.finish(error=StructureError("no"))
    gone = only(SessionGone, table.run(start(2, prompt=(7,))))
    assert (gone.handle, gone.reason) == (1, FailureReason.FORMAT)
    assert len(table.output(2)) == 40


def test_a_form_that_could_not_be_told_is_no_fault_of_the_session(compiler):
    table = Running(structures=compiler)
    table.run(start(response_format=FORM))
    assert table.engine.kv_tokens_used > 0
    compiler.finish(error=Overloaded("the machine was too busy"))
    assert only(SessionGone, table.run()).reason is FailureReason.CAPACITY
    compiler.full = True
    gone = only(SessionGone, table.run(start(response_format=FORM)))
    assert gone.reason is FailureReason.CAPACITY
    assert table.engine.kv_tokens_used == 0


@pytest.mark.parametrize("how", ["end", "drop", "open anew"])
def test_what_is_compiled_for_a_session_that_is_gone_opens_nothing(compiler, how):
    table = Running(structures=compiler)
    table.run(start(response_format=FORM))
    if how == "end":
        table.give(EndSession(1))
    elif how == "drop":
        table.core.drop_link(1)
    else:
        table.run(start(response_format=FORM, opening=3))
    compiler.finish(0)
    assert table.run() == []
    if how == "open anew":
        compiler.finish(1)
        assert only(SessionStarted, table.run()).opening == 3
        table.give(EndSession(1))
    assert table.core.progress().sessions == 0


def test_the_same_opening_again_does_not_start_before_the_form_is_there(compiler):
    table = Running(structures=compiler)
    table.run(start(response_format=FORM))
    assert table.run(start(response_format=FORM)) == []
    compiler.finish()
    assert only(SessionStarted, table.run()).opening == 1


def test_a_session_that_gave_its_kv_up_meanwhile_still_starts(compiler):
    # Room for one whole session, and for two as they begin.
    given_up = []
    engine = FakeEngine(capacity=320)
    table = Running(engine, structures=compiler, on_preempt=lambda: given_up.append(1))
    table.run(start(1, max_tokens=300, limit=1))
    assert table.run(start(2, response_format=FORM, prompt=(6, 6, 6), max_tokens=300)) == []
    table.run(limit(250))
    assert given_up
    compiler.finish()
    table.give(EndSession(1))
    assert only(SessionStarted, table.run()).handle == 2
    assert len(table.output(2)) == 300


def test_what_a_form_refuses_afterwards_was_told_before_the_session_fails(compiler):
    compiler.matcher = Refuses
    table = Running(structures=compiler)
    table.run(start(response_format=FORM))
    compiler.finish()
    events = table.run()
    assert [type(event) for event in events][-2:] == [StepFrame, SessionGone]
    assert table.output() == TEXT[:3]


def test_no_format_is_served_without_a_compiler():
    gone = only(SessionGone, Running().run(start(response_format=FORM)))
    assert gone.reason is FailureReason.UNSUPPORTED


async def test_a_host_takes_a_turn_when_a_form_is_there(compiler):
    """Nothing else would wake an idle core."""
    sink, options = Sink(), VerifierOptions(structures=compiler)
    host = WorkerHost(
        lambda emit: RunningCore(FakeEngine(), emit=emit, worker_id="v", options=options)
    )
    host.start()
    try:
        link = host.open_link(sink)
        await host.submit(link, [start(response_format=FORM, limit=0)])
        await until(lambda: host.progress().sessions and not host.progress().queued_tokens)
        assert not of_kind(SessionStarted, sink.events)
        compiler.finish()
        host.wake()
        await until(lambda: of_kind(SessionStarted, sink.events))
    finally:
        await host.stop()

"""Response formats in a verifier that runs its sessions."""

import itertools

import numpy as np
import pytest

from services.contract import types as t
from services.contract.frames import StepFrame, WaitReason
from services.contract.types import FailureReason
from services.contract.worker_messages import SessionGone, SessionStarted
from services.engine.structure import StructureError
from tests.services.forms_kit import Anything, Compiler
from tests.services.running_bench import (
    EXACT,
    TEXT,
    VOCAB,
    Running,
    draft,
    of_kind,
    only,
    start,
    text_of,
)

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

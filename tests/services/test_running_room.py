"""K/V that sessions share, and who gives way where there is too little."""

import random

import pytest
import torch

from services.contract.types import FailureReason
from services.contract.worker_messages import EndSession, SessionGone, SessionStarted
from tests.fake_engine import VOCAB, FakeEngine
from tests.services.running_bench import (
    EXACT,
    FREE,
    PROMPT,
    TEXT,
    Running,
    draft,
    limit,
    of_kind,
    only,
    start,
    text_of,
)

LONG = tuple(random.Random(1).choices(range(VOCAB), k=200))
OTHER = tuple(random.Random(2).choices(range(VOCAB), k=200))


def table_of(capacity=100000, **options):
    return Running(FakeEngine(capacity), **options)


def shared(handle, prompt=LONG, scope="acme", **more):
    """A session that is read, and says nothing yet."""
    return start(handle, prompt=prompt, cache_scope=scope, **({"limit": 0} | more))


def forked(handle, **more):
    return start(handle, prompt=LONG, fork_scope="acme/r", limit=0, **more)


def fed(table):
    return sum(map(sum, table.engine.forwards))


def open_alone(table, command):
    """Open a session; tokens that were fed for it, and those that were found."""
    before = fed(table)
    started = only(SessionStarted, table.run(command))
    return fed(table) - before, started.cached_tokens


def decode(table, command, count):
    """The first `count` tokens of a session."""
    table.run(limit(count, command.handle))
    return table.output(command.handle)


def cached(events):
    return {event.handle: event.cached_tokens for event in of_kind(SessionStarted, events)}


def test_a_text_that_ended_serves_the_next_one_that_begins_with_it():
    table = table_of()
    first = shared(1)
    assert open_alone(table, first) == (199, 0)
    answer = decode(table, first, 6)
    table.run(EndSession(1))
    turn = shared(2, prompt=(*LONG, *answer, 3, 4, 5))
    # K/V of the answer's last token was never needed.
    assert open_alone(table, turn) == (3, 205)
    assert decode(table, turn, 5) == text_of(turn, 5)


def test_a_shared_beginning_is_copied_from_a_session_that_goes_on():
    table = table_of()
    first, second = shared(1), shared(2, prompt=(*LONG[:100], *OTHER[:20]))
    open_alone(table, first)
    tokens, found = open_alone(table, second)
    assert found >= 100
    assert tokens == 119 - found
    assert decode(table, second, 4) == text_of(second, 4)
    assert decode(table, first, 4) == text_of(first, 4)


def test_texts_that_begin_alike_and_come_together_are_fed_once():
    table = table_of(max_step_tokens=32)
    commands = [shared(own, prompt=(*LONG, *OTHER[: 4 + own])) for own in range(1, 7)]
    found = cached(table.run(*commands))
    assert found[1] == 0
    assert all(found[own] > len(LONG) - 16 for own in range(2, 7))
    assert fed(table) < len(LONG) + 6 * 26
    for command in commands:
        assert decode(table, command, 3) == text_of(command, 3)


@pytest.mark.parametrize("steps", range(9))
def test_a_text_that_comes_while_its_beginning_is_fed_waits_for_it(steps):
    table = table_of(max_step_tokens=32)
    second = shared(2, prompt=(*LONG, 1, 2, 3))
    table.give(shared(1))
    for _ in range(steps):
        table.core.step()
    assert cached(table.run(second))[2] > len(LONG) - 16
    assert fed(table) < len(LONG) + 16 + 3
    assert decode(table, second, 3) == text_of(second, 3)


def test_whoever_waits_for_a_text_that_is_given_up_is_fed_it_alone():
    table = table_of(max_step_tokens=32)
    second = shared(2)
    table.give(shared(1), second)
    assert table.core.step()
    assert only(SessionStarted, table.run(EndSession(1))).handle == 2
    assert decode(table, second, 3) == text_of(second, 3)


@pytest.mark.parametrize("options", [{}, {"prefix_cache_tokens": 0}])
@pytest.mark.parametrize("scope", ["", "acme"])
def test_completions_of_one_prompt_feed_it_once(options, scope):
    table = table_of(max_step_tokens=32, **options)
    commands = [forked(own, cache_scope=scope) for own in range(8)]
    found = cached(table.run(*commands))
    assert sorted(found.values()) == [0] + [len(LONG) - 1] * 7
    assert fed(table) == len(LONG) - 1
    for command in commands:
        assert decode(table, command, 3) == text_of(command, 3)
        table.run(EndSession(command.handle))
    assert bool(table.engine.budget.spare) == bool(scope and not options)


@pytest.mark.parametrize("gone", [(0,), (0, 1), (0, 2), tuple(range(7))])
def test_where_the_first_of_them_is_given_up_the_next_one_feeds_it(gone):
    table = table_of(max_step_tokens=32)
    table.give(*map(forked, range(8)))
    assert table.core.step()
    found = cached(table.run(*map(EndSession, gone)))
    left = [own for own in range(8) if own not in gone]
    assert found == {left[0]: 0} | dict.fromkeys(left[1:], len(LONG) - 1)
    assert fed(table) == 32 + len(LONG) - 1
    for own in left:
        assert decode(table, forked(own), 3) == text_of(forked(own), 3)


def test_completions_of_other_requests_share_nothing_of_what_is_not_kept():
    table = table_of()
    assert open_alone(table, forked(1)) == (199, 0)
    other = start(2, prompt=LONG, fork_scope="acme/q", limit=0)
    assert open_alone(table, other) == (199, 0)
    assert open_alone(table, shared(3, scope="acme/r")) == (199, 0)


@pytest.mark.parametrize(
    ("scopes", "options"),
    [
        (("acme", "other"), {}),
        (("", ""), {}),
        (("acme", ""), {}),
        (("acme", "acme"), {"prefix_cache_tokens": 0}),
    ],
)
def test_sessions_of_other_scopes_or_without_a_prefix_cache_share_nothing(scopes, options):
    table = table_of(**options)
    for own, scope in enumerate(scopes):
        assert open_alone(table, shared(own, scope=scope)) == (199, 0)
        table.run(EndSession(own))
    kept = {scope for scope in scopes if scope and not options}
    assert table.engine.budget.spare == 199 * len(kept)


def test_what_ended_is_bounded_and_the_one_used_longest_ago_goes_first():
    table = table_of(prefix_cache_tokens=450)
    texts = [tuple(random.Random(seed).choices(range(VOCAB), k=150)) for seed in range(4)]
    for own, prompt in enumerate(texts[:3]):
        open_alone(table, shared(own, prompt=prompt))
        table.run(EndSession(own))
    assert table.engine.budget.spare == 3 * 149
    # A beginning of the first is used, so the second is the oldest now.
    open_alone(table, shared(5, prompt=(*texts[0][:64], 1, 2, 3)))
    open_alone(table, shared(6, prompt=texts[3]))
    table.run(EndSession(6))
    assert table.engine.budget.spare <= 450
    for own, found in ((0, 149), (1, 0)):
        assert open_alone(table, shared(10 + own, prompt=texts[own]))[1] == found


def test_texts_that_ended_give_way_to_a_session():
    table = table_of(capacity=400, prefix_cache_tokens=400)
    open_alone(table, shared(1))
    table.run(EndSession(1))
    assert table.engine.budget.spare == 199
    second = shared(2, prompt=OTHER)
    open_alone(table, second)
    assert table.engine.budget.spare == 0
    assert decode(table, second, 30) == text_of(second, 30)


def test_a_failed_session_leaves_nothing_to_others():
    table = Running(FakeEngine(explode=11))
    prompt = tuple(token % 10 for token in LONG)
    open_alone(table, shared(1, prompt=prompt))
    assert only(SessionGone, table.run(limit(9), draft((11,)))).handle == 1
    assert open_alone(table, shared(2, prompt=prompt)) == (199, 0)


def test_a_session_that_is_closed_while_it_is_read_gives_its_room_back():
    table = table_of(max_step_tokens=32)
    table.give(shared(1))
    assert table.core.step()
    table.core.drop_link(1)
    assert table.engine.kv_tokens_used == 0
    assert table.core.step() is False


# --- who gives way ------------------------------------------------------------------


def run_all(table, commands, count, guesses=0):
    """All sessions to `count` tokens; those that have as many, in the order in which they had."""
    table.give(*commands)
    ended = []
    for number in range(10_000):
        going = [own for own in commands if own.handle not in ended]
        if not going:
            return ended
        said = {own.handle: table.output(own.handle) for own in going}
        assert not of_kind(
            SessionGone,
            table.run(
                *[
                    draft(range(guesses), text, number, handle)
                    for handle, text in said.items()
                    if guesses
                ],
                steps=1,
            ),
        )
        for own in going:
            if len(table.output(own.handle)) >= count:
                ended.append(own.handle)
                table.give(EndSession(own.handle))
    raise AssertionError("no end")


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("scope", ["", "acme"])
def test_sessions_that_grow_beyond_the_budget_give_way_and_lose_nothing(mode, scope):
    # Room for two whole sessions, and for five as they begin.
    preempted = []
    table = table_of(capacity=900, on_preempt=lambda: preempted.append(1))
    more = {"mode": mode, "max_tokens": 400, "scope": scope, "limit": FREE}
    commands = [shared(own, prompt=(own, 1, 2), **more) for own in range(5)]
    run_all(table, commands, 380, guesses=3)
    assert preempted
    for command in commands:
        got = table.output(command.handle)
        assert got == text_of(command, len(got))
    assert table.engine.budget.used == 0


def test_the_session_opened_first_never_gives_way():
    more = {"max_tokens": 400, "limit": FREE}
    commands = [shared(own, prompt=(own, 1, 2), **more) for own in range(3)]
    assert run_all(table_of(capacity=700), commands, 300) == [0, 1, 2]


def test_of_a_tenants_sessions_the_latest_one_gives_its_memory_up_first():
    for priority, gives_way in ((0, 2), (-100, 1)):
        table = Running(FakeEngine(300))
        more = {"cache_scope": "a", "max_tokens": 250}
        table.give(start(1, **more), start(2, priority=priority, **more))
        preempted = []
        while not preempted:
            assert table.core.step()
            every = table.core._sessions.every.values()
            preempted = [own.key[1] for own in every if own.preempted]
        assert preempted == [gives_way]


def test_a_session_that_could_never_fit_is_refused_with_the_figures():
    gone = only(SessionGone, table_of(capacity=300).run(shared(1, max_tokens=200)))
    assert gone.reason is FailureReason.CAPACITY
    assert "408" in gone.message
    assert "300" in gone.message


def test_a_full_verifier_refuses_the_newcomer_only():
    table = Running(FakeEngine(capacity=len(PROMPT) + 40 + 8 + 10))
    table.run(start(limit=3))
    gone = only(SessionGone, table.run(start(2, opening=3)))
    assert (gone.handle, gone.reason, gone.opening) == (2, FailureReason.CAPACITY, 3)
    assert decode(table, start(), 9) == TEXT[:9]
    table.core.drop_link(1)
    table.run(start(2))
    assert table.output(2) == TEXT


class Full(FakeEngine):
    """A device without memory, while that is said of its budget."""

    def full(self, budget):
        return False

    def forward(self, segments):
        if self.full(self.budget):
            raise torch.OutOfMemoryError("no memory")
        return super().forward(segments)


def test_a_device_without_memory_loses_what_ended_before_any_session():
    table = Running(Full())
    open_alone(table, shared(1))
    table.run(EndSession(1))
    second = shared(2, prompt=OTHER)
    open_alone(table, second)
    table.engine.full = lambda budget: budget.spare > 0
    assert decode(table, second, 3) == text_of(second, 3)
    assert table.engine.budget.spare == 0


def test_a_device_that_has_no_memory_at_all_fails_the_session_as_one_too_many():
    table = Running(Full())
    open_alone(table, shared(1))
    table.engine.full = lambda budget: True
    assert only(SessionGone, table.run(limit(9))).reason is FailureReason.CAPACITY
    assert table.engine.budget.used == 0

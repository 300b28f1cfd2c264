"""K/V that sessions share, and who gives way where there is too little."""

import random

import pytest
import torch

from services.contract.types import CloseVerify, FailureReason, SessionFailed, Verdict, VerifyOpened
from tests.fake_engine import VOCAB, FakeEngine
from tests.services.verifier_bench import EXACT, Table, block, frozen, only, opening, target_text

LONG = tuple(random.Random(1).choices(range(VOCAB), k=200))
OTHER = tuple(random.Random(2).choices(range(VOCAB), k=200))


def table_of(capacity=100000, **options):
    return Table(FakeEngine(capacity), clock=frozen, **options)


def shared(session, prompt=LONG, scope="acme", **more):
    return opening(session, prompt=prompt, cache_scope=scope, **more)


def open_alone(table, command):
    """Open a session; tokens that were fed for it, and those that were found."""
    fed = sum(map(sum, table.engine.forwards))
    opened = only(VerifyOpened, table.run(command))
    return sum(map(sum, table.engine.forwards)) - fed, opened.cached_tokens


def decode(table, command, count):
    """The next `count` tokens of a session, one block each."""
    text = []
    for _ in range(count):
        done = len(text)
        [verdict] = table.run(block(done + 1, done, session=command.session))
        text += verdict.token_ids
    return text


def test_a_text_that_ended_serves_the_next_one_that_begins_with_it():
    table = table_of()
    first = shared("first")
    assert open_alone(table, first) == (199, 0)
    answer = decode(table, first, 6)
    table.run(CloseVerify("first"))
    turn = shared("turn", prompt=(*LONG, *answer, 3, 4, 5))
    # K/V of the answer's last token was never needed.
    assert open_alone(table, turn) == (3, 205)
    assert decode(table, turn, 5) == target_text(turn, 5)


def test_a_shared_beginning_is_copied_from_a_session_that_goes_on():
    table = table_of()
    first = shared("first")
    open_alone(table, first)
    second = shared("second", prompt=(*LONG[:100], *OTHER[:20]))
    fed, cached = open_alone(table, second)
    assert cached >= 100
    assert fed == 119 - cached
    assert decode(table, second, 4) == target_text(second, 4)
    assert decode(table, first, 4) == target_text(first, 4)


def test_texts_that_begin_alike_and_come_together_are_fed_once():
    table = table_of(max_step_tokens=32)
    prompts = {name: (*LONG, *OTHER[: 5 + i]) for i, name in enumerate("abcdef")}
    commands = [shared(name, prompt=prompt) for name, prompt in prompts.items()]
    opened = {event.session: event.cached_tokens for event in table.run(*commands)}
    assert opened["a"] == 0
    assert all(opened[name] > len(LONG) - 16 for name in "bcdef")
    assert sum(map(sum, table.engine.forwards)) < len(LONG) + 6 * 26
    for command in commands:
        assert decode(table, command, 3) == target_text(command, 3)


@pytest.mark.parametrize("steps", range(9))
def test_a_text_that_comes_while_its_beginning_is_fed_waits_for_it(steps):
    table = table_of(max_step_tokens=32)
    second = shared("second", prompt=(*LONG, 1, 2, 3))
    table.give(shared("first"))
    for _ in range(steps):
        table.core.step()
    table.give(second)
    opened = {e.session: e.cached_tokens for e in table.run() if isinstance(e, VerifyOpened)}
    assert opened["second"] > len(LONG) - 16
    assert sum(map(sum, table.engine.forwards)) < len(LONG) + 16 + 3
    assert decode(table, second, 3) == target_text(second, 3)


def test_whoever_waits_for_a_text_that_is_given_up_is_fed_it_alone():
    table = table_of(max_step_tokens=32)
    second = shared("second")
    table.give(shared("first"), second)
    assert table.core.step()
    table.give(CloseVerify("first"))
    assert only(VerifyOpened, table.run()).session == "second"
    assert decode(table, second, 3) == target_text(second, 3)


def forked(session, **more):
    return opening(session, prompt=LONG, fork_scope="acme/r", **more)


@pytest.mark.parametrize("options", [{}, {"prefix_cache_tokens": 0}])
@pytest.mark.parametrize("scope", ["", "acme"])
def test_completions_of_one_prompt_feed_it_once(options, scope):
    table = table_of(max_step_tokens=32, **options)
    commands = [forked(name, cache_scope=scope) for name in "abcdefgh"]
    opened = {event.session: event.cached_tokens for event in table.run(*commands)}
    assert sorted(opened.values()) == [0] + [len(LONG) - 1] * 7
    assert sum(map(sum, table.engine.forwards)) == len(LONG) - 1
    for command in commands:
        assert decode(table, command, 3) == target_text(command, 3)
        table.run(CloseVerify(command.session))
    assert bool(table.engine.budget.spare) == bool(scope and not options)


@pytest.mark.parametrize("gone", ["a", "ab", "ac", "abcdefg"])
def test_where_the_first_of_them_is_given_up_the_next_one_feeds_it(gone):
    table = table_of(max_step_tokens=32)
    table.give(*(forked(name) for name in "abcdefgh"))
    assert table.core.step()
    table.give(*map(CloseVerify, gone))
    left = [name for name in "abcdefgh" if name not in gone]
    opened = {e.session: e.cached_tokens for e in table.run() if isinstance(e, VerifyOpened)}
    assert opened == {left[0]: 0} | dict.fromkeys(left[1:], len(LONG) - 1)
    assert sum(map(sum, table.engine.forwards)) == 32 + len(LONG) - 1
    for name in left:
        assert decode(table, forked(name), 3) == target_text(forked(name), 3)


def test_completions_of_other_requests_share_nothing_of_what_is_not_kept():
    table = table_of()
    assert open_alone(table, forked("one")) == (199, 0)
    assert open_alone(table, opening("two", prompt=LONG, fork_scope="acme/q")) == (199, 0)
    assert open_alone(table, shared("three", scope="acme/r")) == (199, 0)


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
    for name, scope in zip(("one", "two"), scopes, strict=True):
        assert open_alone(table, shared(name, scope=scope)) == (199, 0)
        table.run(CloseVerify(name))
    kept = {scope for scope in scopes if scope and not options}
    assert table.engine.budget.spare == 199 * len(kept)


def test_what_ended_is_bounded_and_the_one_used_longest_ago_goes_first():
    table = table_of(prefix_cache_tokens=450)
    texts = [tuple(random.Random(seed).choices(range(VOCAB), k=150)) for seed in range(4)]
    for i, prompt in enumerate(texts[:3]):
        open_alone(table, shared(f"s{i}", prompt=prompt))
        table.run(CloseVerify(f"s{i}"))
    assert table.engine.budget.spare == 3 * 149
    # A beginning of the first is used, so the second is the oldest now.
    open_alone(table, shared("again", prompt=(*texts[0][:64], 1, 2, 3)))
    open_alone(table, shared("new", prompt=texts[3]))
    table.run(CloseVerify("new"))
    assert table.engine.budget.spare <= 450
    for i, cached in ((0, 149), (1, 0)):
        assert open_alone(table, shared(f"t{i}", prompt=texts[i]))[1] == cached


def test_texts_that_ended_give_way_to_a_session():
    table = table_of(capacity=400, prefix_cache_tokens=400)
    open_alone(table, shared("first"))
    table.run(CloseVerify("first"))
    assert table.engine.budget.spare == 199
    second = shared("second", prompt=OTHER)
    open_alone(table, second)
    assert table.engine.budget.spare == 0
    assert decode(table, second, 30) == target_text(second, 30)


def test_a_failed_session_leaves_nothing_to_others():
    table = Table(FakeEngine(explode=11), clock=frozen)
    prompt = tuple(token % 10 for token in LONG)
    open_alone(table, shared("first", prompt=prompt))
    assert isinstance(table.run(block(1, 0, (11,), session="first"))[0], SessionFailed)
    assert open_alone(table, shared("second", prompt=prompt)) == (199, 0)


# --- who gives way ------------------------------------------------------------------


def run_all(table, commands, count, guesses=1):
    """All sessions to `count` tokens, each asked for its next block when it was answered.

    Their texts, in the order in which they ended.
    """
    texts = {command.session: [] for command in commands}
    rounds, ended, waiting = dict.fromkeys(texts, 0), {}, set()
    assert not [event for event in table.run(*commands) if isinstance(event, SessionFailed)]
    for _ in range(10_000):
        for name in [name for name in texts if name not in {*ended, *waiting}]:
            rounds[name] += 1
            waiting.add(name)
            table.give(block(rounds[name], len(texts[name]), (*range(guesses),), session=name))
        if not waiting:
            return ended
        table.core.step()
        for event in table.taken():
            assert not isinstance(event, SessionFailed), event
            if isinstance(event, Verdict):
                texts[event.session] += event.token_ids
                waiting.discard(event.session)
                if len(texts[event.session]) >= count:
                    ended[event.session] = texts[event.session]
                    table.give(CloseVerify(event.session))
    raise AssertionError(f"no end: {waiting} wait")


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("scope", ["", "acme"])
def test_sessions_that_grow_beyond_the_budget_give_way_and_lose_nothing(mode, scope):
    # Room for two whole sessions, and for five as they begin.
    preempted = []
    table = table_of(capacity=900, on_preempt=lambda: preempted.append(1))
    commands = [
        shared(f"s{i}", prompt=(i, 1, 2), mode=mode, max_tokens=400, scope=scope) for i in range(5)
    ]
    texts = run_all(table, commands, 380, guesses=3)
    assert preempted
    for command in commands:
        got = texts[command.session]
        assert got == target_text(command, len(got))
    assert table.engine.budget.used == 0


def test_the_session_opened_first_never_gives_way():
    commands = [shared(f"s{i}", prompt=(i, 1, 2), max_tokens=400) for i in range(3)]
    assert list(run_all(table_of(capacity=700), commands, 300, guesses=0)) == ["s0", "s1", "s2"]


def test_a_session_that_could_never_fit_is_refused_with_the_figures():
    table = table_of(capacity=300)
    [failed] = table.run(shared("big", max_tokens=200))
    assert failed.reason is FailureReason.CAPACITY
    assert "408" in failed.message
    assert "300" in failed.message


class Full(FakeEngine):
    """A device without memory, while that is said of its budget."""

    def full(self, budget):
        return False

    def forward(self, segments):
        if self.full(self.budget):
            raise torch.OutOfMemoryError("no memory")
        return super().forward(segments)


def test_a_device_without_memory_loses_what_ended_before_any_session():
    table = Table(Full(), clock=frozen)
    open_alone(table, shared("first"))
    table.run(CloseVerify("first"))
    second = shared("second", prompt=OTHER)
    open_alone(table, second)
    table.engine.full = lambda budget: budget.spare > 0
    assert decode(table, second, 3) == target_text(second, 3)
    assert table.engine.budget.spare == 0


def test_a_device_that_has_no_memory_at_all_fails_the_session_as_one_too_many():
    table = Table(Full(), clock=frozen)
    open_alone(table, shared("first"))
    table.engine.full = lambda budget: True
    [failed] = table.run(block(1, 0, session="first"))
    assert failed.reason is FailureReason.CAPACITY
    assert table.engine.budget.used == 0

"""The drafter's core: sessions of many links, steps, levels, frames and failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract import types as t
from services.contract.errors import InvalidRequest, Overloaded, StartError
from services.contract.frames import NO_NAME, DraftFrame, DraftName
from services.contract.states import StateShape
from services.contract.worker_messages import (
    EndSession,
    SessionGone,
    SessionStarted,
    SetWindow,
    TextStates,
)
from services.drafter.hypotheses import core as hypotheses
from services.drafter.protocol import KVUsage, Proposed
from services.runtime.step_records import StepEntry
from tests.services.hypothesis_kit import Worker, brought, drafts_of, gone_of, starting, step
from tests.tries import tries

EXACT = frozenset((t.VerifyMode.GREEDY, t.VerifyMode.COUPLED))
MS = 1_000_000


class Counting:
    """A method that proposes one token per level: the length of the text.

    It mirrors the text as a KV would and checks every rewind against it.
    """

    modes = EXACT
    samples = False
    trees = True

    def __init__(self, room=100):
        self.room = room
        self.kv = {}
        self.asked = []
        self.broken = set()
        self.moments = 0
        self.answer = None
        """What is proposed instead."""
        self.answers = {}
        """The same, by handle."""

    def describe(self, worker):
        return worker

    def usage(self):
        return KVUsage(len(self.kv), self.room)

    def open(self, key, opening):
        if len(self.kv) >= self.room:
            raise Overloaded("no room for another session")
        if 666 in opening.prompt:
            raise InvalidRequest("prompt", "666", "other tokens")
        assert key not in self.kv
        self.kv[key] = []

    def rewind(self, key, length):
        assert length < len(self.kv[key]) + 1
        del self.kv[key][length:]

    def close(self, key):
        del self.kv[key]

    def propose(self, asks):
        self.asked.append([(ask.draft_key, ask.position, ask.room, ask.top_rows) for ask in asks])
        if any(ask.key[1] in self.broken for ask in asks):
            raise RuntimeError("secret tokens 1 2 3")
        return [self._propose(ask) for ask in asks]

    def idle(self, asks):
        assert len(list(asks)) == len(self.kv)
        self.moments += 1
        return self.moments < 3

    def _propose(self, ask):
        kv = self.kv[ask.key]
        assert kv == list(ask.text[: len(kv)])
        self.kv[ask.key] = list(ask.text)
        said = self.answers.get(ask.key[1], self.answer)
        return said or Proposed(t.DraftTree((len(ask.text),)))


class Stated(Counting):
    """One that takes states of the target."""

    needed_states = StateShape((1, 2), 2)

    def __init__(self):
        super().__init__()
        self.anchored = []

    def anchor(self, key, position, states):
        self.anchored.append((key[1], position, states))


class Harness(Worker):
    """A core with one method, on a clock that moves as a level does."""

    def __init__(self, level_ms=1.0, method=None, **options):
        self.method = method or Counting(options.pop("room", 100))
        self.now, self.level_ms = 0, level_ms
        super().__init__({"counting": self.method}, clock=self._clock, **options)

    def _clock(self):
        """Read thrice a level: before it, around the method."""
        self.now += round(self.level_ms * MS)
        return self.now

    def frames(self):
        """How many drafts were in each frame, until nothing is to do."""
        for _ in range(100):
            if not self.core.step():
                break
        events = [event for _, event in self.take()]
        return [event.size for event in events if isinstance(event, DraftFrame)]


@pytest.fixture
def harness():
    return Harness()


@pytest.fixture
def drafted(harness):
    """Session 1 has drafted to its window."""
    harness.send(starting())
    harness.run()
    return harness


def tokens_of(rows):
    return [row.tree.token_ids for row in rows]


# --- sessions --------------------------------------------------------------------


def test_a_start_is_answered_and_drafting_runs_to_the_window(harness):
    assert harness.send(starting()) == [(0, SessionStarted(1, 1))]
    rows = harness.run()
    assert tokens_of(rows) == [(2,), (3, 4), (5,)]
    assert [row.final for row in rows] == [False, False, True]
    assert [row.position for row in rows] == [0, 1, 3]
    assert {row.name for row in rows} == {DraftName(1, 0)}
    assert rows[2].hash == t.extend_hash(t.EMPTY_HASH, (2, 3, 4))


def test_a_step_that_agrees_lets_the_drafter_go_on_without_a_rewind(drafted):
    drafted.send(step(brought(1, 0, 2, 3)))
    rows = drafted.run()
    assert [(row.position, row.name.number, len(row.tree)) for row in rows] == [(4, 0, 2)]
    assert drafted.method.kv[0, 1] == [50, 51, 2, 3, 4, 5, 6]


def test_a_step_that_differs_rewinds_the_method_and_gives_the_draft_up(drafted):
    drafted.send(step(brought(1, 0, 2, 99)))
    assert drafted.method.kv[0, 1] == [50, 51, 2]
    rows = drafted.run()
    assert (rows[0].position, rows[0].name.number) == (2, 1)
    assert rows[0].hash == t.extend_hash(t.EMPTY_HASH, (2, 99))


def test_draws_are_keyed_by_the_name_of_the_draft(drafted):
    drafted.send(step(brought(1, 0, 99)))
    drafted.method.asked.clear()
    drafted.run()
    keys = {key for ((key, *_),) in drafted.method.asked}
    assert keys == {1 << 48 | 1 << 32 | 1}


def test_a_repeated_start_is_answered_again_and_changes_nothing(drafted):
    assert drafted.send(starting()) == [(0, SessionStarted(1, 1))]
    assert drafted.run() == []


def test_a_start_with_a_higher_opening_replaces_the_session_and_a_lower_one_is_ignored(drafted):
    assert drafted.send(starting(opening=3, output=(9,))) == [(0, SessionStarted(1, 3))]
    assert drafted.send(starting(opening=2)) == []
    (first, *_) = drafted.run()
    assert (first.name, first.position) == (DraftName(3, 0), 1)


def test_links_do_not_share_sessions_and_a_broken_one_frees_only_its_own(harness):
    harness.send(starting(), link=1)
    harness.send(starting(prompt=(1,)), link=2)
    harness.core.drop_link(1)
    assert list(harness.method.kv) == [(2, 1)]
    harness.send(step(brought(1, 0, 9)), link=1)
    harness.core.step()
    assert [link for link, _ in harness.take()] == [2]


def test_an_ended_session_is_gone_and_what_comes_for_it_is_skipped(harness):
    harness.send(starting())
    late = (EndSession(1), step(brought(1, 0, 2)), SetWindow(1, 3), TextStates(1, 1, 0, b""))
    assert harness.send(EndSession(1), *late) == []
    assert harness.method.kv == {}
    assert harness.frames() == []


def test_a_step_of_many_sessions_reaches_those_that_are_here(harness):
    harness.send(starting(3), starting(7))
    harness.run()
    rows = [brought(handle, 0, *range(2, 2 + handle)) for handle in range(2, 9)]
    assert harness.send(step(*rows)) == []
    assert harness.method.kv[0, 3] == [50, 51, 2, 3, 4]
    assert next(row.position for row in harness.run() if row.handle == 7) == 7


@pytest.mark.parametrize("row", [brought(1, 3, 9), brought(1, 0, 3)])
def test_a_step_that_does_not_follow_ends_its_session_alone(harness, row):
    harness.send(starting(output=(2,)), starting(2))
    events = harness.send(step(row, brought(2, 0, 8)))
    assert gone_of(events)[:3] == (1, 1, t.FailureReason.UNKNOWN_SESSION)
    assert {row.handle for row in harness.run()} == {2}


def test_a_full_drafter_says_so():
    harness = Harness(room=1)
    gone = gone_of(harness.send(starting(1), starting(2)))
    assert (gone.handle, gone.reason) == (2, t.FailureReason.CAPACITY)
    assert harness.core.progress().sessions == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompt": ()}, t.FailureReason.INVALID),
        ({"prompt": (666,)}, t.FailureReason.INVALID),
        ({"output": (1,) * 101}, t.FailureReason.INVALID),
        ({"term": 1 << 16}, t.FailureReason.INVALID),
        ({"mode": t.VerifyMode.BLOCK}, t.FailureReason.UNSUPPORTED),
        ({"method": "other"}, t.FailureReason.UNSUPPORTED),
    ],
)
def test_a_start_that_cannot_be_served_ends_the_session(harness, changes, reason):
    assert gone_of(harness.send(starting(**changes)))[:3] == (1, 1, reason)
    assert harness.method.kv == {}
    assert harness.core.progress().sessions == 0


def test_texts_of_all_sessions_are_bounded(monkeypatch, harness):
    monkeypatch.setattr(hypotheses, "MOST_TEXT", 250)
    assert gone_of(harness.send(*map(starting, range(3)))).handle == 2
    harness.send(EndSession(0))
    assert harness.send(starting(4)) == [(0, SessionStarted(4, 1))]


def test_a_method_that_fails_on_one_session_ends_only_that_one(harness):
    harness.send(*map(starting, (1, 2, 3)))
    harness.method.broken.add(2)
    assert harness.core.step()
    events = harness.take()
    gone = gone_of(events)
    assert (gone.handle, gone.reason) == (2, t.FailureReason.INTERNAL)
    assert "secret" not in gone.message
    assert {row.handle for row in drafts_of(events)} == {1, 3}


# --- windows ---------------------------------------------------------------------


def test_window_zero_drafts_nothing_until_it_is_set(harness):
    harness.send(starting(window=0))
    assert harness.run() == []
    harness.send(SetWindow(1, 2))
    assert tokens_of(harness.run()) == [(2,), (3,)]


def test_a_step_sets_windows_and_the_workers_own_caps_them():
    harness = Harness(max_window=3)
    harness.send(starting(1, window=50), starting(2, window=50))
    assert sum(len(row.tree) for row in harness.run()) == 6
    harness.send(step(brought(1, 0, 99), brought(2, 0, 99), windows=(1, 200)))
    assert [(row.handle, len(row.tree)) for row in harness.run()] == [(1, 1), (2, 1), (2, 2)]
    harness.send(step(brought(1, 1, 99), windows=(0,)))
    assert harness.run() == []


# --- levels and frames -----------------------------------------------------------


def test_sessions_draft_together_and_each_of_them_waits_for_the_whole_level(harness):
    harness.send(starting(1), starting(2))
    harness.core.step()
    ((_, frame),) = harness.take()
    assert frame.size == 2
    assert [len(asked) for asked in harness.method.asked] == [2]
    assert [row.draft_ms for row in drafts_of([(0, frame)])] == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    ("level_ms", "sizes"),
    [(2.0, [1] * 8), (1.0, [1, 2, 2, 2, 1]), (0.6, [1, 3, 3, 1]), (0.4, [4, 4]), (0.1, [4, 4])],
)
def test_quick_levels_leave_together(level_ms, sizes):
    harness = Harness(level_ms)
    harness.send(starting(window=8))
    assert [len(row.tree) for row in harness.run()] == sizes


def test_what_is_drafted_leaves_when_no_session_has_room(harness):
    harness = Harness(0.1)
    harness.send(starting(1, window=2), starting(2, window=3))
    rows = harness.run()
    assert [(row.handle, len(row.tree), row.final) for row in rows] == [(1, 2, True), (2, 3, True)]


# --- a crowd ---------------------------------------------------------------------


def crowd(level_ms=1.0, count=hypotheses.CROWD, **changes):
    """So many sessions, and none of their frames has left."""
    harness = Harness(level_ms)
    harness.send(*[starting(handle, **changes) for handle in range(1, count + 1)])
    return harness


def lengths(harness, levels):
    """How many tokens of a session were in each frame that left in these levels."""
    assert all(harness.core.step() for _ in range(levels))
    frames = [event for _, event in harness.take() if isinstance(event, DraftFrame)]
    return [max(len(row.tree) for row in drafts_of([(0, frame)])) for frame in frames]


def test_in_a_crowd_two_levels_leave_together_where_of_fewer_sessions_the_first_leaves_alone():
    assert lengths(crowd(window=8, count=hypotheses.CROWD - 1), 4) == [1, 2]
    assert lengths(crowd(window=8), 4) == [2], "the others wait for a step"


def test_sessions_that_rest_make_no_crowd():
    harness = crowd(window=8, count=hypotheses.CROWD - 1)
    harness.send(starting(99, window=0))
    assert lengths(harness, 4) == [1, 2]


def test_in_a_crowd_one_frame_leaves_behind_each_step():
    harness = crowd(0.1, window=30)
    assert lengths(harness, 12) == [2]
    harness.send(step(brought(1, 0, 2)))
    assert lengths(harness, 1) == [11], "all that was held back"
    assert lengths(harness, 7) == []


def test_what_is_held_back_in_a_crowd_leaves_though_no_step_comes():
    harness = crowd(0.1, window=6)
    assert [len(row.tree) for row in harness.run()] == [2] * hypotheses.CROWD
    wait = harness.core.patience()
    assert 0 < wait <= hypotheses.LONGEST_WAIT
    harness.now += round(wait * 1e9)
    assert harness.core.patience() == 0
    assert [len(row.tree) for row in harness.run()] == [4] * hypotheses.CROWD
    assert harness.core.patience() == 0


def test_whoever_can_draft_does_not_wait_for_what_is_held_back():
    harness = crowd(0.1, window=6)
    harness.run()
    assert harness.core.patience() > 0
    harness.send(starting(99))
    assert harness.core.patience() == 0


def test_a_frame_has_the_sessions_of_its_link_alone():
    harness = Harness(0.1)
    for link, handle in ((1, 5), (2, 5), (1, 6)):
        harness.send(starting(handle), link=link)
    harness.core.step()
    harness.frames()
    harness.send(step(brought(5, 0, 9), brought(6, 0, 9)), link=1)
    while harness.core.step():
        pass
    ((link, frame),) = harness.take()
    assert (link, [row.handle for row in drafts_of([(1, frame)])]) == (1, [5, 6])


def test_what_a_text_left_behind_never_leaves():
    harness = Harness(0.1)
    harness.send(starting(window=8))
    for _ in range(3):
        harness.core.step()
    assert harness.take() == []
    harness.send(step(brought(1, 0, 99)))
    assert tokens_of(harness.run())[0][:1] == (3,)


def test_a_tree_leaves_with_its_level(harness):
    harness = Harness(0.1)
    harness.method.answers[1] = Proposed(t.DraftTree((5, 6), parents=(-1, -1)))
    harness.send(starting(1), starting(2, window=8))
    harness.core.step()
    row, other = drafts_of(harness.take())
    assert (row.tree.parents, row.final, row.name) == ((-1, -1), True, DraftName(1, 1))
    assert (other.handle, other.final) == (2, False)
    assert {row.handle for row in harness.run()} == {2}


def test_what_an_ended_session_drafted_never_leaves():
    harness = Harness(0.1)
    harness.send(starting(1), starting(2))
    harness.core.step()
    harness.send(EndSession(1), starting(2, opening=2, window=0))
    assert harness.run() == []


def test_all_methods_draft_in_each_level():
    methods = {"a": Counting(), "b": Counting()}
    worker = Worker(methods)
    worker.send(starting(1, method="a"), starting(2, method="b"))
    assert worker.core.step()
    assert [len(method.asked) for method in methods.values()] == [1, 1]


def test_that_nothing_follows_is_told(harness):
    harness.method.answer = Proposed(final=True)
    harness.send(starting())
    (row,) = harness.run()
    assert (len(row.tree), row.final) == (0, True)
    harness.send(step(brought(1, 0, 4)))
    assert [row.position for row in harness.run()] == [1]


def test_whoever_waits_for_something_else_takes_no_step(harness):
    harness.method.answer = Proposed(waits=True)
    harness.send(starting())
    assert not harness.core.step()
    assert harness.core.progress().steps == 0


def test_reading_a_prompt_says_nothing_of_what_a_level_takes(harness):
    harness = Harness(40.0)
    harness.method.answer = Proposed(fed=512)
    harness.send(starting(window=8))
    harness.core.step()
    harness.method.answer, harness.level_ms = None, 0.1
    (first, *_) = harness.run()
    assert (len(first.tree), first.draft_ms) == (4, pytest.approx(0.4))


def test_a_method_gets_the_moments_in_which_nothing_can_be_drafted(harness):
    harness.send(starting(), starting(2, window=0))
    for _ in range(4):
        assert harness.core.step()
        assert harness.method.moments == 0
    before = harness.core.progress()
    assert [harness.core.step() for _ in range(3)] == [True, True, False]
    assert harness.core.progress() == before
    harness.send(step(brought(1, 0, 2)))
    assert harness.core.step(), "a draft comes first"
    assert harness.method.moments == 3


def test_each_level_is_told_to_whoever_traces():
    records = []
    harness = Harness(on_step=records.append)
    harness.send(starting(1, traceparent="00-ab"), starting(2))
    harness.core.step()
    (record,) = records
    assert record.ended_ns - record.started_ns == MS
    assert record.entries == (
        StepEntry("s1", "draft", 1, traceparent="00-ab"),
        StepEntry("s2", "draft", 1),
    )


# --- what the target says --------------------------------------------------------


def test_rows_of_the_target_come_with_the_next_level(harness):
    harness.send(starting(top_rows=1))
    harness.run()
    harness.method.asked.clear()
    harness.send(step(brought(2, 0, 2), brought(1, 0, 2, top_rows=bytes(8))))
    harness.run()
    assert [asked[0][3] for asked in harness.method.asked] == [bytes(8)]


def test_states_go_to_the_method_with_the_place_of_the_token_before():
    harness = Harness(method=Stated())
    harness.send(starting(1, output=(2,)), TextStates(1, 1, 0, bytes(8)))
    harness.send(step(brought(9, 0, 2), brought(1, 1, 3, 4, states=bytes(range(8)))))
    assert harness.method.anchored == [(1, 0, bytes(8)), (1, 2, bytes(range(8)))]
    worker = harness.core.describe()
    assert (worker.state_layers, worker.state_width) == ((1, 2), 2)


def test_states_that_fit_nowhere_are_counted_and_dropped():
    fates = []
    harness = Harness(method=Stated(), on_states=lambda fate, size: fates.append((fate, size)))
    harness.send(starting(), TextStates(1, 1, 2, bytes(8)), TextStates(5, 1, 0, bytes(4)))
    harness.send(step(brought(1, 0, 3, states=bytes(8))))
    assert harness.method.anchored == []
    assert fates == [("dropped", 8), ("dropped", 4), ("dropped", 8)]


def test_methods_that_need_different_states_do_not_start():
    other = Stated()
    other.needed_states = StateShape((1, 3), 2)
    with pytest.raises(StartError, match="different layers"):
        Worker({"a": Stated(), "b": other})


# --- what others see -------------------------------------------------------------


def test_progress_and_description_tell_what_the_worker_is():
    harness = Harness(version="1.2")
    harness.send(starting())
    assert harness.core.progress().queued_tokens == 4
    harness.run()
    progress = harness.core.progress()
    assert (progress.steps, progress.sessions, progress.queued_tokens) == (4, 1, 0)
    assert (progress.kv_tokens_used, progress.kv_tokens_capacity) == (1, 100)
    worker = harness.core.describe()
    assert (worker.worker_id, worker.methods, worker.version) == ("d1", ("counting",), "1.2")
    assert (worker.protocol_min, worker.protocol_max) == (2, 2)
    assert t.tree_capability("counting") in worker.capabilities


COMMANDS = st.one_of(
    st.builds(
        lambda handle, opening, output, window: starting(
            handle, opening=opening, output=output, window=window
        ),
        st.integers(1, 2),
        st.integers(1, 3),
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
        st.integers(0, 5),
    ),
    st.builds(
        lambda rows: step(*(brought(handle, at, *said) for handle, at, said in rows)),
        st.lists(
            st.tuples(
                st.integers(1, 3),
                st.integers(0, 6),
                st.lists(st.integers(0, 6), min_size=1, max_size=4),
            ),
            max_size=3,
        ),
    ),
    st.builds(SetWindow, st.integers(1, 2), st.integers(0, 6)),
    st.builds(
        TextStates, st.integers(1, 2), st.integers(1, 2), st.integers(0, 4), st.just(b"1234")
    ),
    st.builds(EndSession, st.integers(1, 2)),
)


@tries(300)
@given(
    st.lists(st.tuples(st.integers(0, 1), COMMANDS, st.integers(0, 3)), max_size=30),
    st.sampled_from((0.1, 1.0)),
)
def test_no_sequence_of_commands_raises_or_never_rests(moves, level_ms):
    harness = Harness(level_ms)
    gone = []
    for link, command, steps in moves:
        gone += harness.send(command, link=link)
        for _ in range(steps):
            harness.core.step()
    harness.run()
    assert len(harness.method.kv) == harness.core.progress().sessions
    for _, event in gone:
        if isinstance(event, SessionGone):
            assert event.reason is not t.FailureReason.INTERNAL


def test_a_name_is_never_that_of_no_draft():
    assert DraftName(1, 0) > NO_NAME


def test_the_k_v_of_methods_on_one_engine_counts_once():
    engine = object()

    class Sharing(Counting):
        def usage(self):
            return KVUsage(7, 50, engine)

    worker = Worker({"a": Sharing(), "b": Sharing(), "c": Counting()})
    progress = worker.core.progress()
    assert (progress.kv_tokens_used, progress.kv_tokens_capacity) == (7, 50 + 100)

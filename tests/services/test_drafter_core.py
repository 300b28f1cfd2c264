"""The drafter's core: sessions of many links, commands, steps and failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract import types as t
from services.contract.errors import InvalidRequest, Overloaded
from services.drafter.core import DrafterCore
from services.drafter.protocol import KVUsage, Proposed
from services.runtime.step_records import StepEntry
from tests.services import drafter_kit
from tests.tries import tries


class Counting:
    """A method that proposes one token per step: the length of the text.

    It mirrors the text as a KV would and checks every rewind against it.
    """

    modes = frozenset((t.VerifyMode.GREEDY, t.VerifyMode.COUPLED))
    samples = False
    trees = True

    def __init__(self, room=100):
        self.room = room
        self.kv = {}
        self.batches = []
        self.broken = set()
        self.moments = []
        self.work = 0

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
        del self.kv[key][length:]

    def close(self, key):
        del self.kv[key]

    def propose(self, asks):
        self.batches.append(len(asks))
        if any(ask.key[1] in self.broken for ask in asks):
            raise RuntimeError("secret tokens 1 2 3")
        return [self._propose(ask) for ask in asks]

    def idle(self, asks):
        self.moments.append([ask.key for ask in asks])
        return len(self.moments) < self.work

    def _propose(self, ask):
        kv = self.kv[ask.key]
        assert kv == list(ask.text[: len(kv)])
        self.kv[ask.key] = list(ask.text)
        return Proposed(t.DraftTree((len(ask.text),)))


class Harness:
    """A core with one method, and the events it emitted."""

    def __init__(self, **options):
        self.method = Counting(options.pop("room", 100))
        self.events = []
        self.now = 0
        self.core = DrafterCore(
            {"counting": self.method},
            emit=lambda link, event: self.events.append((link, event)),
            worker_id="d1",
            clock=self._clock,
            **options,
        )

    def _clock(self):
        self.now += 1_000_000
        return self.now

    def send(self, *commands, link=0):
        for command in commands:
            self.core.handle(link, command)
        return self.take()

    def take(self):
        events, self.events = self.events, []
        return events

    def run(self):
        """Step until idle; the drafts."""
        for _ in range(1000):
            if not self.core.step():
                return [event for _, event in self.take() if isinstance(event, t.Draft)]
        raise AssertionError("the core never comes to rest")


def opening(session="s", **changes):
    values = {"prompt": (50, 51), "window": 4, "max_tokens": 100}
    return drafter_kit.opening(session, **(values | changes))


def failure(events):
    (event,) = [event for _, event in events if isinstance(event, t.SessionFailed)]
    return event


@pytest.fixture
def harness():
    return Harness()


@pytest.fixture
def drafted(harness):
    """The session `s` has drafted to its window."""
    harness.send(opening())
    harness.run()
    return harness


def test_an_open_is_answered_and_drafting_runs_to_the_window(harness):
    assert harness.send(opening()) == [(0, t.DraftOpened("s", 1))]
    drafts = harness.run()
    assert [draft.tree.token_ids for draft in drafts] == [(2,), (3,), (4,), (5,)]
    assert [draft.final for draft in drafts] == [False, False, False, True]
    assert [draft.first_position for draft in drafts] == [0, 1, 2, 3]
    assert drafts[2].prefix_hash == t.extend_hash(t.EMPTY_HASH, (2, 3))


def test_a_commit_that_agrees_lets_the_drafter_go_on_without_a_rewind(drafted):
    drafted.send(t.CommitDraft("s", 1, 0, (2, 3)))
    drafts = drafted.run()
    assert [draft.tree.token_ids for draft in drafts] == [(6,), (7,)]
    assert {draft.base_committed_len for draft in drafts} == {2}


def test_a_commit_that_differs_rewinds_the_method(drafted):
    drafted.send(t.CommitDraft("s", 2, 0, (2, 99)))
    assert drafted.method.kv[0, "s"] == [50, 51, 2]
    drafts = drafted.run()
    assert drafts[0].first_position == 2
    assert drafts[0].prefix_hash == t.extend_hash(t.EMPTY_HASH, (2, 99))
    assert drafted.method.kv[0, "s"] == [50, 51, 2, 99, 4, 5, 6]


def test_a_repeated_open_is_answered_again_and_changes_nothing(drafted):
    assert drafted.send(opening()) == [(0, t.DraftOpened("s", 1))]
    assert drafted.run() == []


def test_an_open_of_a_higher_epoch_replaces_the_session_and_of_a_lower_one_is_ignored(drafted):
    drafted.send(opening(epoch=3, committed=(9,)))
    assert drafted.send(opening(epoch=2)) == []
    (first, *_) = drafted.run()
    assert (first.epoch, first.first_position) == (3, 1)


def test_sessions_step_together_and_each_of_them_waits_for_the_whole_step(harness):
    harness.send(opening("a"), opening("b"))
    harness.core.step()
    drafts = [event for _, event in harness.take()]
    assert harness.method.batches == [2]
    assert [draft.draft_ms for draft in drafts] == pytest.approx([1.0, 1.0])


def test_each_step_is_told_to_whoever_traces():
    records = []
    harness = Harness(on_step=records.append)
    harness.send(opening("a", traceparent="00-ab"), opening("b"))
    harness.core.step()
    (record,) = records
    assert record.ended_ns - record.started_ns == 1_000_000
    assert record.entries == (
        StepEntry("a", "draft", 1, traceparent="00-ab"),
        StepEntry("b", "draft", 1),
    )


def test_links_do_not_share_sessions_and_a_broken_one_frees_only_its_own(harness):
    harness.send(opening(), link=1)
    harness.send(opening(prompt=(1,)), link=2)
    harness.core.drop_link(1)
    assert list(harness.method.kv) == [(2, "s")]
    harness.core.step()
    assert [link for link, _ in harness.take()] == [2]


def test_a_method_gets_the_moments_in_which_nobody_waits_for_a_draft(harness):
    harness.send(opening(), opening("other", window=0))
    for _ in range(4):
        assert harness.core.step()
        assert harness.method.moments == []
    harness.method.work = 3
    before = harness.core.progress()
    assert [harness.core.step() for _ in range(3)] == [True, True, False]
    assert harness.method.moments == [[(0, "s"), (0, "other")]] * 3
    assert harness.core.progress() == before
    harness.send(t.CommitDraft("s", 1, 0, (2,)))
    assert harness.core.step(), "a commit comes first"
    assert len(harness.method.moments) == 3


def test_a_closed_session_is_gone_and_closing_twice_is_fine(harness):
    harness.send(opening())
    assert harness.send(t.CloseDraft("s"), t.CloseDraft("s")) == []
    assert harness.method.kv == {}
    assert not harness.core.step()


def test_a_commit_to_an_unknown_session_fails_it_and_a_credit_is_ignored(harness):
    failed = failure(harness.send(t.CommitDraft("s", 7, 0, (1,))))
    assert (failed.reason, failed.epoch) == (t.FailureReason.UNKNOWN_SESSION, 7)
    assert harness.send(t.Credit("s", 3)) == []


def test_a_full_drafter_says_so():
    harness = Harness(room=1)
    events = harness.send(opening("a"), opening("b"))
    assert failure(events).reason is t.FailureReason.CAPACITY
    assert failure(events).session == "b"
    assert harness.core.progress().sessions == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompt": ()}, t.FailureReason.INVALID),
        ({"prompt": (666,)}, t.FailureReason.INVALID),
        ({"committed": (1,) * 101}, t.FailureReason.INVALID),
        ({"mode": t.VerifyMode.BLOCK}, t.FailureReason.UNSUPPORTED),
        ({"method": "other"}, t.FailureReason.UNSUPPORTED),
    ],
)
def test_an_open_that_cannot_be_served_fails_the_session(harness, changes, reason):
    events = harness.send(opening(**changes))
    assert failure(events).reason is reason
    assert failure(events).epoch == 1
    assert harness.method.kv == {}


def test_a_contradicting_commit_closes_the_session(harness):
    harness.send(opening(committed=(5,)))
    failed = failure(harness.send(t.CommitDraft("s", 1, 0, (6,))))
    assert failed.reason is t.FailureReason.INVALID
    assert harness.method.kv == {}


def test_a_method_that_fails_on_one_session_closes_only_that_one(harness):
    harness.send(opening("a"), opening("b"), opening("c"))
    harness.method.broken.add("b")
    assert harness.core.step()
    events = harness.take()
    assert failure(events).session == "b"
    assert failure(events).reason is t.FailureReason.INTERNAL
    assert "secret" not in failure(events).message
    assert {event.session for _, event in events if isinstance(event, t.Draft)} == {"a", "c"}


def test_window_zero_drafts_nothing_until_a_credit(harness):
    harness.send(opening(window=0))
    assert not harness.core.step()
    harness.send(t.Credit("s", 2))
    assert [draft.tree.token_ids for draft in harness.run()] == [(2,), (3,)]


def test_the_workers_own_window_caps_every_session():
    harness = Harness(max_window=2)
    harness.send(opening(window=50))
    assert len(harness.run()) == 2
    harness.send(t.Credit("s", 50))
    (empty,) = harness.run()
    assert (empty.tree.token_ids, empty.final) == ((), True)


def test_progress_and_description_tell_what_the_worker_is():
    harness = Harness(version="1.2")
    harness.send(opening())
    assert harness.core.progress().queued_tokens == 4
    harness.run()
    progress = harness.core.progress()
    assert (progress.steps, progress.sessions, progress.queued_tokens) == (4, 1, 0)
    assert (progress.kv_tokens_used, progress.kv_tokens_capacity) == (1, 100)
    worker = harness.core.describe()
    assert (worker.worker_id, worker.methods, worker.version) == ("d1", ("counting",), "1.2")
    assert worker.tokenizer_fingerprint == ""


COMMANDS = st.one_of(
    st.builds(
        lambda epoch, committed, window: opening(epoch=epoch, committed=committed, window=window),
        st.integers(0, 3),
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
        st.integers(0, 5),
    ),
    st.builds(
        lambda epoch, base, tokens: t.CommitDraft("s", epoch, base, tuple(tokens)),
        st.integers(0, 4),
        st.integers(0, 8),
        st.lists(st.integers(0, 6), max_size=4),
    ),
    st.builds(lambda window: t.Credit("s", window), st.integers(0, 6)),
    st.just(t.CloseDraft("s")),
)


@tries(300)
@given(st.lists(st.tuples(st.integers(0, 1), COMMANDS, st.integers(0, 3)), max_size=30))
def test_no_sequence_of_commands_raises_or_never_rests(moves):
    harness = Harness()
    for link, command, steps in moves:
        harness.send(command, link=link)
        for _ in range(steps):
            harness.core.step()
    harness.run()
    assert len(harness.method.kv) == harness.core.progress().sessions


def test_the_kv_of_methods_on_one_engine_counts_once():
    engine = object()

    class Sharing(Counting):
        def usage(self):
            return KVUsage(7, 50, engine)

    core = DrafterCore(
        {"a": Sharing(), "b": Sharing(), "c": Counting()}, emit=lambda *_: None, worker_id="d"
    )
    assert core.progress().kv_tokens_capacity == 50 + 100
    assert core.progress().kv_tokens_used == 7

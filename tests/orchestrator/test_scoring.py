"""Scores by verifiers that fail, lie or are full."""

import asyncio
import math

import pytest

from orchestrator.frontdoor.inference import _at_once
from orchestrator.frontdoor.scoring import Scored, Scoring
from orchestrator.session.logprobs import unpack_row
from orchestrator.steering.config import Limits
from orchestrator.steering.hub import Hub
from services.contract.errors import DeadlinePassed, Draining, NoWorker, Overloaded
from services.contract.types import (
    FailureReason,
    LogprobRow,
    Role,
    WorkerDescription,
)
from services.contract.worker_messages import PromptScores, SessionGone, SessionStarted
from tests.waiting import until

TEXT = Scored((1, 2, 3), (4, 5), 1, "acme", "call")
ROWS = (LogprobRow(-0.5, (4,), (-0.5,)), LogprobRow(-1.5, (7,), (-0.25,)))
LIMITS = Limits(deadline=5.0, verifier_wait=0.3, opening_wait=0.2, worker_attempts=3)


class Verifiers:
    """Answers what `say` gives for the n-th opening."""

    def __init__(self, say, names=("v1", "v2")):
        self.say, self.names = say, names
        self.opened, self.released = [], []
        self.hub = Hub(self)
        self.scoring = Scoring(self, LIMITS, self.hub)

    def place(self, wanted):
        order = sorted(self.names, key=lambda name: name in wanted.avoid)
        return WorkerDescription(order[0], Role.VERIFIER, vocab_size=9) if order else None

    def takes(self, worker):
        return worker in self.names

    def opening_s(self, worker, tokens):
        return 0.0

    def send(self, worker, session, command):
        self.opened.append((worker, command))
        for event in self.say(len(self.opened), session):
            call = asyncio.get_running_loop().call_soon
            if isinstance(event, str):
                call(self.hub.lost, worker, Role.VERIFIER, [session], event)
            else:
                call(self.hub.heard, worker, Role.VERIFIER, event)

    def forward(self, worker, command):
        raise AssertionError("nothing is said to many sessions together")

    def release(self, worker, session):
        if (worker, session) not in self.released:
            self.released.append((worker, session))

    async def score(self, texts=(TEXT,), at_once=8):
        found = await self.scoring.score("acme", texts, at_once)
        return [list(map(unpack_row, rows)) for rows in found]


@pytest.fixture
def cluster():
    return Verifiers


def good(session, first=3, rows=ROWS):
    return [PromptScores(session, 1, first, rows), SessionStarted(session, 1)]


def failing(*ways):
    """The n-th opening fails in the n-th way, and those behind them are well."""
    return lambda count, session: ways[count - 1](session) if count <= len(ways) else good(session)


def failed(reason):
    return lambda session: [SessionGone(session, 1, reason, "so it is")]


HUGE = LogprobRow(0.5, (4,), (-0.5,))
MANY = LogprobRow(-0.5, (4, 5), (-0.5, -0.6))
UNKNOWN = LogprobRow(-0.5, (9,), (-0.5,))
WAYS = {
    "lost": lambda _: ["it died"],
    "full": failed(FailureReason.CAPACITY),
    "broken": failed(FailureReason.INTERNAL),
    "leaves tokens out": lambda session: good(session, rows=ROWS[:1]),
    "begins too late": lambda session: good(session, first=4, rows=ROWS[1:]),
    "tells too much": lambda session: good(session, rows=ROWS + ROWS),
    "no logarithm": lambda session: good(session, rows=(HUGE, ROWS[1])),
    "too many alternatives": lambda session: good(session, rows=(MANY, ROWS[1])),
    "an unknown token": lambda session: good(session, rows=(UNKNOWN, ROWS[1])),
    "silent": lambda _: [],
}


async def test_what_a_verifier_tells_is_the_answer(cluster):
    verifiers = cluster(failing())
    assert await verifiers.score() == [list(ROWS)]
    [(_, opening)] = verifiers.opened
    assert (opening.prompt, opening.score_from, opening.cache_scope) == ((1, 2, 3, 4, 5), 3, "acme")
    assert len(verifiers.released) == 1


async def test_rows_that_come_twice_count_once(cluster):
    def twice(_, session):
        return [PromptScores(session, 1, 3, ROWS[:1]), *good(session)]

    assert await cluster(twice).score() == [list(ROWS)]


@pytest.mark.parametrize("way", WAYS)
async def test_another_verifier_scores_where_one(cluster, way):
    verifiers = cluster(failing(WAYS[way]))
    assert await verifiers.score() == [list(ROWS)]
    assert [worker for worker, _ in verifiers.opened] == ["v1", "v2"]
    assert len(verifiers.released) == 2


async def test_attempts_are_bounded(cluster):
    verifiers = cluster(lambda _, session: WAYS["broken"](session))
    with pytest.raises(NoWorker, match="3 verifiers failed"):
        await verifiers.score()
    assert len(verifiers.opened) == 3


async def test_what_a_verifier_refuses_is_tried_no_more(cluster):
    verifiers = cluster(failing(failed(FailureReason.INVALID)))
    with pytest.raises(NoWorker, match="so it is"):
        await verifiers.score()
    assert len(verifiers.opened) == 1


async def test_nobody_there_is_an_answer_after_a_while(cluster):
    with pytest.raises(NoWorker):
        await cluster(failing(), names=()).score()


async def test_a_call_has_a_deadline(cluster, monkeypatch):
    monkeypatch.setattr("orchestrator.frontdoor.scoring.ASK_AGAIN", 0.01)
    verifiers = cluster(lambda _, session: WAYS["full"](session))
    verifiers.scoring.limits = Limits(deadline=0.2)
    with pytest.raises((DeadlinePassed, Overloaded)):
        await verifiers.score()
    assert len(verifiers.released) == len(verifiers.opened)


async def test_verifiers_that_report_room_and_have_none_are_full_in_the_end(cluster, monkeypatch):
    monkeypatch.setattr("orchestrator.frontdoor.scoring.ASK_AGAIN", 0.01)
    with pytest.raises(Overloaded, match="no verifier could take a text of 5 tokens"):
        await cluster(lambda _, session: WAYS["full"](session)).score()


@pytest.mark.parametrize(
    ("memory", "most", "count"), [(0, math.inf, 4), (50, math.inf, 2), (0, 70, 3), (50, 5, 1)]
)
def test_as_many_texts_are_open_at_a_time_as_memory_and_limits_allow(memory, most, count):
    assert _at_once([30, 20, 20, 10], memory, most) == count


async def test_one_failure_of_a_verifier_costs_each_of_its_texts_one_attempt(cluster):
    verifiers = cluster(failing(*[WAYS["lost"]] * 8))
    assert await verifiers.score([TEXT] * 8) == [list(ROWS)] * 8


async def test_no_more_texts_than_allowed_are_open_at_a_time(cluster):
    verifiers = cluster(failing())
    most = 0

    def counting(_, session):
        nonlocal most
        most = max(most, len(verifiers.scoring._attempts))
        return good(session)

    verifiers.say = counting
    await verifiers.score([TEXT] * 9, at_once=2)
    assert most == 2


async def test_a_scored_text_is_closed_behind_the_next_one_which_may_take_its_context(cluster):
    verifiers = cluster(failing())
    left = []

    def looking(count, session):
        left.append(count - 1 - len(verifiers.released))
        return good(session)

    verifiers.say = looking
    await verifiers.score([TEXT] * 5, at_once=1)
    assert left == [0, 1, 1, 1, 1]
    assert _names(verifiers.released) == [_session(command) for _, command in verifiers.opened]


async def test_a_call_that_ends_early_leaves_nothing_open(cluster):
    verifiers = cluster(lambda count, session: good(session) if count == 1 else [])
    call = asyncio.ensure_future(verifiers.score([TEXT] * 5, at_once=1))
    await until(lambda: len(verifiers.opened) == 2)
    assert not verifiers.released
    call.cancel()
    await asyncio.wait([call])
    assert sorted(_names(verifiers.released)) == sorted(
        _session(command) for _, command in verifiers.opened
    )


def _session(command):
    return command.handle


def _names(released):
    return [name for _, name in released]


async def test_draining_ends_what_is_at_work(cluster):
    verifiers = cluster(lambda _, __: [])
    call = asyncio.ensure_future(verifiers.score())
    await asyncio.sleep(0.05)
    verifiers.scoring.drain()
    with pytest.raises(Draining):
        await call

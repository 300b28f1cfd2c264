"""A steered session between its hub, its store and its readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.session.output import Prefix
from orchestrator.session.ports import NewSession, SessionKey, StoredRound
from orchestrator.session.record_size import most_stored
from orchestrator.session.round_records import load_round
from orchestrator.steering.config import Limits, Phase, SessionConfig
from orchestrator.steering.driver import Driver
from orchestrator.steering.events import Persist, Release
from orchestrator.steering.ports import StepFacts, Taken
from orchestrator.steering.state import new_session
from services.contract.errors import DeadlinePassed, Draining, Fenced, Impossible, SessionAborted
from services.contract.frames import StepEnd, StepRow, WaitReason
from services.contract.types import (
    FailureReason,
    FinishReason,
    LogprobRow,
    Role,
    VerifyMode,
    WorkerDescription,
    local_capability,
)
from services.contract.worker_messages import (
    EndSession,
    PromptScores,
    SessionGone,
    SessionStarted,
    SetDraftedFor,
    StartDraft,
    StartVerify,
    TextStates,
)
from tests.orchestrator.request_kit import MODEL, make, sampled
from tests.orchestrator.text_kit import tokenizer

KEY = SessionKey("tenant", "session")
WORDS = tokenizer()
THE_LAW = tuple(WORDS.encode("the law the law the law"))


def scoring():
    """A request that asks how likely its prompt is."""
    asked = {"temperature": 0.0, "max_tokens": 9, "prompt_logprobs": 0}
    return make(replace(MODEL, scores=True), sampling=asked)


class FakeHub:
    """Writes down what a session says; a test plays the workers."""

    interval, hop = 0.0, 0.0005

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.held: list[Taken] = []
        self.session: Any = None

    def enter(self, session: object, vocab_size: int = 0) -> int:
        self.session, self.vocab_size = session, vocab_size
        return 5

    def leave(self, handle: int) -> None:
        self.said.append(("leave", handle))

    def send(self, worker: str, command: object) -> None:
        self.said.append(("send", worker, command))

    def verified_by(self, handle: int, worker: str | None, *more: int) -> None:
        self.said.append(("verified by", worker, *more))

    def drafted_by(self, handle: int, worker: str | None) -> None:
        self.said.append(("drafted by", worker))

    def flush(self, handle: int) -> None:
        held, self.held = self.held, []
        if held:
            self.session.took("v", held)

    def soon(self, act: Callable[[], object]) -> None:
        act()

    def grant(self, handle: int, limit: int) -> None:
        self.said.append(("grant", limit))

    def sent(self, kind: type) -> list[Any]:
        return [one[2] for one in self.said if one[0] == "send" and isinstance(one[2], kind)]


class FakeWorkers:
    """A verifier "v" and a drafter "d", or nobody."""

    def __init__(self, local: str = "") -> None:
        self.local, self.wanted = local, []
        self.there = True

    def place(self, wanted: Any) -> WorkerDescription | None:
        self.wanted.append(wanted)
        verifies = wanted.role is Role.VERIFIER
        name = "v" if verifies else "d"
        able = (local_capability(self.local),) if self.local and verifies else ()
        return WorkerDescription(name, wanted.role, capabilities=able) if self.there else None

    def opening_s(self, worker: str, tokens: int) -> float:
        return 0.5

    def release(self, worker: str, handle: int) -> None:
        raise AssertionError("of no concern")

    send = release


class FakeStore:
    """Answers when a test lets it."""

    def __init__(self) -> None:
        self.commits: list[tuple[StoredRound, Any]] = []
        self.answers: list[asyncio.Future[Any]] = []
        self.calls: list[str] = []

    def hold(self, key: SessionKey, term: int, holder: object) -> None:
        self.calls.append("hold")

    def release(self, key: SessionKey, term: int) -> None:
        self.calls.append("release")

    def commit(
        self, key, term, round, base_len, token_ids, record=b"", verifier="", end=None, rounds=1
    ):
        stored = StoredRound(term, round, base_len, len(token_ids), record)
        self.commits.append((stored, (tuple(token_ids), verifier, end)))
        self.rounds_each = rounds
        return self._asked("commit")

    def finish(self, key, term, committed_len, reason, matched_stop=None):
        return self._asked("finish")

    def pause(self, key, term):
        return self._asked("pause")

    def _asked(self, call: str) -> asyncio.Future[Any]:
        self.calls.append(call)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    async def answer(self, error: Exception | None = None) -> None:
        waiting = next(one for one in self.answers if not one.done())
        waiting.set_exception(error) if error else waiting.set_result(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


class FakeRecorder:
    """Keeps what it sees."""

    def __init__(self) -> None:
        self.turns: list[tuple[Any, ...]] = []

    def on_turn(self, session, event, actions, before, after) -> None:
        self.turns.append((event, actions, before, after))

    def traceparent(self, session: str) -> str:
        return "00-trace"

    def performed(self, kind: type) -> list[Any]:
        return [one for _, actions, _, _ in self.turns for one in actions if type(one) is kind]


class Led:
    """A session that a test leads."""

    def __init__(self, spec=None, *, committed=(), local="", limits: Limits | None = None) -> None:
        self.hub, self.workers = FakeHub(), FakeWorkers(local)
        self.store, self.recorder = FakeStore(), FakeRecorder()
        self.ended: list[Driver] = []
        self.now = 0.0
        spec = spec or sampled(temperature=0.0, max_tokens=50)
        text = spec.text_stream(WORDS)
        text.append(committed)
        config = SessionConfig(
            KEY.name, spec.prompt, spec.mode, spec.sampling, spec.seed, method="model", window=4,
            vocab_size=WORDS.vocab_size, find_stop=text.find_stop, limits=limits or Limits(),
        )  # fmt: skip
        record = NewSession("digest", spec.prompt, spec.seed, "owner")
        self.driver = Driver(
            KEY, spec, new_session(config, 0, committed), text, record,
            hub=self.hub, workers=self.workers, store=self.store, recorder=self.recorder,
            on_end=self.ended.append, clock=lambda: self.now,
        )  # fmt: skip

    def begin(self) -> Led:
        self.driver.begin()
        self.driver.hear("v", Role.VERIFIER, SessionStarted(5, 1, 2))
        return self

    def taken(self, *tokens: int, accepted: int = 0, **more: Any) -> Taken:
        row = StepRow(
            5, more.pop("opening", 1), more.pop("position", len(self.driver.state.committed)),
            tokens, accepted, tokens[:accepted], **more,
        )  # fmt: skip
        return Taken(row, StepFacts(1, step_ms=6.0, sessions=2, rows=3, heard_at=self.now))

    def take(self, *tokens: int, **more: Any) -> Led:
        self.driver.took("v", [self.taken(*tokens, **more)])
        return self

    async def read(self) -> tuple[list[int], str]:
        tokens: list[int] = []
        text = ""
        async for delivery in self.driver.output.follow(Prefix()):
            tokens += delivery.token_ids
            text += "".join(delivery.pieces)
        return tokens, text


def led(test: Callable[..., Any]) -> Callable[[], None]:
    """Run a test in an event loop."""

    def run() -> None:
        asyncio.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@led
async def test_it_is_opened_and_every_worker_is_told_in_order():
    one = Led().begin()
    verify, draft = one.hub.sent(StartVerify)[0], one.hub.sent(StartDraft)[0]
    assert one.hub.vocab_size == WORDS.vocab_size
    assert (verify.handle, verify.opening, verify.traceparent) == (5, 1, "00-trace")
    assert (draft.handle, draft.opening, draft.traceparent) == (5, 1, "00-trace")
    assert one.hub.said == [
        ("verified by", "v", 1, 0, verify.limit, one.driver.state.config.largest_block),
        ("send", "v", verify),
        ("drafted by", "d"),
        ("send", "d", draft),
    ]
    assert one.driver.state.cached_tokens == 2
    assert one.workers.wanted[1].beside == "v"


@led
async def test_its_verifier_hears_of_the_drafter_that_has_it():
    one = Led().begin()
    one.driver.hear("d", Role.DRAFTER, SessionStarted(5, 1))
    one.driver.lost("d", Role.DRAFTER, "gone")
    told = [entry for entry in one.hub.said if isinstance(entry[-1], SetDraftedFor)]
    assert told == [
        ("send", "v", SetDraftedFor(5, True)),
        ("send", "v", SetDraftedFor(5, False)),
    ]


@led
async def test_tokens_are_stored_then_emitted_and_then_there_is_credit():
    one = Led().begin().take(*range(5, 25))
    await asyncio.sleep(0)
    assert one.store.calls == ["hold", "commit"]
    assert (one.driver.output.length, one.hub.said[-1][0]) == (0, "send")
    await one.store.answer()
    assert one.driver.output.length == 20
    assert one.hub.said[-1] == ("grant", 36)
    assert one.driver.totals.target_steps == 1


@led
async def test_steps_of_an_interval_are_one_commit_one_chunk_and_a_record_each():
    spec = make(include_rounds=True, sampling={"temperature": 0.0, "max_tokens": 6})
    one = Led(spec).begin()
    first, second = one.taken(*THE_LAW[:3], accepted=2), one.taken(THE_LAW[3], position=3)
    one.driver.took("v", [first, second])
    [(stored, (tokens, verifier, end))] = one.store.commits
    assert (tokens, verifier, end) == (THE_LAW[:4], "v", None)
    records = load_round(stored, tokens).records
    assert [(r.round, r.base_len, r.emitted_tokens) for r in records] == [(1, 0, 3), (2, 3, 1)]
    await one.store.answer()
    delivery = await anext(aiter(one.driver.output.follow(Prefix())))
    assert delivery.token_ids == THE_LAW[:4]
    assert [record.emitted_tokens for record in delivery.rounds] == [3, 1]
    assert len(delivery.origins) == 4
    assert one.driver.totals.emitted_tokens == 4


@led
async def test_the_store_keeps_as_many_rounds_of_it_however_they_are_joined():
    one = Led().begin().take(THE_LAW[0])
    assert one.store.rounds_each == 1
    plain = one.driver.stored_size
    for _ in range(9):
        position = len(one.driver.state.committed)
        one.driver.took("v", [one.taken(7), one.taken(8, position=position + 1)])
        await one.store.answer()
    assert one.store.rounds_each == 3
    records = sum(len(load_round(stored).records) for stored, _ in one.store.commits)
    assert one.driver.stored_size - plain > 256 * (records - 1)


@led
async def test_a_record_takes_no_more_than_was_kept_for_it_however_its_rounds_are_joined():
    one = Led(sampled(temperature=0.0, max_tokens=7)).begin()
    most = most_stored(0, len(one.driver.spec.prompt), 7)
    for position in (0, 2, 4):
        one.driver.took("v", [one.taken(7, position=position + place) for place in range(2)])
        await one.store.answer()
    one.take(8)
    await one.store.answer()
    assert len(one.driver.state.committed) == 7
    assert 256 * 2 < one.driver.stored_size <= most


@led
async def test_the_end_is_told_once_its_tokens_are_stored_and_the_workers_before():
    spec = sampled(temperature=0.0, max_tokens=2)
    one = Led(spec).begin().take(*THE_LAW[:3], accepted=2)
    assert one.hub.sent(EndSession) == [EndSession(5), EndSession(5)]
    assert not one.driver.output.ended
    assert one.store.commits[0][1][2].reason is FinishReason.LENGTH
    await one.store.answer()
    assert await one.read() == ([*THE_LAW[:2]], WORDS.decode(THE_LAW[:2]))
    assert one.driver.output.ending is not None
    assert one.ended == [one.driver]
    assert one.hub.said[-1] == ("leave", 5)
    assert one.store.calls[-1] == "release"


@led
async def test_a_stop_string_is_cut_before_the_commit():
    spec = sampled(stop=["law"], temperature=0.0, max_tokens=50)
    one = Led(spec).begin()
    one.driver.took("v", [one.taken(*THE_LAW)])
    tokens = one.store.commits[0][1][0]
    assert len(tokens) < len(THE_LAW)
    assert "law" in WORDS.decode(tokens)
    await one.store.answer()
    told, text = await one.read()
    assert tuple(told) == tokens
    assert "law" not in text


@led
async def test_what_is_held_back_is_taken_before_it_is_opened_anywhere():
    one = Led().begin()
    one.hub.held = [one.taken(7, 8)]
    one.driver.lost("d", Role.DRAFTER, "gone")
    one.now = 10.0
    one.driver.wake()
    assert one.hub.sent(StartDraft)[-1].output == (7, 8)
    one.hub.held = [one.taken(9)]
    one.driver.state = one.driver.state._replace(verifier=None)
    one.driver.wake()
    assert one.hub.sent(StartVerify)[-1].output in ((7, 8), (7, 8, 9))


@led
async def test_what_its_verifier_drafts_by_itself_it_asks_no_drafter_for():
    one = Led(local="model").begin()
    [verify] = one.hub.sent(StartVerify)
    assert (verify.method, verify.drafted_for) == ("model", False)
    assert [wanted.role for wanted in one.workers.wanted] == [Role.VERIFIER]


@led
async def test_a_word_of_why_it_waits_keeps_a_silent_verifier():
    one = Led().begin()
    one.now = 29.0
    one.driver.hear("v", Role.VERIFIER, WaitReason.KV)
    one.now = 31.0
    one.driver.wake()
    assert one.recorder.performed(Release) == []
    one.now = 60.0
    one.driver.wake()
    assert one.recorder.performed(Release) == [Release(Role.VERIFIER, "v")]


@pytest.mark.parametrize(
    "reason", [one for one in FailureReason if one is not FailureReason.FORMAT_COST]
)
def test_a_session_that_a_worker_gives_up_goes_on_waits_or_ends(reason):
    async def test() -> None:
        one = Led().begin().take(*THE_LAW[:2])
        one.driver.hear("v", Role.VERIFIER, SessionGone(5, 0, reason))
        assert one.recorder.performed(Release) == [], "an opening of before"
        one.driver.hear("v", Role.VERIFIER, SessionGone(5, 1, reason, "why"))
        await one.store.answer()
        openings = [message.opening for message in one.hub.sent(StartVerify)]
        if reason.for_good:
            assert isinstance(one.driver.output.error, Impossible)
            assert one.driver.given_up is not None
            assert one.driver.output.length == 2, "its tokens come first"
            assert one.store.calls[-2:] == ["finish", "release"]
        elif reason in (FailureReason.INVALID, FailureReason.UNSUPPORTED):
            assert one.driver.output.error is not None
            assert one.store.calls[-1] == "pause"
        else:
            assert one.driver.output.error is None
            assert openings == ([1] if reason is FailureReason.CAPACITY else [1, 2])

    asyncio.run(test())


@led
async def test_a_session_whose_format_takes_too_much_says_so():
    one = Led().begin()
    one.driver.hear("v", Role.VERIFIER, SessionGone(5, 1, FailureReason.FORMAT_COST, "why"))
    assert one.driver.given_up is not None
    assert one.driver.given_up.costly


@led
async def test_prompt_scores_are_told_before_anything_is_generated():
    spec = scoring()
    rows = tuple(LogprobRow(-1.0) for _ in spec.prompt[1:])
    one = Led(spec)
    one.driver.begin()
    one.driver.hear("v", Role.VERIFIER, PromptScores(5, 0, 1, rows))
    assert one.driver.output.prompt_known == 0
    one.driver.hear("v", Role.VERIFIER, PromptScores(5, 1, 1, rows))
    one.driver.hear("v", Role.VERIFIER, SessionStarted(5, 1))
    assert one.driver.output.prompt_missing == 0
    assert one.recorder.performed(Release) == []


@pytest.mark.parametrize("said", ["nothing", "nonsense", "a step"])
def test_a_verifier_that_leaves_the_prompt_out_or_lies_is_left(said):
    async def test() -> None:
        one = Led(scoring())
        one.driver.begin()
        match said:
            case "nothing":
                one.driver.hear("v", Role.VERIFIER, SessionStarted(5, 1))
            case "nonsense":
                one.driver.hear("v", Role.VERIFIER, PromptScores(5, 1, 1, (LogprobRow(0.5),)))
            case _:
                one.take(7)
        assert one.recorder.performed(Release) == [Release(Role.VERIFIER, "v")]
        assert one.driver.state.committed == ()

    asyncio.run(test())


@led
async def test_states_reach_the_drafter_only_where_they_were_asked_for():
    one = Led().begin()
    one.driver.hear("v", Role.VERIFIER, TextStates(5, 1, 0, b"\0\0"))
    assert one.hub.sent(TextStates) == []


@pytest.mark.parametrize("error", [Fenced("another"), SessionAborted("over")])
def test_an_owner_that_the_store_refuses_emits_nothing_more(error):
    async def test() -> None:
        one = Led().begin().take(*THE_LAW[:2])
        await one.store.answer(error)
        assert one.driver.output.length == 0
        assert one.driver.output.ended
        assert (one.driver.output.error is None) is isinstance(error, SessionAborted)
        assert one.ended == [one.driver]
        assert one.hub.sent(EndSession)

    asyncio.run(test())


@led
async def test_handed_over_it_is_paused_behind_its_commits_and_free_of_workers():
    one = Led().begin().take(*THE_LAW[:2])
    one.take(7)
    paused = one.driver.hand_over(Draining("leaving"))
    assert one.store.calls[:3] == ["hold", "commit", "pause"]
    assert one.hub.sent(EndSession) == [EndSession(5), EndSession(5)]
    assert not paused.done()
    await one.store.answer()
    await one.store.answer()
    assert paused.done()
    assert len(one.recorder.performed(Persist)) == 1
    assert one.driver.output.length == 0


@led
async def test_its_deadline_stops_it_where_it_can_be_resumed():
    one = Led(limits=Limits(deadline=5.0)).begin().take(*THE_LAW[:2])
    one.take(THE_LAW[2])
    one.now = 5.0
    one.driver.wake()
    assert isinstance(one.driver.output.error, DeadlinePassed)
    assert one.store.calls == ["hold", "commit", "commit", "pause"]
    assert one.ended == [one.driver]


@led
async def test_its_deadline_passes_while_the_store_is_away_with_its_end():
    one = Led(sampled(temperature=0.0, max_tokens=3), limits=Limits(deadline=0.05))
    one.driver.now = asyncio.get_running_loop().time
    one.begin().take(*THE_LAW[:2]).take(THE_LAW[2])
    assert one.driver.state.phase is Phase.FINISHING
    one.driver.stood_still(0.01)
    with pytest.raises(DeadlinePassed):
        await one.read()
    # What was decided is there for whoever resumes it.
    assert one.store.calls == ["hold", "commit", "commit", "pause"]
    assert one.store.commits[-1][1][2].reason is FinishReason.LENGTH
    await one.store.answer()
    assert one.driver.output.length == 0


@led
async def test_its_timer_wakes_it():
    one = Led(limits=Limits(deadline=0.05))
    one.driver.now = asyncio.get_running_loop().time
    one.driver.begin()
    await asyncio.sleep(0)
    assert not one.driver.output.ended
    with pytest.raises(DeadlinePassed):
        await one.read()


@led
async def test_a_new_owner_goes_on_behind_what_is_stored():
    one = Led(sampled(temperature=0.0, max_tokens=4), committed=THE_LAW[:2]).begin()
    assert one.hub.sent(StartVerify)[0].output == THE_LAW[:2]
    assert one.driver.output.length == 2
    one.take(*THE_LAW[2:4], end=StepEnd.BONUS)
    await one.store.answer()
    assert (await one.read())[0] == [*THE_LAW[:4]]
    assert one.driver.state.config.mode is VerifyMode.GREEDY

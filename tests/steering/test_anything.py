"""Whatever is heard, in whatever order, the machine goes on by its rules and fails nowhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.steering import events, machine
from orchestrator.steering.config import Limits, Phase, SessionConfig
from orchestrator.steering.ports import StepFacts, Taken
from orchestrator.steering.state import new_session
from services.contract.frames import DraftName, StepEnd, StepRow, WaitReason
from services.contract.states import StateShape
from services.contract.types import LogprobRow, ResolvedSampling, Role, VerifyMode
from services.contract.worker_messages import TextStates
from tests.tries import tries

FEW = st.integers(0, 3)
TIMES = st.floats(0, 400)
NAMES = st.sampled_from(["v", "d", "other"])
ROLES = st.sampled_from(Role)


@st.composite
def steps(draw) -> events.StepsTaken:
    """Rows as the codec lets them through, of any opening and anywhere in the text."""
    taken = []
    for _ in range(draw(FEW)):
        judged = draw(st.lists(st.integers(0, 99), max_size=4).map(tuple))
        accepted = draw(st.integers(0, len(judged)))
        own = draw(st.booleans()) or not accepted
        tokens = judged[:accepted] + ((draw(st.integers(0, 99)),) if own else ())
        end = draw(st.sampled_from([StepEnd.RECOVERED, StepEnd.BONUS])) if own else StepEnd.NONE
        logprobs = draw(st.sampled_from([(), (LogprobRow(-1.0),), (LogprobRow(2.0),)]))
        row = StepRow(
            1, draw(FEW), draw(st.integers(0, 12)), tokens, accepted, judged, end=end,
            name=DraftName(draw(FEW), draw(FEW)), logprobs=logprobs,
            sources=bytes(draw(st.integers(0, 255)) for _ in judged),
        )  # fmt: skip
        taken.append(Taken(row, StepFacts(1, step_ms=draw(st.floats(0, 50)))))
    return events.StepsTaken(draw(TIMES), draw(NAMES), tuple(taken), draw(st.floats(0, 1)))


EVENTS = st.one_of(
    steps(),
    steps(),
    st.builds(events.Begin, TIMES),
    st.builds(
        events.WorkerAttached,
        TIMES,
        ROLES,
        NAMES,
        st.floats(0, 9),
        st.sampled_from([(), ("ngram",), ("model",)]),
    ),
    st.builds(events.Started, TIMES, ROLES, NAMES, FEW, FEW),
    st.builds(
        events.StatesTold, TIMES, NAMES, st.builds(TextStates, FEW, FEW, FEW, st.binary(max_size=9))
    ),
    st.builds(events.Waited, TIMES, NAMES, st.sampled_from(WaitReason)),
    st.builds(
        events.WorkerLost,
        *(TIMES, ROLES, NAMES, st.just("why"), st.booleans(), st.booleans()),
        st.one_of(st.none(), FEW),
    ),
    st.builds(events.Persisted, TIMES, st.integers(0, 9)),
    st.builds(events.Persisted, TIMES, st.integers(0, 9)),
    st.builds(events.Capped, TIMES, FEW),
    st.builds(events.Detached, TIMES),
    st.builds(events.Reattached, TIMES),
    st.builds(events.Tick, TIMES),
    st.builds(events.StoodStill, TIMES, st.floats(0, 9)),
)


@tries(400)
@given(
    mode=st.sampled_from(VerifyMode),
    heard=st.lists(EVENTS, max_size=40),
    asked=st.sampled_from([None, 0]),
)
def test_nothing_that_is_heard_breaks_a_rule(mode, heard, asked):
    config = SessionConfig(
        "s", (7,), mode, ResolvedSampling(max_tokens=20, stop_token_ids=(99,), logprobs=asked),
        seed=1, method="ngram,model", window=4, vocab_size=100, states=StateShape((0,), 2),
        limits=Limits(drafter_backoff=0.0),
    )  # fmt: skip
    state, _ = machine.step(new_session(config, 1), events.Begin(0.0))
    emitted, sent, openings, over = 0, 0, dict.fromkeys(Role, 0), False
    for event in heard:
        before = state
        state, actions = machine.step(state, event)
        machine.next_wake(state, event.at)
        assert state.committed[: len(before.committed)] == before.committed
        assert state.stored <= len(state.committed) <= 20
        assert state.limit >= before.limit
        assert not (over and actions), "a word behind the last one"
        for action in actions:
            match action:
                case events.Persist(commit):
                    assert commit.base_len == sent
                    sent += len(commit.token_ids)
                    told = sum(record.emitted_tokens for record in commit.records)
                    assert told == len(commit.token_ids) == len(commit.origins)
                case events.Emit(commit):
                    assert commit.base_len == emitted
                    emitted += len(commit.token_ids)
                    assert emitted <= sent
                case events.Start(role, _, message):
                    assert message.opening == openings[role] + 1
                    openings[role] = message.opening
                    assert message.output == state.committed
                case events.Finish() | events.Suspend():
                    over = True
        holds = state.verifier is not None or state.drafter is not None
        assert state.phase is Phase.RUNNING or not holds

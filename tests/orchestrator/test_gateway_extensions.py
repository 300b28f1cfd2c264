"""What a client says in the id of a gateway's request, or beside it; and which call is ended."""

import asyncio

import pytest
from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor.requests import (
    GenerationRequest,
    SamplingRequest,
    SpeculationRequest,
)
from orchestrator.frontdoor.vllm_gateway import extensions
from orchestrator.frontdoor.vllm_gateway.extensions import MOST_CHARACTERS, Extensions, read
from orchestrator.frontdoor.vllm_gateway.open_calls import ABORTED_WITHIN, OpenCalls
from orchestrator.session.ports import SessionKey
from services.contract.errors import InvalidRequest

UUID = "-01a21684-346c-748b-a10b-616f1b3c2229"
KEY, SESSION = SessionKey("a", "call"), SessionKey("a", "gateway/call")


@pytest.mark.parametrize(
    "plain", ["", "chatcmpl-1", "paceline", "a paceline(session=b)", "x" * 999]
)
def test_an_id_that_says_nothing_asks_for_nothing(plain):
    assert read(plain, ()) == Extensions() == read(plain, None)


@pytest.mark.parametrize("behind", ["", UUID, "-of-another-gateway"])
def test_an_id_names_a_session_and_how_to_draft_for_it(behind):
    said = read(f"paceline(session=a.b-p7:c; method=ngram,model){behind}", ())
    assert said == Extensions("a.b-p7:c", SpeculationRequest(method="ngram,model"))


def test_every_way_to_speculate_can_be_said():
    said = read(
        "paceline(method=ngram;num_speculative_tokens=4;num_candidates=2;"
        "rejection_sample_method=standard;disable_speculative_decoding=true)",
        (),
    )
    assert said.speculation == SpeculationRequest("ngram", 4, "STANDARD", True, 2)
    fields = pb.SpeculationParams.DESCRIPTOR.fields_by_name
    assert set(fields) == extensions.READERS.keys() - {"session", "min_tokens", "logit_bias"}


def test_sampling_that_a_gateway_drops_can_be_said():
    said = read("paceline(logit_bias=7:-100,0:2.5;min_tokens=3)", ())
    assert said.sampling == {"logit_bias": {7: -100.0, 0: 2.5}, "min_tokens": 3}
    request = GenerationRequest(prompt="b", sampling=SamplingRequest(max_tokens=4, min_tokens=1))
    expected = SamplingRequest(max_tokens=4, min_tokens=3, logit_bias={7: -100.0, 0: 2.5})
    assert said.added_to(request).sampling == expected
    assert read("paceline(min_tokens=2)", ()).added_to(request).sampling.max_tokens == 4


@pytest.mark.parametrize("behind", ["-p1", f"-p1{UUID}"])
def test_each_of_several_prompts_has_a_session_of_its_own(behind):
    assert read(f"paceline(session=a){behind}", ()).session == "a-p1"
    assert read(f"paceline(method=ngram){behind}", ()) == Extensions(
        None, SpeculationRequest(method="ngram")
    )


def test_metadata_says_the_same():
    beside = [
        ("x-paceline-session", "a"),
        ("x-paceline-num-speculative-tokens", "4"),
        ("other", "b"),
    ]
    assert read("chatcmpl-1", beside) == Extensions("a", SpeculationRequest(None, 4))
    assert read("paceline(method=ngram)", beside).speculation == SpeculationRequest("ngram", 4)


@pytest.mark.parametrize(
    ("request_id", "beside", "field"),
    [
        ("paceline(session=a", (), "request_id"),
        ("paceline((session=a))", (), "request_id"),
        ("paceline(nonsense=1)", (), "request_id or metadata"),
        ("paceline(session=a;session=a)", (), "session"),
        ("paceline(session=a)", [("x-paceline-session", "a")], "session"),
        ("paceline(num_speculative_tokens=many)", (), "speculation.num_speculative_tokens"),
        ("paceline(num_candidates=1" + "0" * 99 + ")", (), "speculation.num_candidates"),
        ("paceline(disable_speculative_decoding)", (), "speculation.disable_speculative_decoding"),
        ("paceline(" + "x" * MOST_CHARACTERS + ")", (), "request_id"),
        ("a", [("x-paceline-trace-bin", b"\xff")], "request_id or metadata"),
        ("paceline(min_tokens=-1)", (), "sampling.min_tokens"),
        ("paceline(logit_bias=7)", (), "sampling.logit_bias"),
        ("paceline(logit_bias=7:1,)", (), "sampling.logit_bias"),
        ("paceline(logit_bias=7:nan)", (), "sampling.logit_bias"),
        ("paceline(logit_bias=-1:1)", (), "sampling.logit_bias"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(request_id, beside, field):
    with pytest.raises(InvalidRequest) as caught:
        read(request_id, beside)
    assert caught.value.field == field
    assert len(str(caught.value)) < 500


def test_what_is_said_is_added_to_the_request():
    said = Extensions("a", SpeculationRequest("ngram"))
    made = said.added_to(GenerationRequest(prompt="b"))
    assert made == GenerationRequest("a", prompt="b", speculation=SpeculationRequest("ngram"))


class Noon:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ended():
    return []


@pytest.fixture
def clock():
    return Noon()


@pytest.fixture
def calls(ended, clock):
    def end(key):
        ended.append(key)
        return True

    return OpenCalls(end, clock)


async def test_an_abort_ends_the_session_of_an_open_call_and_of_no_other(calls, ended):
    async with calls.enter(KEY) as call:
        call.session = SESSION
        calls.abort(SessionKey("b", "call"))
        assert ended == []
        calls.abort(KEY)
    calls.abort(KEY)
    assert ended == [SESSION]


async def test_an_abort_before_the_session_is_there_ends_the_wait_for_it():
    calls = OpenCalls(lambda _: False)
    async with calls.enter(KEY) as call:
        call.session = SESSION
        calls.abort(KEY)
        await asyncio.sleep(60)


async def test_as_many_aborts_as_calls_of_an_id_end_each_of_them(calls, ended):
    other = SessionKey("a", "another session")
    async with calls.enter(KEY) as first, calls.enter(KEY) as second:
        first.session, second.session = SESSION, other
        calls.abort(KEY)
        calls.abort(KEY)
    assert ended == [SESSION, other]


async def test_a_client_that_leaves_ends_nobody_elses_call_of_its_id(calls, ended):
    """It may have chosen the id so, leave at any time, fail or come to its end."""
    async with calls.enter(KEY) as own:
        own.session = SESSION
        async with calls.enter(KEY):
            calls.abort(KEY)
        assert ended == []
        async with calls.enter(KEY):
            pass
        calls.abort(KEY)
        assert ended == []
        calls.abort(KEY)
    assert ended == [SESSION]


async def test_calls_of_named_sessions_leave_them(calls, ended):
    left = []

    async def reads(name: str) -> None:
        async with calls.enter(KEY):
            await asyncio.sleep(60)
        left.append(name)

    readers = [asyncio.create_task(reads(name)) for name in "ab"]
    await asyncio.sleep(0)
    calls.abort(KEY)
    await asyncio.sleep(0)
    assert left == []
    calls.abort(KEY)
    await asyncio.gather(*readers)
    assert (left, ended) == (["a", "b"], [])


async def test_an_abort_that_follows_a_failed_call_ends_no_other_of_its_id(calls, ended):
    async with calls.enter(KEY) as call:
        call.session = SESSION
        for _ in range(2):
            with pytest.raises(KeyError):
                async with calls.enter(KEY):
                    raise KeyError
        calls.abort(KEY)
        calls.abort(KEY)
        assert ended == []
        calls.abort(KEY)
    assert ended == [SESSION]


async def test_a_failure_of_long_ago_holds_up_no_abort_and_is_forgotten(calls, ended, clock):
    for key in (KEY, SessionKey("a", "other")):
        with pytest.raises(KeyError):
            async with calls.enter(key):
                raise KeyError
    clock.now = ABORTED_WITHIN + 1
    with pytest.raises(KeyError):
        async with calls.enter(SessionKey("a", "third")):
            raise KeyError
    assert len(calls._ended) == 1
    clock.now += ABORTED_WITHIN - 1
    for _ in range(2):
        with pytest.raises(KeyError):
            async with calls.enter(SessionKey("a", "third")):
                raise KeyError
        clock.now += ABORTED_WITHIN + 1
    assert [len(ends) for ends in calls._ended.values()] == [1]
    async with calls.enter(KEY) as call:
        call.session = SESSION
        calls.abort(KEY)
    assert ended == [SESSION]


async def test_a_timeout_of_the_call_itself_is_an_error_as_ever(calls):
    with pytest.raises(TimeoutError):
        async with calls.enter(KEY):
            raise TimeoutError

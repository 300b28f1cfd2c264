"""Sessions that a gateway's client named, and how it asks to draft for them."""

import asyncio
from typing import Any

import grpc
import pytest
from paceline import SessionStatus
from smg_grpc_proto.generated import vllm_engine_pb2 as engine

from orchestrator.steering.config import Limits
from tests.gateway.kit import (
    GREEDY,
    PROMPT_IDS,
    Answered,
    answered,
    asked,
    gateway_front,
    gateway_stub,
    stored_keys,
    until_free,
)
from tests.integration.cluster import (
    PATIENT,
    cluster,
    orchestrator,
    start_drafter,
    start_verifier,
)
from tests.integration.known import known_verifier, text
from tests.waiting import until

LASTING = Limits(detach_grace=500.0)
LONG = GREEDY | {"max_tokens": 300, "seed": 1}
NAMED = "paceline(session=night-7)"


@pytest.fixture
async def slow():
    """A verifier that says a known text, a token every few milliseconds."""
    async with cluster(
        [await known_verifier(2.0)], [], PATIENT, vllm_engine=True, limits=LASTING
    ) as made:
        yield made


@pytest.fixture
async def running():
    """A verifier and a drafter with tiny models."""
    drafters = [await start_drafter(seed=3)]
    async with cluster([await start_verifier()], drafters, PATIENT, vllm_engine=True) as made:
        yield made


async def ask(front: Any, name: str, stream: bool = True, beside: Any = None, **params: Any) -> Any:
    return await answered(front.Generate(asked(name, stream, **params), metadata=beside))


async def begun(front: Any, name: str) -> Any:
    """A long answer that has begun."""
    call = front.Generate(asked(name, **LONG))
    await call.read()
    return call


async def test_a_request_of_the_same_name_is_told_the_answer_again_and_computes_nothing(slow):
    async with gateway_stub(slow.address) as front:
        first = await ask(front, f"{NAMED}-01a2", **LONG)
        steps = slow.inference.live.totals().target_steps
        again = await ask(front, f"{NAMED}-03b4", **LONG)
        whole = await ask(front, NAMED, stream=False, **LONG)
    assert first.tokens == again.tokens == list(whole.end.output_ids) == text(1, 300)
    assert slow.inference.live.totals().target_steps == steps
    assert again.end.finish_reason == whole.end.finish_reason == "length"


@pytest.mark.parametrize("stream", [True, False])
async def test_log_probabilities_that_are_not_kept_are_refused_and_not_left_out(running, stream):
    async with gateway_stub(running.address) as front:
        first = await ask(front, NAMED, stream, **GREEDY, logprobs=1)
        told = await ask(front, NAMED, stream, **GREEDY, logprobs=1)
    assert first.error is None
    assert told.refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "sampling_params.logprobs: 'those of tokens that are told again" in told.refusal.message


async def test_the_session_is_one_of_our_own_api_with_that_name(slow):
    async with gateway_stub(slow.address) as front:
        await ask(front, NAMED, **LONG)
    known = await slow.client.get_session("night-7")
    assert (known.status, known.committed_tokens) == (SessionStatus.FINISHED, 300)
    ours = await slow.client.generate(tokens=PROMPT_IDS, request_id="night-7", **LONG)
    assert list(ours.token_ids) == text(1, 300)


async def test_other_content_under_a_name_is_refused_and_ends_nobodys_answer(slow):
    async with gateway_stub(slow.address) as front:
        call = await begun(front, NAMED)
        other = await ask(front, NAMED, **LONG | {"max_tokens": 299})
        # As smg does after every failure.
        await front.Abort(engine.AbortRequest(request_ids=[NAMED]))
        rest = await answered(call)
    assert other.refusal.code is grpc.StatusCode.ALREADY_EXISTS
    assert rest.end.output_ids == text(1, 300)


@pytest.mark.parametrize("leaves", ["by abort", "by its connection"])
async def test_a_client_that_left_comes_back_to_the_whole_of_its_answer(slow, leaves):
    async with gateway_stub(slow.address) as front:
        call = await begun(front, NAMED)
        if leaves == "by abort":
            await front.Abort(engine.AbortRequest(request_ids=[NAMED]))
            ended = await answered(call)
            assert (ended.complete, ended.error) == (None, None)
        else:
            call.cancel()
        await until(lambda: not slow.door.streams.total)
        assert slow.inference.active_sessions == 1
        back = await ask(front, NAMED, **LONG)
    assert back.tokens == text(1, 300)


async def test_a_session_that_nobody_came_back_to_is_kept_and_goes_on_later():
    brief = Limits(detach_grace=0.1)
    async with gateway_front([await known_verifier(2.0)], [], limits=brief) as (made, front):
        call = await begun(front, NAMED)
        call.cancel()
        await until_free(made)
        assert await stored_keys(made)
        back = await ask(front, NAMED, **LONG)
    assert back.tokens == text(1, 300)


async def test_a_drain_interrupts_it_and_the_same_request_is_answered_elsewhere(slow):
    async with gateway_stub(slow.address) as front:
        call = await begun(front, NAMED)
        await slow.inference.drain(5.0)
        cut = await answered(call)
    assert cut.refusal.message == "this orchestrator stops; send the request again"
    other = orchestrator("o2", slow.redis, slow.verifiers, [], PATIENT, None, vllm_engine=True)
    async with other as made, gateway_stub(made.address) as front:
        back = await ask(front, NAMED, **LONG)
    assert back.tokens == text(1, 300)


async def test_several_prompts_under_a_name_are_several_sessions(slow):
    async with gateway_stub(slow.address) as front:
        calls = (ask(front, f"{NAMED}-p{index}", **LONG) for index in range(2))
        answers = await asyncio.gather(*calls)
    assert [answer.tokens for answer in answers] == [text(1, 300)] * 2
    for index in range(2):
        assert (await slow.client.get_session(f"night-7-p{index}")).committed_tokens == 300


@pytest.mark.parametrize("name", ["", "a/b", "x" * 129, "gateway/a"])
async def test_a_name_that_no_session_can_have_is_refused(slow, name):
    async with gateway_stub(slow.address) as front:
        refusal = (await ask(front, f"paceline(session={name})", **LONG)).refusal
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.message.startswith("request_id: ")
    assert not await stored_keys(slow)


DRAFTS = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}


def drafted(answer: Answered) -> int:
    return answer.end.spec_draft_tokens


async def test_speculation_is_turned_off_by_the_id_or_beside_it(running):
    off = ("disable_speculative_decoding", "true")
    async with gateway_stub(running.address) as front:
        usual = await ask(front, "a", **DRAFTS)
        by_id = await ask(front, "paceline({}={})".format(*off), **DRAFTS)
        beside = [(f"x-paceline-{off[0].replace('_', '-')}", off[1])]
        by_metadata = await ask(front, "a", beside=beside, **DRAFTS)
    assert drafted(usual) > 0 == drafted(by_id) == drafted(by_metadata)
    assert usual.tokens == by_id.tokens == by_metadata.tokens


async def test_an_id_that_says_how_to_draft_may_be_that_of_many_requests(running):
    async with gateway_stub(running.address) as front:
        calls = (ask(front, "paceline(num_speculative_tokens=1)", **DRAFTS) for _ in range(3))
        answers = await asyncio.gather(*calls)
    assert len({tuple(answer.tokens) for answer in answers}) == 1
    totals = running.inference.live.totals()
    assert totals.draft_tokens == totals.spec_steps > 0


async def test_a_method_and_a_rule_are_those_of_our_own_api(running):
    async with gateway_stub(running.address) as front:
        served = await ask(
            front, "paceline(method=model;rejection_sample_method=standard)", **DRAFTS
        )
        unknown = await ask(front, "paceline(method=guess)", **DRAFTS)
        odd = await ask(front, "a", beside=[("x-paceline-rejection-sample-method", "x")], **DRAFTS)
    assert drafted(served) > 0
    assert unknown.refusal.message.startswith("speculation.method: 'guess' is not allowed")
    assert odd.refusal.message.startswith("speculation.rejection_sample_method: 'X' is not")


async def test_behind_an_answer_stands_what_became_of_its_drafts(running):
    async with gateway_stub(running.address) as front:
        call = front.Generate(asked("a", **DRAFTS))
        answer = await answered(call)
        behind = dict(await call.trailing_metadata())["x-paceline-acceptance"]
    figures = {name: float(value) for name, value in (one.split("=") for one in behind.split(";"))}
    accepted, proposed = answer.end.spec_accepted_tokens, answer.end.spec_draft_tokens
    assert figures["num_draft_tokens"] == proposed > 0
    assert figures["num_accepted_draft_tokens"] == accepted
    assert figures["draft_acceptance_rate"] == pytest.approx(accepted / proposed, abs=1e-4)
    assert figures["block_efficiency"] >= 1

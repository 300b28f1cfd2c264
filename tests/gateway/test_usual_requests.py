"""What usual clients of gateways send, or leave out, on one orchestrator with real workers."""

import pytest

from tests.gateway.kit import GREEDY, PROMPT_IDS, answered, asked, gateway_front, gateway_stub
from tests.integration.cluster import PATIENT, cluster, start_drafter, start_verifier
from tests.integration.known import bearer, door_of, known_verifier, text
from tests.integration.test_tenants_over_grpc import BETA, TENANTS
from tests.models import PAD, PAD_ID
from tests.waiting import until

CONTEXT = 512
NO_LENGTH = {"temperature": 0.0, "ignore_eos": True, "max_tokens": None}
SPECIAL = GREEDY | {"logit_bias": {PAD_ID: 100.0}, "stop": [PAD]}


@pytest.fixture
async def running():
    """A verifier and a drafter with tiny models."""
    workers = [await start_verifier()], [await start_drafter()]
    async with cluster(*workers, PATIENT, vllm_engine=True) as made:
        yield made


async def test_without_a_length_an_answer_goes_on_to_the_end_of_the_context(running):
    async with gateway_stub(running.address) as front:
        answer = await answered(front.Generate(asked(**NO_LENGTH)))
    assert answer.end.finish_reason == "length"
    assert answer.end.completion_tokens == CONTEXT - len(PROMPT_IDS)


async def test_without_a_length_an_answer_is_as_long_as_a_verifier_can_hold():
    small = await start_verifier(kv_capacity_tokens=256)
    async with gateway_front([small], []) as (_, front):
        answer = await answered(front.Generate(asked(**NO_LENGTH)))
    assert answer.end.finish_reason == "length"
    assert 128 < answer.end.completion_tokens <= 256 - len(PROMPT_IDS)


async def test_requests_without_a_length_do_not_keep_others_out():
    verifiers = [await known_verifier(5.0)]
    async with gateway_front(verifiers, [], max_tokens_in_flight=5_000) as (running, front):
        calls = [front.Generate(asked(f"r{seed}", seed=seed, **NO_LENGTH)) for seed in range(10)]
        await until(lambda: running.inference.active_sessions == 10)
        for call in calls:
            call.cancel()


async def test_what_a_tenant_may_have_in_flight_bounds_a_request_without_a_length(tmp_path):
    verifiers = [await known_verifier()]
    answers = []
    async with gateway_front(verifiers, [], door=door_of(tmp_path, TENANTS)) as (running, front):
        for n in (1, 2):
            call = front.Generate(asked(seed=1, n=n, **NO_LENGTH), metadata=bearer(BETA))
            answers.append(await answered(call))
            await until(lambda: not running.inference.active_sessions)
    alone, together = answers
    assert alone.tokens == text(1, 1000 - len(PROMPT_IDS))
    assert len(together.tokens) == 2 * (500 - len(PROMPT_IDS))


async def test_a_stop_string_that_is_a_special_token_ends_the_answer_there(running):
    ours = await running.client.generate(tokens=PROMPT_IDS, **SPECIAL)
    assert (ours.finish_reason, ours.text, ours.usage.completion_tokens) == ("stop", "", 1)
    async with gateway_stub(running.address) as front:
        theirs = await answered(front.Generate(asked(**SPECIAL)))
    assert (theirs.end.finish_reason, theirs.tokens) == ("stop", [PAD_ID])
    assert theirs.end.matched_stop_str == PAD


@pytest.mark.parametrize("cold", [1e-8, 1e-5])
async def test_a_temperature_near_zero_is_greedy(running, cold):
    async with gateway_stub(running.address) as front:
        answers = [
            await answered(front.Generate(asked(**GREEDY | {"temperature": heat})))
            for heat in (0.0, cold)
        ]
    assert answers[0].tokens == answers[1].tokens
    assert len(answers[0].tokens) == GREEDY["max_tokens"]

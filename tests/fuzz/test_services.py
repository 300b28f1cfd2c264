"""Any message to any method: every answer is a proper status, and nothing is left behind.

A short form of `make fuzz`. Seeded random messages find most per second; those that
hypothesis chooses shrink to the smallest that goes wrong.
"""

from random import Random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from paceline.v1 import inference_pb2
from paceline.worker.v1 import drafter_pb2, verifier_pb2
from smg_grpc_proto.generated import vllm_engine_pb2

from tests.fuzz.arena import Arena
from tests.fuzz.messages import arbitrary, mutated
from tests.fuzz.targets import INFERENCE, TARGETS, raw_bytes, some_calls
from tests.tries import tries

CHOICES = st.randoms(use_true_random=False)
GENERATE, RESUME = INFERENCE[:2]
EVERY_RPC = {
    f"/{module.package}.{service.name}/{method.name}"
    for module in (
        file.DESCRIPTOR
        for file in (
            inference_pb2,
            drafter_pb2,
            verifier_pb2,
            vllm_engine_pb2,
        )
    )
    for service in module.services_by_name.values()
    for method in service.methods
}


@pytest.fixture(scope="module")
def arena():
    with Arena() as running:
        yield running


@pytest.fixture(autouse=True)
def clean(arena):
    """After each test: nothing was wrong, and nothing is left."""
    yield
    arena.settle()
    assert arena.findings.wrong == []


def test_no_method_is_left_out():
    assert {target.path for target in TARGETS} == EVERY_RPC


@pytest.mark.parametrize("seed", range(3))
def test_random_messages_are_answered_properly(arena, seed):
    before = arena.findings.messages
    arena.fuzz(Random(seed), 800)
    assert arena.findings.messages >= before + 800


@tries(15, suppress_health_check=list(HealthCheck))
@given(CHOICES)
def test_chosen_messages_are_answered_properly(arena, random):
    arena.send(some_calls(random, 6))
    assert arena.findings.wrong == []


def test_bytes_that_are_no_http_leave_every_port_serving(arena):
    arena.knock([raw_bytes(Random(seed)) for seed in range(60)])


def test_a_session_that_is_started_and_resumed_at_once_has_one_owner(arena):
    calls = []
    for number in range(24):
        sampling = inference_pb2.SamplingParams(max_tokens=30, ignore_eos=True)
        start = inference_pb2.GenerateRequest(
            request_id=f"twice{number}", prompt="abc", sampling=sampling
        )
        resume = inference_pb2.ResumeRequest(session_id=start.request_id)
        calls.append((GENERATE, [start.SerializeToString()]))
        calls.append((RESUME, [resume.SerializeToString()]))
    arena.send(calls)


@tries(100)
@given(CHOICES)
def test_any_message_can_be_sent_and_its_bytes_can_be_damaged(random):
    target = random.choice(TARGETS)
    data = arbitrary(target.request, random).SerializeToString()
    assert target.request.FromString(data).SerializeToString() is not None
    assert isinstance(mutated(data, random, [data]), bytes)

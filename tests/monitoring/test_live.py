"""What alerts, dashboards and scalers ask has an answer in a cluster that runs."""

import asyncio
import os
import secrets
import signal
from collections.abc import Iterator

import grpc
import pytest
from paceline.v1 import inference_pb2 as pb

from tests.integration.known import read, stub
from tests.monitoring.expressions import Expression, in_dashboards, in_rules, in_scalers
from tests.monitoring.watched import Watched, says_something, watched

pytestmark = pytest.mark.processes

EXPRESSIONS = [*in_rules(), *in_dashboards(), *in_scalers()]
LONG = 4000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Watched]:
    with watched() as running:
        yield running


@pytest.fixture(scope="module")
def answers(cluster: Watched) -> dict:
    return cluster.answers([expression.promql for expression in EXPRESSIONS])


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
def test_an_expression_has_a_value_in_a_cluster_under_load(answers, expression: Expression):
    values = answers[expression.promql]
    assert says_something(values), f"{expression.promql} says {values}"


def test_a_cluster_that_is_well_is_seen_as_well(cluster: Watched):
    assert cluster.value('min(paceline_workers_connected{role="verifier"})') == 1
    assert cluster.value('min(paceline_workers_connected{role="drafter"})') == 1
    assert cluster.value("max(paceline_store_away_seconds)") == 0
    assert cluster.value("sum(paceline_fenced_writes_total)") == 0
    assert (
        cluster.value('sum(ALERTS{alertname=~"PacelineNo.*|PacelineStoreAway"} or vector(0))') == 0
    )


def test_a_session_that_another_orchestrator_takes_is_seen_as_fenced(cluster: Watched):
    first, second = cluster.orchestrators
    said, ended = asyncio.run(taken_over(first, second))
    assert said
    assert ended.code is grpc.StatusCode.ABORTED
    cluster.until("sum(paceline_fenced_writes_total)", lambda value: value >= 1)
    cluster.until('sum(paceline_session_errors_total{type="Fenced"})', lambda value: value >= 1)


async def taken_over(first: str, second: str):
    """A long session on one orchestrator, resumed at another: what it said, how it ended."""
    name = f"taken-{secrets.token_hex(4)}"
    asked = pb.GenerateRequest(
        request_id=name,
        conversation=pb.Conversation(messages=[pb.Message(role="user", content="taken")]),
        sampling=pb.SamplingParams(temperature=0.0, max_tokens=LONG, ignore_eos=True),
    )
    async with stub(first) as here, stub(second) as there:
        call, said = here.Generate(asked), []
        while len(said) < 20:
            said += (await call.read()).chunk.token_ids
        resumed = there.Resume(pb.ResumeRequest(session_id=name, offset=len(said)))
        await resumed.read()
        ended = await read(call)
        await there.Abort(pb.AbortRequest(session_id=name))
        return said, ended


def test_a_redis_that_stands_still_is_seen_as_away_until_it_is_back(cluster: Watched):
    assert cluster.redis.pid is not None
    os.kill(cluster.redis.pid, signal.SIGSTOP)
    try:
        cluster.until("min(paceline_store_away_seconds)", lambda value: value > 1)
    finally:
        os.kill(cluster.redis.pid, signal.SIGCONT)
    cluster.until("max(paceline_store_away_seconds)", lambda value: value == 0)


def test_drafters_and_verifiers_that_are_gone_are_missed(cluster: Watched):
    cluster.processes["drafter-1"].kill()
    cluster.until('max(paceline_workers_connected{role="drafter"})', lambda value: value == 0)
    cluster.until("count(ALERTS{alertname='PacelineNoDrafter'})", lambda value: value == 1)
    cluster.processes["verifier-1"].kill()
    cluster.until('max(paceline_workers_connected{role="verifier"})', lambda value: value == 0)
    cluster.until("count(ALERTS{alertname='PacelineNoVerifier'})", lambda value: value == 1)

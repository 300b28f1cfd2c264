"""A worker's servicer over real gRPC: hello, isolation, progress, bounds, drain."""

import asyncio

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from paceline.worker.v1 import drafter_pb2, drafter_pb2_grpc, verifier_pb2

from services.contract import types as t
from services.contract import wire
from services.contract.errors import Overloaded
from services.contract.worker_messages import EndSession, SessionStarted, StartDraft
from services.runtime.serving.links import Outbox
from tests.services.fakes import draft, start
from tests.services.link_kit import BUNDLE, Link, opened, worker
from tests.waiting import until


@pytest.fixture
async def served():
    async with worker() as served:
        yield served


async def test_a_draft_goes_there_and_its_step_comes_back():
    async with worker() as served:
        link = Link(served)
        await link.send(start(), draft(5, 6))
        assert await link.receive(SessionStarted) == [SessionStarted(1, 1)]
        assert await link.stepped() == {1: (5, 6)}
    assert served.status == 0


async def test_the_drafter_role_speaks_its_own_link():
    async with worker(t.Role.DRAFTER) as served:
        stub = drafter_pb2_grpc.DrafterServiceStub(served.channel)
        described = await stub.Describe(drafter_pb2.DrafterServiceDescribeRequest())
        assert wire.decode_description(described.worker).role is t.Role.DRAFTER
        call = stub.Link()
        mode, sampling = t.VerifyMode.GREEDY, t.ResolvedSampling()
        opening = StartDraft(1, 3, "s", 1, (1,), (), mode, sampling, 0, 8)
        await call.write(wire.DRAFTER_LINK.encode_request([opening], t.LinkHello("o1")))
        events = []
        while SessionStarted(1, 3) not in events:
            events += wire.DRAFTER_LINK.decode_response(await call.read())


async def test_a_link_without_hello_is_refused(served):
    link = Link(served, hello=None)
    await link.send(start())
    code, message = await link.ended()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "hello" in message
    assert served.core.handled == []


async def test_a_link_that_ends_before_its_hello_is_refused(served):
    link = Link(served)
    await link.call.done_writing()
    assert (await link.ended())[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("protocol", [0, 1, t.PROTOCOL + 1])
async def test_a_foreign_protocol_version_is_refused_with_both_versions(served, protocol):
    link = Link(served, t.LinkHello("o1", protocol))
    await link.send()
    code, message = await link.ended()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert f"{t.PROTOCOL} to {t.PROTOCOL}, the peer {protocol}" in message


async def test_a_second_hello_ends_the_link(served):
    link = Link(served)
    await link.send()
    link.hello = t.LinkHello("o1")
    await link.send()
    assert (await link.ended())[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_broken_link_frees_its_sessions_and_only_those(served):
    ours, theirs = await opened(served, 1), await opened(served, 2)
    ours.call.cancel()
    await until(lambda: {handle for _, handle in served.core.sessions} == {2})
    await theirs.send(draft(7, handle=2))
    assert await theirs.stepped() == {2: (7,)}


async def test_a_link_that_the_peer_ends_well_ends_well_and_frees_its_sessions(served):
    link = await opened(served)
    await link.call.done_writing()
    assert (await link.ended())[0] is grpc.StatusCode.OK
    await until(lambda: not served.core.sessions)


async def test_two_links_may_name_their_sessions_alike(served):
    links = [Link(served), Link(served)]
    for number, link in enumerate(links):
        await link.send(start(), draft(number))
    assert [await link.stepped() for link in links] == [{1: (0,)}, {1: (1,)}]


async def test_a_bad_message_ends_its_own_link_only(served):
    ours, theirs = await opened(served, 1), await opened(served, 2)
    bad = verifier_pb2.VerifierServiceLinkRequest()
    bad.drafts.add(handles=bytes(3))
    await ours.call.write(bad)
    code, message = await ours.ended()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "DraftFrame.handles" in message
    await theirs.send(draft(7, handle=2))
    assert await theirs.stepped() == {2: (7,)}
    assert {handle for _, handle in served.core.sessions} == {2}


async def test_progress_arrives_without_being_asked_for(served):
    link = Link(served)
    await link.send(start())
    first, *_, last = await link.receive(t.Progress, count=3)
    assert first.sessions in (0, 1)
    assert last.sessions == 1


async def test_progress_arrives_while_a_step_hangs_and_shows_that_steps_stand_still(served):
    served.core.gate.clear()
    link = await opened(served, 1, draft(1))
    reports = await link.receive(t.Progress, count=3)
    assert {report.steps for report in reports} == {0}
    assert reports[-1].queued_tokens == 1


async def test_describe_and_the_tokenizer_are_served(served):
    described = await served.stub.Describe(verifier_pb2.VerifierServiceDescribeRequest())
    assert wire.decode_description(described.worker).worker_id == "w1"
    call = served.stub.GetTokenizer(verifier_pb2.VerifierServiceGetTokenizerRequest())
    parts = [message.part async for message in call]
    assert len(parts) > 1
    assert wire.join_bundle(parts) == BUNDLE


async def test_a_verifier_without_a_tokenizer_says_so():
    async with worker(bundle=None) as served:
        call = served.stub.GetTokenizer(verifier_pb2.VerifierServiceGetTokenizerRequest())
        with pytest.raises(grpc.aio.AioRpcError, match="no tokenizer"):
            [part async for part in call]


async def health(served, name):
    stub = health_pb2_grpc.HealthStub(served.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
    return answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_stop_drains_what_is_open_before_it_ends():
    async with worker(grace=20.0) as served:
        link = await opened(served)
        assert await health(served, "readiness")
        served.stop.set()
        assert await link.receive(t.Draining) == [t.Draining(20_000)]
        names = ("", "readiness", "liveness")
        assert [await health(served, name) for name in names] == [False, False, True]
        assert served.drained == [served.address.result()]
        await link.send(draft(9))
        await link.stepped()
        await link.send(EndSession(1))
        assert (await link.ended())[0] is grpc.StatusCode.OK
    assert served.status == 0


async def test_a_link_that_opens_during_a_drain_is_told_at_once():
    async with worker(grace=20.0) as served:
        held, late = await opened(served), Link(served)
        served.stop.set()
        await held.receive(t.Draining)
        await late.send()
        await late.receive(t.Draining)
        held.call.cancel()


async def test_a_drain_ends_by_itself_when_its_time_is_over():
    async with worker(grace=0.05) as served:
        link = await opened(served)
        served.stop.set()
        assert (await link.ended())[0] is grpc.StatusCode.OK


async def test_a_crash_of_the_core_ends_links_and_process_with_an_error(served):
    link = Link(served)
    await link.send(start(), draft(666))
    error = await failure(link)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    status = rpc_status.from_call(error)
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status.details)
    async with asyncio.timeout(60):
        assert await served.task == 1


async def failure(link):
    try:
        while await link.call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    pytest.fail("the link ended well")


async def test_progress_tells_of_a_command_that_is_not_taken(served):
    served.core.gate.clear()
    link = await opened(served, 1, draft(1))
    await link.send(draft(2, number=2))
    told = t.Progress()
    while told.oldest_command_ms < 300:
        [told] = await link.receive(t.Progress)
    assert told.turn_ms >= 300
    served.core.gate.set()
    while told.stuck_ms:
        [told] = await link.receive(t.Progress)


async def test_an_outbox_keeps_the_newest_progress_only():
    outbox = Outbox()
    outbox.put(["a"])
    outbox.report(t.Progress(steps=1))
    outbox.report(t.Progress(steps=2))
    assert await outbox.take() == ["a", t.Progress(steps=2)]


async def test_an_outbox_above_half_its_limit_stops_the_reading_of_commands():
    outbox = Outbox(limit=4)
    outbox.put(["a", "b", "c"])
    reading = asyncio.create_task(outbox.low())
    await asyncio.sleep(0)
    assert not reading.done()
    await outbox.take()
    async with asyncio.timeout(60):
        await reading


async def test_an_outbox_above_its_limit_ends_the_link_and_keeps_nothing():
    outbox = Outbox(limit=4)
    outbox.put(["a"] * 5)
    with pytest.raises(Overloaded, match="does not read"):
        await outbox.take()


async def test_an_outbox_gives_what_waits_before_it_ends():
    outbox = Outbox()
    outbox.put(["last"])
    outbox.close()
    assert await outbox.take() == ["last"]
    assert await outbox.take() == []

"""Workers die, stall, drain and are cut off: a session pauses at most, its text stays.

Every call and every link shows a certificate. Processes that run a model take seconds to start,
so all of this is left to `make faults`, and CI runs that of this file.
"""

import asyncio
import signal
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paceline import Client, Unavailable

from testkit.chaos.health import infos
from testkit.chaos.listener import until
from testkit.chaos.site import DRAFTER, ORCHESTRATOR, VERIFIER, Layout
from tests.faults.conftest import served
from tests.faults.kit import WIRE_SECONDS, Site

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(900)]

WORKERS = pytest.mark.parametrize("role", [VERIFIER, DRAFTER])


@pytest.fixture(scope="module")
def shared(models: tuple[str, str]) -> Iterator[Site]:
    layout = Layout(*models, orchestrators=1, wire_seconds=WIRE_SECONDS, tls=True)
    with served(layout) as site:
        yield site


async def test_who_shows_no_certificate_is_not_served(site: Site):
    async with Client(site.cluster.addresses[0], resume=False) as stranger:
        with pytest.raises(Unavailable):
            await stranger.server_info(timeout=10)
    for worker in (member for member in site.cluster.members if member.role != ORCHESTRATOR):
        async with grpc.aio.insecure_channel(worker.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=10
                )


@WORKERS
async def test_a_worker_that_is_killed_changes_nothing_but_pace(site: Site, role: str):
    async with site.streams() as streams:
        (await site.in_use(role, streams)).kill()


@WORKERS
async def test_a_worker_that_stalls_is_left_and_may_come_back(site: Site, role: str):
    async with site.streams() as streams:
        victim = await site.in_use(role, streams)
        victim.send(signal.SIGSTOP)
        # It stands still until every stream has ended without it.
        await site.check(streams)
        victim.send(signal.SIGCONT)


@pytest.mark.parametrize("seconds", [4.0, 8.0])
async def test_an_orchestrator_that_stood_still_takes_no_worker_for_dead(site, seconds):
    [owner] = site.cluster.of(ORCHESTRATOR)
    async with site.streams() as streams:
        assert any(stream.running for stream in streams)
        known = len(owner.words())
        # Longer than a worker may be silent, and less than clients wait for an orchestrator.
        owner.send(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        owner.send(signal.SIGCONT)
        await site.check(streams)
    said = owner.words()[known:]
    assert "this process stood still for" in said
    assert "orchestrator.workers.link" not in said, "a link was given up"


@WORKERS
async def test_a_worker_behind_a_half_open_connection_is_left(site: Site, role: str):
    async with site.streams() as streams:
        victim = await site.in_use(role, streams)
        victim.proxy.half_open()
        await site.check(streams)
        victim.proxy.heal()


@WORKERS
async def test_a_link_that_is_cut_is_made_again(site: Site, role: str):
    async with site.streams() as streams:
        assert (await site.in_use(role, streams)).proxy.cut() > 0


@WORKERS
async def test_a_link_that_becomes_slow_only_takes_its_time(site: Site, role: str):
    async with site.streams() as streams:
        victim = await site.in_use(role, streams)
        victim.proxy.delay(0.3)
        heard = max(one.transcript.next for one in streams)
        await until(lambda: any(s.done or s.transcript.next > heard + 10 for s in streams))
        victim.proxy.heal()


@WORKERS
async def test_a_worker_that_drains_hands_its_sessions_over_and_ends_well(site: Site, role: str):
    async with site.streams() as streams:
        victim = await site.in_use(role, streams)
        assert victim.end(60) == 0
        info = (await infos(site.cluster))[0]
        assert [w for w in info.workers if w.worker_id == victim.name and w.connected] == []


async def test_without_any_verifier_sessions_wait_for_one(site: Site):
    async with site.streams() as streams:
        for verifier in site.cluster.of(VERIFIER):
            verifier.kill()
        assert any(stream.running for stream in streams)
        site.cluster.named("verifier-2").start()


async def test_sessions_survive_the_loss_of_every_worker_at_once(site: Site):
    async with site.streams() as streams:
        for role in (VERIFIER, DRAFTER):
            for worker in site.cluster.of(role):
                worker.kill()
                worker.start()
        assert any(stream.running for stream in streams)

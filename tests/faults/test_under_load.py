"""Streams without end, while every process is replaced, and while every fault strikes."""

import asyncio
from collections.abc import Iterator

import pytest
from paceline import Client

from testkit.chaos.faults import OF_MASTERS, kinds_on
from testkit.chaos.health import whole
from testkit.chaos.run import Chaos, ChaosPlan
from testkit.chaos.site import ALWAYS_DRAFT, Cluster, Layout
from testkit.chaos.store import CLUSTER, ONE, SENTINEL
from tests.faults.conftest import served
from tests.faults.kit import BY_CHANCE, CASES, HEARD, TOKENS, WIRE_SECONDS, Site

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(900)]

STREAMS = 8
FEW = 5
GRACE_SECONDS = 30.0
"""What a process may take to end: its own grace time, and a busy machine's."""


@pytest.fixture(scope="module")
def shared(models: tuple[str, str]) -> Iterator[Site]:
    with served(Layout(*models, wire_seconds=WIRE_SECONDS)) as site:
        yield site


async def _stream(site: Site, client: Client, number: int, ended: asyncio.Event) -> int:
    """Sessions one after another until told to end; how many."""
    done = 0
    while not ended.is_set():
        listener = site.new(CASES[(number + done) % len(CASES)]).ask(client)
        await listener.until(HEARD)
        await site.check([listener])
        done += 1
    return done


async def test_a_rolling_restart_under_load_drops_nothing(site: Site):
    ended = asyncio.Event()
    addresses = site.cluster.addresses
    clients = [Client(addresses), Client(addresses[::-1])]
    async with clients[0], clients[1], asyncio.TaskGroup() as group:
        streams = [
            group.create_task(_stream(site, clients[number % 2], number, ended))
            for number in range(STREAMS)
        ]
        for member in site.cluster.members:
            assert await asyncio.to_thread(member.end, GRACE_SECONDS) == 0
            member.start()
            await whole(site.cluster)
        ended.set()
    assert sum(stream.result() for stream in streams) >= STREAMS


async def test_a_few_faults_at_random_lose_double_and_change_no_token(site: Site):
    plan = ChaosPlan(seed=3, faults=FEW, sessions=8, at_once=4)
    outcome = await Chaos(site.cluster, (*CASES, *BY_CHANCE), plan).run()
    assert outcome.violations == []
    assert {len(one.token_ids) for one in outcome.drawn} == {TOKENS}
    assert outcome.counts.total() == FEW
    assert outcome.sessions >= plan.sessions


async def test_every_kind_of_fault_at_random_loses_doubles_and_changes_no_token(site: Site):
    plan = ChaosPlan(seed=7, faults=len(kinds_on(ONE)), sessions=12, at_once=6)
    outcome = await Chaos(site.cluster, (*CASES, *BY_CHANCE), plan).run()
    assert outcome.violations == []
    assert set(outcome.counts) == set(kinds_on(ONE))
    assert outcome.sessions >= plan.sessions


@pytest.mark.faults
@pytest.mark.parametrize("topology", [CLUSTER, SENTINEL])
def test_masters_that_fail_over_lose_nothing_that_a_replica_had_acknowledged(models, topology):
    flags = (*ALWAYS_DRAFT, "--store-replicas", "1")
    layout = Layout(*models, wire_seconds=WIRE_SECONDS, store=topology, orchestrator_flags=flags)
    plan = ChaosPlan(seed=7, faults=len(OF_MASTERS), sessions=8, at_once=4, kinds=tuple(OF_MASTERS))
    # The servers of a replicated store start before any event loop runs.
    with Cluster(layout) as cluster:
        outcome = asyncio.run(Chaos(cluster, (*CASES, *BY_CHANCE), plan).run())
    assert outcome.violations == []
    assert set(outcome.counts) == set(OF_MASTERS)

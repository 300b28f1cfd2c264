"""The session store restarts, crashes, stalls and is cut off: streams pause, nothing else."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from testkit.chaos.site import Layout
from tests.faults.conftest import served
from tests.faults.kit import WIRE_SECONDS, Site

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def shared(models: tuple[str, str]) -> Iterator[Site]:
    layout = Layout(*models, verifiers=1, drafters=1, wire_seconds=WIRE_SECONDS)
    with served(layout) as site:
        yield site


async def test_a_store_that_restarts_is_a_pause(site: Site):
    async with site.streams():
        site.cluster.store.restart()


async def test_a_store_that_crashes_has_kept_what_it_acknowledged(site: Site):
    async with site.streams():
        site.cluster.store.crash()


async def test_sessions_that_run_are_given_back_to_a_store_that_comes_back_empty(site: Site):
    async with site.streams():
        site.cluster.store.lose()


async def test_a_store_that_stands_still_is_a_pause_and_no_token_leaves_meanwhile(site: Site):
    async with site.streams() as streams:
        site.cluster.store.send(signal.SIGSTOP)
        # What was stored before may still be on its way to the callers.
        await asyncio.sleep(1.0)
        heard = [stream.transcript.next for stream in streams]
        await asyncio.sleep(2.0)
        assert [stream.transcript.next for stream in streams] == heard
        site.cluster.store.send(signal.SIGCONT)


async def test_a_store_that_is_full_for_a_moment_is_a_pause(site: Site):
    async with site.streams():
        for _ in range(3):
            with site.cluster.store.full():
                await asyncio.sleep(0.3)
            await asyncio.sleep(0.3)


async def test_connections_to_the_store_that_are_cut_are_made_again(site: Site):
    async with site.streams():
        assert site.cluster.store.proxy.cut() > 0


async def test_half_open_connections_to_the_store_are_given_up(site: Site):
    async with site.streams():
        site.cluster.store.proxy.half_open()
        await asyncio.sleep(1.0)
        site.cluster.store.proxy.heal()


async def test_a_store_that_is_far_away_only_takes_its_time(site: Site):
    async with site.streams() as streams:
        site.cluster.store.proxy.delay(0.1)
        await site.check(streams)


async def test_sessions_of_an_orchestrator_killed_while_the_store_was_away_go_on(site: Site):
    async with site.streams():
        site.cluster.store.send(signal.SIGSTOP)
        site.cluster.named("orchestrator-1").kill()
        await asyncio.sleep(0.5)
        site.cluster.store.send(signal.SIGCONT)

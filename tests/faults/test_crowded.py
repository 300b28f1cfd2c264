"""A machine with more to do than it can: everything is slow, and nobody takes that for death."""

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from paceline import Client, PacelineError

from testkit.chaos.site import ORCHESTRATOR, Layout
from tests.faults.conftest import served
from tests.faults.kit import Site

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(900)]

CLIENTS = 48
TOKENS = 300
ROUNDS = 2
BUSY = 2
RUNS_SECONDS = 0.7
STOPS_SECONDS = 2.3
"""More than a worker may be silent."""
_SPIN = "while True: pass"


@pytest.fixture(scope="module")
def shared(models: tuple[str, str]) -> Iterator[Site]:
    layout = Layout(*models, verifiers=1, drafters=1, orchestrators=1)
    with served(layout) as site:
        yield site


@contextmanager
def _busy_processes() -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


async def _ask(client: Client, seed: int) -> str:
    """How a plain call ends: in one word, or with the error's own."""
    try:
        whole = await client.generate(
            f"the small drafter rides ahead of number {seed}",
            temperature=0.8,
            seed=seed,
            max_tokens=TOKENS,
            ignore_eos=True,
        )
    except PacelineError as error:
        return f"{type(error).__name__}: {error}"
    return "whole" if len(whole.token_ids) == TOKENS else f"{len(whole.token_ids)} tokens"


async def _crowd(site: Site, rounds: int) -> Counter[str]:
    """How many calls ended how. Without the library's patience: who is refused says so."""
    ends: Counter[str] = Counter()
    async with Client(site.cluster.addresses, resume=False) as client:
        for number in range(rounds):
            seeds = range(number * CLIENTS, (number + 1) * CLIENTS)
            ends.update(await asyncio.gather(*(_ask(client, seed) for seed in seeds)))
    return ends


async def test_a_crowd_beside_busy_processes_ends_without_one_error(site: Site):
    [orchestrator] = site.cluster.of(ORCHESTRATOR)
    known = len(orchestrator.words())
    with _busy_processes():
        assert await _crowd(site, ROUNDS) == {"whole": ROUNDS * CLIENTS}
    assert "orchestrator.workers.link" not in orchestrator.words()[known:], "a link was given up"


async def test_an_orchestrator_that_runs_in_fits_and_starts_gives_up_nobody(site: Site):
    [orchestrator] = site.cluster.of(ORCHESTRATOR)
    known = len(orchestrator.words())
    crowd = asyncio.create_task(_crowd(site, 1))
    while not crowd.done():
        await asyncio.sleep(RUNS_SECONDS)
        orchestrator.send(signal.SIGSTOP)
        await asyncio.sleep(STOPS_SECONDS)
        orchestrator.send(signal.SIGCONT)
    assert await crowd == {"whole": CLIENTS}
    assert "orchestrator.workers.link" not in orchestrator.words()[known:], "a link was given up"

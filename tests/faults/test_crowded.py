"""A machine with more to do than it can: everything is slow, and nobody takes that for death."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from paceline import Client, PacelineError

from bench.chaos.site import ORCHESTRATOR, Layout
from tests.faults.conftest import served
from tests.faults.kit import Site

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(900)]

CLIENTS = 48
TOKENS = 300
ROUNDS = 2
BUSY = 2
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


async def test_a_crowd_beside_busy_processes_ends_without_one_error(site: Site):
    ends: Counter[str] = Counter()
    # Without the library's patience: who is refused says so.
    async with Client(site.cluster.addresses, resume=False) as client:
        with _busy_processes():
            for number in range(ROUNDS):
                seeds = range(number * CLIENTS, (number + 1) * CLIENTS)
                ends.update(await asyncio.gather(*(_ask(client, seed) for seed in seeds)))
    [orchestrator] = site.cluster.of(ORCHESTRATOR)
    assert ends == {"whole": ROUNDS * CLIENTS}
    assert "no message for" not in orchestrator.words(), "a worker was taken for dead"

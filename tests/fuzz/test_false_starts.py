"""A worker that cannot be one never gets a link, and says nothing twice."""

import asyncio
import re
from contextlib import asynccontextmanager

import pytest

from orchestrator.workers.link import LinkLimits
from orchestrator.workers.pool import WorkerPool
from services.contract import types as t
from services.contract.wire import tokenizer as tokenizer_wire
from tests.fuzz import liars


@asynccontextmanager
async def pool_of(address):
    pool = WorkerPool("o1", limits=LinkLimits(silence=60.0))
    pool.start()
    pool.set_addresses(t.Role.VERIFIER, [address])
    try:
        yield pool
    finally:
        await pool.close()


GOOD = liars.description()
BAD_STARTS = {
    "a description that cannot be parsed": (lambda: b"\xff\xff", liars.good_parts, "parsed"),
    "a description of nothing": (lambda: b"", liars.good_parts, "worker_id is empty"),
    "a name that forges log lines": (
        lambda: liars.description(worker_id="w1\nINFO all is well"),
        liars.good_parts,
        "printable",
    ),
    "a name without end": (
        lambda: liars.description(worker_id="w" * 10**6),
        liars.good_parts,
        "printable",
    ),
    "another role": (
        lambda: liars.description(role=t.Role.DRAFTER),
        liars.good_parts,
        "it is a drafter",
    ),
    "no vocabulary": (lambda: liars.description(vocab_size=0), liars.good_parts, "no model"),
    "no context": (
        lambda: liars.description(max_context_length=0),
        liars.good_parts,
        "no model",
    ),
    "protocols from the future": (
        lambda: liars.description(protocol_min=7, protocol_max=2**32 - 1),
        liars.good_parts,
        "speaks protocol",
    ),
    "a tokenizer that cannot be parsed": (lambda: GOOD, lambda: [b"\xff"], "parsed"),
    "a tokenizer of garbage": (
        lambda: GOOD,
        lambda: [liars.part(b"\x0a\x01f\x12\x05hello")],
        "tokenizer cannot be read",
    ),
    "a tokenizer cut short": (
        lambda: GOOD,
        lambda: [liars.good_parts()[0][:100]],
        "parsed|fit together",
    ),
    "an endless tokenizer": (
        lambda: GOOD,
        lambda: (liars.part(b"x" * 1000) for _ in range(10**9)),
        "larger than",
    ),
}


@pytest.mark.parametrize("start", BAD_STARTS)
async def test_a_worker_that_cannot_be_one_is_refused_in_one_line(start, monkeypatch):
    monkeypatch.setattr(tokenizer_wire, "MOST_BYTES", 1 << 20)
    described, tokenizer, complaint = BAD_STARTS[start]
    async with (
        liars.raw_verifier(described, tokenizer) as address,
        pool_of(address) as pool,
    ):
        async with asyncio.timeout(60):
            while not (problem := pool.links()[0].problem):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert re.search(complaint, problem)
        assert pool.target is None
        assert "\n" not in problem
        assert len(problem) < 500


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x0a\x00", b"\x0a\x04\x12\x02\x08\x01"])
async def test_a_message_that_cannot_be_read_ends_the_link(data):
    async with (
        liars.raw_verifier(lambda: GOOD, liars.good_parts, lambda: [data]) as address,
        pool_of(address) as pool,
    ):
        await pool.ready(60)
        async with asyncio.timeout(60):
            while pool.links()[0].up or not pool.links()[0].problem:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_worker_that_comes_back_as_another_is_not_taken_for_the_first():
    shown = [liars.description(), liars.description(tokenizer_fingerprint="another")]
    async with (
        liars.raw_verifier(
            lambda: shown.pop(0) if len(shown) > 1 else shown[0],
            liars.good_parts,
            lambda: [b"\xff"],
        ) as address,
        pool_of(address) as pool,
    ):
        await pool.ready(60)
        async with asyncio.timeout(60):
            while "is not that of the target" not in pool.links()[0].problem:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not pool.links()[0].up

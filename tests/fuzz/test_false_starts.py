"""A worker that cannot be one never gets a link, and says nothing twice."""

import re
from contextlib import asynccontextmanager

import pytest

from orchestrator.workers.link import LinkLimits
from orchestrator.workers.pool import WorkerPool
from services.contract import types as t
from services.contract.wire import tokenizer as tokenizer_wire
from tests.fuzz import liars
from tests.waiting import until


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
BAD_DESCRIPTIONS = {
    "a description that cannot be parsed": (b"\xff\xff", "parsed"),
    "a description of nothing": (b"", "worker_id is empty"),
    "a name that forges log lines": ({"worker_id": "w1\nINFO all is well"}, "printable"),
    "a name without end": ({"worker_id": "w" * 10**6}, "printable"),
    "another role": ({"role": t.Role.DRAFTER}, "it is a drafter"),
    "no vocabulary": ({"vocab_size": 0}, "no model"),
    "no context": ({"max_context_length": 0}, "no model"),
    "protocols from the future": (
        {"protocol_min": 7, "protocol_max": 2**32 - 1},
        "speaks protocol",
    ),
}
BAD_TOKENIZERS = {
    "a tokenizer that cannot be parsed": (lambda: [b"\xff"], "parsed"),
    "a tokenizer of garbage": (
        lambda: [liars.part(b"\x0a\x01f\x12\x05hello")],
        "tokenizer cannot be read",
    ),
    "a tokenizer cut short": (lambda: [liars.good_parts()[0][:100]], "parsed|fit together"),
    "an endless tokenizer": (
        lambda: (liars.part(b"x" * 1000) for _ in range(10**9)),
        "larger than",
    ),
}


@pytest.mark.parametrize("start", [*BAD_DESCRIPTIONS, *BAD_TOKENIZERS])
async def test_a_worker_that_cannot_be_one_is_refused_in_one_line(start, monkeypatch):
    monkeypatch.setattr(tokenizer_wire, "MOST_BYTES", 1 << 20)
    bad, complaint = BAD_DESCRIPTIONS.get(start) or BAD_TOKENIZERS[start]
    described = liars.description(**bad) if isinstance(bad, dict) else bad
    if start in BAD_TOKENIZERS:
        worker = liars.raw_verifier(lambda: GOOD, bad)
    else:
        worker = liars.raw_verifier(lambda: described, liars.good_parts)
    async with worker as address, pool_of(address) as pool:
        await until(lambda: pool.links()[0].problem)
        problem = pool.links()[0].problem
        assert re.search(complaint, problem)
        assert pool.target is None
        assert "\n" not in problem
        assert len(problem) < 500


HALF_A_HANDLE = b"\x0a\x04\x3a\x02\x01\x00"
TWO_OPENINGS_OF_ONE_HANDLE = b"\x0a\x10\x3a\x04\x01\x00\x00\x00\x42\x08" + bytes(8)


@pytest.mark.parametrize("data", [b"\xff\xff", HALF_A_HANDLE, TWO_OPENINGS_OF_ONE_HANDLE])
async def test_a_message_that_cannot_be_read_ends_the_link(data):
    async with (
        liars.raw_verifier(lambda: GOOD, liars.good_parts, lambda: [data]) as address,
        pool_of(address) as pool,
    ):
        await pool.ready(60)
        await until(lambda: pool.links()[0].problem and not pool.links()[0].up)


async def test_a_worker_that_comes_back_as_another_is_not_taken_for_the_first():
    shown = [liars.description(), liars.description(tokenizer_fingerprint="another")]
    describe = lambda: shown.pop(0) if len(shown) > 1 else shown[0]  # noqa: E731
    async with (
        liars.raw_verifier(describe, liars.good_parts, lambda: [b"\xff"]) as address,
        pool_of(address) as pool,
    ):
        await pool.ready(60)
        await until(lambda: "is not that of the target" in pool.links()[0].problem)
        assert not pool.links()[0].up

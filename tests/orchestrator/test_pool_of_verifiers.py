"""What the verifiers of one pool have to have in common, and what they tell of their steps."""

import re
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from orchestrator.workers.link import LinkLimits
from orchestrator.workers.pool import WorkerPool
from services.contract import types as t
from tests.fuzz import liars
from tests.waiting import until


def verifier(name: str, **described):
    answer = liars.description(worker_id=name, **described)
    return liars.raw_verifier(lambda: answer, liars.good_parts)


@asynccontextmanager
async def pool_of(*workers):
    """A pool that has connected to one worker after the other; it and their addresses."""
    pool = WorkerPool("o1", limits=LinkLimits(silence=60.0))
    pool.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(pool.close)
        addresses = []
        for worker in workers:
            addresses.append(await stack.enter_async_context(worker))
            pool.set_addresses(t.Role.VERIFIER, addresses)
            await pool.settle(60)
        yield pool, addresses


async def test_a_verifier_in_another_number_format_is_refused_in_one_sentence():
    first, other = verifier("v1", dtype="float32"), verifier("v2", dtype="bfloat16")
    async with pool_of(first, other) as (pool, _):
        up, refused = pool.links()
        assert (up.up, refused.up, pool.connected(t.Role.VERIFIER)) == (True, False, 1)
        said = "verifier v2 computes in bfloat16, and v1, which is here already, in float32"
        assert re.fullmatch(f"{said}: [^.\n]*", refused.problem)


@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), ("", "bfloat16"), ("float32", "")])
async def test_verifiers_of_one_format_and_older_ones_that_tell_none_are_taken(dtypes):
    workers = [verifier(f"v{n}", dtype=dtype) for n, dtype in enumerate(dtypes)]
    async with pool_of(*workers) as (pool, _):
        assert pool.connected(t.Role.VERIFIER) == 2


async def test_where_the_first_is_gone_one_in_another_format_is_taken():
    first, other = verifier("v1", dtype="float32"), verifier("v2", dtype="bfloat16")
    async with pool_of(first, other) as (pool, addresses):
        up, refused = pool.links()
        pool.set_addresses(t.Role.VERIFIER, addresses[1:])
        await up.close()
        await until(lambda: refused.up)

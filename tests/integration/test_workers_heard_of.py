"""An orchestrator knows how loaded its workers are, and forgets those that are gone."""

from services.contract.types import Role
from tests.integration.cluster import PATIENT, cluster
from tests.integration.known import known_verifier, read, request, stub
from tests.waiting import until


async def test_workers_are_counted_and_their_memory_is_heard_of_until_they_are_gone():
    verifier = await known_verifier(1.0)
    async with (
        cluster([verifier], [], PATIENT) as running,
        stub(running.address) as front,
    ):
        pool = running.pool
        assert (pool.connected(Role.VERIFIER), pool.connected(Role.DRAFTER)) == (1, 0)
        await read(front.Generate(request(1, 5)))
        await until(lambda: pool.reports(Role.VERIFIER)[0].steps)
        [progress] = pool.reports(Role.VERIFIER)
        assert progress.kv_tokens_capacity == verifier.host.progress().kv_tokens_capacity
        await verifier.kill()
        await until(lambda: not pool.connected(Role.VERIFIER))
        assert pool.reports(Role.VERIFIER) == []

"""What chaos does to a store with replicas: its faults lose what they should be able to lose."""

import asyncio
from collections.abc import Iterator

import pytest
from redis.asyncio import Redis

from testkit.chaos.faults import KINDS, OF_MASTERS, OF_ONE_SERVER, kinds_on
from testkit.chaos.store import CLUSTER, ONE, SENTINEL, TOPOLOGIES, ReplicatedStore, cut_off
from testkit.redis_servers import until

MASTERS = {CLUSTER: 3, SENTINEL: 1}


@pytest.fixture(params=MASTERS)
def store(request: pytest.FixtureRequest) -> Iterator[tuple[ReplicatedStore, int]]:
    made = ReplicatedStore(request.param)
    yield made, MASTERS[request.param]
    made.stop()


def test_a_master_lost_ahead_of_its_replica_takes_what_it_acknowledged_with_it(store):
    made, masters = store

    async def run():
        await made.settled()
        pairs = await made.pairs()
        assert len(pairs) == masters
        master, replica = pairs[0]
        kept, lost = await _keys_of(made, master)
        assert await _copies(master, kept, 5000) == 1
        with cut_off(replica):
            assert await _copies(master, lost, 200) == 0
            master.kill()
        await made.taken_over(replica)
        assert await replica.ask("EXISTS", kept) == 1
        assert await replica.ask("EXISTS", lost) == 0
        master.start()
        await made.settled()

        async def follows():
            return (replica, master) in await made.pairs()

        await until(follows, "the old master follows no other one")

    asyncio.run(run())


async def _copies(master, key, within_ms):
    """How many replicas have the key, once it is written.

    WAIT speaks of what its own connection wrote.
    """
    async with Redis(port=master.port, single_connection_client=True, **master.options) as client:
        await client.set(key, "1")
        return await client.execute_command("WAIT", 1, within_ms)


async def _keys_of(store, master):
    """Two keys that this master has."""
    names = [f"chaos-{number:05}" for number in range(60)]
    held = await store.sessions_of(master, names)
    first, second = sorted(held)[:2]
    return f"paceline:{{default/{first}}}:x", f"paceline:{{default/{second}}}:x"


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_kind_of_fault_strikes_where_it_can(topology):
    kinds = kinds_on(topology)
    left_out = OF_MASTERS if topology == ONE else OF_ONE_SERVER
    assert set(kinds) == KINDS.keys() - left_out.keys()

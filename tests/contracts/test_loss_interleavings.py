"""Whatever two owners do while the server falls back again and again to what it once had:
an acknowledged write finds exactly its owner's text, and the later owner wins.
"""

import asyncio
from dataclasses import dataclass, field
from itertools import count

from fakeredis import FakeServer
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.session.ports import SessionKey
from orchestrator.store.server_identity import ServerIdentity
from services.contract.errors import PacelineError
from services.contract.types import SessionStatus
from tests.contracts.backends import Backend
from tests.contracts.owners import Owner
from tests.tries import tries

NAMES = ("o1", "o2")
ACTIONS = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from(
        ["write"] * 5 + ["acquire", "save", "fall back"] * 3 + ["abort", "pause"],
    ),
    # Mostly of one length: two texts that depart are then often equally long.
    st.lists(st.integers(0, 9), min_size=1, max_size=1),
)


@dataclass
class Server:
    """A fake server that falls back to an earlier state, and shows that it did."""

    backend: Backend
    losses: int = 0
    saved: dict[bytes, bytes] = field(default_factory=dict)

    async def save(self) -> None:
        client = self.backend.client()
        self.saved = {key: await client.dump(key) for key in await self.backend.keys()}

    async def fall_back(self) -> None:
        client = self.backend.client()
        await client.flushall()
        for key, value in self.saved.items():
            await client.restore(key, 60_000, value)
        self.losses += 1


@dataclass
class World:
    """What must hold, by the model of the rules."""

    strongest: int = 0
    aborted: bool = False


async def act(server: Server, stores, owners, world: World, name: str, action: str, tokens) -> None:
    owner = owners.get(name)
    match action:
        case "write" if owner:
            await owner.write(*tokens)
            stored = await stores[name].get(owner.key)
            assert list(stored.committed) == owner.text
            assert (stored.term, stored.owner) == (owner.term, name)
            assert owner.term >= world.strongest
            assert not world.aborted
            world.strongest = owner.term
        case "acquire":
            if owner:
                owner.release()
            owners[name] = await Owner.take(stores[name], name, KEY_OF[id(server)])
            world.strongest = max(world.strongest, owners[name].term)
        case "pause" if owner:
            await stores[name].pause(owner.key, owner.term)
        case "abort":
            world.aborted = await stores[name].abort(KEY_OF[id(server)]) is SessionStatus.ABORTED
        case "save":
            await server.save()
        case "fall back":
            await server.fall_back()
            world.strongest, world.aborted = 0, False


KEY_OF: dict[int, SessionKey] = {}


async def play(server: Server, stores, key: SessionKey, actions) -> None:
    KEY_OF[id(server)] = key
    await server.backend.client().flushall()
    owners = {"o1": await Owner.create(stores["o1"], key=key)}
    server.saved = {}
    world = World(1)
    for name, action, tokens in actions:
        try:
            await act(server, stores, owners, world, name, action, tokens)
        except PacelineError:
            # Refused: what such an owner wrote last is nobody's.
            refused = owners.pop(name, None) if action in ("write", "pause") else None
            if refused:
                refused.release()
    for owner in owners.values():
        owner.release()


def test_owners_of_a_server_that_falls_back_never_mix_their_words(monkeypatch):
    backend, examples = Backend(fake=FakeServer()), count()
    server = Server(backend)

    async def ask(origin: ServerIdentity, _connection) -> None:
        origin.losses = server.losses

    monkeypatch.setattr(ServerIdentity, "ask", ask)

    async def two_stores():
        return {name: await backend.store() for name in NAMES}

    with asyncio.Runner() as runner:
        stores = runner.run(two_stores())

        @tries(100)
        @given(st.lists(ACTIONS, max_size=25))
        def play_on(actions):
            runner.run(play(server, stores, SessionKey("acme", str(next(examples))), actions))

        play_on()
        runner.run(backend.close())

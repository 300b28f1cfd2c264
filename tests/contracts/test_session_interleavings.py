"""Whatever two owners do, the text is a chain of accepted commits and only grows."""

import asyncio
from dataclasses import dataclass, field
from itertools import count

from fakeredis import FakeServer
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.session.ports import SessionKey, StoredSession
from services.contract.errors import Fenced, PacelineError
from services.contract.types import FinishReason, SessionStatus
from tests.contracts.backends import KEY, NEW, Backend
from tests.tries import tries

OWNERS = ("o1", "o2")
ACTIONS = st.tuples(
    st.sampled_from(OWNERS),
    st.sampled_from(
        ["commit", "commit", "commit", "stale", "repeat", "acquire", "pause", "finish", "abort"]
    ),
    st.lists(st.integers(0, 2**32 - 1), max_size=3),
)


@dataclass
class Owner:
    """What one orchestrator believes, and what it sent last."""

    name: str
    term: int = 1
    round: int = 0
    length: int = 0
    sent: tuple[int, int, int, list[int]] | None = None


@dataclass
class World:
    """The accepted commits, by the model of the rules rather than the store's."""

    text: list[int] = field(default_factory=list)
    term: int = 1
    ended: SessionStatus | None = None


async def act(store, key: SessionKey, world: World, owner: Owner, action: str, tokens: list[int]):
    owns = world.ended is None and owner.term == world.term
    match action:
        case "acquire":
            taken: StoredSession = await store.acquire(key, owner.name)
            world.term += world.ended is None
            assert taken.term == world.term
            if world.ended is None:
                owner.term, owner.length, owner.round = taken.term, taken.committed_len, 0
                owner.sent = None
        case "commit":
            owner.round += 1
            owner.sent = (owner.term, owner.round, owner.length, tokens)
            length = await store.commit(key, *owner.sent)
            assert owns
            world.text += tokens
            owner.length += len(tokens)
            assert length == owner.length
        case "repeat" if owner.sent:
            await store.commit(key, *owner.sent)
        case "stale":
            await store.commit(key, owner.term, owner.round + 1, owner.length - 1, [1])
            raise AssertionError("a commit before the end of the text was taken")
        case "pause":
            await store.pause(key, owner.term)
        case "finish":
            await store.finish(key, owner.term, owner.length, FinishReason.STOP)
            assert owner.term == world.term
            world.ended = world.ended or SessionStatus.FINISHED
        case "abort":
            world.ended = world.ended or SessionStatus.ABORTED
            assert await store.abort(key) is world.ended


async def play(stores, key: SessionKey, actions) -> None:
    await stores["o1"].create(key, NEW)
    world, owners = World(), {name: Owner(name) for name in OWNERS}
    owners["o2"].term = 0
    for name, action, tokens in actions:
        try:
            await act(stores[name], key, world, owners[name], action, tokens)
        except PacelineError:
            assert action not in ("acquire", "abort")
        stored = await stores["o1"].get(key)
        assert list(stored.committed) == world.text
        assert (stored.committed_len, stored.term) == (len(world.text), world.term)
        if world.ended:
            assert stored.status is world.ended


def test_two_owners_in_turn_leave_a_chain_of_accepted_commits():
    backend, examples = Backend(fake=FakeServer()), count()

    async def two_stores():
        return {name: await backend.store() for name in OWNERS}

    with asyncio.Runner() as runner:
        stores = runner.run(two_stores())

        @tries(100)
        @given(st.lists(ACTIONS, max_size=25))
        def chain(actions):
            runner.run(play(stores, SessionKey("acme", str(next(examples))), actions))

        chain()
        runner.run(backend.close())


async def race(store, name: str, accepted: list[tuple[int, tuple[int, ...]]]) -> None:
    """Acquire again and again; write three rounds at once each time."""
    for turn in range(12):
        try:
            taken = await store.acquire(KEY, name)
        except Fenced:
            continue
        base = taken.committed_len
        writes = []
        for round in (1, 2, 3):
            tokens = (taken.term, turn, round)
            writes.append((base, tokens, store.commit(KEY, taken.term, round, base, tokens)))
            base += 3
        for at, tokens, write in writes:
            try:
                await write
            except Fenced:
                continue
            accepted.append((at, tokens))
        await asyncio.sleep(0)


async def test_two_racing_owners_never_interleave_their_words(backend):
    stores = [await backend.store(), await backend.store()]
    await stores[0].create(KEY, NEW)
    accepted: list[tuple[int, tuple[int, ...]]] = []
    snapshots: list[tuple[int, ...]] = []

    async def watch() -> None:
        reader = await backend.store()
        while True:
            snapshots.append((await reader.get(KEY)).committed)
            await asyncio.sleep(0.001)

    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(race(store, str(i), accepted) for i, store in enumerate(stores)))
    watcher.cancel()
    text = (await stores[0].get(KEY)).committed
    assert sorted(accepted) == [(at, text[at : at + 3]) for at in range(0, len(text), 3)]
    assert all(text[: len(snapshot)] == snapshot for snapshot in snapshots)
    assert snapshots == sorted(snapshots, key=len)
    terms = text[::3]
    assert list(terms) == sorted(terms)

"""The kinds of faults, each a function of the scene; a deck deals them so that all occur."""

import asyncio
import random
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial

from testkit.chaos.listener import Listener, until
from testkit.chaos.member import Member
from testkit.chaos.proxy import Proxy
from testkit.chaos.scene import Leave, Scene
from testkit.chaos.site import DRAFTER, ORCHESTRATOR, ROLES, VERIFIER
from testkit.chaos.store import ONE, OneServer, ReplicatedStore, Store, cut_off
from testkit.redis_servers import Server

END_SECONDS = 60.0
"""What a process that is asked to end may take on a busy machine."""
NOTICE_SECONDS = 13.0
"""What the shortest notice leaves to a pod that has slept for 2 s in `preStop`."""

Act = Callable[[Scene, str], Awaitable[None]]
"""The scene, and the name of the fault."""


# --- processes ------------------------------------------------------------------------


async def killed(role: str, scene: Scene, kind: str) -> None:
    """SIGKILL, and started again."""
    member = await scene.pick(role)
    scene.strike(kind, scene.of(member))
    member.kill()
    member.start()


async def stalled(role: str, scene: Scene, kind: str) -> None:
    """SIGSTOP, and SIGCONT after a while."""
    member = await scene.pick(role)
    scene.strike(kind, scene.of(member))
    member.send(signal.SIGSTOP)
    await asyncio.sleep(scene.rng.uniform(0.5, 5.0))
    member.send(signal.SIGCONT)


async def drained(role: str, scene: Scene, kind: str) -> None:
    """SIGTERM; it must end well, and another takes its place."""
    member = await scene.pick(role)
    scene.strike(kind, scene.of(member))
    status = await _ended(member)
    if status != 0:
        scene.violations.append(f"{member.name} ended with {status} when it was to drain")
    member.start()


async def _ended(member: Member) -> int | None:
    """The status with which it ends, None if it had to be killed. Only waits in a thread."""
    try:
        return await asyncio.to_thread(member.end, END_SECONDS)
    except subprocess.TimeoutExpired:
        member.kill()
        return None


async def reclaimed(scene: Scene, kind: str) -> None:
    """A node with one of each role is taken back: SIGTERM, and SIGKILL when the notice is over."""
    members = [await scene.pick(role) for role in ROLES]
    met = {one.name: one for member in members for one in scene.of(member)}
    scene.strike(kind, met.values())
    scene.leaves += await asyncio.gather(*map(_left, members))
    for member in members:
        member.start()


async def _left(member: Member) -> Leave:
    began = time.monotonic()
    try:
        await asyncio.to_thread(member.end, NOTICE_SECONDS)
    except subprocess.TimeoutExpired:
        member.kill()
        return Leave(member.role, None)
    return Leave(member.role, time.monotonic() - began)


# --- the store ------------------------------------------------------------------------


async def store_restarted(scene: Scene, kind: str) -> None:
    """SIGTERM, and started again with its data."""
    scene.strike(kind, scene.running)
    _server(scene).restart()


async def store_crashed(scene: Scene, kind: str) -> None:
    """SIGKILL, and started again with its data."""
    scene.strike(kind, scene.running)
    _server(scene).crash()


async def store_stalled(scene: Scene, kind: str) -> None:
    """SIGSTOP for a while."""
    scene.strike(kind, scene.running)
    _server(scene).send(signal.SIGSTOP)
    await asyncio.sleep(scene.rng.uniform(0.5, 4.0))
    _server(scene).send(signal.SIGCONT)


async def store_full(scene: Scene, kind: str) -> None:
    """It is there, and refuses every write for a moment."""
    scene.strike(kind, scene.running)
    with _server(scene).full():
        await asyncio.sleep(0.3)


def _server(scene: Scene) -> OneServer:
    assert isinstance(scene.cluster.store, OneServer)
    return scene.cluster.store


# --- masters of a replicated store ----------------------------------------------------


async def master_killed(scene: Scene, kind: str) -> None:
    """SIGKILL; its replica takes over, and it comes back as that one's replica."""
    store, master, replica = await _pair(scene, kind)
    master.kill()
    await store.taken_over(replica)
    master.start()
    await store.settled()


async def master_stalled(scene: Scene, kind: str) -> None:
    """SIGSTOP until its replica has taken over; then it still takes itself for the master."""
    store, master, replica = await _pair(scene, kind)
    master.send(signal.SIGSTOP)
    await store.taken_over(replica)
    master.send(signal.SIGCONT)
    await store.settled()


async def master_handed_over(scene: Scene, kind: str) -> None:
    """The replica takes over in agreement with its master, as before maintenance."""
    store, _, replica = await _pair(scene, kind)
    await store.hand_over(replica)
    await store.settled()


async def master_lost_behind(scene: Scene, kind: str) -> None:
    """A replica loses its master for a while; then the master and an orchestrator are killed.

    What the master acknowledged meanwhile is nowhere, if it acknowledged anything.
    """
    store, master, replica = await _pair(scene, kind)
    owner = await scene.pick(ORCHESTRATOR)
    with cut_off(replica):
        await asyncio.sleep(scene.rng.uniform(0.2, 0.8))
        master.kill()
        owner.kill()
    owner.start()
    await store.taken_over(replica)
    master.start()
    await store.settled()


async def _pair(scene: Scene, kind: str) -> tuple[ReplicatedStore, Server, Server]:
    """A master and its replica; the sessions that it keeps are noted as struck."""
    store = scene.cluster.store
    assert isinstance(store, ReplicatedStore)
    await store.settled()
    master, replica = scene.rng.choice(await store.pairs())
    kept = await store.sessions_of(master, [one.name for one in scene.running])
    scene.strike(kind, [one for one in scene.running if one.name in kept])
    return store, master, replica


# --- wires ----------------------------------------------------------------------------


async def delayed(place: str, scene: Scene, kind: str) -> None:
    """Every byte takes longer for a while."""
    proxy = await _struck_wire(place, scene, kind)
    proxy.delay(scene.rng.uniform(0.05, 0.4))
    await asyncio.sleep(scene.rng.uniform(0.5, 2.0))
    proxy.heal()


async def cut(place: str, scene: Scene, kind: str) -> None:
    """Every connection ends by RST."""
    (await _struck_wire(place, scene, kind)).cut()


async def half_open(place: str, scene: Scene, kind: str) -> None:
    """Whatever is sent goes nowhere; old connections stay so.

    But those of clients are reset at the end, as by a router that comes back: a client
    that finds out by itself takes its ten seconds, and there are many faults to come.
    """
    proxy = await _struck_wire(place, scene, kind)
    proxy.half_open()
    await asyncio.sleep(scene.rng.uniform(0.5, 4.0))
    proxy.heal()
    if place == ORCHESTRATOR:
        proxy.cut()


async def _struck_wire(place: str, scene: Scene, kind: str) -> Proxy:
    """The proxy before a process there, whose sessions are noted as struck."""
    if place == Store.role:
        scene.strike(kind, scene.running)
        return _server(scene).proxy
    member = await scene.pick(place)
    scene.strike(kind, scene.of(member))
    return member.proxy


# --- callers --------------------------------------------------------------------------


async def caller_left(scene: Scene, kind: str) -> None:
    """A caller cancels its call without a word, and resumes a while later."""
    one = await _some(scene, lambda one: one.bare is not None)
    assert one.bare is not None
    scene.strike(kind, [one])
    one.bare.leave(scene.rng.uniform(0.1, 1.5))


async def taken_over(scene: Scene, kind: str) -> None:
    """A second caller resumes a session that another one still reads."""
    one = await _some(scene, lambda one: one.bare is None and one.second is None)
    one.take_over(scene.takeover_client(scene.rng.randrange(2)))
    scene.strike(kind, [one])


async def _some(scene: Scene, wanted: Callable[[Listener], bool]) -> Listener:
    """A running session of that sort, waited for."""
    await until(lambda: any(map(wanted, scene.running)))
    return scene.rng.choice([one for one in scene.running if wanted(one)])


def _everywhere() -> dict[str, Act]:
    kinds: dict[str, Act] = {}
    for role in ROLES:
        kinds[f"{role} SIGKILL"] = partial(killed, role)
        kinds[f"{role} SIGSTOP"] = partial(stalled, role)
        kinds[f"{role} SIGTERM"] = partial(drained, role)
    kinds["node reclaimed"] = reclaimed
    for place in (VERIFIER, DRAFTER, ORCHESTRATOR):
        kinds |= _of_wire(place, "client" if place == ORCHESTRATOR else place)
    kinds["caller leaves, resumes"], kinds["second resume"] = caller_left, taken_over
    return kinds


def _of_wire(place: str, name: str) -> dict[str, Act]:
    return {
        f"{name} wire delayed": partial(delayed, place),
        f"{name} wire cut": partial(cut, place),
        f"{name} wire half-open": partial(half_open, place),
    }


EVERYWHERE = _everywhere()
OF_ONE_SERVER: dict[str, Act] = {
    "store SIGTERM": store_restarted,
    "store SIGKILL": store_crashed,
    "store SIGSTOP": store_stalled,
    "store full": store_full,
    **_of_wire(Store.role, "store"),
}
OF_MASTERS: dict[str, Act] = {
    "master SIGKILL": master_killed,
    "master SIGSTOP": master_stalled,
    "master handed over": master_handed_over,
    "master ahead of its replica, and an orchestrator, SIGKILL": master_lost_behind,
}
KINDS = {**EVERYWHERE, **OF_ONE_SERVER, **OF_MASTERS}


def kinds_on(topology: str) -> list[str]:
    """What can strike a cluster whose store is of this topology."""
    return [*EVERYWHERE, *(OF_ONE_SERVER if topology == ONE else OF_MASTERS)]


def deck(rng: random.Random, kinds: Collection[str]) -> Iterator[str]:
    """Kinds without end: each once, in any order, then each once more."""
    while True:
        names = [name for name in KINDS if name in kinds]
        rng.shuffle(names)
        yield from names

"""The kinds of faults, each a function of the scene; a deck deals them so that all occur."""

import asyncio
import random
import signal
import subprocess
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial

from testkit.chaos.listener import Listener, until
from testkit.chaos.member import Member
from testkit.chaos.proxy import Proxy
from testkit.chaos.scene import Scene
from testkit.chaos.site import DRAFTER, ORCHESTRATOR, ROLES, VERIFIER
from testkit.chaos.store import Store

END_SECONDS = 60.0
"""What a process that is asked to end may take on a busy machine."""

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


# --- the store ------------------------------------------------------------------------


async def store_restarted(scene: Scene, kind: str) -> None:
    """SIGTERM, and started again with its data."""
    scene.strike(kind, scene.running)
    scene.cluster.store.restart()


async def store_crashed(scene: Scene, kind: str) -> None:
    """SIGKILL, and started again with its data."""
    scene.strike(kind, scene.running)
    scene.cluster.store.crash()


async def store_stalled(scene: Scene, kind: str) -> None:
    """SIGSTOP for a while."""
    scene.strike(kind, scene.running)
    scene.cluster.store.send(signal.SIGSTOP)
    await asyncio.sleep(scene.rng.uniform(0.5, 4.0))
    scene.cluster.store.send(signal.SIGCONT)


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
        return scene.cluster.store.proxy
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


def _every_kind() -> dict[str, Act]:
    kinds: dict[str, Act] = {}
    for role in ROLES:
        kinds[f"{role} SIGKILL"] = partial(killed, role)
        kinds[f"{role} SIGSTOP"] = partial(stalled, role)
        kinds[f"{role} SIGTERM"] = partial(drained, role)
    kinds["store SIGTERM"], kinds["store SIGKILL"] = store_restarted, store_crashed
    kinds["store SIGSTOP"] = store_stalled
    places = {VERIFIER: VERIFIER, DRAFTER: DRAFTER, Store.role: "store", ORCHESTRATOR: "client"}
    for place, name in places.items():
        kinds[f"{name} wire delayed"] = partial(delayed, place)
        kinds[f"{name} wire cut"] = partial(cut, place)
        kinds[f"{name} wire half-open"] = partial(half_open, place)
    kinds["caller leaves, resumes"], kinds["second resume"] = caller_left, taken_over
    return kinds


KINDS = _every_kind()


def deck(rng: random.Random, kinds: Collection[str] = ()) -> Iterator[str]:
    """Kinds without end, all or some: each once, in any order, then each once more."""
    while True:
        names = [name for name in KINDS if not kinds or name in kinds]
        rng.shuffle(names)
        yield from names

"""The pool: sessions by their handles, and events of many at a time."""

from dataclasses import replace

import pytest

from orchestrator.workers.placed import Placed
from orchestrator.workers.placement import Wanted
from orchestrator.workers.pool import WorkerPool
from services.contract.frames import DraftFrame, grants
from services.contract.types import (
    Draining,
    Progress,
    Role,
    WorkerDescription,
    local_capability,
    local_methods,
)
from services.contract.worker_messages import EndSession, SetWindow


class NotedLink:
    """A link that is up at once, and notes what is sent."""

    def __init__(self, address, role, _orchestrator, *, on_up, on_event, on_down, **_):
        self.address, self.role = address, role
        self.on_up, self.on_event, self.on_down = on_up, on_event, on_down
        self.description = described(role, address)
        self.worker_id = address
        self.progress, self.placed, self.assigned = Progress(), Placed(), set()
        self.up, self.draining, self.visit, self.problem = False, False, False, ""
        self.stuck_s = self.order = 0
        self.faulty = False
        self.sent = []

    def start(self):
        self.up = True

    def send(self, command):
        self.sent.append(command)

    def cut(self, reason):
        self.up = False
        self.on_down(self, reason)


def described(role, name):
    """Drafters offer the methods of their name; verifiers draft by them themselves."""
    methods = tuple(name.split("+"))
    if role is Role.DRAFTER:
        return WorkerDescription(name, role, methods=methods)
    return WorkerDescription(name, role, capabilities=tuple(map(local_capability, methods)))


class Heard:
    """Notes what the pool passes on."""

    def __init__(self):
        self.events, self.losses = [], []

    def on_event(self, worker, role, event):
        self.events.append((worker, role, event))

    def on_lost(self, worker, role, sessions, reason, *, faulty):
        self.losses.append((worker, role, sorted(sessions), reason, faulty))

    def on_worker_up(self):
        pass


@pytest.fixture
async def drafter():
    """A pool of one drafter, its link, and who hears its news."""
    pool, heard = WorkerPool("o", make_link=NotedLink), Heard()
    pool.attach(heard)
    return (pool, *await connected(pool, Role.DRAFTER, "model"), heard)


async def connected(pool, role, *names):
    before = pool.links()
    pool.set_addresses(role, [*(link.address for link in before if link.role is role), *names])
    links = [link for link in pool.links() if link not in before]
    for link in links:
        if role is Role.DRAFTER:
            await link.on_up(link)
        else:
            pool._by_worker[link.worker_id] = link
    return links


async def test_a_session_is_opened_and_closed_on_its_worker_by_its_handle(drafter):
    pool, link, _ = drafter
    pool.send("model", 7, SetWindow(7, 3))
    assert link.assigned == {7}
    pool.release("model", 7)
    pool.release("model", 7)
    pool.release("model", 8)
    assert link.sent == [SetWindow(7, 3), EndSession(7)]
    assert not link.assigned


async def test_what_concerns_many_sessions_assigns_none(drafter):
    pool, link, _ = drafter
    frame = grants([(7, 30)])
    pool.forward("model", frame)
    pool.forward("nobody", frame)
    assert (link.sent, link.assigned) == ([frame], set())


async def test_events_of_many_sessions_are_passed_on_whole(drafter):
    _, link, heard = drafter
    frame = DraftFrame()
    link.on_event(link, frame)
    assert heard.events == [("model", Role.DRAFTER, frame)]


@pytest.mark.parametrize(
    ("way", "faulty"),
    [("cut", False), ("cut", True), ("drains", False)],
    ids=["cut", "a fault", "drains"],
)
async def test_the_sessions_of_a_worker_that_is_gone_are_told_of_by_their_handles(
    drafter, way, faulty
):
    pool, link, heard = drafter
    for handle in (7, 9):
        pool.send("model", handle, SetWindow(handle, 3))
    link.faulty = faulty
    if way == "cut":
        pool.cut("model", "it lies")
        pool.cut("nobody", "it lies")
        pool.forward("model", DraftFrame())
        assert len(link.sent) == 2
    else:
        link.on_event(link, Draining(1000))
    reason = {"cut": "it lies", "drains": "it drains"}[way]
    assert heard.losses == [("model", Role.DRAFTER, [7, 9], reason, faulty)]


async def test_methods_are_offered_that_drafters_have_or_verifiers_themselves_or_both_together():
    pool = WorkerPool("o", make_link=NotedLink)
    await connected(pool, Role.DRAFTER, "model")
    await connected(pool, Role.DRAFTER, "graph")
    assert pool.methods() == ("model", "graph")
    await connected(pool, Role.VERIFIER, "ngram+eagle")
    assert pool.methods() == ("ngram", "eagle", "model", "graph")
    team = frozenset(("ngram", "eagle"))
    assert pool.teams() == {team, frozenset(("model",)), frozenset(("graph",))} | {
        team | {"model"},
        team | {"graph"},
    }


async def test_what_a_verifiers_own_methods_are_able_to_is_offered_like_that_of_a_drafter():
    pool = WorkerPool("o", make_link=NotedLink)
    [link] = await connected(pool, Role.VERIFIER, "ngram+eagle")
    own = ("eagle:tree", "ngram,eagle:estimates")
    others = ("tree", "other:tree", "ngram,other:estimates")
    able = (*link.description.capabilities, *own, *others)
    link.description = replace(link.description, capabilities=able)
    assert pool.capabilities() == {*own}
    assert pool.capabilities(Role.VERIFIER) == {*able}


async def test_no_drafter_is_placed_for_a_method_that_only_verifiers_have():
    pool = WorkerPool("o", make_link=NotedLink)
    await connected(pool, Role.VERIFIER, "ngram")
    await connected(pool, Role.DRAFTER, "model")
    assert pool.place(Wanted(Role.DRAFTER, methods=("ngram",))) is None
    placed = pool.place(Wanted(Role.VERIFIER))
    assert local_methods(placed.capabilities) == ("ngram",)

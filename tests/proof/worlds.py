"""A session and everything around it as one immutable value.

The machine, the drafter's session and the verifier's mailbox are the real ones; what hub and
workers do beside is said in the fewest words, and they have their own tests. Wires keep order and
lose nothing but by a death.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

from orchestrator.steering import events, machine
from orchestrator.steering.ports import StepFacts, Taken
from orchestrator.steering.state import State, new_session
from services.contract.frames import DraftRow, StepRow
from services.contract.types import Role
from services.contract.worker_messages import StartDraft, StartVerify
from services.drafter.hypotheses.session import HypothesisSession
from services.verifier.running.mailbox import Mailbox
from services.verifier.running.output import Output
from tests.proof.laws import Text
from tests.proof.stepping import PROMPT, Doing
from tests.services.loop_law import Frozen, frozen, thawed

WIRES = {name: index for index, name in enumerate(("place", ">v", "v>", ">d", "d>", "store"))}
HANDLE = 1


class Said(NamedTuple):
    """What a worker said, on its way to the orchestrator."""

    worker: str
    what: Any


@dataclass(frozen=True, slots=True)
class Verifier:
    """A verifier with the session, of which `doing` is the running step.

    `drafted`: it knows of a drafter.
    """

    name: str
    opening: int = 0
    text: Text = ()
    limit: int = 0
    box: Frozen = ()
    doing: Doing | None = None
    drafted: bool = True


@dataclass(frozen=True, slots=True)
class Drafter:
    """A drafter with the session, once it is open there."""

    name: str
    session: Frozen = ()


@dataclass(frozen=True)
class World:
    """Everything there is at one moment. `joined`: steps that the session has not taken yet."""

    state: State
    verifier: Verifier | None = None
    drafter: Drafter | None = None
    wires: tuple[tuple[Any, ...], ...] = ((),) * len(WIRES)
    joined: tuple[StepRow, ...] = ()
    stored: Text = ()
    emitted: Text = ()
    attached: int = 0
    finished: bool = False

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # What tells worlds apart almost always; a State has too many fields to hash them all.
        state, own, other = self.state, self.verifier, self.drafter
        text = own and (own.text, own.box, own.doing)
        counts = (state.rounds, self.attached, *map(len, self.wires), len(self.joined))
        return hash((state.committed, text, other and other.session, self.stored, *counts))

    def but(self, **changes: Any) -> World:
        """This world with some changes: `replace`, four times as fast."""
        world = object.__new__(World)
        world.__dict__.update(self.__dict__)
        world.__dict__.pop("_hash", None)
        world.__dict__.update(changes)
        return world

    def on(self, wire: str) -> tuple[Any, ...]:
        """What is on a wire, the oldest first."""
        return self.wires[WIRES[wire]]

    def put(self, wire: str, *messages: Any) -> World:
        """Add messages to a wire."""
        return self.rewired(wire, (*self.on(wire), *messages))

    def taken(self, wire: str) -> World:
        """Without the oldest message of a wire."""
        return self.rewired(wire, self.on(wire)[1:])

    def rewired(self, wire: str, messages: tuple[Any, ...]) -> World:
        """With other messages on a wire."""
        at = WIRES[wire]
        return self.but(wires=(*self.wires[:at], messages, *self.wires[at + 1 :]))


# --- the orchestrator -------------------------------------------------------------


def feed(world: World, event: events.Event) -> World:
    """Let the machine hear an event, and do what it asks for."""
    state, actions = machine.step(world.state, event)
    world = world.but(state=state)
    for action in actions:
        world = _perform(world, action)
    return world


def _perform(world: World, action: events.Action) -> World:
    match action:
        case events.NeedWorker(role):
            return world if role in world.on("place") else world.put("place", role)
        case events.Start(role, _, message):
            return world.put(">v" if role is Role.VERIFIER else ">d", message)
        case events.Grant() | events.SetDraftedFor():
            return world.put(">v", action)
        case events.Persist(commit):
            return world.put("store", commit)
        case events.Emit(commit):
            assert commit.base_len + len(commit.token_ids) <= len(world.stored)
            return world.but(emitted=world.emitted + commit.token_ids)
        case events.Release(role, _):
            return _without(world, role)
        case events.Finish():
            return world.but(finished=True)
    raise AssertionError(f"{action} is not expected here")


def _without(world: World, role: Role) -> World:
    gone: dict[str, Any] = {role.value: None}
    return world.rewired(">v" if role is Role.VERIFIER else ">d", ()).but(**gone)


def take(world: World) -> World:
    """The session takes the steps that were joined for it."""
    rows, attached = world.joined, world.state.verifier
    if not rows or attached is None:
        return world.but(joined=())
    taken = tuple([Taken(row, StepFacts(1)) for row in rows])
    return feed(world.but(joined=()), events.StepsTaken(0.0, attached.worker, taken))


def attach(world: World, role: Role, name: str) -> World:
    """Placement gives a worker, to which the session is told with all that was received."""
    worker: Any = Verifier(name) if role is Role.VERIFIER else Drafter(name)
    world = take(world).but(attached=world.attached + 1, **{role.value: worker})
    return feed(world, events.WorkerAttached(0.0, role, name))


def heard(world: World, role: Role, said: Said) -> World:
    """The hub hands drafts to the verifier and steps to the drafter; others are the session's."""
    attached = world.state.verifier if role is Role.VERIFIER else world.state.drafter
    if attached is None or attached.worker != said.worker:
        return world
    match said.what:
        case DraftRow():
            return world.put(">v", said.what) if world.state.verifier is not None else world
        case StepRow() as row:
            if row.opening != attached.opening:
                return world
            world = world.but(joined=(*world.joined, row))
            return world.put(">d", row) if world.state.drafter is not None else world
        case opening:
            return feed(take(world), events.Started(0.0, role, said.worker, opening))


# --- the workers ------------------------------------------------------------------


def told_verifier(world: World, message: Any) -> World:
    """What a verifier does with a message; what comes during a step is put in behind it."""
    own = world.verifier
    assert own is not None
    match message:
        case StartVerify():
            box = frozen(Mailbox(message.first_drafts))
            own = Verifier(own.name, message.opening, message.output, message.limit, box)
            own = replace(own, drafted=message.drafted_for)
            return world.but(verifier=own).put("v>", Said(own.name, message.opening))
        case DraftRow() if own.doing is not None:
            doing = own.doing._replace(came=(*own.doing.came, message))
            return world.but(verifier=replace(own, doing=doing))
        case DraftRow():
            box = put(own.box, own.text, message)
            return world.but(verifier=replace(own, box=box))
        case events.SetDraftedFor(_, drafted):
            return world.but(verifier=replace(own, drafted=drafted))
        case events.Grant(limit):
            return world.but(verifier=replace(own, limit=max(own.limit, limit)))
    raise AssertionError(message)


@cache
def output_of(text: Text) -> Output:
    """An output, of which nothing here makes another one."""
    return Output([*PROMPT, *text], len(PROMPT))


def put(box: Frozen, text: Text, draft: DraftRow) -> Frozen:
    """A draft comes into a mailbox behind an output."""
    mailbox: Mailbox = thawed(Mailbox, box)
    mailbox.put(draft, output_of(text), 0.0)
    return frozen(mailbox)


def stepped(world: World, tokens: Text, box: Frozen) -> World:
    """A step has brought these tokens: they are told of, whatever becomes of the verifier."""
    own = world.verifier
    assert own is not None
    brought = StepRow(HANDLE, own.opening, len(own.text), tokens, len(tokens), tokens)
    own = replace(own, text=own.text + tokens, box=box, doing=None)
    return world.but(verifier=own).put("v>", Said(own.name, brought))


def told_drafter(world: World, message: StartDraft | StepRow) -> World:
    """What a drafter does with a message."""
    own = world.drafter
    assert own is not None
    if isinstance(message, StartDraft):
        own = Drafter(own.name, frozen(HypothesisSession(message)))
        return world.but(drafter=own).put("d>", Said(own.name, message.opening))
    if not own.session:
        return world
    session: HypothesisSession = thawed(HypothesisSession, own.session)
    session.take(message.position, message.tokens)
    return world.but(drafter=replace(own, session=frozen(session)))


# --- deaths -----------------------------------------------------------------------


def kill(world: World, role: Role, *, late: bool = False) -> World:
    """A worker dies, or, `late`, is given up and what it said last still arrives."""
    worker = world.verifier if role is Role.VERIFIER else world.drafter
    if worker is None:
        return world
    if not late:
        world = world.rewired("v>" if role is Role.VERIFIER else "d>", ())
    # A session knows of everything that was received before it hears that a worker failed.
    world = take(world)
    return feed(_without(world, role), events.WorkerLost(0.0, role, worker.name))


def restart(world: World) -> World:
    """The orchestrator dies; another one resumes what is stored, in a new term."""
    session = replace(world.state.config, term=world.state.config.term + 1)
    state = new_session(session, HANDLE, world.stored)
    fresh = World(state, stored=world.stored, emitted=world.stored, attached=world.attached)
    return feed(fresh, events.Begin(0.0))

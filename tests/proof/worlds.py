"""A session and everything around it as one immutable value.

What the workers do here is what the protocol asks of them, in the fewest words; the
real ones have their own tests. Wires keep order and lose nothing but by a death.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from orchestrator.core import events, rounds
from orchestrator.core.drafts import slice_chain
from orchestrator.core.state import State

from services.contract.types import CommitDraft, Draft, DraftTree, OpenVerify, Role, Verdict, Verify
from tests.proof.laws import Fate, Text

WIRES = {name: index for index, name in enumerate(("place", ">v", "v>", ">d", "d>", "store"))}


@dataclass(frozen=True, slots=True)
class Verifier:
    """A verifier with the session: its text, and the last verdict it gave."""

    name: str
    text: Text = ()
    last: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Drafter:
    """A drafter with the session; `held` is what it drew and has not sent.

    `ended`: it draws no more until it hears of a verdict.
    """

    name: str
    epoch: int = 0
    known: int = 0
    window: int = 0
    text: Text = ()
    held: tuple[Draft, ...] = ()
    ended: bool = False


@dataclass(frozen=True)
class World:
    """Everything there is at one moment."""

    state: State
    verifier: Verifier | None = None
    drafter: Drafter | None = None
    wires: tuple[tuple[Any, ...], ...] = ((),) * len(WIRES)
    stored: Text = ()
    emitted: Text = ()
    attached: int = 0
    finished: bool = False

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # What tells worlds apart almost always; a State has too many fields to hash them all.
        state, texts = self.state, (worker and worker.text for worker in self.workers)
        counts = (state.epoch, state.next_round, self.attached, *map(len, self.wires))
        return hash((state.committed, state.speculated, *texts, self.stored, *counts))

    @property
    def workers(self) -> tuple[Verifier | None, Drafter | None]:
        """Both, as far as they are there."""
        return self.verifier, self.drafter

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


# --- the machine ------------------------------------------------------------------


def feed(world: World, event: events.Event) -> World:
    """Let the machine hear an event, and do what it asks for."""
    state, actions = rounds.step(world.state, event)
    world = world.but(state=state)
    for action in actions:
        world = _perform(world, action)
    return world


def _perform(world: World, action: events.Action) -> World:
    match action:
        case events.NeedWorker(role):
            return world if role in world.on("place") else world.put("place", role)
        case events.OpenOnWorker(_, message):
            return world.put(">v" if isinstance(message, OpenVerify) else ">d", message)
        case events.SendVerify(_, message):
            return world.put(">v", message)
        case events.SendToDrafter(_, message):
            return world.put(">d", message)
        case events.Persist(commit):
            return world.put("store", commit)
        case events.Emit(commit):
            assert commit.base_len + len(commit.token_ids) <= len(world.stored)
            return world.but(emitted=world.emitted + commit.token_ids)
        case events.Release(role, _):
            return _without(world, role)
        case events.Finish():
            return world.but(finished=True)
        case events.Suspend():
            raise AssertionError("a session of these tests never waits for the client")
    return world


def _without(world: World, role: Role) -> World:
    gone: dict[str, Any] = {role.value: None}
    return world.rewired(">v" if role is Role.VERIFIER else ">d", ()).but(**gone)


# --- deaths -----------------------------------------------------------------------


def kill(world: World, role: Role, *, late: bool = False) -> World:
    """A worker dies, or, `late`, is given up and what it said last still arrives."""
    worker = world.verifier if role is Role.VERIFIER else world.drafter
    if worker is None:
        return world
    if not late:
        world = world.rewired("v>" if role is Role.VERIFIER else "d>", ())
    return feed(_without(world, role), events.WorkerLost(0.0, role, worker.name))


def restart(world: World) -> World:
    """The orchestrator dies; another one resumes what is stored, in a new term."""
    session = replace(world.state.config, term=world.state.config.term + 1)
    state = rounds.new_session(session, world.state.policy, world.stored)
    fresh = World(state, stored=world.stored, emitted=world.stored, attached=world.attached)
    return feed(fresh, events.Begin(0.0))


# --- the workers ------------------------------------------------------------------


def fitting(own: Verifier, block: Verify) -> tuple[int, DraftTree] | None:
    """Where a block starts and what of it is left to verify; None if it does not fit."""
    base, tree, last = block.base_len, block.tree, own.last
    if block.extends_round:
        if last is None or last.round != block.extends_round or not last.all_accepted:
            return None
        if len(last.token_ids) > last.accepted:
            if tree.token_ids[:1] != last.token_ids[-1:]:
                return None
            base, tree = base + 1, slice_chain(tree, 1, len(tree))
    return (base, tree) if base == len(own.text) else None


def spell(block: Verify, base: int, tree: DraftTree, fate: Fate) -> Iterator[tuple[float, Verdict]]:
    """The verdicts of one fate: over the tokens that may follow what it accepts."""
    tokens = tree.token_ids[: fate.accepted]
    own = (block.session, block.epoch, block.round, base, tokens)
    verdict = Verdict(*own, fate.accepted, fate.all_accepted, draft_tokens=len(tree))
    if fate.all_accepted and not block.want_bonus and tree.token_ids:
        yield fate.weight, verdict
        return
    for token, mass in enumerate(fate.law):
        if mass > 0:
            yield fate.weight * mass, verdict._replace(token_ids=(*tokens, token))


def answered(world: World, verdict: Verdict) -> World:
    """The verifier keeps a verdict and sends it."""
    own = world.verifier
    assert own is not None
    own = replace(own, text=own.text + verdict.token_ids, last=verdict)
    return world.but(verifier=own).put("v>", events.VerdictArrived(0.0, own.name, verdict))


def told(own: Drafter, commit: CommitDraft) -> Drafter:
    """A drafter rolls back to the common prefix; a higher epoch voids its whole tail."""
    if commit.epoch < own.epoch:
        return own
    end = commit.base_len + len(commit.token_ids)
    assert commit.base_len <= own.known <= end, "a commit was lost on the way"
    committed = own.text[: commit.base_len] + commit.token_ids
    if commit.epoch == own.epoch and own.text[:end] == committed:
        return replace(own, known=end, ended=False)
    return Drafter(own.name, commit.epoch, end, own.window, committed)

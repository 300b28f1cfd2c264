"""The law of a session's text, worked out exactly: the real machine in a tree of worlds.

A schedule says, over and over, whose turn it is. A turn is certain, or it branches over
the draws of a worker, each branch with its probability. Equal worlds are one world, so
the law of the text is a sum over few of them. The clock stands still: what is decided by
waiting is decided by the policy that is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.steering import events
from orchestrator.steering.config import SessionConfig
from orchestrator.steering.state import new_session
from services.contract.types import Role
from services.drafter.hypotheses.session import HypothesisSession
from services.drafter.protocol import Proposed
from services.verifier.running.mailbox import Mailbox
from tests.proof.laws import Text, texts
from tests.proof.setups import SCHEDULES, Habits, Policy, Restless, session
from tests.proof.stepping import PROMPT, Doing
from tests.proof.worlds import (
    HANDLE,
    Said,
    World,
    attach,
    feed,
    heard,
    kill,
    stepped,
    take,
    told_drafter,
    told_verifier,
)
from tests.services.loop_law import frozen, thawed

Branches = Sequence[tuple[float, World]]
Probabilities = NDArray[np.float64]
ENOUGH_WORKERS = 4


class Cluster:
    """All worlds of one session under one schedule."""

    def __init__(
        self, config: SessionConfig, policy: Policy, schedule: str, habits: Habits
    ) -> None:
        self.config, self.policy, self.habits = config, policy, habits
        self.schedule = SCHEDULES[schedule].split()
        sampling = config.sampling
        every = list(texts(sampling.max_tokens, sampling.stop_token_ids, habits.target))
        self.index = {text: place for place, (text, _) in enumerate(every)}
        self.target: Probabilities = np.array([weight for _, weight in every])
        self._turns: Mapping[str, Callable[[World], Branches]] = {
            "v?": partial(self._dice, Role.VERIFIER),
            "d?": partial(self._dice, Role.DRAFTER),
            "place": self._place,
            ">v": partial(self._deliver, ">v", told_verifier),
            "v": self._step,
            "v>": partial(self._hear, "v>", Role.VERIFIER),
            ">d": partial(self._deliver, ">d", told_drafter),
            "d": self._draft,
            "send": self._send,
            "d>": partial(self._hear, "d>", Role.DRAFTER),
            "take": self._take,
            "store": self._store,
        }
        self._worlds: dict[World, World] = {}
        self._laws: dict[tuple[World, int], Probabilities] = {}
        self._branches: dict[tuple[World, str], Branches] = {}

    # --- laws -----------------------------------------------------------------------

    def first(self) -> World:
        """The session begins."""
        return feed(World(new_session(self.config, HANDLE)), events.Begin(0.0))

    def law(self, world: World, slot: int = 0) -> Probabilities:
        """The law of the whole text from this world on, in the order of `index`."""
        if world.finished:
            return self._certain(world)
        slot = self._next_slot(world, slot)
        known = self._laws.get((world, slot))
        if known is None:
            known = np.zeros(len(self.index))
            for weight, then in self.turn(world, slot):
                known += weight * self.law(then, slot + 1)
            self._laws[world, slot] = known
        return known

    def sweep(self) -> Iterator[tuple[int, dict[World, float]]]:
        """Slot by slot, the worlds there may be and their probabilities.

        Those that the caller takes out are not followed, nor those that are finished.
        """
        worlds, slot = {self.first(): 1.0}, 0
        while worlds:
            yield slot, worlds
            after: dict[World, float] = {}
            for world, weight in worlds.items():
                if not world.finished:
                    for chance, then in self.turn(world, slot) or ((1.0, world),):
                        after[then] = after.get(then, 0.0) + weight * chance
            worlds, slot = after, slot + 1

    def struck(
        self, hits: Callable[[World], bool], strike: Callable[[World], World]
    ) -> Probabilities:
        """The law if every world is struck the first time that `hits` says so."""
        total = np.zeros(len(self.index))
        for slot, worlds in self.sweep():
            for world, weight in list(worlds.items()):
                if world.finished:
                    total += weight * self._certain(world)
                elif hits(world):
                    total += worlds.pop(world) * self.law(self._same(strike(world)), slot)
        return total

    def struck_at_each_slot(self, strike: Callable[[World], World]) -> Iterator[Probabilities]:
        """The laws if all worlds are struck at one moment, for every moment there is."""
        done, strike = np.zeros(len(self.index)), cache(strike)
        for slot, worlds in self.sweep():
            alive = {world: weight for world, weight in worlds.items() if not world.finished}
            for world in worlds.keys() - alive.keys():
                done += worlds[world] * self._certain(world)
            yield done + sum(
                w * self.law(self._same(strike(world)), slot) for world, w in alive.items()
            )

    def distance(self, law: Probabilities) -> float:
        """The total variation between a law and the target's."""
        return 0.5 * float(np.abs(law - self.target).sum())

    # --- turns ----------------------------------------------------------------------

    def turn(self, world: World, slot: int) -> Branches:
        """Where whoever's turn it is may take the world; empty if it has nothing to do."""
        name = self.schedule[slot % len(self.schedule)]
        known = self._branches.get((world, name))
        if known is None:
            act = self._all if name.endswith("*") else self._one
            known = [(chance, self._same(then)) for chance, then in act(name, world)]
            self._branches[world, name] = known
        return known

    def _one(self, name: str, world: World) -> Branches:
        return self._turns[name](world)

    def _all(self, name: str, world: World) -> Branches:
        """As often as there is something; no wire branches."""
        done: Branches = ()
        while branches := self._turns[name[:-1]](world):
            [(_, world)] = done = branches
        return done

    def _same(self, world: World) -> World:
        """The one of equal worlds: comparing it with itself costs nothing."""
        return self._worlds.setdefault(world, world)

    def _next_slot(self, world: World, slot: int) -> int:
        """The next slot in which something happens."""
        for later in range(slot, slot + len(self.schedule)):
            if self.turn(world, later):
                return later % len(self.schedule)
        raise AssertionError("nobody has anything to do, and the text has not ended")

    def _certain(self, world: World) -> Probabilities:
        assert world.emitted == world.stored, "what was stored is what was emitted"
        law = np.zeros(len(self.index))
        law[self.index[world.stored]] = 1.0
        return law

    def _dice(self, role: Role, world: World) -> Branches:
        """One worker in three dies, as long as there are others."""
        if world.attached >= ENOUGH_WORKERS:
            return ()
        return ((2 / 3, world), (1 / 3, kill(world, role)))

    def _place(self, world: World) -> Branches:
        if not (roles := world.on("place")):
            return ()
        role = roles[0]
        return ((1.0, attach(world.taken("place"), role, f"{role.value}{world.attached + 1}")),)

    def _store(self, world: World) -> Branches:
        if not (commits := world.on("store")):
            return ()
        commit = commits[0]
        assert commit.base_len == len(world.stored), "stored in order, each token once"
        world = world.taken("store").but(stored=world.stored + commit.token_ids)
        return ((1.0, feed(world, events.Persisted(0.0, commit.record.round))),)

    def _take(self, world: World) -> Branches:
        return ((1.0, take(world)),) if world.joined else ()

    def _hear(self, wire: str, role: Role, world: World) -> Branches:
        if not (said := world.on(wire)):
            return ()
        return ((1.0, heard(world.taken(wire), role, said[0])),)

    def _deliver(self, wire: str, tell: Callable[[World, Any], World], world: World) -> Branches:
        if not (messages := world.on(wire)):
            return ()
        return ((1.0, tell(world.taken(wire), messages[0])),)

    def _step(self, world: World) -> Branches:
        """A step begins, or it ends."""
        own, stepping = world.verifier, self.habits.stepping
        if own is None or not own.opening:
            return ()
        if own.doing is not None:
            ends = self.habits.judged(stepping, own.text, own.doing)
            return [(weight, stepped(world, tokens, box)) for weight, tokens, box in ends]
        sampling = stepping.sampling
        ended = len(own.text) >= min(own.limit, sampling.max_tokens)
        if ended or (own.text[-1:] and own.text[-1] in sampling.stop_token_ids):
            return ()
        box: Mailbox = thawed(Mailbox, own.box)
        # Nobody drafts beyond the end.
        full = len(own.text) + max(1, len(box)) >= sampling.max_tokens
        whole = box.final or full or not own.drafted
        size = self.policy(len(box), whole=whole)
        if size is None:
            return ()
        return ((1.0, world.but(verifier=replace(own, doing=Doing(own.box, size)))),)

    def _draft(self, world: World) -> Branches:
        own = world.drafter
        if own is None or not own.session:
            return ()
        drafting: HypothesisSession = thawed(HypothesisSession, own.session)
        if not drafting.due:
            return ()
        text = tuple(drafting.text[len(PROMPT) :])
        return [
            (mass, self._drew(world, proposed))
            for mass, proposed in self._proposals(drafting, text)
        ]

    def _proposals(
        self, drafting: HypothesisSession, text: Text
    ) -> Iterator[tuple[float, Proposed]]:
        habits = self.habits
        if habits.trees is not None:
            for mass, tree in habits.trees(text, drafting.room):
                yield mass, Proposed(tree, final=True)
            return
        for token, mass in enumerate(habits.law(text)):
            if mass > 0:
                yield mass, Proposed(habits.tree(text, token), final=habits.ends(token))

    def _drew(self, world: World, proposed: Proposed) -> World:
        own = world.drafter
        assert own is not None
        drafting: HypothesisSession = thawed(HypothesisSession, own.session)
        drafting.absorb(proposed)
        return world.but(drafter=replace(own, session=frozen(drafting)))

    def _send(self, world: World) -> Branches:
        own = world.drafter
        if own is None or not own.session:
            return ()
        drafting: HypothesisSession = thawed(HypothesisSession, own.session)
        if drafting.tail_length and self.habits.holds(drafting.text[-1]) and drafting.due:
            return ()
        if (row := drafting.taken()) is None:
            return ()
        world = world.but(drafter=replace(own, session=frozen(drafting)))
        return ((1.0, world.put("d>", Said(own.name, row))),)


def cluster(
    habits: Habits, schedule: str = "ahead", policy: Policy | None = None, **more: Any
) -> Cluster:
    """A session of `session(...)` and everything that may become of it."""
    config = session(habits.stepping, **more)
    return Cluster(config, policy or Restless(), schedule, habits)


def error(worlds: Cluster) -> float:
    """The total variation between the law of the text and the target's."""
    return worlds.distance(worlds.law(worlds.first()))


def check_every_moment(
    worlds: Cluster, strikes: Mapping[str, Callable[[World], World]], most: float
) -> None:
    """Whatever strikes, and whenever: the law stays as near to the target's."""
    for name, strike in strikes.items():
        for moment, law in enumerate(worlds.struck_at_each_slot(strike)):
            assert worlds.distance(law) < most, f"{name} in slot {moment}"

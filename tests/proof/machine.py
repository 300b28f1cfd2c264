"""The law of a session's text, worked out exactly: the real round machine in a tree of worlds.

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
from orchestrator.core import rounds
from orchestrator.core.events import (
    Begin,
    DraftArrived,
    Persisted,
    WorkerAttached,
)
from orchestrator.core.events import WorkerOpened as Opened
from orchestrator.core.pacing import Policy

from orchestrator.steering.config import SessionConfig
from services.contract import types
from tests.proof.laws import texts
from tests.proof.setups import SCHEDULES, Habits, Restless, session
from tests.proof.worlds import Drafter, Verifier, World, answered, feed, fitting, kill, spell, told

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
            "v?": partial(self._dice, types.Role.VERIFIER),
            "d?": partial(self._dice, types.Role.DRAFTER),
            "place": self._place,
            ">v": self._to_verifier,
            "v>": partial(self._to_machine, "v>"),
            ">d": self._to_drafter,
            "d>": partial(self._to_machine, "d>"),
            "d": self._draft,
            "store": self._store,
        }
        self._worlds: dict[World, World] = {}
        self._laws: dict[tuple[World, int], Probabilities] = {}
        self._branches: dict[tuple[World, str], Branches] = {}

    # --- laws -----------------------------------------------------------------------

    def first(self) -> World:
        """The session begins."""
        return feed(World(rounds.new_session(self.config, self.policy)), Begin(0.0))

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
            known = [(chance, self._same(then)) for chance, then in self._turns[name](world)]
            self._branches[world, name] = known
        return known

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

    def _to_machine(self, wire: str, world: World) -> Branches:
        if not (events := world.on(wire)):
            return ()
        return ((1.0, feed(*self.habits.deliver(world.taken(wire), events[0]))),)

    def _dice(self, role: types.Role, world: World) -> Branches:
        """One worker in three dies, as long as there are others."""
        if world.attached >= ENOUGH_WORKERS:
            return ()
        return ((2 / 3, world), (1 / 3, kill(world, role)))

    def _place(self, world: World) -> Branches:
        if not (roles := world.on("place")):
            return ()
        role, count = roles[0], world.attached + 1
        name = f"{role.value}{count}"
        world = world.taken("place").but(attached=count)
        if role is types.Role.VERIFIER:
            world = world.but(verifier=Verifier(name))
        else:
            world = world.but(drafter=Drafter(name))
        return ((1.0, feed(world, WorkerAttached(0.0, role, name))),)

    def _store(self, world: World) -> Branches:
        if not (commits := world.on("store")):
            return ()
        commit = commits[0]
        assert commit.base_len == len(world.stored), "stored in order, each token once"
        world = world.taken("store").but(stored=world.stored + commit.token_ids)
        return ((1.0, feed(world, Persisted(0.0, commit.record.round))),)

    def _to_verifier(self, world: World) -> Branches:
        if not (messages := world.on(">v")):
            return ()
        world, own, message = world.taken(">v"), world.verifier, messages[0]
        if isinstance(message, types.OpenVerify):
            world = world.but(verifier=replace(own, text=message.committed))
            opened = Opened(0.0, types.Role.VERIFIER, own.name, message.epoch)
            return ((1.0, world.put("v>", opened)),)
        return [
            (weight, answered(world, verdict)) for weight, verdict in self._decide(own, message)
        ]

    def _decide(self, own: Verifier, block: types.Verify) -> Iterator[tuple[float, types.Verdict]]:
        fits = fitting(own, block)
        if fits is None:
            yield 1.0, types.Verdict("s", block.epoch, block.round, block.base_len, discarded=True)
            return
        for fate in self.habits.rule(own.text, fits[1], self.config.mode):
            yield from spell(block, *fits, fate)

    def _to_drafter(self, world: World) -> Branches:
        if not (messages := world.on(">d")):
            return ()
        world, own = world.taken(">d"), world.drafter
        match messages[0]:
            case types.OpenDraft() as opening:
                text = opening.committed
                own = Drafter(own.name, opening.epoch, len(text), opening.window, text)
                world = world.put("d>", Opened(0.0, types.Role.DRAFTER, own.name, opening.epoch))
            case types.CommitDraft() as commit:
                own = told(own, commit)
            case types.Credit() as credit:
                own = replace(own, window=credit.window, ended=False)
        return ((1.0, world.but(drafter=own)),)

    def _draft(self, world: World) -> Branches:
        own, limit = world.drafter, self.config.sampling.max_tokens
        if own is None or not own.epoch or own.ended:
            return ()
        if len(own.text) >= min(limit, own.known + own.window):
            return ()
        law = enumerate(self.habits.law(own.text))
        return [(mass, self._drew(world, own, token)) for token, mass in law if mass > 0]

    def _drew(self, world: World, own: Drafter, token: int) -> World:
        ended, tree = self.habits.ends(token), self.habits.tree(own.text, token)
        prefix = types.extend_hash(types.EMPTY_HASH, own.text)
        draft = types.Draft("s", own.epoch, own.known, len(own.text), prefix, tree, final=ended)
        text, held = (*own.text, token), (*own.held, draft)
        if self.habits.holds(token):
            return world.but(drafter=replace(own, text=text, held=held, ended=ended))
        sent = (DraftArrived(0.0, own.name, each) for each in held)
        own = replace(own, text=text, held=(), ended=ended)
        return world.but(drafter=own).put("d>", *sent)


def cluster(
    mode: types.VerifyMode,
    habits: Habits,
    schedule: str = "ahead",
    policy: Policy | None = None,
    max_in_flight: int = 2,
    **more: Any,
) -> Cluster:
    """A session of `session(mode, ...)` and everything that may become of it."""
    config = session(mode, max_in_flight=max_in_flight, **more)
    return Cluster(config, policy or Restless(config.window), schedule, habits)


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

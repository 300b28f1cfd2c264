"""Streams through a cluster, disturbed in the middle, and compared with undisturbed ones."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

from testkit.chaos.health import left_behind, whole
from testkit.chaos.listener import Listener, until
from testkit.chaos.member import Member
from testkit.chaos.site import Cluster
from testkit.chaos.transcript import Case, Transcript

TOKENS = 300
HEARD = 20
"""Tokens that each stream has brought before anything happens."""
WIRE_SECONDS = 0.005
PROMPTS = (
    "the small drafter rides ahead and proposes",
    "the large verifier checks them all and keeps",
    "each law of the target stands as it was",
    "a token that was emitted never changes",
)


def _case(number: int, prompt: str) -> Case:
    """Greedy and coupled in turns."""
    chance = {"temperature": 0.0} if number % 2 == 0 else {"temperature": 0.8}
    fixed = {"seed": 11 + number, "max_tokens": TOKENS, "ignore_eos": True, "include_rounds": True}
    return Case(prompt, {**chance, **fixed})


CASES = tuple(_case(number, prompt) for number, prompt in enumerate(PROMPTS))
BY_CHANCE = tuple(
    Case(case.prompt, {**case.options, "temperature": 0.8, "rejection_sample_method": rule})
    for case, rule in zip(CASES, ("standard", "block"), strict=False)
)
"""Cases whose text is another one each time."""


@dataclass
class Site:
    """A cluster, and the undisturbed text of each case."""

    cluster: Cluster
    texts: list[Transcript]
    _names: count[int] = field(default_factory=count)

    async def repair(self) -> None:
        """Wake, start and connect again whatever is not; wait until nothing is held."""
        self.cluster.heal()
        self.cluster.store.send(signal.SIGCONT)
        for member in self.cluster.members:
            if member.alive:
                member.send(signal.SIGCONT)
            else:
                member.start()
        await whole(self.cluster)
        assert await left_behind(self.cluster) == []

    @asynccontextmanager
    async def streams(self, first: int = 0) -> AsyncIterator[list[Listener]]:
        """All cases at once, each well under way; on the way out each must be as undisturbed.

        `first`: the orchestrator that clients try before the others.
        """
        async with self.cluster.client(first=first) as client:
            listeners = [self.new(case).ask(client) for case in CASES]
            for listener in listeners:
                await listener.until(HEARD)
            yield listeners
            await self.check(listeners)

    def new(self, case: Case) -> Listener:
        """A listener to a session of its own."""
        return Listener(f"session-{next(self._names)}", case)

    async def check(self, listeners: Sequence[Listener]) -> None:
        """Wait for the end of each; its text must be the undisturbed one."""
        for listener in listeners:
            await listener.end()
            assert listener.differences(self.texts[CASES.index(listener.case)]) == []

    async def in_use(self, role: str, listeners: Sequence[Listener]) -> Member:
        """A worker of that role that serves one of these sessions now."""

        def names() -> set[str]:
            return {getattr(one.transcript, role) for one in listeners if one.running} - {""}

        await until(lambda: bool(names()) or all(one.done for one in listeners))
        return self.cluster.named(sorted(names())[0])

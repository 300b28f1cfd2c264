"""A chaos run: sessions without end, faults one after another, and the checks at the end."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass, field

from paceline import Client, Event, PacelineError

from testkit.chaos.faults import KINDS, deck, kinds_on
from testkit.chaos.health import left_behind
from testkit.chaos.listener import Listener, until
from testkit.chaos.scene import Leave, Scene
from testkit.chaos.site import Cluster
from testkit.chaos.transcript import Case, Drawn, Strike, Transcript

_OVERLAPPING = 0.15
"""Share of faults that do not wait until the cluster is whole."""
_LONGEST_BREATH = 0.5
_BARE_EVERY = 4
"""One session in so many is asked for without the client library."""
_AWAY_SECONDS = 0.05, 0.5
_TELL_EVERY = 10
_SESSION_SECONDS = 300.0
_OPEN = ("active", "paused")
_SEEDS = 1_000_000
"""Seeds that a run may give to sessions whose text is left to chance, each to one."""


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """How much of it. `seconds` bounds the faults, not the sessions that run then.

    `kinds` of faults: empty = all that its store allows.
    """

    seed: int = 0
    faults: int = 25
    sessions: int = 12
    at_once: int = 8
    seconds: float = 3600.0
    kinds: tuple[str, ...] = ()


@dataclass
class Formed:
    """Sessions with a response format; of them those broken off and resumed, or moved.

    `moved`: had more than one verifier. `drafted`, `accepted`: tokens.
    """

    sessions: int = 0
    resumed: int = 0
    moved: int = 0
    drafted: int = 0
    accepted: int = 0

    def note(self, listener: Listener) -> None:
        """One that has ended."""
        heard = [one.transcript for one in listener.chain]
        self.sessions += 1
        self.moved += len({name for one in heard for name in one.verifiers}) > 1
        self.drafted += sum(one.drafted for one in heard)
        self.accepted += sum(one.accepted for one in heard)


@dataclass
class ChaosResult:
    """What happened. `violations`: each one line; empty = all that is promised held."""

    seconds: float = 0.0
    sessions: int = 0
    tokens: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    strikes: list[Strike] = field(default_factory=list)
    leaves: list[Leave] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)
    """The texts left to chance among the first sessions, as many as were planned.

    No more, so that no session is among them for how long its text took.
    """
    law: list[str] = field(default_factory=list)
    """What was found of their distribution, a line for each rule; empty = nobody looked."""
    formed: Formed = field(default_factory=Formed)


async def undisturbed(cluster: Cluster, cases: Sequence[Case]) -> list[Transcript]:
    """What plain decoding says, while every process is well."""
    async with cluster.client() as client:
        return await asyncio.gather(*(_plain(client, case) for case in cases))


async def _plain(client: Client, case: Case) -> Transcript:
    return await _heard(client.generate(case.prompt, **case.plain))


async def _heard(events: AsyncIterable[Event]) -> Transcript:
    heard = Transcript()
    async for event in events:
        heard.absorb(event)
    return heard


def departures(listener: Listener, stored: Transcript) -> list[str]:
    """How what was heard of a session departs from what it has at last, which is all of it."""
    if not listener.complete:
        return listener.differences(listener.transcript)
    got, wanted = len(stored.token_ids), listener.case.options["max_tokens"]
    whole = listener.case.problem is not None or got == wanted
    short = [] if whole else [f"{got} tokens instead of {wanted} are stored"]
    return [*short, *stored.faults, *listener.differences(stored)]


def unlike_its_form(listener: Listener) -> list[str]:
    """Why an answer is not of its response format, or did not end by itself."""
    problem = listener.case.problem
    ends = [one.transcript for one in listener.chain if one.transcript.complete]
    if problem is None or not ends:
        return []
    text, reason = str(ends[-1].text), ends[-1].finish_reason
    found = [] if reason == "stop" else [f"its finish reason is {reason}"]
    return [*found, f"{why}: {text!r}"] if (why := problem(text)) else found


class Chaos:
    """One run on one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        cases: Sequence[Case],
        plan: ChaosPlan,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`report` gets a line of progress now and then."""
        self._report = report
        self._cases, self._plan = cases, plan
        # Sessions and faults draw apart: how fast either goes must not change the other's.
        self._scene = Scene(cluster, random.Random(f"faults {plan.seed}"))
        self._choice = random.Random(f"sessions {plan.seed}")
        self._outcome = ChaosResult(violations=self._scene.violations)
        self._texts: dict[int, Transcript] = {}
        self._over = self._stopped = False
        self._told = 0

    def stop(self) -> None:
        """No fault after the one under way."""
        self._stopped = True

    async def run(self) -> ChaosResult:
        """The whole run."""
        same = {which: case for which, case in enumerate(self._cases) if case.same_text}
        texts = await undisturbed(self._scene.cluster, list(same.values()))
        self._texts = dict(zip(same, texts, strict=True))
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(self._plan.at_once):
                group.create_task(self._lane(number))
            await self._disturb(began + self._plan.seconds)
        await self._scene.close()
        await self._check_rest()
        self._outcome.strikes, self._outcome.leaves = self._scene.strikes, self._scene.leaves
        self._outcome.seconds = time.monotonic() - began
        return self._outcome

    async def _disturb(self, last: float) -> None:
        try:
            kinds = self._plan.kinds or kinds_on(self._scene.cluster.layout.store)
            for kind in deck(self._scene.rng, kinds):
                await asyncio.sleep(self._scene.rng.uniform(0, _LONGEST_BREATH))
                self._scene.alone = self._scene.rng.random() >= _OVERLAPPING
                if self._scene.alone:
                    await self._scene.mend()
                await KINDS[kind](self._scene, kind)
                self._outcome.counts[kind] += 1
                self._tell()
                enough = self._outcome.counts.total() >= self._plan.faults
                if enough or self._stopped or time.monotonic() > last:
                    break
        finally:
            self._over = True
        await self._scene.mend()

    def _tell(self) -> None:
        faults, violations = self._outcome.counts.total(), self._outcome.violations
        for line in violations[self._told :]:
            self._report(f"after {faults} faults: {line}")
        self._told = len(violations)
        if faults % _TELL_EVERY == 0:
            self._report(
                f"{faults} faults, {self._outcome.sessions} sessions, {self._told} violations"
            )

    # --- sessions ---------------------------------------------------------------------

    async def _lane(self, number: int) -> None:
        """Sessions one after another, while there are faults, and until there were enough."""
        async with self._scene.client(number) as client:
            while not self._over or self._wanted:
                await self._session(client)

    async def _session(self, client: Client) -> None:
        index = self._outcome.sessions
        self._outcome.sessions += 1
        which = self._choice.randrange(len(self._cases))
        case = self._cases[which]
        if not case.same_text:
            case = case.with_seed(_SEEDS * (self._plan.seed + 1) + index)
        listener = Listener(f"chaos-{index:05}", case)
        if index % _BARE_EVERY == _BARE_EVERY - 1:
            addresses = self._choice.sample(self._addresses, len(self._addresses))
            listener.ask_barely(addresses, self._scene.cluster.credentials)
        else:
            listener.ask(client)
        self._scene.listeners.add(listener)
        found = await self._ended(listener)
        self._scene.listeners.discard(listener)
        if case.problem is not None:
            self._outcome.formed.note(listener)
            found += unlike_its_form(listener)
        if case.same_text:
            found += listener.differences(self._texts[which])
        else:
            found += await self._against_the_store(client, listener, index)
        self._outcome.violations += [f"{listener.name}: {line}" for line in found]
        self._outcome.tokens += len(listener.transcript.token_ids)

    async def _ended(self, listener: Listener) -> list[str]:
        try:
            async with asyncio.timeout(_SESSION_SECONDS):
                if listener.case.problem is not None:
                    await self._break_off(listener)
                await listener.end()
        except TimeoutError:
            return [f"no end in {_SESSION_SECONDS:.0f} s"]
        return []

    async def _break_off(self, listener: Listener) -> None:
        """Break the reading off in the middle, and resume it, at another orchestrator.

        The session gets a new owner, which opens it on a verifier again: what is allowed next is
        found anew from the tokens.
        """
        tokens = self._choice.randint(1, listener.case.early)
        await until(lambda: listener.transcript.next >= tokens or listener.done, timeout=None)
        if listener.done or listener.second is not None:
            return
        if listener.bare is not None:
            listener.bare.leave(self._choice.uniform(*_AWAY_SECONDS))
        else:
            listener.take_over(self._scene.takeover_client(self._choice.randrange(2)))
        self._outcome.formed.resumed += 1

    async def _against_the_store(self, client: Client, listener: Listener, index: int) -> list[str]:
        """What was heard of a text left to chance, against what the session has at last."""
        try:
            stored = (
                await _heard(client.resume(listener.name)) if listener.complete else Transcript()
            )
        except PacelineError as error:
            return [f"its text cannot be read again: {type(error).__name__}: {error}"]
        if listener.complete and index < self._plan.sessions and listener.case.problem is None:
            self._outcome.drawn.append(Drawn.by(listener.case, stored.token_ids))
        return departures(listener, stored)

    @property
    def _wanted(self) -> bool:
        """Whether there were too few sessions yet."""
        return not self._stopped and self._outcome.sessions < self._plan.sessions

    @property
    def _addresses(self) -> list[str]:
        return self._scene.cluster.addresses

    # --- at the end -------------------------------------------------------------------

    async def _check_rest(self) -> None:
        """Nothing may be held for sessions that have all ended."""
        self._outcome.violations += await left_behind(self._scene.cluster)
        states = Counter(self._scene.cluster.store.sessions().values())
        self._outcome.violations += [
            f"{states[state]} stored sessions are still {state}" for state in _OPEN if states[state]
        ]

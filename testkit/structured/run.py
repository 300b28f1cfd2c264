"""Structured generations, each broken off in the middle and resumed, while verifiers die.

Half of the callers disconnect and resume at another orchestrator; the others lose their
session to a second reader there. Either way the session gets a new owner, which opens it on a
verifier again, and the matcher is rebuilt from the committed tokens.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice, pairwise

from paceline import Client, SessionRound

from testkit.chaos.faults import KINDS
from testkit.chaos.health import left_behind
from testkit.chaos.listener import Listener, until
from testkit.chaos.run import undisturbed
from testkit.chaos.scene import Scene
from testkit.chaos.site import Cluster
from testkit.chaos.transcript import Transcript
from testkit.structured.generations import Wanted

VERIFIER_KILLED = "verifier SIGKILL"
FAULTS = (VERIFIER_KILLED, VERIFIER_KILLED, "verifier wire cut")
"""What strikes in turn, one session's verifier at a time."""

_AWAY_SECONDS = 0.05, 0.5
_SESSION_SECONDS = 900.0
_PLAIN_AT_ONCE = 16
_MOST_AHEAD = 2
"""Faults that generations may be ahead of: a process takes longer to start than tiny answers."""
_TELL_EVERY = 10


@dataclass(frozen=True, slots=True)
class Ended:
    """One generation as it ended. `moves`: how often it was opened at a verifier anew.

    `resumes`: how often its reading was broken off and resumed.
    `wrong`: each one line, empty = it follows its format and all else holds.
    """

    number: int
    form: str
    way: str
    finish: str
    tokens: int
    drafted: int
    accepted: int
    resumes: int
    moves: int
    wrong: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Struck:
    """One fault: of which kind, and how many generations it met."""

    fault: str
    met: int


@dataclass
class StructuredResult:
    """What happened, in the order in which it did. `violations`: beyond single generations."""

    records: list[Ended | Struck] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @property
    def ended(self) -> list[Ended]:
        """The generations."""
        return [one for one in self.records if isinstance(one, Ended)]

    @property
    def struck(self) -> list[Struck]:
        """The faults."""
        return [one for one in self.records if isinstance(one, Struck)]

    @property
    def wrong(self) -> list[str]:
        """Everything that does not hold, each one line."""
        own = [f"generation {one.number}: {line}" for one in self.ended for line in one.wrong]
        return own + self.violations


class Disturbed:
    """A run on one cluster. `note` is called with each record as it comes."""

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        fault_every: int,
        note: Callable[[Ended | Struck], None],
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`fault_every`: generations from one fault to the next."""
        self._note, self._report = note, report
        self._scene = Scene(cluster, random.Random(f"faults {seed}"))
        self._choice = random.Random(f"breaks {seed}")
        self._every = fault_every
        self._begun = self._done = self._struck = 0
        self._over = False
        self._texts: dict[tuple[str, int], Transcript] = {}

    async def run(self, every: Sequence[Wanted], at_once: int) -> list[str]:
        """All of them; what does not hold beyond single generations."""
        await self._decode_plainly(every)
        left = iter(every)
        async with asyncio.TaskGroup() as group:
            disturber = group.create_task(self._disturb())
            async with asyncio.TaskGroup() as lanes:
                for number in range(at_once):
                    lanes.create_task(self._lane(number, left))
            self._over = True
            await disturber
        await self._scene.close()
        return [*self._scene.violations, *await left_behind(self._scene.cluster)]

    async def _decode_plainly(self, every: Sequence[Wanted]) -> None:
        """The texts that are promised to come again, while every process is well."""
        promised = {_text_of(one): one.case for one in every if one.way.same_text}
        left = iter(promised.items())
        while part := dict(islice(left, _PLAIN_AT_ONCE)):
            texts = await undisturbed(self._scene.cluster, list(part.values()))
            self._texts.update(zip(part, texts, strict=True))
            self._report(f"{len(self._texts)} of {len(promised)} texts decoded plainly")

    async def _disturb(self) -> None:
        for kind in cycle(FAULTS):
            await until(lambda: self._over or self._ahead >= 1, timeout=None)
            if self._over:
                break
            met = len(self._scene.strikes)
            await KINDS[kind](self._scene, kind)
            self._note(Struck(kind, len(self._scene.strikes) - met))
            await self._scene.mend()
            self._struck += 1
        await self._scene.mend()

    @property
    def _ahead(self) -> float:
        """By how many faults generations are ahead of what should have struck them."""
        return self._begun / self._every - self._struck

    # --- generations ------------------------------------------------------------------

    async def _lane(self, number: int, left: Iterator[Wanted]) -> None:
        """Generations one after another."""
        async with self._scene.client(number) as client:
            for wanted in left:
                await until(lambda: self._ahead < _MOST_AHEAD, timeout=None)
                self._begun += 1
                self._note(await self._generation(client, wanted))
                self._done += 1
                if self._done % _TELL_EVERY == 0:
                    self._report(f"{self._done} generations")

    async def _generation(self, client: Client, wanted: Wanted) -> Ended:
        listener = Listener(f"form-{wanted.number:05}", wanted.case)
        barely = self._choice.random() < 0.5
        if barely:
            cluster = self._scene.cluster
            places = self._choice.sample(cluster.addresses, len(cluster.addresses))
            listener.ask_barely(places, cluster.credentials)
        else:
            listener.ask(client)
        self._scene.listeners.add(listener)
        try:
            async with asyncio.timeout(_SESSION_SECONDS):
                resumes = await self._break_off(listener, wanted.form.early)
                await listener.end()
        except TimeoutError:
            return _lost(wanted, listener, f"no end in {_SESSION_SECONDS:.0f} s")
        finally:
            self._scene.listeners.discard(listener)
        session = await client.get_session(listener.name, rounds=True)
        return _judged(wanted, listener, self._texts.get(_text_of(wanted)), session.rounds, resumes)

    async def _break_off(self, listener: Listener, early: int) -> int:
        """Break the reading off in the middle, and resume it; how often that was done."""
        tokens = self._choice.randint(1, early)
        away = self._choice.uniform(*_AWAY_SECONDS)
        await until(lambda: listener.transcript.next >= tokens or listener.done, timeout=None)
        if listener.done:
            return 0
        if listener.bare is not None:
            listener.bare.leave(away)
        else:
            listener.take_over(self._scene.takeover_client(self._choice.randrange(2)))
        return 1


def _text_of(wanted: Wanted) -> tuple[str, int]:
    return wanted.form.name, wanted.seed


def _judged(
    wanted: Wanted,
    listener: Listener,
    plain: Transcript | None,
    rounds: Sequence[SessionRound],
    resumes: int,
) -> Ended:
    heard = _heard(listener)
    wrong = listener.differences(plain or heard)
    if heard.finish_reason != "stop":
        wrong.append(f"its finish reason is {heard.finish_reason or 'not known'}")
    if heard.text is not None and (problem := wanted.form.problem(heard.text)):
        wrong.append(f"{problem}: {heard.text!r}")
    stats = [one.stats for one in rounds]
    rules = {str(one.rejection_sample_method) for one in stats}
    if rules - {wanted.way.reported_rule}:
        wrong.append(f"verified by {', '.join(sorted(rules))}")
    served = [(one.term, one.stats.verifier) for one in rounds]
    return Ended(
        wanted.number,
        wanted.form.name,
        wanted.way.name,
        heard.finish_reason,
        len(heard.token_ids),
        sum(one.draft_tokens for one in stats),
        sum(one.accepted_tokens for one in stats),
        resumes,
        sum(before != after for before, after in pairwise(served)),
        tuple(f"{wanted.form.name}, {wanted.way.name}, seed {wanted.seed}: {x}" for x in wrong),
    )


def _lost(wanted: Wanted, listener: Listener, why: str) -> Ended:
    tokens = len(_heard(listener).token_ids)
    return Ended(wanted.number, wanted.form.name, wanted.way.name, "", tokens, 0, 0, 0, 0, (why,))


def _heard(listener: Listener) -> Transcript:
    """What was heard by all who listened, one after the other."""
    whole = Transcript()
    for one in listener.chain:
        own = one.transcript
        whole.token_ids[own.start :] = own.token_ids
        if own.complete:
            whole.text, whole.finish_reason = own.text, own.finish_reason
    return whole

"""Callers: one session each, as a client library reads it, to its end."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from paceline import EMPTY_HASH, extend_hash
from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor.grpc.decoding import incoming
from orchestrator.frontdoor.tenants import DEFAULT_TENANT
from orchestrator.session.answer import Chunk, Started
from orchestrator.session.output import Prefix
from orchestrator.session.ports import Call, SessionKey
from research.size.orchestrator import Broken, Orchestrator
from research.size.scenario import Scenario
from services.contract.errors import BusyError, Fenced, Overloaded, PacelineError, StoreError
from testkit.load_workers import truth

FIRST_WAIT, LONGEST_WAIT, SPREAD = 0.1, 2.0, 1.25
"""Seconds between calls, and how much longer than asked for: those of the Python client."""


@dataclass(slots=True)
class Heard:
    """What callers of all sessions saw. Times in seconds."""

    begun: int = 0
    finished: int = 0
    refused: int = 0
    """Before anything was done."""
    failed: Counter[str] = field(default_factory=Counter)
    """By error: given up."""
    breaks: Counter[str] = field(default_factory=Counter)
    """By error: gone on from."""
    wrong: int = 0
    """Sessions with a token that is not the target's own, or too many or few."""
    first_token: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    """From a break to the next token."""


class Clients:
    """Everybody who calls the orchestrators; each call goes to one that lives, by chance."""

    def __init__(self, scenario: Scenario, orchestrators: list[Orchestrator]) -> None:
        self.heard = Heard()
        self._scenario, self._orchestrators = scenario, orchestrators
        self._random = Random(f"{scenario.seed}/clients")
        self._prefixes = [
            [self._random.randrange(250) for _ in range(scenario.shared)]
            for _ in range(scenario.prefixes)
        ]
        self._loop = asyncio.get_running_loop()

    def pick(self) -> Orchestrator:
        """One that lives, as a load balancer picks."""
        return self._random.choice([one for one in self._orchestrators if one.alive])

    async def session(self, number: int) -> None:
        """One session, from the first call to its end."""
        self.heard.begun += 1
        await Session(self, self._request(number), self._scenario, self._random, number).run()

    def _request(self, number: int) -> pb.GenerateRequest:
        scenario, random = self._scenario, self._random
        prompt = random.choice(self._prefixes) + [
            random.randrange(250) for _ in range(scenario.own)
        ]
        sampling = pb.SamplingParams(
            temperature=0.0, max_tokens=scenario.tokens, ignore_eos=True, seed=number
        )
        tokens = pb.TokenIds(ids=prompt)
        return pb.GenerateRequest(request_id=f"s{number}", tokens=tokens, sampling=sampling)


class Session:
    """One caller."""

    def __init__(
        self,
        clients: Clients,
        request: pb.GenerateRequest,
        scenario: Scenario,
        random: Random,
        seed: int,
    ) -> None:
        self._clients, self._request, self._scenario = clients, request, scenario
        self._random, self._seed = random, seed
        self._offset, self._hash = 0, EMPTY_HASH
        self._calls = self._breaks = 0
        self._answered = self._wrong = False
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._broke: float | None = None

    async def run(self) -> None:
        """To the end, or until nobody wants it."""
        heard = self._clients.heard
        while True:
            orchestrator = self._clients.pick()
            try:
                await self._call(orchestrator)
            except Overloaded as error:
                if self._calls == 1:
                    heard.refused += 1
                    return
                await self._pause("Overloaded", error.retry_after)
            except (Broken, BusyError, Fenced, StoreError) as error:
                await self._pause(type(error).__name__, 0.0)
            except PacelineError as error:
                heard.failed[type(error).__name__] += 1
                return
            else:
                heard.finished += 1
                heard.wrong += self._wrong or self._offset != self._scenario.tokens
                return

    async def _pause(self, why: str, asked: float) -> None:
        self._clients.heard.breaks[why] += 1
        if self._broke is None:
            self._broke = self._loop.time()
        ceiling = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(self._breaks, 16))
        self._breaks += 1
        asked *= self._random.uniform(1, SPREAD)
        await asyncio.sleep(max(asked, self._random.uniform(ceiling / 2, ceiling)))

    async def _call(self, orchestrator: Orchestrator) -> None:
        """One call to its end; what it costs is the orchestrator's."""
        self._calls += 1
        outcome = self._loop.create_future()
        orchestrator.open.add(outcome)
        self._loop.create_task(self._read(orchestrator, outcome), context=orchestrator.context)
        await outcome

    async def _read(self, orchestrator: Orchestrator, outcome: asyncio.Future[None]) -> None:
        inference, call = orchestrator.inference, Call(f"reader-{self._seed}", self._calls)
        assert inference is not None
        try:
            if self._answered:
                key = SessionKey(DEFAULT_TENANT.name, self._request.request_id)
                prefix = Prefix(self._offset, self._hash)
                events = await inference.resume(key, prefix, "", DEFAULT_TENANT, call)
            else:
                asked = incoming(self._request)
                events = await inference.generate(asked, DEFAULT_TENANT, "", call)
            async for event in events:
                self._take(event)
        except Exception as error:
            if not outcome.done():
                outcome.set_exception(error)
        else:
            outcome.set_result(None)
        orchestrator.open.discard(outcome)

    def _take(self, event: object) -> None:
        if isinstance(event, Started):
            self._answered = True
        if not isinstance(event, Chunk):
            return
        now, heard = self._loop.time(), self._clients.heard
        if not self._offset:
            heard.first_token.append(now - self._began)
        if self._broke is not None:
            heard.pauses.append(now - self._broke)
            self._broke, self._breaks = None, 0
        ids = event.token_ids
        own = [truth(self._seed, self._offset + place) for place in range(len(ids))]
        self._wrong |= event.offset != self._offset or list(ids) != own
        self._offset += len(ids)
        self._hash = extend_hash(self._hash, ids)

"""A caller that listens to one session to its end, in a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
from paceline import Aborted, Client, Event, PacelineError

from testkit.chaos.bare import BareCaller
from testkit.chaos.transcript import Case, Transcript

_POLL_SECONDS = 0.01


class Listener:
    """Asks for a case at once; `transcript` grows as tokens come.

    A second reader may take the session over while this one listens: the first then
    ends with ABORTED, and what the second hears is the rest.
    """

    def __init__(self, name: str, case: Case) -> None:
        self.name = name
        self.case = case
        self.transcript = Transcript()
        self.second: Listener | None = None
        self.bare: BareCaller | None = None
        self.error: PacelineError | None = None
        self._task: asyncio.Task[None] | None = None

    def ask(self, client: Client) -> Listener:
        """Begin, by the client library."""
        stream = client.generate(self.case.prompt, request_id=self.name, **self.case.options)
        return self._listen(aiter(stream))

    def ask_barely(
        self, addresses: list[str], credentials: grpc.ChannelCredentials | None = None
    ) -> Listener:
        """Begin, without the library."""
        self.bare = BareCaller(addresses, self.name, self.case, credentials)
        return self._listen(self.bare.events())

    def take_over(self, client: Client) -> Listener:
        """Resume the session a second time, from where this one is."""
        self.second = Listener(self.name, self.case)
        self.second.transcript.start = self.transcript.next
        return self.second._listen(aiter(client.resume(self.name, self.transcript.next)))

    @property
    def chain(self) -> list[Listener]:
        """This one, and whoever took the session over from it."""
        return [self] if self.second is None else [self, *self.second.chain]

    @property
    def latest(self) -> Listener:
        """Who took the session last."""
        return self.chain[-1]

    def uses(self, name: str) -> bool:
        """Whether the worker of that name served the last round heard of."""
        return name in (self.latest.transcript.verifier, self.latest.transcript.drafter)

    @property
    def running(self) -> bool:
        """Whether the first tokens have come, and nobody has heard the last."""
        return self.transcript.heard_at > 0 and not (self.complete or self.latest.done)

    @property
    def complete(self) -> bool:
        """Whether somebody has heard the end."""
        return any(one.transcript.complete for one in self.chain)

    @property
    def done(self) -> bool:
        """Whether nothing more will come here."""
        return self._task is not None and self._task.done()

    async def until(self, tokens: int) -> None:
        """Wait until so many tokens have come here, or the end."""
        await until(lambda: self.transcript.next >= tokens or self.done)

    async def end(self) -> None:
        """Wait until nothing more will come to anybody who listens to the session."""
        while pending := [one.task for one in self.chain if not one.task.done()]:
            await asyncio.wait(pending)

    def differences(self, whole: Transcript) -> list[str]:
        """How what was heard departs from the undisturbed session."""
        found = [line for one in self.chain for line in one.transcript.differences(whole)]
        found += [
            f"{type(one.error).__name__}: {one.error}"
            for one in self.chain
            if one.error is not None and not isinstance(one.error, Aborted)
        ]
        if not self.complete:
            told = "; ".join(f"reader {n}: {one.error}" for n, one in enumerate(self.chain, 1))
            found.append(f"no end; {self.latest.transcript.next} tokens came; {told}")
        return found

    @property
    def task(self) -> asyncio.Task[None]:
        """What listens."""
        assert self._task is not None
        return self._task

    def _listen(self, events: AsyncIterator[Event]) -> Listener:
        self._task = asyncio.create_task(self._absorb(events), name=f"listen {self.name}")
        return self

    async def _absorb(self, events: AsyncIterator[Event]) -> None:
        try:
            async for event in events:
                self.transcript.absorb(event)
        except PacelineError as error:
            self.error = error


async def until(condition: Callable[[], bool], timeout: float | None = 120.0) -> None:
    """Wait for a condition, `timeout` None: however long. Raises TimeoutError."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)

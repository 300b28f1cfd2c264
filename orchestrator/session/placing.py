"""How one session finds its workers: what it wants of them, and whose turn it is to ask."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from orchestrator.session.ports import SessionKey, Workers
from orchestrator.session.waiting_line import WaitingLine
from orchestrator.steering.config import SessionConfig
from orchestrator.workers.placement import Wanted
from services.contract.states import gives
from services.contract.types import Role, WorkerDescription


class Found(NamedTuple):
    """A worker for a session, and the seconds that it should take to open it."""

    worker: WorkerDescription
    ready_s: float


class Placing:
    """One session's search. `home`: the verifier that another orchestrator had it with."""

    def __init__(
        self,
        key: SessionKey,
        config: SessionConfig,
        workers: Workers,
        line: WaitingLine,
        company: Callable[[], Collection[str]],
        target_fingerprint: str,
        home: str,
    ) -> None:
        """`company`: the verifiers of the other completions of its request."""
        self._key, self._config, self._workers = key, config, workers
        self._line, self._company, self._home = line, company, home
        # Pinned: another target has another output distribution.
        self._fingerprint = target_fingerprint
        # Whether the session's verifier tells the states that its drafters may need.
        self._tells_states = False
        self._failed_on: dict[Role, str] = {}

    def verifier(self, output: tuple[int, ...], tokens: int, since: float) -> Found | None:
        """One for the text so far, if it is the session's turn to ask.

        `tokens` of K/V at first; it lacks one `since` then.
        """
        config = self._config
        if not self._line.takes_its_turn(*self._claim(since)):
            return None
        wanted = Wanted(
            Role.VERIFIER,
            tokens,
            most_tokens=config.most_tokens,
            capabilities=config.verifier_capabilities,
            model_fingerprint=self._fingerprint,
            avoid=self._avoided(Role.VERIFIER),
            text=(config.prompt, output),
            cache_scope=config.cache_scope,
            states=config.states,
            company=self._company(),
            home=self._home,
        )
        found = self._workers.place(wanted)
        if found is None:
            return None
        self._line.leave(config.session)
        self._home = ""
        self._fingerprint = found.model_fingerprint
        self._tells_states = gives(found, config.states)
        return self._found(found, output)

    def drafter(
        self, output: tuple[int, ...], beside: str, config: SessionConfig | None = None
    ) -> Found | None:
        """One near the verifier `beside`; `config`: with the methods that are left to it."""
        config = config or self._config
        found = self._workers.place(
            Wanted(
                Role.DRAFTER,
                config.most_tokens,
                most_tokens=config.most_tokens,
                methods=config.methods,
                capabilities=config.drafter_capabilities,
                model_fingerprint=self._fingerprint,
                avoid=self._avoided(Role.DRAFTER),
                beside=beside,
                states=config.states,
                untold=not self._tells_states,
            )
        )
        return None if found is None else self._found(found, output)

    def released(self, role: Role, worker: str, waits_since: float | None) -> None:
        """The worker has it no more; `waits_since`: since when it waits for another verifier."""
        self._failed_on[role] = worker
        if role is Role.VERIFIER and waits_since is not None:
            # It was full: others shall not ask before this session does.
            self._line.enter(*self._claim(waits_since))

    def leave(self) -> None:
        """It looks for nobody any more."""
        self._line.leave(self._config.session)

    def _found(self, worker: WorkerDescription, output: tuple[int, ...]) -> Found:
        tokens = len(self._config.prompt) + len(output)
        return Found(worker, self._workers.opening_s(worker.worker_id, tokens))

    def _avoided(self, role: Role) -> Collection[str]:
        return (self._failed_on[role],) if role in self._failed_on else ()

    def _claim(self, since: float) -> tuple[str, str, int, float]:
        """Its place among those that wait for a verifier."""
        return self._key.tenant, self._config.session, self._config.priority, since

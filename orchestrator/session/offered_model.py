"""What an orchestrator offers its clients: its target's model, and its drafters' methods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from orchestrator.session.modes import SHORT_BLOCK
from orchestrator.session.options import Options
from orchestrator.session.served_model import ServedModel, parse_defaults
from orchestrator.session.tenants import DEFAULT_TENANT, Tenant
from orchestrator.workers.placement import Wanted
from orchestrator.workers.pool import Target, WorkerPool
from services.contract.states import NO_STATES, StateShape
from services.contract.types import (
    LATER_FORMATS,
    RESPONSE_FORMAT,
    SCORES,
    TOKEN_LIMITS,
    Role,
    estimate_capability,
    estimated_method,
    rows_capability,
    split_methods,
)


class OfferedModel:
    """What the workers have announced so far.

    A method stays served when its drafters are away: sessions then decode plainly.
    """

    def __init__(self, pool: WorkerPool, target: Target, options: Options) -> None:
        self.target = target
        self._pool, self._options = pool, options
        self._methods = dict.fromkeys(split_methods(options.method))
        self._teams: frozenset[frozenset[str]] = frozenset()
        self._capabilities: frozenset[str] = frozenset()
        self._of_verifiers = frozenset(target.worker.capabilities)
        self.defaults = parse_defaults(target.tokenizer.bundle.generation_config_json)

    def served_model(self, tenant: Tenant = DEFAULT_TENANT) -> ServedModel:
        """What requests of a tenant are checked against."""
        worker = self.target.worker
        self._methods |= dict.fromkeys(self._pool.methods())
        self._capabilities |= self._pool.capabilities()
        self._of_verifiers |= self._pool.capabilities(Role.VERIFIER)
        self._teams |= self._pool.teams()
        return ServedModel(
            worker.model,
            worker.vocab_size,
            worker.max_context_length,
            tuple(self._methods),
            self.defaults,
            self.default_method(),
            self._capabilities,
            self._slow_methods(),
            self._teams,
            tenant.limits.max_tokens,
            RESPONSE_FORMAT in self._of_verifiers,
            TOKEN_LIMITS in worker.capabilities,
            self.scores,
            frozenset(LATER_FORMATS) & self._of_verifiers,
        )

    @property
    def scores(self) -> bool:
        """Whether a verifier tells how likely tokens of a prompt are."""
        return SCORES in self.target.worker.capabilities or SCORES in self._pool.capabilities(
            Role.VERIFIER
        )

    def _slow_methods(self) -> frozenset[str]:
        """Methods that draft few tokens asynchronously during a verification."""
        if self._options.pacing == "fixed":
            return frozenset()
        limit = self._pool.step_ms(Role.VERIFIER) / SHORT_BLOCK
        times = {method: self._pool.step_ms(Role.DRAFTER, method) for method in self._methods}
        return frozenset(method for method, taken in times.items() if 0 < limit < taken)

    def defaults_json(self) -> str:
        """The model's own sampling defaults."""
        values = asdict(self.defaults)
        del values["warnings"]
        return json.dumps(values)

    def default_method(self) -> str:
        """The method of a request that names none; empty while none is served.

        It is the first method served, with those that contribute to its trees.
        """
        return next(iter(self.default_methods()), "")

    def default_methods(self) -> tuple[str, ...]:
        """The default, and, where it was not set, the methods that may draft small trees instead.

        Those are the default without contributing methods, since each of these costs time.
        """
        served = tuple(filter(self._pairs, self._pool.methods()))
        if self._options.method or not served:
            return (self._options.method,) if self._options.method else ()
        able = map(estimated_method, self._pool.capabilities())
        pairing = filter(self._pairs, able)
        together = {method for method in pairing if split_methods(method)[:1] == served[:1]}
        ordered = sorted(together, key=lambda method: (-len(split_methods(method)), method))
        return tuple(ordered) or served[:1]

    def estimates(self, method: str) -> bool:
        """Whether the drafters of a method give each node of a tree its probability."""
        return estimate_capability(method) in self._pool.capabilities()

    def learns_from_rows(self, method: str) -> bool:
        """Whether the drafters of a method use the target's predictions at each row."""
        return rows_capability(method) in self._pool.capabilities()

    def _pairs(self, method: str) -> bool:
        """Whether verifiers tell the states that drafters of a method need, if they need any."""
        return self._pool.states_for(split_methods(method)) is not None

    def states(self, methods: Sequence[str]) -> StateShape:
        """The states of the target that drafters of these methods need, and verifiers tell."""
        return self._pool.states_for(methods) or NO_STATES

    def fingerprint(self) -> str:
        """The target of a session that begins now; workers may bring another later."""
        placed = self._pool.place(Wanted(Role.VERIFIER, 0))
        return (placed or self.target.worker).model_fingerprint

"""What a session begins with: from a checked request to the round machine's first state."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.pacing import Policy, make_policy
from orchestrator.core.rounds import new_session
from orchestrator.core.state import SessionConfig, State
from orchestrator.experiences import Experiences
from orchestrator.offer import Offer
from orchestrator.options import Options
from orchestrator.ports import SessionKey
from orchestrator.requests import SessionSpec
from orchestrator.tenants import phrase_scope
from orchestrator.text import TextStream

# Most levels of a drafted tree where the request names no window: each costs a step of the
# drafter that nothing overlaps with.
DEFAULT_TREE_DEPTH = 4


class Beginnings:
    """First states of sessions, each with what those before it learned."""

    def __init__(self, offer: Offer, options: Options) -> None:
        self._offer, self._options = offer, options
        self._experiences = Experiences()

    def state(
        self,
        key: SessionKey,
        spec: SessionSpec,
        term: int,
        committed: tuple[int, ...],
        text: TextStream,
    ) -> State:
        """The first state of an owner's term; `text` stands behind `committed`."""
        config = self._config(key, spec, term)
        if spec.stop:
            config = replace(config, find_stop=text.scan)
        return new_session(config, self.policy(config), committed)

    def learn(self, state: State) -> None:
        """Take in what a session learned that ends here."""
        self._experiences.remember(state)

    def policy(self, config: SessionConfig) -> Policy:
        """How a session is paced at first."""
        policy = make_policy(
            self._options.pacing,
            config.window,
            fallback=self._options.fallback,
            exact=config.mode.exact_match,
            trees=config.num_candidates > 1,
            chained=config.limits.max_in_flight > 1,
            seed=config.seed,
        )
        return self._experiences.seeded(config, policy)

    def _config(self, key: SessionKey, spec: SessionSpec, term: int) -> SessionConfig:
        options = self._options
        depth = options.num_speculative_tokens
        if spec.num_candidates > 1:
            depth = min(depth, DEFAULT_TREE_DEPTH)
        return SessionConfig(
            session=key.name,
            prompt=spec.prompt,
            mode=spec.mode,
            sampling=spec.sampling,
            seed=spec.seed,
            term=term,
            method=self._method(spec),
            window=spec.window_cap or depth,
            num_candidates=spec.num_candidates,
            vocab_size=self._offer.target.worker.vocab_size,
            phrase_scope=self._phrase_scope(key.tenant, spec),
            synchronous=options.pacing == "fixed",
            limits=options.limits,
        )

    def _phrase_scope(self, tenant: str, spec: SessionSpec) -> str:
        """Nothing of an ephemeral session outlives it, in a drafter either."""
        if spec.ephemeral:
            return ""
        tokenizer = self._offer.target.worker.tokenizer_fingerprint
        return phrase_scope(tenant, tokenizer, self._options.tenant_key)

    def _method(self, spec: SessionSpec) -> str:
        if spec.disable_speculation:
            return ""
        return ",".join(spec.method) or self._offer.default_method()

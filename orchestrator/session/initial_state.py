"""From a checked request to the first state of its session."""

from __future__ import annotations

import secrets
from dataclasses import replace

from orchestrator.session.offered_model import OfferedModel
from orchestrator.session.options import DEFAULT_POLICY, Options
from orchestrator.session.paces import Paces
from orchestrator.session.ports import SessionKey
from orchestrator.session.spec import SessionSpec
from orchestrator.session.tenants import cache_scope, phrase_scope
from orchestrator.session.totals import SpecTotals
from orchestrator.steering.config import (
    SMALL_TREE_DEPTH,
    SMALL_TREE_WIDTH,
    SessionConfig,
    largest_block,
)
from orchestrator.text import TextStream
from services.contract.top_rows import WIDTH

# Most levels of a drafted tree where the request names no window: each costs a step of the
# drafter that nothing overlaps with.
DEFAULT_TREE_DEPTH = 4


class InitialStates:
    """First states of sessions; which method they draft by, where that is open, is learned."""

    def __init__(self, offer: OfferedModel, options: Options) -> None:
        self._offer, self._options = offer, options
        self._paces = Paces()

    def config(
        self, key: SessionKey, spec: SessionSpec, term: int, text: TextStream
    ) -> SessionConfig:
        """What a session is opened with; `text` stands behind what is committed."""
        config = self._with_its_method(key, self._config(key, spec, term), spec)
        if config.estimated and self._offer.learns_from_rows(config.method):
            config = replace(config, top_rows=WIDTH)
        if config.method:
            config = replace(config, states=self._offer.states(config.methods))
        return replace(config, find_stop=text.find_stop) if spec.stop else config

    def learn(self, key: SessionKey, config: SessionConfig, totals: SpecTotals) -> None:
        """Keep how fast an ended session was."""
        if config.estimated and config.method in self._offer.default_methods():
            pace = totals.emitted_tokens, totals.ms
            self._paces.remember(key.tenant, config.mode, config.method, *pace)

    def block_tokens(self, spec: SessionSpec) -> int:
        """Most draft tokens in one block of a session."""
        estimated, limits = self._estimated(spec, self._method(spec)), self._options.limits
        window = self._window(spec, estimated)
        return largest_block(window, spec.num_candidates, limits, estimated=estimated)

    def _estimated(self, spec: SessionSpec, method: str) -> bool:
        """Whether its drafts are small trees whose nodes carry chances.

        They are the default where one method drafts them and drafts are matched exactly:
        their cost is known, so pacing can cut them where they stop paying.
        """
        default = self._options.pacing == DEFAULT_POLICY and not spec.chains
        return default and spec.mode.exact_match and self._offer.estimates(method)

    def _window(self, spec: SessionSpec, estimated: bool) -> int:
        depth = self._options.num_speculative_tokens
        if estimated:
            depth = min(depth, SMALL_TREE_DEPTH)
        elif spec.num_candidates > 1:
            depth = min(depth, DEFAULT_TREE_DEPTH)
        return spec.window_cap or depth

    def _config(self, key: SessionKey, spec: SessionSpec, term: int) -> SessionConfig:
        options = self._options
        phrases, prefixes = self._scopes(key.tenant, spec)
        method, width = self._method(spec), spec.num_candidates
        estimated = self._estimated(spec, method)
        return SessionConfig(
            session=key.name,
            prompt=spec.prompt,
            mode=spec.mode,
            sampling=spec.sampling,
            seed=spec.seed,
            term=term,
            method=method,
            window=self._window(spec, estimated),
            num_candidates=SMALL_TREE_WIDTH if estimated and width == 1 else width,
            estimated=estimated,
            vocab_size=self._offer.target.worker.vocab_size,
            phrase_scope=phrases,
            cache_scope=prefixes,
            fork_scope=f"{key.tenant}/{spec.request_id}" if spec.n > 1 else "",
            priority=spec.priority,
            pacing=self._pacing(),
            synchronous=options.pacing == "fixed",
            limits=options.limits,
        )

    def _pacing(self) -> str:
        """What verifiers are told of it: nothing where they decide by themselves."""
        return "" if self._options.pacing == DEFAULT_POLICY else self._options.pacing

    def _with_its_method(
        self, key: SessionKey, config: SessionConfig, spec: SessionSpec
    ) -> SessionConfig:
        """Choose a fast method for its small trees, where the request leaves that open."""
        methods = self._offer.default_methods()
        if not (config.estimated and config.method in methods) or spec.method:
            return config
        draw = f"{key.name}/{config.term}"
        method = self._paces.choose(key.tenant, config.mode, methods, draw)
        return replace(config, method=method)

    def _scopes(self, tenant: str, spec: SessionSpec) -> tuple[str, str]:
        """Whose phrases and K/V it shares; an ephemeral session leaves nothing."""
        if spec.ephemeral:
            return "", ""
        worker, key = self._offer.target.worker, self._options.tenant_key
        phrases = phrase_scope(tenant, worker.tokenizer_fingerprint, key)
        return phrases, cache_scope(tenant, worker.model_fingerprint, key)

    def score_scopes(self, tenant: str, ephemeral: bool) -> tuple[str, str]:
        """Whose K/V the texts of one call share: the tenant's, or nobody's; and their own."""
        worker, key = self._offer.target.worker, self._options.tenant_key
        scope = "" if ephemeral else cache_scope(tenant, worker.model_fingerprint, key)
        return scope, secrets.token_hex(16)

    def _method(self, spec: SessionSpec) -> str:
        if spec.disable_speculation:
            return ""
        return ",".join(spec.method) or self._offer.default_method()

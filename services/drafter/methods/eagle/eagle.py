"""Drafting by an EAGLE-3 head: a layer that reads the target's hidden states.

Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test", 2503.01840. Row j of the head takes token j and a feature of the text
before it: the target's states there, once a verdict has told them, until then the head's own
output. Everything else is what any draft model does; see `methods.model`.

    text      t1  t2  t3 | d4  d5         d: drafted
    feature   f0  f1  f2 | f3  g4         f: of the target's states, g: the head's own

So a draft goes on while the verifier works, on own features, and each verdict re-anchors it:
K/V that was computed with own features is dropped where the target's states are known by then,
and computed anew with the next step, in the same forward. States are best effort. Where they
stop coming, drafts go on with own features; where none ever came for the text's end, nothing is
drafted before the next verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from services.contract.types import OpenDraft, WorkerDescription, states_capability
from services.drafter.methods.eagle.sessions import (
    AnchoredPlaces,
    AnchoredSession,
    AnchoredTrees,
)
from services.drafter.methods.graph.graph_state import NODES_IN_KV
from services.drafter.methods.model.model import TREE_RULES, ModelDrafter
from services.drafter.methods.model.places import PLACES_IN_KV
from services.drafter.protocol import Ask, Proposed, SessionKey
from services.engine.eagle.engine import EagleEngine
from services.engine.port import Segment, freed_on_error

NAME = "eagle"


class EagleDrafter(ModelDrafter):
    """A model drafter on a head, which is told the target's states by `anchor`."""

    _engine: EagleEngine

    def describe(self, worker: WorkerDescription) -> WorkerDescription:
        """Also which of the target's states it needs."""
        worker = super().describe(worker)
        return replace(
            worker,
            capabilities=(*worker.capabilities, states_capability(NAME)),
            state_layers=self._engine.layers,
            state_width=self._engine.state_width,
        )

    def anchor(self, key: SessionKey, position: int, states: bytes) -> None:
        """Take the target's states of the text's tokens from `position` on."""
        session = self._sessions.get(key)
        if isinstance(session, AnchoredSession | AnchoredTrees):
            session.cache.anchor(position, states)

    def idle(self, asks: Iterable[Ask]) -> bool:
        """Read prompts as their states come; then as the model drafter does."""
        known = list(asks)
        return self._read(known) or super().idle(known)

    def places(self, key: SessionKey, opening: OpenDraft) -> AnchoredPlaces:
        """As of the model drafter, for whoever anchors them."""
        vocab_size, reserve = self._bounds(opening)
        with freed_on_error(self._engine.new_cache(reserve + PLACES_IN_KV)) as cache:
            form, longest = self._form(key, opening), self._engine.max_context_length
            return AnchoredPlaces(opening, cache, vocab_size, longest, form)

    def _session(
        self, key: SessionKey, opening: OpenDraft, reserve: int, vocab_size: int
    ) -> AnchoredSession | AnchoredTrees:
        longest = self._engine.max_context_length
        plan = self._growth(opening)
        if plan is None or opening.num_candidates == 1:
            with freed_on_error(self._engine.new_cache(reserve)) as cache:
                branches = self._preparing.branches(opening, cache) if self._preparing else None
                return AnchoredSession(opening, cache, vocab_size, longest, branches)
        with freed_on_error(self._engine.new_cache(reserve + NODES_IN_KV)) as cache:
            return AnchoredTrees(
                opening, cache, vocab_size, longest, TREE_RULES, plan, self.figures, by_rank=True
            )

    def _held(self, ask: Ask) -> Proposed | None:
        """Nothing is drafted from a text whose end has no feature to go with it."""
        held = super()._held(ask)
        if held is None and not self._sessions[ask.key].cache.drafts(len(ask.text)):
            return Proposed(final=True)
        return held

    def _read(self, asks: Sequence[Ask]) -> bool:
        """One forward of text whose states are known, and that nothing is drafted behind yet."""
        left, segments = self._step_tokens, []
        for ask in asks:
            session = self._sessions.get(ask.key)
            if session is not None and left > 0:
                tokens = session.unread(ask)[:left]
                left -= len(tokens)
                if tokens:
                    segments.append(Segment(session.cache, tokens, logits_from=len(tokens)))
        if segments:
            self._engine.forward(segments)
        return bool(segments)

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

A head that was trained for it drafts in one pass, from masks behind the text (P-EAGLE, Hui et
al., 2602.01469): the best shape behind a network, where every pass more is a verdict later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from services.contract.states import StateShape
from services.contract.types import OpenDraft
from services.drafter.methods.eagle.chances import Chances
from services.drafter.methods.eagle.sessions import (
    AnchoredPlaces,
    AnchoredSession,
    AnchoredTrees,
    ParallelSession,
)
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.model.model_state import ModelSession
from services.drafter.methods.model.stepping import Stepping
from services.drafter.protocol import Ask, Proposed, SessionKey
from services.engine.port import Segment, StateDrafting, freed_on_error


class EagleDrafter(ModelDrafter):
    """A model drafter on a head, which is told the target's states by `anchor`.

    `least`: where drafts end that are matched exactly; see `chances`.
    """

    _engine: StateDrafting
    _chain = AnchoredSession
    _tree = AnchoredTrees
    _places = AnchoredPlaces

    def __init__(self, engine: StateDrafting, *, least: float = 0.0, **drafting: Any) -> None:
        """`drafting`: as of a model drafter."""
        super().__init__(engine, **drafting)
        self._chances = Chances(least)

    @property
    def needed_states(self) -> StateShape:
        """The target's states that the head takes."""
        return StateShape(self._engine.layers, self._engine.state_width)

    def anchor(self, key: SessionKey, position: int, states: bytes) -> None:
        """Take the target's states of the text's tokens from `position` on."""
        if key in self._sessions:
            self._anchored(key).cache.anchor(position, states)

    def _session(
        self, key: SessionKey, opening: OpenDraft, reserve: int, vocab_size: int
    ) -> Stepping:
        """One whose drafts end by chance, where they are matched exactly."""
        session = self._endless(key, opening, reserve, vocab_size)
        comb = opening.num_candidates > 1 and isinstance(session, AnchoredSession)
        if opening.mode.exact_match and self._chances.least and (self._engine.soft_ids or not comb):
            assert isinstance(session, AnchoredSession | AnchoredTrees)
            # One that shares nothing finds out for itself.
            shared = self._chances if opening.phrase_scope else Chances(self._chances.least)
            session.ends_by(shared)
        return session

    def _endless(
        self, key: SessionKey, opening: OpenDraft, reserve: int, vocab_size: int
    ) -> Stepping:
        """One that drafts in one pass, where the head can."""
        if not self._engine.soft_ids:
            return super()._session(key, opening, reserve, vocab_size)
        longest, masks = self._engine.max_context_length, self._engine.soft_ids
        with freed_on_error(self._own_cache(key, opening, reserve + len(masks))) as cache:
            chain = replace(opening, num_candidates=1)
            session: ModelSession = ParallelSession(chain, cache, vocab_size, longest, masks)
            return session

    def rewind(self, key: SessionKey, length: int) -> None:
        """Also the states of what is not text any more are forgotten."""
        super().rewind(key, length)
        self._anchored(key).cache.forget(length)

    def idle(self, asks: Iterable[Ask]) -> bool:
        """Read prompts as their states come."""
        return self._read(list(asks))

    def _held(self, ask: Ask) -> Proposed | None:
        """Nothing is drafted from a text whose end has no feature to go with it."""
        held = super()._held(ask)
        if held is None and not self._anchored(ask.key).cache.drafts(len(ask.text)):
            return Proposed(final=True)
        return held

    def _anchored(self, key: SessionKey) -> AnchoredSession | AnchoredTrees:
        session = self._sessions[key]
        assert isinstance(session, AnchoredSession | AnchoredTrees)
        return session

    def _read(self, asks: Sequence[Ask]) -> bool:
        """One forward of text whose states are known, and that nothing is drafted behind yet."""
        left, segments = self._step_tokens, []
        going = [ask.key for ask in asks]
        for ask in asks:
            if not self.prompts.ready(ask.key, going):
                continue
            session = self._anchored(ask.key)
            tokens = session.unread(ask)[:left]
            left -= len(tokens)
            if tokens:
                segments.append(Segment(session.cache, tokens, logits_from=len(tokens)))
        if segments:
            self._engine.forward(segments)
        return bool(segments)

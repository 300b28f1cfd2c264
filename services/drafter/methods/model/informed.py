"""N-grams and a draft model together: small trees in which the model has a word.

Where trees are asked for and drafts are matched exactly, the trees are those of `ngram`, with
what the model says of places that it has been to as one more source; see `ahead`. Everywhere
else the two draft chains in turn, as any methods together; see `combined`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from services.contract.errors import BusyError, CallerError
from services.contract.types import (
    OpenDraft,
    WorkerDescription,
    estimate_capability,
    rows_capability,
)
from services.drafter.combined import CombinedDrafter
from services.drafter.methods.eagle.sessions import AnchoredPlaces
from services.drafter.methods.model.ahead import Ahead, AheadRules
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.model.places import Places
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.drafter.protocol import Ask, Proposed, SessionKey


class InformedDrafter(CombinedDrafter):
    """Drafts with both; a draft model goes where `rules` let it. `lengthen`: see `combined`."""

    def __init__(
        self,
        ngram: NgramDrafter,
        model: ModelDrafter,
        rules: AheadRules,
        lengthen: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        name: str = "model",
    ) -> None:
        """`clock`: seconds. `name`: of the model's method."""
        self._ngram, self._model, self._name = ngram, model, f"ngram,{name}"
        super().__init__({"ngram": ngram, name: model}, lengthen)
        self._ahead, self._awaited = Ahead(model.engine, rules, clock), rules.awaited
        self._places: dict[SessionKey, Places | None] = {}
        """Of sessions with small trees; None where the model cannot follow."""

    def describe(self, worker: WorkerDescription) -> WorkerDescription:
        """Trees with chances, beside what the two say of themselves."""
        able = (*worker.capabilities, estimate_capability(self._name), rows_capability(self._name))
        return replace(worker, capabilities=able)

    def open(self, key: SessionKey, opening: OpenDraft) -> None:
        """Open the session; without the model where that has no room for it, or cannot take it."""
        if opening.num_candidates == 1 or not opening.mode.exact_match:
            super().open(key, opening)
            return
        places = None
        with suppress(BusyError, CallerError):
            places = self._model.places(key, opening)
        try:
            self._ngram.open(key, opening, places)
        except BaseException:
            self._free(key, places)
            raise
        self._places[key] = places

    def rewind(self, key: SessionKey, length: int) -> None:
        """The text is shorter for all."""
        if key not in self._places:
            super().rewind(key, length)
            return
        self._ngram.rewind(key, length)
        if (places := self._places[key]) is not None:
            places.rewind(length)

    def close(self, key: SessionKey) -> None:
        """Close the session with both."""
        if key not in self._places:
            super().close(key)
            return
        self._free(key, self._places.pop(key))
        self._ngram.close(key)

    def _free(self, key: SessionKey, places: Places | None) -> None:
        if places is not None:
            self._model.close(key)
            places.cache.free()

    def propose(self, asks: Sequence[Ask]) -> list[Proposed]:
        """The trees that can be made at once; chains, where those were asked for."""
        chained = [ask for ask in asks if ask.key not in self._places]
        chains = iter(super().propose(chained) if chained else ())
        self._follow([ask for ask in asks if ask.key in self._places])
        return [self._tree(ask) if ask.key in self._places else next(chains) for ask in asks]

    def anchor(self, key: SessionKey, position: int, states: bytes) -> None:
        """The target's states of the text's tokens from `position` on."""
        if key not in self._places:
            super().anchor(key, position, states)
        elif isinstance(places := self._places[key], AnchoredPlaces):
            places.cache.anchor(position, states)

    def _follow(self, asks: Sequence[Ask]) -> None:
        """Take the texts in; a model that is waited for goes to their ends first."""
        followed: dict[SessionKey, Places] = {}
        for ask in asks:
            if (places := self._places[ask.key]) is not None:
                places.due.came(self._ahead.now)
                places.follow(ask.text)
                followed[ask.key] = places
        for _ in range(self._awaited if followed else 0):
            self._step(followed)

    def _step(self, sessions: Mapping[SessionKey, Places]) -> bool:
        """Go on with those that wait for nobody to read their prompt."""
        going = [key for key, places in sessions.items() if self._ahead.goes_on(places)]
        ready = self._model.prompts.ready
        return self._ahead.step([sessions[key] for key in going if ready(key, going)])

    def _tree(self, ask: Ask) -> Proposed:
        places, ahead = self._places[ask.key], self._ahead
        [proposed] = self._ngram.propose([ask])
        if places is not None and proposed.final:
            places.expect(proposed.tree, proposed.reach)
            if ask.position:
                # The first verdict waits for the prompt to be read.
                places.due.sent(ahead.now)
        return proposed

    def idle(self, asks: Iterable[Ask]) -> bool:
        """The model goes on to places of sessions that draft; or reads the prompts of chains.

        It begins when the first verdict is there: a verifier that reads the prompt is not to
        share its memory meanwhile. A head reads what that verifier has read.
        """
        known = list(asks)
        places = {ask.key: self._gone_on(ask) for ask in known if ask.room > 0}
        if self._step({key: one for key, one in places.items() if one is not None}):
            return True
        return super().idle([ask for ask in known if ask.key not in self._places])

    def _gone_on(self, ask: Ask) -> Places | None:
        """The places of a session, if there is something to go on to."""
        places = self._places.get(ask.key)
        if ask.position > 0:
            return places
        if not isinstance(places, AnchoredPlaces):
            return None
        places.follow(ask.text)
        return places

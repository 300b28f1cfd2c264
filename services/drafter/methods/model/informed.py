"""N-grams and a draft model together: small trees in which the model has a word.

Where trees are asked for and drafts are matched exactly, the trees are those of `ngram`, with
what the model says of places that it has been to as one more source; see `ahead`. Everywhere
else the two draft chains in turn, as any methods together; see `combined`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from services.contract.errors import BusyError, CallerError
from services.contract.types import (
    OpenDraft,
    VerifyMode,
    WorkerDescription,
    estimate_capability,
    rows_capability,
)
from services.drafter.combined import combined
from services.drafter.methods.model.ahead import Ahead, AheadRules
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.model.places import Places
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.drafter.protocol import Ask, KVUsage, Proposed, SessionKey

NAME = "ngram,model"


class InformedDrafter:
    """Drafts with both; a draft model goes where `rules` let it. `lengthen`: see `combined`."""

    samples = False
    trees = True

    def __init__(
        self,
        ngram: NgramDrafter,
        model: ModelDrafter,
        rules: AheadRules,
        lengthen: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock`: seconds."""
        self._ngram, self._model = ngram, model
        self._chains = combined(("ngram", "model"), {"ngram": ngram, "model": model}, lengthen)
        self._ahead = Ahead(model.engine, rules, clock)
        self._places: dict[SessionKey, Places | None] = {}
        """Of sessions with small trees; None where the model cannot follow."""

    @property
    def modes(self) -> frozenset[VerifyMode]:
        """Those that both serve."""
        return self._chains.modes

    def describe(self, worker: WorkerDescription) -> WorkerDescription:
        """Trees with chances, beside what the two say of themselves."""
        able = (*worker.capabilities, estimate_capability(NAME), rows_capability(NAME))
        return replace(worker, capabilities=able)

    def usage(self) -> KVUsage:
        """No KV but the draft model's own."""
        return KVUsage()

    def open(self, key: SessionKey, opening: OpenDraft) -> None:
        """Open the session; without the model where that has no room for it, or cannot take it."""
        if opening.num_candidates == 1 or not opening.mode.exact_match:
            self._chains.open(key, opening)
            return
        places = None
        with suppress(BusyError, CallerError):
            places = self._model.places(key, opening)
        try:
            self._ngram.open(key, opening, places)
        except BaseException:
            if places is not None:
                places.cache.free()
            raise
        self._places[key] = places

    def rewind(self, key: SessionKey, length: int) -> None:
        """The text is shorter for all."""
        if key not in self._places:
            self._chains.rewind(key, length)
            return
        self._ngram.rewind(key, length)
        if (places := self._places[key]) is not None:
            places.rewind(length)

    def close(self, key: SessionKey) -> None:
        """Close the session with both."""
        if key not in self._places:
            self._chains.close(key)
            return
        if (places := self._places.pop(key)) is not None:
            places.cache.free()
        self._ngram.close(key)

    def propose(self, asks: Sequence[Ask]) -> list[Proposed]:
        """The trees that can be made at once; chains, where those were asked for."""
        chained = [ask for ask in asks if ask.key not in self._places]
        chains = iter(self._chains.propose(chained) if chained else ())
        return [self._tree(ask) if ask.key in self._places else next(chains) for ask in asks]

    def _tree(self, ask: Ask) -> Proposed:
        places, ahead = self._places[ask.key], self._ahead
        if places is None:
            return self._ngram.propose([ask])[0]
        places.due.came(ahead.now)
        places.follow(ask.text)
        [proposed] = self._ngram.propose([ask])
        if proposed.final:
            places.expect(proposed.tree, proposed.reach)
            if ask.position:
                # The first verdict waits for the prompt to be read.
                places.due.sent(ahead.now)
        return proposed

    def idle(self, asks: Iterable[Ask]) -> bool:
        """The model goes on to places of sessions that draft; or prepares what chains want.

        It begins when the first verdict is there: a verifier that reads the prompt is not to
        share its memory meanwhile.
        """
        known = list(asks)
        begun = [ask for ask in known if ask.room > 0 and ask.position > 0]
        places = [self._places.get(ask.key) for ask in begun]
        if self._ahead.step([one for one in places if one is not None]):
            return True
        return self._chains.idle([ask for ask in known if ask.key not in self._places])

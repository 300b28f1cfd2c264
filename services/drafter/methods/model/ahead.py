"""A draft model as one more source of small trees: what it says of places it has been to.

While a verifier works on a tree, the model goes where the text may go next, as far as there
is time, and remembers its law at each place. When the verdict comes, the next tree is made
of what is remembered by then; nothing waits for the model.

    committed | a b c      the tree that was sent
                  b' d     what the model itself says beside it and behind it

Rules:

1.  All places form one tree in front of the committed text. Of those that are not in KV yet,
    the likeliest to be led through go first: a node of the sent tree by the chance that the
    builder gave it, any other by the model's law on its way there. (Speculative speculative
    decoding, Kumar, Dao and May, 2603.03251, prepares whole drafts that way.)
2.  Text that the model has not seen goes before its places, in the same step.
3.  A step begins only if it ends, as far as is known, before the next verdict is due. One that
    comes meanwhile would wait for it. And there are two for a verdict, reading long texts apart:
    one for what is new and what was sent, one for what may come in its place. More bring next to
    nothing, and cores share memory, and some of them more, with the verifier's.
4.  K/V of places lies behind the text in the session's own room. When the text goes down
    places, theirs stay with all below; all others go: a length change.
5.  What it says enters scores and nothing else, so it is for drafts that are matched exactly.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from services.drafter.methods.model.places import Places
from services.engine.ngram_file import DraftLaw
from services.engine.port import Engine, Segment
from services.engine.sampling import RowContext, head_of, kept_laws, log_law
from services.scheduling.step_time import StepTimeModel

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AheadRules:
    """At most `rows` places in a step, of `sessions` sessions; `step_tokens` of text at a time.

    Sessions beyond these wait until one of them ends or stalls: in a crowd a row costs more than
    what the model knows, and a step of many rows holds up trees. `margin`: a step begins
    where so many times what it takes is left. `awaited`: steps that a tree waits for.
    """

    rows: int = 12
    step_tokens: int = 128
    margin: float = 1.15
    awaited: int = 0

    @property
    def sessions(self) -> int:
        """Most sessions at a time."""
        return max(1, self.rows // 4)


class Ahead:
    """Takes a draft model to the places of all sessions."""

    def __init__(
        self,
        engine: Engine,
        rules: AheadRules,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock`: seconds."""
        self._engine, self._rules, self._clock = engine, rules, clock
        self._head = head_of(engine)
        self._times = StepTimeModel()

    @property
    def now(self) -> float:
        """Seconds."""
        return self._clock()

    def goes_on(self, places: Places) -> bool:
        """Whether the model goes on with a session, when its turn comes."""
        return not (places.lost or places.due.stalled(self._clock()))

    def step(self, sessions: Iterable[Places]) -> bool:
        """One forward for the first of them, if there is time; False = not now. Raises nothing."""
        known = list(islice(filter(self.goes_on, sessions), self._rules.sessions))
        try:
            return self._step(known)
        except Exception:
            if len(known) == 1:
                _log.exception("a draft model failed; the session goes on without it")
                known[0].lost = True
                return False
        # Whose fault it was is found out by going with each alone.
        return max([self.step([places]) for places in known])

    def _step(self, sessions: Sequence[Places]) -> bool:
        started = self._clock()
        left = min((places.due.within(started) for places in sessions), default=0.0)
        rules = self._rules
        filling = any(places.unseen > rules.rows for places in sessions)
        most = rules.step_tokens if filling else rules.rows
        fed = self._fed(sessions, self._times.most_within(left / rules.margin, most))
        if not fed:
            return False
        rows = self._engine.forward([segment for _, segment in fed])
        for places, segment in fed:
            places.entered(segment)
        wanted = [places.rows(segment) for places, segment in fed]
        laws = iter(self._laws(rows, [row for own in wanted for row in own]))
        for (places, _), own in zip(fed, wanted, strict=True):
            places.absorb(list(islice(laws, len(own))))
        taken = self._clock() - started
        self._times = self._times.add(sum(len(s.token_ids) for _, s in fed), taken)
        return True

    @staticmethod
    def _fed(sessions: Sequence[Places], room: int) -> list[tuple[Places, Segment]]:
        """What each session feeds: those that have least to feed first, so that all get a part."""
        fed = []
        waiting = sorted(sessions, key=lambda places: places.unseen)
        for place, session in enumerate(waiting):
            share = max(1, room // (len(waiting) - place)) if room > 0 else 0
            segment = session.feed(share)
            if segment is not None:
                fed.append((session, segment))
                room -= len(segment.token_ids)
        return fed

    def _laws(self, logits: Sequence[Tensor], rows: Sequence[RowContext]) -> list[DraftLaw]:
        if not rows:
            return []
        laws = log_law(torch.cat(list(logits)), rows, self._head)
        return kept_laws(laws, self._head)

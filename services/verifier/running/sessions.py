"""The sessions of all links: how they begin, how they end, and what a failure costs.

Where memory runs out, texts that ended go first, and what failed is tried once more. What fails
then costs one session, which is told of with a `SessionGone`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TypeVar

from services.contract.errors import out_of_memory
from services.contract.types import FailureReason
from services.contract.worker_messages import (
    SessionGone,
    SessionStarted,
    StartVerify,
    VerifierEvent,
)
from services.engine.port import Engine
from services.verifier.caches import Caches
from services.verifier.options import VerifierOptions
from services.verifier.refusals import Limits, Refusal, ask_form, check_open, explain
from services.verifier.running.drafting import Drafting
from services.verifier.running.own_drafts import OwnDrafts
from services.verifier.running.session import Key, RunningSession
from services.verifier.running.turns import Turn
from services.verifier.states import StateWatch

PREFIX_SHARE = 0.5
"""Of the K/V budget, unless told otherwise: what texts that ended may hold at most."""
MOST_OPENINGS = (1 << 16) - 1

_log = logging.getLogger(__name__)
T = TypeVar("T")
Emit = Callable[[int, VerifierEvent], None]
"""(link number, event)."""


class Sessions:
    """All that are open: `every`, by link and handle.

    `in_step`: those whose drafts have K/V that nobody judged yet.
    """

    def __init__(
        self,
        engine: Engine,
        emit: Emit,
        options: VerifierOptions,
        limits: Limits,
        drafting: Drafting,
        own_drafts: OwnDrafts,
    ) -> None:
        self._emit, self._options, self._limits = emit, options, limits
        self._drafting, self._own_drafts = drafting, own_drafts
        self._numbers = count(1)
        self.every: dict[Key, RunningSession] = {}
        self.in_step: dict[RunningSession, Turn] = {}
        self.states = StateWatch(engine, options.on_states)
        self.caches = Caches(
            engine, _prefix_tokens(engine, options), options.lending, options.on_preempt
        )

    # --- how they begin ---------------------------------------------------------------

    def start(self, link: int, opening: StartVerify, arrived: float) -> RunningSession | None:
        """Open a session, or open it anew; None: it is open, or cannot be."""
        key = (link, opening.handle)
        known = self.every.get(key)
        if known is not None and opening.opening <= known.opening.opening:
            if known.opened and opening.opening == known.opening.opening:
                self._emit(link, SessionStarted(opening.handle, opening.opening))
            return None
        self.close(key)
        try:
            return self._open(key, opening, arrived)
        except Exception as error:
            self._gone(key, opening.opening, error)
            return None

    def _open(self, key: Key, opening: StartVerify, arrived: float) -> RunningSession:
        check_open(opening, self._limits)
        if max(opening.opening, opening.term) > MOST_OPENINGS:
            raise Refusal(FailureReason.INVALID, "opening, term: too many")
        form = ask_form(opening, self._options.structures, str(key[0]))
        session = RunningSession(key[0], opening, arrived, form, next(self._numbers))
        self.spared(partial(self.caches.open, session))
        self.every[key] = session
        self.states.open(session, self._own_drafts.open(session))
        return session

    # --- how they end -----------------------------------------------------------------

    def close(self, key: Key, *, sound: bool = True) -> None:
        """The session is over, if there is one; `sound`: its text may serve others."""
        if (session := self.every.pop(key, None)) is None:
            return
        self.states.close(session)
        turn = self.in_step.pop(session, None)
        sound = sound and (turn is None or _trimmed(turn))
        self.caches.close(session, sound=sound)
        self._drafting.forget(session)
        self._own_drafts.close(session)

    def end(self, key: Key) -> None:
        """The same, and nothing is kept for whoever goes on with its context."""
        self.close(key)
        self.caches.release(key)

    def drop_link(self, link: int) -> None:
        """Free the sessions of a link, and only those."""
        for key in [key for key in self.every if key[0] == link]:
            self.close(key)
        self.caches.drop_link(link)

    # --- what fails -------------------------------------------------------------------

    def spared(self, act: Callable[[], T]) -> T:
        """What `act` gives; where memory runs out, once more without the texts that ended.

        Where it raises, `act` has changed nothing.
        """
        try:
            return act()
        except Exception as error:
            if not out_of_memory(error) or not self.caches.relieve():
                raise
        return act()

    def at_its_cost(self, session: RunningSession, act: Callable[[], T]) -> T | None:
        """The same for one session; where that raises, the session fails and no other: None."""
        try:
            return self.spared(act)
        except Exception as error:
            self.fail(session, error)
            return None

    def fail(self, session: RunningSession, error: Exception) -> None:
        """The session is gone, unless it is another one by now."""
        if self.every.get(session.key) is session:
            self._gone(session.key, session.opening.opening, error)

    def _gone(self, key: Key, opening: int, error: Exception) -> None:
        self.close(key, sound=False)
        reason, message = explain(error)
        self._emit(key[0], SessionGone(key[1], opening, reason, message))


def _prefix_tokens(engine: Engine, options: VerifierOptions) -> int:
    wanted = options.prefix_cache_tokens
    return int(PREFIX_SHARE * engine.kv_tokens_capacity) if wanted is None else wanted


def _trimmed(turn: Turn) -> bool:
    """Leave K/V to the text alone, of a session that ends before its draft was judged."""
    session = turn.session
    try:
        if turn.tree.parents is not None:
            session.cache.keep_path(turn.last, (0,))
        session.cache.rollback(min(session.cache.length, len(session.text) - 1))
    except Exception:
        _log.exception("a text that ended is not kept")
        return False
    return True

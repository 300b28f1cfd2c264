"""Which sessions have K/V: who shares a text's beginning, and who gives way when room is short.

A session reserves K/V for its text, a block and some tokens more, and then as much again as
it grows. Where the budget holds no more, texts that ended go first; then the session opened
last gives its K/V up, and is prefilled again when there is room. The one opened first never
does, so something always goes on. Nobody waits while holding what another one waits for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from services.contract.errors import Overloaded
from services.contract.kv_reserve import SPARE_TOKENS, reserve_of
from services.engine.native import Forwards
from services.engine.native.kv import freed_on_error
from services.engine.lending import Lending
from services.engine.prefix_cache import PrefixCache
from services.verifier.session import VerifySession

_log = logging.getLogger(__name__)


class Caches:
    """The K/V of a verifier's sessions."""

    def __init__(
        self,
        engine: Forwards,
        prefix_tokens: int,
        lending: Lending | None = None,
        on_preempt: Callable[[], object] | None = None,
    ) -> None:
        """`prefix_tokens`: what texts that ended may hold; `lending`: who may borrow.

        `on_preempt` is called when a session gives its K/V up.
        """
        self._engine = engine
        self._lending = lending
        self._prefixes = PrefixCache(engine, prefix_tokens)
        self._on_preempt = on_preempt

    def open(self, session: VerifySession) -> None:
        """Give a session K/V, with what is known of its text in it; raises Overloaded.

        Nothing is taken where that fails, for whatever reason.
        """
        most, capacity = session.most_tokens, self._engine.kv_tokens_capacity
        if most > capacity:
            raise Overloaded(f"KV cache: a session of up to {most} tokens, and room for {capacity}")
        scope, text = session.opening.cache_scope, session.text
        match = self._prefixes.find(scope, text)
        session.awaited = match if match is not None and not match.ready else None
        ready = match if session.awaited is None else None
        with freed_on_error(self._prefixes.open(ready, _reserve(session))) as cache:
            known = self._prefixes.share(scope, text, cache)
        session.cache, session.known, session.cached = cache, known, cache.length
        if self._lending is not None:
            session.offer = self._lending.offer(session.key[1], cache, text)

    def close(self, session: VerifySession, *, sound: bool = True) -> None:
        """A session ends; `sound`: what it computed may serve others. Raises nothing."""
        self._withdraw(session)
        known, session.known = session.known, None
        if known is None:
            return
        if sound:
            try:
                self._prefixes.end(known)
            except Exception:
                _log.exception("a text that ended is not kept")
            else:
                return
        try:
            self._prefixes.discard(known)
        except Exception:
            _log.exception("K/V of a session that ended was not given back in full")

    def settle(self, session: VerifySession) -> bool:
        """Copy what a session awaits if it is there; whether it awaits nothing any more.

        It goes on waiting where the copy fails.
        """
        match = session.awaited
        if match is None:
            return True
        if not match.ready:
            return False
        self._prefixes.copy(match, session.cache)
        session.awaited, session.cached = None, session.cache.length
        return True

    def room(
        self,
        session: VerifySession,
        sessions: Collection[VerifySession],
        busy: Collection[VerifySession],
    ) -> bool:
        """Reserve what a session's next block may take; False = it is not its turn.

        Of `sessions` those opened later give way, but for the `busy` ones, which are in
        this step already. Raises Overloaded where nobody is there to give way or to end.
        """
        if session.cache.reserve >= session.next_tokens:
            return True
        others = [own for own in sessions if own is not session and not own.preempted]
        younger = sorted(
            (own for own in others if own.number > session.number), key=lambda own: own.number
        )
        willing = [own for own in younger if own not in busy]
        while True:
            try:
                session.cache.grow(_reserve(session))
            except Overloaded:
                if willing:
                    self._preempt(willing.pop())
                elif not others:
                    raise
                else:
                    break
            else:
                return True
        if not any(own in busy for own in younger):
            self._preempt(session)
        return False

    def to_bring_back(self, sessions: Collection[VerifySession]) -> VerifySession | None:
        """The preempted session that is to be opened again now.

        There is room for it and some tokens more, or nobody else to wait for.
        """
        preempted = [own for own in sessions if own.preempted]
        session = min(preempted, key=lambda own: own.number, default=None)
        if session is None or len(preempted) == len(sessions):
            return session
        free = self._engine.kv_tokens_capacity - self._engine.kv_tokens_used
        enough = min(session.most_tokens, _reserve(session) + SPARE_TOKENS)
        return session if free >= enough else None

    def relieve(self) -> bool:
        """The device has no memory left: free the texts that ended; whether there were any."""
        parked = self._prefixes.parked_tokens
        self._prefixes.evict(parked)
        return parked > 0

    def _preempt(self, session: VerifySession) -> None:
        if self._on_preempt is not None:
            self._on_preempt()
        _log.info(
            "a session of %d tokens gives its K/V up: %d of %d tokens are taken",
            len(session.text),
            self._engine.kv_tokens_used,
            self._engine.kv_tokens_capacity,
        )
        self.close(session, sound=False)
        session.filled = False
        session.awaited = None

    def _withdraw(self, session: VerifySession) -> None:
        if self._lending is not None and session.offer is not None:
            self._lending.withdraw(session.key[1], session.offer)
        session.offer = None


def _reserve(session: VerifySession) -> int:
    """Tokens to reserve for a session now."""
    return reserve_of(len(session.text), session.next_block, session.most_tokens)

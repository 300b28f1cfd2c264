"""Which sessions have K/V: who shares a text's beginning, and who gives way when room is short.

A session reserves K/V for its text, a block and some tokens more, and then as much again as
it grows. Where the budget holds no more, texts that ended go first; then the session opened
last gives its K/V up, and is prefilled again when there is room. The one opened first never
does, so something always goes on. Nobody waits while holding what another one waits for.
Of texts that are scored the context stays for the next one of their call, until that is over.
Within a tenant priorities decide who counts as opened when (`services.scheduling.turns`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TypeVar

from services.contract.errors import Overloaded
from services.engine.lending import Lending
from services.engine.port import Engine, SharedText
from services.scheduling.kv_reserve import SPARE_TOKENS, reserve_of
from services.verifier.fed_text import FedText, Text, by_seniority

_FORKS = "completions of "

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Caches:
    """The K/V of a verifier's sessions."""

    def __init__(
        self,
        engine: Engine,
        prefix_tokens: int,
        lending: Lending | None = None,
        on_preempt: Callable[[], object] | None = None,
    ) -> None:
        """`prefix_tokens`: what texts that ended may hold; `lending`: who may borrow.

        `on_preempt` is called when a session gives its K/V up.
        """
        self._engine = engine
        self._lending = lending
        self._prefixes = engine.prefix_cache(prefix_tokens)
        self._keeps = prefix_tokens > 0
        self._on_preempt = on_preempt
        self._held: dict[tuple[int, int], SharedText] = {}
        """Contexts of sessions that were scored, until these are closed."""

    def open(self, session: FedText) -> None:
        """Give a session K/V, with what is known of its text in it; raises Overloaded.

        Nothing is taken where that fails, for whatever reason.
        """
        most, capacity = session.most_tokens, self._engine.kv_tokens_capacity
        if most > capacity:
            raise Overloaded(f"KV cache: a session of up to {most} tokens, and room for {capacity}")
        opened = self._begin(session)
        session.shared, session.cache = opened, opened.cache
        if self._lending is not None:
            session.offer = self._lending.offer(session.key, opened.cache, session.text)

    def _begin(self, session: FedText) -> SharedText:
        """K/V with what is known of a text, but for rows that are to be scored."""
        scope, forks = session.opening.cache_scope, session.opening.fork_scope
        kept = not forks or bool(scope and self._keeps)
        text, reserve = session.text, _reserve(session)
        first = session.scored if session.scoring else len(text)
        behind = text[first:]
        del text[first:]
        try:
            return self._prefixes.open(
                scope if kept else f"{_FORKS}{forks}", text, reserve, kept=kept
            )
        finally:
            text += behind

    def close(self, session: FedText, *, sound: bool = True) -> None:
        """A session ends; `sound`: what it computed may serve others. Raises nothing."""
        if (shared := self._parted(session)) is not None:
            _end(shared, shared.end if sound else None)

    def hold(self, session: FedText) -> None:
        """A session was scored: its context stays until its key is released. Raises nothing.

        That is what is before the first token that was scored: few texts go on alike.
        """
        self.release(session.key)
        if (shared := self._parted(session)) is None:
            return
        cache = shared.cache
        cache.rollback(min(cache.length, session.opening.score_from - 1))
        if (held := _end(shared, shared.hold)) is not None:
            self._held[session.key] = held

    def release(self, key: tuple[int, int]) -> None:
        """What was held of a session need not be any more."""
        if (held := self._held.pop(key, None)) is not None:
            _end(held, held.end)

    def drop_link(self, link: int) -> None:
        """The same for all sessions of a link."""
        for key in [key for key in self._held if key[0] == link]:
            self.release(key)

    def room(
        self,
        session: FedText,
        sessions: Collection[FedText],
        busy: Collection[FedText],
    ) -> bool:
        """Reserve what a session's next block may take; False = it is not its turn.

        Of `sessions` those opened later give way, but for the `busy` ones, which are in
        this step already. Raises Overloaded where nobody is there to give way or to end.
        """
        if session.cache.reserve >= session.next_tokens:
            return True
        others = {own for own in sessions if own is not session and not own.preempted}
        ordered = by_seniority(sessions)
        younger = [own for own in ordered[ordered.index(session) :] if own in others]
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

    def to_bring_back(self, sessions: Collection[Text]) -> Text | None:
        """The preempted session that is to be opened again now.

        There is room for it and some tokens more, or nobody else to wait for.
        """
        preempted = [own for own in sessions if own.preempted]
        session = next((own for own in by_seniority(sessions) if own.preempted), None)
        if session is None or len(preempted) == len(sessions):
            return session
        free = self._engine.kv_tokens_capacity - self._engine.kv_tokens_used
        enough = min(session.most_tokens, _reserve(session) + SPARE_TOKENS)
        return session if free >= enough else None

    def relieve(self) -> bool:
        """The device has no memory left: free the texts that ended; whether there were any."""
        return self._prefixes.evict_all() > 0

    def _preempt(self, session: FedText) -> None:
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

    def _parted(self, session: FedText) -> SharedText | None:
        """What a session has in K/V; it has that no more, and nobody borrows it."""
        if self._lending is not None and session.offer is not None:
            self._lending.withdraw(session.key, session.offer)
        shared, session.shared, session.offer = session.shared, None, None
        return shared


def _end(shared: SharedText, end: Callable[[], T] | None) -> T | None:
    """End a text in a way or, where that fails or is None, leave nothing of it."""
    if end is not None:
        try:
            return end()
        except Exception:
            _log.exception("a text that ended is not kept")
    try:
        shared.discard()
    except Exception:
        _log.exception("K/V of a session that ended was not given back in full")
    return None


def _reserve(session: FedText) -> int:
    """Tokens to reserve for a session now."""
    return reserve_of(len(session.text), session.next_block, session.most_tokens)

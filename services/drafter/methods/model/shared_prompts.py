"""K/V of a prompt that several completions have: one of them reads it, the others copy it.

Rules:

1.  Completions of one prompt name the same `fork_scope`, on one link. What they share is the
    prompt without its last token, whose row each has to see for itself.
2.  Of those that are to be fed now and have nothing yet, the first one is fed. The others wait for
    it, and for nobody who is not fed now: so somebody always goes on.
3.  Whoever has read the prompt can be copied from, also while it drafts, rests, or has a tree in
    front of its text: K/V of the prompt is a chain in front of that.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from services.contract.types import OpenDraft
from services.drafter.protocol import SessionKey
from services.engine.port import Engine, KVCache

_Family = tuple[int, str]
"""(link number, fork scope)."""


@dataclass(frozen=True, slots=True)
class _Member:
    family: _Family
    prompt: tuple[int, ...]
    cache: KVCache

    @property
    def shared(self) -> int:
        """Tokens that are the same for all."""
        return len(self.prompt) - 1


class SharedPrompts:
    """The K/V of a drafter's sessions on one engine, as far as they begin alike."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._members: dict[SessionKey, _Member] = {}
        self._families: dict[_Family, dict[SessionKey, None]] = {}
        self.copied = 0
        """Tokens of prompts that were copied so far, and never fed."""

    def open(self, key: SessionKey, opening: OpenDraft, reserve: int) -> KVCache:
        """A cache for at most `reserve` tokens; raises Overloaded without room.

        It is the caller's to free; `close` comes before that.
        """
        cache = self._engine.new_cache(reserve)
        if opening.fork_scope and len(opening.prompt) > 1:
            family = key[0], opening.fork_scope
            self._members[key] = _Member(family, tuple(opening.prompt), cache)
            self._families.setdefault(family, {})[key] = None
        return cache

    def close(self, key: SessionKey) -> None:
        """Nobody copies from it any more. Of an unknown one: does nothing."""
        member = self._members.pop(key, None)
        if member is not None:
            siblings = self._families[member.family]
            del siblings[key]
            if not siblings:
                del self._families[member.family]

    def ready(self, key: SessionKey, going: Collection[SessionKey]) -> bool:
        """Whether a session is fed now, with the prompt in its K/V if another one has read it.

        `going`: the sessions that are fed now where they may be, this one among them.
        """
        own = self._members.get(key)
        if own is None or own.cache.length:
            return True
        alike = self._alike(own)
        source = max(alike.values(), key=lambda member: member.cache.length)
        if source.cache.length >= own.shared:
            own.cache.copy_prefix(source.cache, own.shared)
            self.copied += own.shared
            return True
        fed = [one for one in alike if one in going]
        reading = (one for one in fed if alike[one].cache.length)
        return next(reading, fed[0]) == key

    def _alike(self, own: _Member) -> dict[SessionKey, _Member]:
        """Those of its family that have just this prompt, in the order in which they came."""
        family = ((one, self._members[one]) for one in self._families[own.family])
        return {one: member for one, member in family if member.prompt == own.prompt}

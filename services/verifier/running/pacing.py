"""The simplest policy: all that is held, up to the window."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from services.scheduling.offers import Allotment, Judged, Offer


class Fixed:
    """Verifies every draft as it is, learns nothing and holds nobody back."""

    def allot(self, offers: Sequence[Offer]) -> list[Allotment]:
        """Of each offer all, as far as its window goes."""
        return [Allotment(min(own.tokens, own.window)) for own in offers]

    def judged(self, own: Judged) -> None:
        """Nothing is learned."""

    def advanced(self, key: Hashable, tokens: int) -> None:
        """Nothing is learned."""

    def stepped(self, sessions: int, extra: int, ms: float) -> None:
        """Nothing is learned."""

    def window(self, _key: Hashable, most: int) -> int:
        """As far as it may be."""
        return most

    def forget(self, key: Hashable) -> None:
        """Nothing is known."""

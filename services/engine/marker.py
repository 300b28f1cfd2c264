"""Free text in front of a response format, up to a marker (Knuth, Morris and Pratt, 1977).

How much of the marker a text ends with depends on its tokens alone, so the format begins at
the same place however the text was drafted, taken back or resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Spell = Callable[[int], Sequence[int]]
"""The signs of a token that the marker is written in: its bytes, or itself."""


class Marker:
    """What to look for; shared and unchanging."""

    def __init__(self, signs: Sequence[int], spell: Spell) -> None:
        """`signs`: the marker's own."""
        self._signs, self._spell = tuple(signs), spell
        self._shorter = _borders(self._signs)

    def __deepcopy__(self, memo: object) -> Marker:
        return self

    def __len__(self) -> int:
        return len(self._signs)

    def after(self, reached: int, token: int) -> int:
        """How many of its signs a text ends with, behind `token`; all of them for good."""
        for sign in self._spell(token):
            if reached == len(self._signs):
                break
            while reached and self._signs[reached] != sign:
                reached = self._shorter[reached - 1]
            reached += self._signs[reached] == sign
        return reached


class FreeText:
    """The tokens of one output up to the one that completes the marker; none without a marker."""

    def __init__(self, marker: Marker | None) -> None:
        self._marker = marker
        self._reached = [0]
        """How much of the marker was there, before each token and behind the last."""

    def __len__(self) -> int:
        return len(self._reached) - 1

    @property
    def complete(self) -> bool:
        """Whether the format begins here."""
        return self._marker is None or self._reached[-1] == len(self._marker)

    def take(self, tokens: Sequence[int]) -> int:
        """Go on up to the marker's end; how many of the tokens that took."""
        if self._marker is None:
            return 0
        before, most = len(self), len(self._marker)
        for token in tokens:
            if self._reached[-1] == most:
                break
            self._reached.append(self._marker.after(self._reached[-1], token))
        return len(self) - before

    def back(self, tokens: int) -> None:
        """Take the last ones back."""
        del self._reached[len(self._reached) - tokens :]


def _borders(signs: Sequence[int]) -> tuple[int, ...]:
    """For each beginning, the length of the longest shorter one that it ends with."""
    borders = [0] * len(signs)
    for place in range(1, len(signs)):
        reached = borders[place - 1]
        while reached and signs[reached] != signs[place]:
            reached = borders[reached - 1]
        borders[place] = reached + (signs[reached] == signs[place])
    return tuple(borders)

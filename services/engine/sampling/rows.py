"""How a token is to be chosen at one row of a forward pass."""

from __future__ import annotations

from dataclasses import dataclass

from services.contract.types import ResolvedSampling, VerifyMode
from services.engine.sampling.history import History
from services.engine.structure import Matcher

NO_CHOICE = -1
"""In place of a token where the model gave no finite law (NaN or infinity)."""

_ARGMAX = ResolvedSampling()


@dataclass(frozen=True, slots=True)
class RowContext:
    """How to choose at one row; `position` is the output index of the chosen token.

    `history` is the text (prompt and output) up to where `path` starts, and may
    be left out without penalties and bad words; `path` holds the draft tokens between that
    text and this row. `matcher` follows the same output, where it has to be of a
    given form. Rows of one tree share history and matcher.
    """

    mode: VerifyMode
    sampling: ResolvedSampling
    seed: int
    position: int
    history: History | None = None
    path: tuple[int, ...] = ()
    matcher: Matcher | None = None

    @property
    def warping(self) -> ResolvedSampling:
        """Where temperature and cuts are read: neutral for an argmax."""
        return _ARGMAX if self.mode is VerifyMode.GREEDY else self.sampling

    @property
    def place(self) -> tuple[int, int]:
        """Key (seed, position) of the row's shared noise."""
        return self.seed, self.position

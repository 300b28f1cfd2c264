"""What earlier sessions said, for those that come later.

Ouroboros (Zhao et al., 2402.13720) keeps one pool for whatever it serves; here every scope (a
tenant) has its own, and no lookup crosses scopes. Prompts are not learned (but an output may
quote its prompt).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.drafter.methods.ngram.text_index import BORDER, TextIndex


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Tokens of one tenant's outputs, and of all tenants', that are remembered."""

    per_scope: int = 32_768
    capacity: int = 262_144


class TextPool:
    """Outputs of earlier sessions, by scope; no lookup crosses scopes.

    A scope has two indexes: one fills up, and when it holds half of what is allowed it becomes
    the old one, whose place it takes. The scope used longest ago goes first.
    """

    def __init__(self, limits: PoolLimits = PoolLimits()) -> None:
        self._limits = limits
        self._scopes: OrderedDict[str, tuple[TextIndex, ...]] = OrderedDict()
        self.size = 0
        """Tokens of all scopes."""

    def of(self, scope: str) -> tuple[TextIndex, ...]:
        """The indexes of a scope."""
        if scope not in self._scopes:
            return ()
        self._scopes.move_to_end(scope)
        return self._scopes[scope]

    def learn(self, scope: str, output: Sequence[int]) -> None:
        """Remember an output, its end if it is long."""
        if not scope or len(output) < 2:
            return
        half = max(1, self._limits.per_scope // 2)
        output = output[-half + 1 :]
        indexes = self.of(scope) or (TextIndex(),)
        young = indexes[-1]
        if len(young) + len(output) + 1 > half:
            self.size -= len(indexes[0]) if len(indexes) > 1 else 0
            young, indexes = TextIndex(), (young,)
            indexes = (*indexes, young)
        young.extend((BORDER, *output))
        self.size += len(output) + 1
        self._scopes[scope] = indexes
        self._scopes.move_to_end(scope)
        while self.size > self._limits.capacity and len(self._scopes) > 1:
            _, dropped = self._scopes.popitem(last=False)
            self.size -= sum(map(len, dropped))


class Archive(Protocol):
    """Where outputs outlive the process. No call waits for anything."""

    def load(self, scope: str) -> None:
        """Ask for the outputs of a scope."""

    def keep(self, scope: str, output: Sequence[int]) -> None:
        """Keep the output of a session that ended."""

    def arrived(self) -> tuple[str, Sequence[int]] | None:
        """One scope and output that was asked for, if one is here."""

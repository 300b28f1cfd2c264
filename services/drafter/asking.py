"""How methods are asked: all sessions of one together, and no failure of one is another's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from services.drafter.protocol import Ask, Drafter, Proposed

_log = logging.getLogger(__name__)


class _Drafted(Protocol):
    """Whatever a method drafts for."""

    @property
    def drafter(self) -> Drafter:
        """The method."""


D = TypeVar("D", bound=_Drafted)


def by_drafter(sessions: Iterable[D]) -> list[tuple[Drafter, list[D]]]:
    """The sessions of each method."""
    groups: dict[int, tuple[Drafter, list[D]]] = {}
    for own in sessions:
        groups.setdefault(id(own.drafter), (own.drafter, []))[1].append(own)
    return list(groups.values())


def propose_each(
    drafter: Drafter, asks: Sequence[Ask], fail: Callable[[Ask, Exception], None]
) -> list[Proposed | None]:
    """All sessions together, or, if that fails, each alone; None for one that failed."""
    try:
        proposals = drafter.propose(asks)
        return [proposal for proposal, _ in zip(proposals, asks, strict=True)]
    except Exception as error:
        if len(asks) == 1:
            fail(asks[0], error)
            return [None]
    return [proposal for ask in asks for proposal in propose_each(drafter, [ask], fail)]


def idle(drafter: Drafter, asks: Iterable[Ask]) -> bool:
    """Let a method use a moment; whether it did."""
    try:
        return drafter.idle(asks)
    except Exception:
        _log.exception("an idle moment of a method failed")
        return False

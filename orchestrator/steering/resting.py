"""What drafters have yet to hear of sessions that rest.

A verifier's policy lets the drafts of a crowd rest where they do not pay. Frames then cost CPU in
two processes, and tell of text behind which nothing is drafted. So a drafter is told of some steps
together: before anything else that its sessions bring, and before they leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from orchestrator.steering.routes import Route
from services.contract.frames import StepEnd, StepFrame, StepRow, step_frame

MOST_UNHEARD = 32
"""Tokens of a session."""

Brought = tuple[int, Route, StepRow]
"""The place in a frame, whose it is, and what a step brought."""


class Resting:
    """`tell` sends a drafter a frame."""

    def __init__(self, tell: Callable[[str, StepFrame], None]) -> None:
        self._tell = tell

    def keeps(self, frame: StepFrame, brought: Sequence[Brought]) -> bool:
        """Whether the drafter of these sessions hears of a step later; if not, it is up to date.

        For a step that was not received yet.
        """
        if not _may_wait(frame, brought):
            self.tell([route for _, route, _ in brought])
            return False
        for _, route, row in brought:
            route.unheard += row.tokens
        return True

    def tell(self, routes: Iterable[Route]) -> None:
        """Tell the drafter of these sessions what it has not heard of them."""
        behind = [route for route in routes if route.unheard]
        if behind:
            self._tell(behind[0].drafter, step_frame(StepFrame(0), list(map(_row, behind))))
        for route in behind:
            route.unheard = []


def _may_wait(frame: StepFrame, brought: Sequence[Brought]) -> bool:
    """Nothing is drafted behind any of it, and a drafter keeps nothing of it but the text."""
    if frame.windows or frame.top_rows or frame.states:
        return False
    return all(
        route.ahead == 0 and len(route.unheard) + len(row.tokens) <= MOST_UNHEARD
        for _, route, row in brought
    )


def _row(route: Route) -> StepRow:
    tokens, count = tuple(route.unheard), len(route.unheard)
    position, end = route.received - count, StepEnd.NONE
    return StepRow(route.handle, route.opening, position, tokens, count, tokens, end=end)

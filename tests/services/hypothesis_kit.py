"""A drafter core, what it is sent, and what it emitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from services.contract import types as t
from services.contract.frames import (
    DraftFrame,
    DraftRow,
    StepFrame,
    StepRow,
    draft_rows,
    step_frame,
)
from services.contract.worker_messages import SessionGone, StartDraft
from services.drafter.hypotheses.core import HypothesisCore

_OF_A_START = {own.name for own in fields(StartDraft)}


def starting(handle: int = 1, prompt: Sequence[int] = (50, 51), **changes: Any) -> StartDraft:
    """A StartDraft; sampling parameters may be given by their names."""
    own = {name: changes.pop(name) for name in list(changes) if name in _OF_A_START}
    values: dict[str, Any] = {"session_id": f"s{handle}", "term": 1, "output": ()}
    values |= {"seed": 7, "window": 4}
    values |= {"opening": 1, "mode": t.VerifyMode.GREEDY}
    values["sampling"] = t.ResolvedSampling(**({"max_tokens": 100} | changes))
    return StartDraft(handle, prompt=tuple(prompt), **(values | own))


def brought(handle: int, position: int, *tokens: int, **more: Any) -> StepRow:
    """What a step brought to one session."""
    return StepRow(handle, 1, position, tokens, **more)


def step(*rows: StepRow, windows: Sequence[int] = ()) -> StepFrame:
    """A frame of these."""
    return step_frame(StepFrame(1), rows, windows)


class Worker:
    """A core with some drafters, and what it emitted."""

    def __init__(self, drafters: dict[str, Any], **options: Any) -> None:
        self.events: list[tuple[int, Any]] = []
        self.core = HypothesisCore(
            drafters,
            emit=lambda link, event: self.events.append((link, event)),
            worker_id="d1",
            **options,
        )

    def send(self, *commands: Any, link: int = 0) -> list[tuple[int, Any]]:
        """Hand these over; what is said at once."""
        for command in commands:
            self.core.handle(link, command)
        return self.take()

    def take(self) -> list[tuple[int, Any]]:
        """Events since they were last taken."""
        events, self.events = self.events, []
        return events

    def run(self) -> list[DraftRow]:
        """Step until idle; what was drafted."""
        for _ in range(1000):
            if not self.core.step():
                return drafts_of(self.take())
        raise AssertionError("the core never comes to rest")


def drafts_of(events: Sequence[tuple[int, Any]]) -> list[DraftRow]:
    """The rows of all frames."""
    frames = [event for _, event in events if isinstance(event, DraftFrame)]
    return [row for frame in frames for row in draft_rows(frame)]


def gone_of(events: Sequence[tuple[int, Any]]) -> SessionGone:
    """The only session that is gone."""
    (gone,) = [event for _, event in events if isinstance(event, SessionGone)]
    return gone

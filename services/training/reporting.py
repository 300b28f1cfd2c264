"""Who is told how a long run goes."""

from __future__ import annotations

from typing import Protocol

from services.contract.errors import PacelineError


class Stopped(PacelineError):
    """The run was asked to stop; what it has done is on disk."""


class Reporter(Protocol):
    """Shows stages and how far they are. Raising from it ends the run, resumable."""

    def say(self, line: str) -> None:
        """One line."""

    def stage(self, name: str, total: int, done: int) -> None:
        """A stage of `total` units begins, `done` of them in an earlier run."""

    def advance(self, done: int, figures: str = "") -> None:
        """So many units of the stage are done by now."""

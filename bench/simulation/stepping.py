"""What drafters in simulated time have in common: one step at a time, the rest waits."""

from __future__ import annotations

from abc import ABC, abstractmethod

from bench.simulation.agenda import Agenda, Device
from bench.simulation.ports import Deliver
from services.contract.types import DrafterCommand


class SteppingDrafter(ABC):
    """One worker; `deliver` brings drafts away. What arrives during a step waits for its end.

    `device`: what computes its steps; None = one of its own.
    """

    def __init__(
        self, name: str, agenda: Agenda, deliver: Deliver, device: Device | None = None
    ) -> None:
        self.name = name
        self.drafted = 0
        self.busy_s = 0.0
        self._agenda, self._deliver = agenda, deliver
        self._device = device or Device(agenda)
        self._inbox: list[DrafterCommand] = []
        self._working = False
        self._planned = False

    def handle(self, command: DrafterCommand) -> None:
        """A command arrives; during a step it waits."""
        if self._working:
            self._inbox.append(command)
            return
        self._absorb(command)
        if not self._planned:
            self._planned = True
            self._agenda.after(0.0, self._step)

    @abstractmethod
    def _absorb(self, command: DrafterCommand) -> None:
        """Take a command in; no step runs."""

    @abstractmethod
    def _begin(self) -> float | None:
        """Begin a step: its milliseconds; None = there is nothing to draft."""

    @abstractmethod
    def _conclude(self) -> None:
        """The step's time is over: what it drafted leaves."""

    def _step(self) -> None:
        self._planned = False
        took = self._begin()
        self._working = took is not None
        if took is not None:
            self.busy_s += 1e-3 * took
            self._device.run(took, self._end)

    def _end(self) -> None:
        self._conclude()
        waiting, self._inbox = self._inbox, []
        for command in waiting:
            self._absorb(command)
        self._step()

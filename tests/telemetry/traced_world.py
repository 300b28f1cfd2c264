"""The simulated cluster of tests/steering with a recorder, and a tracer at its verifier."""

from __future__ import annotations

import time

from orchestrator.recorder import Recorder
from orchestrator.steering import events
from orchestrator.steering.rounds import RoundRecord
from orchestrator.steering.state import State
from services.contract.frames import StepRow
from services.runtime.step_records import OnStep, StepEntry, StepRecord
from services.runtime.telemetry import Telemetry
from tests.steering.world import Faults, World


class TracedWorld(World):
    """One session under the name "s"."""

    def __init__(
        self,
        telemetry: Telemetry,
        seed: int = 1,
        faults: Faults | None = None,
        *,
        traceparent: str = "",
        verifier: OnStep | None = None,
        **options,
    ) -> None:
        super().__init__(seed, faults or Faults(verifier_speed=0.1), **options)
        self.verifier_tracer = verifier
        self.recorder = Recorder(telemetry, clock=lambda: self.now)
        self.recorder.start_generate("s", self.state.config, model="tiny", traceparent=traceparent)

    def seen(self, event: events.Event, actions: list[events.Action], before: State) -> None:
        super().seen(event, actions, before)
        self.recorder.on_turn("s", event, actions, before, self.state)

    def _heard(self, name: str, row: StepRow) -> None:
        super()._heard(name, row)
        if self.verifier_tracer is not None:
            # As the session's opening told it.
            parent = self.recorder.traceparent("s")
            place = row.opening, row.position
            entry = StepEntry("s", "verify", len(row.judged), parent, 2.0, *place)
            ended = time.time_ns()
            self.verifier_tracer(StepRecord(ended - 1_000_000, ended, (entry,)))

    def finish(self) -> TracedWorld:
        self.run()
        assert self.lawful()
        self.recorder.end_generate("s")
        return self

    def records(self) -> list[RoundRecord]:
        return [record for commit in self.commits for record in commit.records]

    def performed(self, kind: type) -> list:
        return [action for _, actions in self.trace for action in actions if type(action) is kind]

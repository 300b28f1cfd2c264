"""The simulated cluster of tests/core with a recorder, and a tracer at its verifier."""

import time
from dataclasses import replace

from orchestrator.core.events import Action, SendVerify
from orchestrator.core.state import State
from orchestrator.recorder import Recorder
from services.contract.types import Verify
from services.runtime.step_records import OnStep, StepEntry, StepRecord
from services.runtime.telemetry import Telemetry
from tests.core.world import Faults, World


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
        super().__init__(seed, faults or Faults(), **options)
        self.verifier_tracer = verifier
        self.parents: dict[int, str] = {}
        # Draft tokens that were void before they were sent; what a free verifier waited.
        self.unsent = 0
        self.waited_ms = 0.0
        self.recorder = Recorder(telemetry, clock=lambda: self.now)
        self.recorder.start_generate("s", self.state.config, model="tiny", traceparent=traceparent)

    def check(self, before: State) -> None:
        super().check(before)
        event, actions = self.trace[-1]
        if (before.epoch, before.phase) != (self.state.epoch, self.state.phase):
            self.unsent += before.drafted
        sent = {action.message.round for action in actions if isinstance(action, SendVerify)}
        self.waited_ms += sum(b.waited_ms for b in self.state.in_flight if b.round in sent)
        self.recorder.on_step("s", replace(event, at=self.now), actions, self.state)

    def perform(self, action: Action) -> None:
        if isinstance(action, SendVerify):
            round = action.message.round
            self.parents[round] = self.recorder.round_traceparent("s", round)
        super().perform(action)

    def _verify(self, name: str, message: Verify) -> None:
        super()._verify(name, message)
        if self.verifier_tracer is not None:
            entry = StepEntry(
                "s", "verify", len(message.tree), message.round, self.parents[message.round], 2.0
            )
            ended = time.time_ns()
            self.verifier_tracer(StepRecord(ended - 1_000_000, ended, (entry,)))

    def to_a_block_in_flight(self):
        self.run(steps=50)
        while not self.state.in_flight:
            self.turn()
        return self

    def finish(self):
        self.run()
        self.recorder.end_generate("s")
        return self

    def performed(self, kind: type) -> list:
        return [action for _, actions in self.trace for action in actions if type(action) is kind]

"""The orchestrator's process, with a note of how long frames stay in it.

    python bench/orchestrator_cost/watched.py REPORT

Settings come from `PACELINE_*`. REPORT gets, at the end, the microseconds from a worker's message
(in hand, not yet decoded) to the one that takes its frame on (encoded, about to be written):
`steps` of the verifier to the drafter, `drafts` of the drafter to the verifier, and, from the end
of a verifier's step until its frame is in hand, `came`. Frames that go on without one of their
sessions are not counted as drafts. Run by its path, it measures whatever checkout PYTHONPATH names.
"""

import json
import sys
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator import main as process
from orchestrator.settings import OrchestratorSettings
from services.cluster.flags import Flags
from services.contract.frames import DraftFrame, StepFrame
from services.contract.types import Role
from services.runtime.serving.rpcs import RPCS


@dataclass
class Stays:
    """When frames came that have not left yet, and how long those stayed that have."""

    came: dict[Hashable, float] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)
    drafts: list[float] = field(default_factory=list)
    way: list[float] = field(default_factory=list)

    def note(self, events: Sequence[Any], at: float) -> None:
        """Frames that came."""
        for event in events:
            if isinstance(event, StepFrame | DraftFrame):
                self.came[_name(event)] = at
            if isinstance(event, StepFrame):
                self.way.append(1e-9 * (time.time_ns() - event.started_ns) - 1e-3 * event.step_ms)

    def conclude(self, commands: Sequence[Any], at: float) -> None:
        """Frames that are about to leave."""
        for command in commands:
            if not isinstance(command, StepFrame | DraftFrame):
                continue
            if (came := self.came.pop(_name(command), None)) is not None:
                stayed = self.steps if isinstance(command, StepFrame) else self.drafts
                stayed.append(at - came)


def _name(frame: StepFrame | DraftFrame) -> Hashable:
    """What a frame keeps on its way."""
    if isinstance(frame, StepFrame):
        return frame.step
    return frame.handles, frame.openings, frame.numbers, frame.positions


@dataclass
class Watch:
    """A link's codec in front of the real one."""

    codec: Any
    stays: Stays

    def __getattr__(self, name: str) -> Any:
        """What is not watched."""
        return getattr(self.codec, name)

    def decode_response(self, message: Any) -> Any:
        """Events of a worker."""
        now = time.perf_counter()
        events = self.codec.decode_response(message)
        self.stays.note(events, now)
        return events

    def requests(self, commands: Sequence[Any]) -> Iterator[Any]:
        """Messages of the orchestrator."""
        messages = list(self.codec.requests(commands))
        self.stays.conclude(commands, time.perf_counter())
        return iter(messages)


def main() -> int:
    """Serve until SIGTERM."""
    stays = Stays()
    for role in Role:
        spoken: Any = RPCS[role]
        RPCS[role] = spoken._replace(codec=Watch(spoken.codec, stays))
    status = process.run(Flags("watched", "", OrchestratorSettings).read(OrchestratorSettings))
    stayed = {"came": stays.way, "steps": stays.steps, "drafts": stays.drafts}
    taken = {kind: [round(1e6 * each) for each in every] for kind, every in stayed.items()}
    Path(sys.argv[1]).write_text(json.dumps(taken))
    return status


if __name__ == "__main__":
    sys.exit(main())

"""The orchestrator's process, with a note of how long it takes until a verify leaves.

    python bench/orchestrator_cost/watched.py REPORT

Settings come from `PACELINE_*`. REPORT gets, at the end, the microseconds from the link
message that made a verify possible (the verdict, or the draft that came after it; in hand,
not yet decoded) to that verify (encoded, about to be written). A block chained to one that
is still at the verifier is not counted: it leaves when pacing chooses, and nobody waits for
it. Run by its path, it measures whatever checkout PYTHONPATH names.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator import main as process
from orchestrator.settings import OrchestratorSettings
from orchestrator.workers import link
from services.cluster.flags import Flags


@dataclass
class Watch:
    """A link's codec in front of the real one."""

    codec: Any
    heard: dict[str, float]
    taken: list[float] = field(default_factory=list)

    def decode_response(self, message: Any) -> Any:
        """Note when each session last heard something."""
        now = time.perf_counter()
        events = self.codec.decode_response(message)
        for event in events:
            if hasattr(event, "session"):
                self.heard[event.session] = now
        return events

    def encode_request(self, commands: Sequence[Any] = (), **options: Any) -> Any:
        """Note when each session's next verify leaves."""
        message = self.codec.encode_request(commands, **options)
        now = time.perf_counter()
        for command in commands:
            if hasattr(command, "want_bonus") and command.session in self.heard:
                taken = now - self.heard.pop(command.session)
                if not command.extends_round:
                    self.taken.append(taken)
        return message


def main() -> int:
    """Serve until SIGTERM."""
    heard: dict[str, float] = {}
    codecs: Any = link
    watch = Watch(codecs.VERIFIER_LINK, heard)
    codecs.VERIFIER_LINK, codecs.DRAFTER_LINK = watch, Watch(codecs.DRAFTER_LINK, heard)
    status = process.run(Flags("watched", "", OrchestratorSettings).read(OrchestratorSettings))
    Path(sys.argv[1]).write_text(json.dumps([round(1e6 * taken) for taken in watch.taken]))
    return status


if __name__ == "__main__":
    sys.exit(main())

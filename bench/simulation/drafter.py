"""A drafter in simulated time: one forward at a time, one token of every session that has room.

The bookkeeping of a session is the served one (`services.drafter.session`), and so is the
order of things (`services.drafter.core`): what arrives during a forward waits for its
end; tokens leave one by one; a session without room says that it is done for now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from bench.simulation.agenda import Agenda, Device
from bench.simulation.ports import Deliver
from bench.simulation.scenario import KeptBranches, StepTime
from bench.simulation.stepping import SteppingDrafter
from orchestrator.core.events import DraftArrived, WorkerOpened
from services.contract.types import (
    CloseDraft,
    CommitDraft,
    Credit,
    DrafterCommand,
    DraftTree,
    OpenDraft,
    Role,
)
from services.drafter.session import DraftSession

WRONG = 1
"""The target's tokens are even numbers; a wrong guess is the next odd one."""


@dataclass(frozen=True, slots=True)
class Guesses:
    """What the target says at each place, and whether the drafter knows it there."""

    truth: Sequence[int]
    right: Sequence[bool]
    seed: str = ""

    def token(self, session: DraftSession) -> int:
        """The drafter's token after the session's text; after a wrong one it is wrong, too."""
        place = session.output_length
        lost = session.tail_length > 0 and session.text[-1] % 2 == WRONG
        return self.truth[place] + (WRONG if lost or not self.right[place] else 0)


@dataclass(slots=True)
class _Entry:
    name: str
    session: DraftSession
    guesses: Guesses
    rests_since: float | None = None


class SimulatedDrafter(SteppingDrafter):
    """`guesses`: what it drafts, per session."""

    def __init__(
        self, name: str, agenda: Agenda, times: StepTime, guesses: dict[str, Guesses],
        kept: KeptBranches, deliver: Deliver, device: Device | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, agenda, deliver, device)
        self._times, self._guesses, self._kept = times, guesses, kept
        self._entries: dict[str, _Entry] = {}
        # Those whose step runs, and its milliseconds for each.
        self._ready: list[_Entry] = []
        self._each_ms = 0.0

    # --- commands -------------------------------------------------------------

    def _absorb(self, command: DrafterCommand) -> None:
        if isinstance(command, OpenDraft):
            self._open(command)
        elif (entry := self._entries.get(command.session)) is None:
            return
        elif isinstance(command, CommitDraft):
            self._commit(entry, command)
        elif isinstance(command, Credit):
            entry.session.credit(command.window)
        elif isinstance(command, CloseDraft):
            del self._entries[command.session]

    def _open(self, opening: OpenDraft) -> None:
        name = opening.session
        self._entries[name] = _Entry(name, DraftSession(opening), self._guesses[name])
        self._deliver(name, WorkerOpened, Role.DRAFTER, self.name, opening.epoch)

    def _commit(self, entry: _Entry, command: CommitDraft) -> None:
        session, before = entry.session, entry.session.output_length
        stayed = session.commit(command)
        if stayed is not None and self._kept.hit_rate:
            self._take_branch(entry, stayed - session.prompt_length, before)
        if stayed is not None:
            entry.rests_since = None

    # --- kept branches --------------------------------------------------------

    def _take_branch(self, entry: _Entry, place: int, before: int) -> None:
        """Go on with what was kept, if another token than ours was committed at `place`."""
        session = entry.session
        if not place < min(before, session.committed_length):
            return
        held = (before - place - 1 if self._kept.beside else 0) + self._idle_steps(entry)
        # Commits that come together may name tokens of the branch, too.
        held -= session.committed_length - place - 1
        if held <= 0 or not self._hit(entry, place):
            return
        for _ in range(min(held, session.room)):
            self._extend(entry, 0.0)

    def _hit(self, entry: _Entry, place: int) -> bool:
        return Random(f"{entry.guesses.seed}/{place}").random() < self._kept.hit_rate

    def _idle_steps(self, entry: _Entry) -> int:
        if entry.rests_since is None:
            return 0
        return int(1e3 * (self._agenda.now - entry.rests_since) / self._times.at(1, 1))

    # --- the step -------------------------------------------------------------

    def _begin(self) -> float | None:
        self._ready = []
        for entry in self._entries.values():
            if not entry.session.drafting:
                continue
            if entry.session.room > 0:
                self._ready.append(entry)
            else:
                self._absorb_tokens(entry, (), 0.0)
        if not self._ready:
            return None
        took = self._times.at(len(self._ready), len(self._ready))
        self._each_ms = took / len(self._ready)
        return took

    def _conclude(self) -> None:
        for entry in self._ready:
            self._extend(entry, self._each_ms)

    def _extend(self, entry: _Entry, draft_ms: float) -> None:
        self.drafted += 1
        self._absorb_tokens(entry, (entry.guesses.token(entry.session),), draft_ms)

    def _absorb_tokens(self, entry: _Entry, tokens: tuple[int, ...], draft_ms: float) -> None:
        draft = entry.session.absorb(DraftTree(tokens), not tokens, draft_ms)
        if draft is not None:
            self._deliver(entry.name, DraftArrived, self.name, draft)
        if not entry.session.drafting:
            entry.rests_since = self._agenda.now

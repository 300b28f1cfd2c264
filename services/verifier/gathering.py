"""Waiting a moment before a step, so that more sessions are in it.

When a step ends, its sessions' next blocks are on their way, and others wait already.
A step begun at once leaves those on their way out: two halves then take turns for ever,
and each pays what a step costs however little is in it. Put together they pay it once,
but nothing is computed while the blocks of all are on their way. So the verifier waits
for m sessions that are about to come, while n wait, where with one step in place of two

    the time since the last step, until they are there   <  saved
    n * the time until they are there                    <  m * saved

    saved = step of the rows of n + step of the rows of m - step of the rows of both

where a session's way back, and what a step of so many rows takes, are what was measured.
A step of prompts alone would make all who decode wait for all of it: it waits for any of
them, as long as a step may wait at all, whatever is known of their ways.
All times in seconds. No decision about a token depends on any of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from services.scheduling.step_time import OUTLIER, StepTimeModel

MOST_SHARE = 0.25
"""Of a step: more is not waited for it."""

REMEMBERED = 16
FEWEST = 4
SOON = 1.0
"""Seconds after an answer: whoever is away for longer is not decoding."""
GRAIN = 0.5e-3
"""Differences below this are no delay."""


class Habit:
    """How soon after an answer a session's next block comes, going by the last few.

    Order statistics, not means: one long pause, as while a prompt is prepared, tells
    nothing of the rest. Whoever is often late is never due.
    """

    def __init__(self) -> None:
        self.rows = 1
        self._took: deque[float] = deque(maxlen=REMEMBERED)
        self._usual = self._latest = 0.0
        self._answered: float | None = None

    def answered(self, now: float) -> None:
        """An answer leaves."""
        self._answered = now

    def came(self, now: float, rows: int) -> None:
        """The next block came, of so many rows."""
        self.rows = rows
        if self._answered is None:
            return
        self._took.append(max(0.0, now - self._answered))
        self._answered = None
        ordered = sorted(self._took)
        self._usual = ordered[(len(ordered) - 1) // 2]
        kept = len(ordered) - max(1, len(ordered) // 8)
        self._latest = ordered[max(0, kept - 1)] + GRAIN

    def expected(self, now: float) -> bool:
        """Whether its next block may come any moment: it was answered lately."""
        return self._answered is not None and now - self._answered < SOON

    def due(self, now: float, end: float, most: float) -> float | None:
        """When the block should have come at the latest; None = it is not to be waited for.

        That is so if it usually comes after `end`, if nobody knows to within `most` when,
        if it is overdue, or if the last one was late.
        """
        if self._answered is None or len(self._took) < FEWEST:
            return None
        late = self._took[-1] > OUTLIER * self._latest
        if late or self._latest - self._usual > most or self._answered + self._usual > end:
            return None
        due = self._answered + self._latest
        return due if now < due else None


class Gathering:
    """How long to wait before the next step; at most `most_ms`, 0 = never."""

    def __init__(self, most_ms: float) -> None:
        self._most = 1e-3 * most_ms
        self.line = StepTimeModel()
        """Seconds of a step without prompts over its rows, as measured."""
        self._ended = 0.0
        self._since: float | None = None

    def stepped(self, rows: int, seconds: float, ended: float, prompts: int = 0) -> None:
        """A step is over; `prompts` of its rows were a prompt's."""
        self._since, self._ended = None, ended
        if not rows or (prompts and self.line.weight):
            return
        if seconds or self.line.weight:
            self.line = self.line.add(rows, seconds)

    def idle(self) -> float:
        """Nothing is to be waited for, or with."""
        self._since = None
        return 0.0

    def patience(
        self, waiting: int, rows: int, away: Sequence[Habit], now: float, *, blocks: bool = True
    ) -> float:
        """Seconds to wait, while `waiting` sessions have `rows` for a step; 0 = step now.

        `away`: the other sessions; `blocks`: whether some of the rows are not a prompt's. To
        be asked again whenever something came.
        """
        if not self._most or not self.line.weight:
            return 0.0
        if self._since is None:
            self._since = now
        most = min(self._most, MOST_SHARE * self.line.at(rows))
        end = self._since + most
        if not blocks and now < end and any(habit.expected(now) for habit in away):
            return end - now
        dues = [(habit.due(now, end, most), habit) for habit in away]
        coming = [(min(due, end), habit) for due, habit in dues if due is not None]
        return self._start(waiting, rows, coming, now) - now

    def _start(
        self, waiting: int, rows: int, coming: list[tuple[float, Habit]], now: float
    ) -> float:
        """The moment to start at, for which the most is saved beyond what those waiting lose."""
        best, start, more = 0.0, now, 0
        alone = self.line.at(rows)
        for count, (due, habit) in enumerate(sorted(coming, key=lambda one: one[0]), 1):
            more += habit.rows
            saved = alone + self.line.at(more) - self.line.at(rows + more)
            gain = count * saved - waiting * (due - now)
            if due - self._ended < saved and gain > best:
                best, start = gain, max(due, now)
        return start

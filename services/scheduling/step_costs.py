"""What a step takes, by its sessions and by the draft tokens beside them. Pure.

Of plain steps a mean is kept for each band of sessions. What draft tokens add is a line over what
an engine told of its rows at its start, or over their number where it told nothing: so stairs, and
rows that come in captured sizes, are known from the first step on, and a first draft token that
costs more than the next ones is learned.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from services.contract.types import StepTime
from services.scheduling.step_time import StepTimeModel

WEIGHT = 0.05
"""Of the newest plain step in a mean."""
OUTLIER = 1.5
"""A step that takes longer than so many times what is expected counts as that long."""
STALE = 256
"""Steps after which what plain steps take is to be seen again."""
FIRST_SLOPE = 0.04
"""What a draft token adds to a plain step, where nobody told."""
TABLE_STEPS = 16
"""Steps for which a table counts."""

_EDGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class StepCosts:
    """Learned milliseconds of steps."""

    def __init__(self, told: Sequence[StepTime] = ()) -> None:
        """`told`: what a step of one session took by its rows, ascending."""
        self._rows = [one.rows for one in told]
        self._ms = [one.ms for one in told]
        self._plain: dict[int, float] = {}
        """Over what was told of as many rows, by band of sessions."""
        self._seen: dict[int, int] = {}
        self._drafts: dict[int, StepTimeModel] = {}
        self._steps = 0
        self._tables: dict[int, list[float]] = {}

    def observe(self, sessions: int, extra: int, ms: float) -> None:
        """A step without prompts took so long."""
        self._steps += 1
        if not self._steps % TABLE_STEPS:
            self._tables.clear()
        place = _band(sessions)
        ms = min(ms, OUTLIER * self.ms(sessions, extra)) if place in self._plain else ms
        if extra:
            line = self._line(sessions)
            self._drafts[place] = line.add(self._added(sessions, extra), ms)
            return
        self._seen[place] = self._steps
        found = ms / self._told(sessions)
        old = self._plain.get(place, found)
        self._plain[place] = old + WEIGHT * (found - old)

    def ms(self, sessions: int, extra: int) -> float:
        """What such a step takes; in no known unit where nothing is known of any."""
        plain = self._told(sessions) * self._ratio(sessions)
        if not extra:
            return plain
        return max(plain, self._line(sessions).at(self._added(sessions, extra)))

    def table(self, sessions: int, most: int) -> list[float]:
        """The same for 0 to `most` extra rows, at least; as of some steps ago."""
        found = self._tables.get(sessions)
        if found is None or len(found) <= most:
            found = [self.ms(sessions, extra) for extra in range(2 * most + 1)]
            self._tables[sessions] = found
        return found

    def stale(self, sessions: int) -> bool:
        """Whether plain steps of so many sessions have not been seen for long."""
        return self._steps - self._seen.get(_band(sessions), 0) > STALE

    def _ratio(self, sessions: int) -> float:
        """Of a plain step to what was told, by the nearest band that was seen; 1: none was."""
        place = _band(sessions)
        if place not in self._plain:
            place = min(self._plain, key=lambda own: abs(own - place), default=-1)
        return self._plain.get(place, 1.0)

    def _line(self, sessions: int) -> StepTimeModel:
        """What steps with drafts take, over what these add to what was told."""
        found = self._drafts.get(_band(sessions))
        if found is not None:
            return found
        ratio = self._ratio(sessions)
        plain = self._told(sessions) * ratio
        slope = ratio if self._rows else FIRST_SLOPE * plain
        return StepTimeModel(mean_time=plain, slope=slope)

    def _added(self, sessions: int, extra: int) -> float:
        """What so many rows more add to what was told; their number where nothing was."""
        if not self._rows:
            return float(extra)
        return max(0.0, self._told(sessions + extra) - self._told(sessions))

    def _told(self, rows: int) -> float:
        """Between what was told, in straight lines; beyond it, on as it went at last."""
        if not self._rows:
            return 1.0
        if len(self._rows) == 1 or rows <= self._rows[0]:
            return self._ms[0]
        right = min(max(1, bisect_left(self._rows, rows)), len(self._rows) - 1)
        (x0, x1), (y0, y1) = self._rows[right - 1 : right + 1], self._ms[right - 1 : right + 1]
        at = y0 + (y1 - y0) * (rows - x0) / (x1 - x0)
        return max(at, 0.1 * min(y0, y1))


def _band(count: int) -> int:
    return bisect_right(_EDGES, count)

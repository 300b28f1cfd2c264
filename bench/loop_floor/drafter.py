"""A drafter that is always ahead: a token more for every session, level by level."""

from __future__ import annotations

import numpy as np

from bench.loop_floor import draws
from bench.loop_floor.frames import AHEAD, ROW, SESSIONS, Kind, Rows, decode, encode
from services.engine.synthetic.costs import Costs

_OFFSETS = np.arange(AHEAD + 1)


class Drafter:
    """Times as `Costs` has them, right with a chance of `rate`. For one thread at a time."""

    def __init__(self, costs: Costs, rate: float) -> None:
        self._costs, self._rate = costs, rate
        self._wanted = np.zeros(SESSIONS, np.int64)
        self._drafts = np.zeros(SESSIONS, ROW)
        self._drafts["session"] = np.arange(SESSIONS)
        self._drafting = np.zeros(SESSIONS, bool)

    @property
    def busy(self) -> bool:
        """Whether some session has room for another token."""
        return bool(self._has_room().any())

    def absorb(self, message: bytes) -> None:
        """Sessions that open, or what a step said in them."""
        kind, rows = decode(message)
        if kind is Kind.STEP:
            self._follow(rows[self._wanted[rows["session"]] > 0])
            return
        own = rows["session"]
        self._wanted[own], self._drafts["world"][own] = rows["place"], rows["world"]
        self._drafts["place"][own] = self._drafts["count"][own] = 0

    def begin(self) -> float:
        """A level of every session with room begins; the seconds that it takes."""
        self._drafting = self._has_room()
        return 1e-3 * self._costs.forward_ms([1] * int(self._drafting.sum()))

    def end(self) -> bytes | None:
        """The drafts that became longer: of all but the sessions that went another way."""
        own = np.flatnonzero(self._drafting)
        if not len(own):
            return None
        worlds, counts = self._drafts["world"][own], self._drafts["count"][own]
        places = self._drafts["place"][own] + counts
        self._drafts["tokens"][own, counts] = draws.draft(worlds, places, self._rate)
        self._drafts["count"][own] += 1
        return encode(Kind.DRAFTS, self._drafts[own])

    def _has_room(self) -> Rows:
        return (self._drafts["count"] < AHEAD) & (self._wanted > 0)

    def _follow(self, rows: Rows) -> None:
        """Go on behind what was said: with what is drafted there, if all before it was the same."""
        own, said = rows["session"], rows["count"]
        drafts = self._drafts[own]
        differs = (drafts["tokens"] != rows["tokens"]) & (said[:, None] > _OFFSETS)
        right = (drafts["count"] >= said) & ~differs.any(axis=1)
        shifted = np.minimum(said[:, None] + _OFFSETS, AHEAD)
        drafts["tokens"] = np.take_along_axis(drafts["tokens"], shifted, axis=1)
        drafts["count"] = (drafts["count"] - said) * right
        drafts["place"] += said
        self._drafts[own] = drafts
        self._drafting[own[~right]] = False
        over = own[drafts["place"] >= self._wanted[own]]
        self._wanted[over] = 0
        self._drafting[over] = False

"""A verifier that runs its sessions: a step of all, each with what draft it has by then."""

from __future__ import annotations

import numpy as np

from bench.loop_floor import draws
from bench.loop_floor.frames import AHEAD, ROW, SESSIONS, Kind, Rows, decode, encode
from services.engine.synthetic.costs import Costs

_OFFSETS = np.arange(AHEAD + 1)


class Verifier:
    """Times as `Costs` has them. One thread at a time may use it."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._worlds = np.zeros(SESSIONS, np.uint32)
        self._places = np.zeros(SESSIONS, np.int64)
        self._wanted = np.zeros(SESSIONS, np.int64)
        self._drafts = np.zeros(SESSIONS, ROW)
        self._said = np.zeros(0, ROW)

    @property
    def busy(self) -> bool:
        """Whether a session wants more."""
        return bool((self._places < self._wanted).any())

    def absorb(self, message: bytes) -> None:
        """Sessions that open, or the newest drafts of some."""
        kind, rows = decode(message)
        own = rows["session"]
        if kind is Kind.DRAFTS:
            self._drafts[own] = rows
        else:
            self._worlds[own], self._wanted[own] = rows["world"], rows["place"]
            self._places[own] = self._drafts["count"][own] = 0

    def begin(self) -> float:
        """A step of all sessions begins; the seconds that it takes."""
        own = np.flatnonzero(self._places < self._wanted)
        places, drafts, worlds = self._places[own], self._drafts[own], self._worlds[own]
        behind = places - drafts["place"]
        verified, accepted = _judged(drafts, worlds, behind)
        self._said = np.zeros(len(own), ROW)
        self._said["session"], self._said["place"] = own, places
        self._said["count"] = np.minimum(accepted + 1, self._wanted[own] - places)
        self._said["tokens"] = draws.target(worlds[:, None], places[:, None] + _OFFSETS)
        self._places[own] += self._said["count"]
        return 1e-3 * self._costs.forward_ms((verified + 1).tolist())

    def end(self) -> bytes:
        """What the step said."""
        return encode(Kind.STEP, self._said)


def _judged(drafts: Rows, worlds: Rows, behind: Rows) -> tuple[Rows, Rows]:
    """How many tokens of each draft are verified, and accepted.

    `behind`: so many places of the draft the target has said meanwhile. If they are the same,
    the rest is verified; else the draft is stale.
    """
    truth = draws.target(worlds[:, None], drafts["place"][:, None] + _OFFSETS)
    same = (drafts["tokens"] == truth) & (drafts["count"][:, None] > _OFFSETS)
    right = np.logical_and.accumulate(same, axis=1).sum(axis=1)
    useful = (behind >= 0) & (right >= behind) & (drafts["count"] > behind)
    return (drafts["count"] - behind) * useful, (right - behind) * useful

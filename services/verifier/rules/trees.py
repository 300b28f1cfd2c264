"""Trees by recursive rejection: all blocks of a batch descend level by level."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from services.engine.noise import Stream
from services.verifier.rules.candidates import first_accepted
from services.verifier.rules.proposed import Stop
from services.verifier.rules.rows import Case, Laws


def judge_trees(cases: Sequence[Case], laws: Laws) -> list[Stop]:
    """Descend each tree until a rejection, a leaf or a row without a usable q."""
    stops = [Stop() for _ in cases]
    going = _going(cases, stops, range(len(cases)))
    while going:
        level = _judge_level([cases[i] for i in going], [stops[i] for i in going], laws)
        for i, stop in zip(going, level, strict=True):
            stops[i] = stop
        going = _going(cases, stops, going)
    return stops


def _going(cases: Sequence[Case], stops: Sequence[Stop], among: Sequence[int]) -> list[int]:
    return [i for i in among if stops[i].kept is None and stops[i].row in cases[i].draft.usable]


def _judge_level(cases: Sequence[Case], stops: Sequence[Stop], laws: Laws) -> list[Stop]:
    """One step down, or a rejection, for each block; every row stood at has a usable q."""
    at = [stop.row for stop in stops]
    places = [case.draft.usable[row].slots for case, row in zip(cases, at, strict=True)]
    widest = max(map(len, places))
    slots = torch.tensor([own + (-1,) * (widest - len(own)) for own in places])
    u = [
        [case.block.uniform(Stream.ACCEPT, row, i) if i < len(own) else 0.0 for i in range(widest)]
        for case, row, own in zip(cases, at, places, strict=True)
    ]
    rows = [laws.index[case.number][row] for case, row in zip(cases, at, strict=True)]
    alone = torch.tensor([case.block.tree.without_replacement for case in cases])
    uniforms = torch.tensor(u, dtype=torch.float64)
    taken, kept = first_accepted(laws.log_p[rows].exp(), laws.q[rows], slots, uniforms, alone)
    ends = zip(cases, stops, taken.tolist(), kept, strict=True)
    return [
        Stop(stop.path, stop.row, rest) if candidate < 0 else _down(case, stop, candidate)
        for case, stop, candidate, rest in ends
    ]


def _down(case: Case, stop: Stop, candidate: int) -> Stop:
    node = case.draft.children[stop.row][candidate]
    return Stop((*stop.path, node), node + 1)

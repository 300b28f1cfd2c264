"""The candidates at a node: chosen by the session's mode, with the law that is sent.

| mode | candidates | proposal |
|---|---|---|
| GREEDY | the best, best first | ONE_HOT |
| COUPLED | the first finishers of the race with the target's noise | COUPLED |
| STANDARD, BLOCK | draws from q without replacement, in draw order | SAMPLED |

q is the draft model's own law under the session's parameters, cut to its best n
tokens and renormalised; of an EAGLE-3 head, among the tokens that it knows.
No other token is ever proposed. Tokens are drawn from exactly the float32 numbers that
are sent: a target that judges them by other numbers is biased (Leviathan et al.,
2211.17192, needs the q a token was drawn from).

A draw is keyed (seed, DRAFT, draft key, position, node, candidate): `position` is the
output index where the draft starts, `node` the row in it. So no number is drawn twice
if no two drafts under one key start at the same position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from services.contract.types import Proposal, SparseRow, VerifyMode
from services.drafter.comb import Level
from services.engine.noise import Stream, exponentials, uniform
from services.engine.sampling import (
    Head,
    RowContext,
    WholeHead,
    best,
    choose,
    coupled_best,
    draw,
    log_law,
    top_law,
)

PROPOSALS = {
    VerifyMode.GREEDY: Proposal.ONE_HOT,
    VerifyMode.COUPLED: Proposal.COUPLED,
    VerifyMode.STANDARD: Proposal.SAMPLED,
    VerifyMode.BLOCK: Proposal.SAMPLED,
}


@dataclass(frozen=True, slots=True)
class Place:
    """A node that wants `count` candidates, all of them below `vocab_size`.

    `key`: draft key, position and node of its draws. `weighed`: with
    their weights; in GREEDY and COUPLED only.
    """

    row: RowContext
    count: int
    vocab_size: int
    key: tuple[int, int, int] = (0, 0, 0)
    weighed: bool = False

    def uniform(self, candidate: int) -> float:
        """The random number in [0, 1) that draws one candidate."""
        return uniform(self.row.seed, Stream.DRAFT, *self.key, candidate)


def candidates_at(
    logits: Tensor, places: Sequence[Place], q_top: int, head: Head | None = None
) -> list[Level]:
    """Candidates for each row of `logits` [R, V]; q holds at most `q_top` tokens.

    `head`: what the columns stand for, if not for all tokens. A row without a
    finite law has none, one with fewer tokens of any mass than candidates has as
    many as there are.
    """
    head = head or WholeHead(logits.shape[-1])
    found: dict[int, Level] = {}
    for group in _grouped(places):
        alike = [places[i] for i in group]
        rows = logits if len(group) == len(places) else logits[group]
        own = head.below(alike[0].vocab_size)
        levels = _candidates(rows[:, : len(own)], alike, q_top, own)
        found.update(zip(group, levels, strict=True))
    return [found[i] for i in range(len(places))]


def _grouped(places: Sequence[Place]) -> Iterator[list[int]]:
    """Row numbers, gathered by what is done alike."""
    groups: dict[tuple[Proposal, int, int, bool], list[int]] = {}
    for i, place in enumerate(places):
        rule = PROPOSALS[place.row.mode]
        alike = (rule, place.vocab_size, place.count, place.weighed)
        groups.setdefault(alike, []).append(i)
    yield from groups.values()


def _candidates(logits: Tensor, places: Sequence[Place], q_top: int, head: Head) -> list[Level]:
    """Candidates of rows alike in mode, vocabulary and count."""
    if len(head) == 0:
        return [Level(()) for _ in places]
    if not places[0].row.mode.exact_match:
        return _drawn(logits, places, q_top, head)
    rows, count = [place.row for place in places], places[0].count
    if count == 1:
        chosen = [[token] for token in choose(logits, rows, head)]
    elif places[0].row.mode is VerifyMode.GREEDY:
        chosen = best(logits, rows, count, head).tolist()
    else:
        chosen = coupled_best(logits, rows, count, head).tolist()
    levels = [Level(tuple(token for token in row if token >= 0)) for row in chosen]
    return _weighed(levels, logits, rows, head) if places[0].weighed else levels


def _weighed(
    levels: Sequence[Level], logits: Tensor, rows: Sequence[RowContext], head: Head
) -> list[Level]:
    """Levels with the weight of each candidate, heaviest first.

    GREEDY: its probability. COUPLED: its share of the race q / E among the candidates.
    """
    widest = max(len(level.token_ids) for level in levels)
    tokens = torch.zeros((len(rows), widest), dtype=torch.int64)
    for own, level in zip(tokens, levels, strict=True):
        own[: len(level.token_ids)] = torch.tensor(level.token_ids, dtype=torch.int64)
    columns = torch.from_numpy(head.columns(tokens.numpy())[0]).to(logits.device)
    # Of a row of the vocabulary only these leave the device.
    mass = log_law(logits, rows, head).gather(-1, columns).cpu().double().exp()
    return [
        replace(level, weights=_weights(own[: len(level.token_ids)], row, level.token_ids))
        for own, row, level in zip(mass, rows, levels, strict=True)
    ]


def _weights(mass: Tensor, row: RowContext, ids: tuple[int, ...]) -> tuple[float, ...]:
    if row.mode is VerifyMode.COUPLED:
        mass = mass / exponentials(*row.place, torch.tensor(ids, dtype=torch.int64))
        mass = mass / mass.sum()
    return tuple(mass.tolist())


def _drawn(logits: Tensor, places: Sequence[Place], q_top: int, head: Head) -> list[Level]:
    rows = [place.row for place in places]
    ids, q = (part.cpu() for part in top_law(logits, rows, min(q_top, len(head)), head))
    # A row without a finite law has no mass at all.
    sizes: list[int] = (q > 0).sum(-1).tolist()
    counts = [min(place.count, size) for place, size in zip(places, sizes, strict=True)]
    picks = _draw_all(q.clone(), places, counts)
    return [
        Level(tuple(ids[i, picks[i]].tolist()), _sparse(ids[i, :size], q[i, :size]))
        for i, size in enumerate(sizes)
    ]


def _draw_all(left: Tensor, places: Sequence[Place], counts: Sequence[int]) -> list[list[int]]:
    """Columns of `left` [R, n] drawn without replacement, `counts[i]` of row i, in draw order."""
    picks: list[list[int]] = [[] for _ in places]
    for candidate in range(max(counts, default=0)):
        rows = [i for i, count in enumerate(counts) if candidate < count]
        drawn = draw(left[rows], [places[i].uniform(candidate) for i in rows])
        left[rows, drawn] = 0.0
        for i, column in zip(rows, drawn, strict=True):
            picks[i].append(column)
    return picks


def _sparse(ids: Tensor, q: Tensor) -> SparseRow | None:
    return SparseRow(tuple(ids.tolist()), tuple(q.tolist())) if len(ids) else None

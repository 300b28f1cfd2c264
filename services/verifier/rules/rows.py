"""The drafter's rows of q: which of them can be used, and tensors of those that can.

A row is usable if it is a law over distinct tokens of the target's vocabulary
and could have drawn every child that claims to come from it, and if the target has a law
there, too. The true q is its probabilities over their sum, in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import torch
from torch import Tensor

from services.contract.types import DraftTree, Proposal, SparseRow
from services.verifier.rules.exact import children
from services.verifier.rules.proposed import Proposed

SUM_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class UsableRow:
    """A row of q. `slots`: where in it the children drawn from it lie, in draw order."""

    law: SparseRow
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Of one block: the children of each row, the usable rows of q, and the count of bad ones."""

    children: dict[int, list[int]]
    usable: dict[int, UsableRow]
    bad: int

    @property
    def usable_prefix(self) -> int:
        """How many tokens of a chain can be judged by rejection: those before a bad row."""
        return next(row for row in range(len(self.usable) + 1) if row not in self.usable)


def read_rows(tree: DraftTree, vocab_size: int) -> DraftRows:
    """Check the q rows of a draft. A draft that was not SAMPLED has none, and none is bad."""
    below = children(tree)
    if tree.proposal is not Proposal.SAMPLED:
        return DraftRows(below, {}, 0)
    usable = {}
    for (row, nodes), law in zip(below.items(), tree.q or (), strict=False):
        drawn = [tree.token_ids[node] for node in nodes]
        if not is_law(law, vocab_size):
            continue
        if (slots := _slots(law, drawn, tree.without_replacement)) is not None:
            usable[row] = UsableRow(law, slots)
    return DraftRows(below, usable, len(below) - len(usable))


def is_law(row: SparseRow, vocab_size: int) -> bool:
    """Whether a row is a probability law on distinct token ids below `vocab_size`."""
    ids, mass = row.token_ids, row.probabilities
    if not ids or len(ids) != len(mass) or len(set(ids)) != len(ids):
        return False
    inside = min(ids) >= 0 and max(ids) < vocab_size
    # The sum also refuses infinities and NaN, for which `min` proves nothing.
    return inside and min(mass) >= 0 and abs(sum(mass) - 1) <= SUM_TOLERANCE


def _slots(
    row: SparseRow, drawn: Sequence[int], without_replacement: bool
) -> tuple[int, ...] | None:
    """Where the drawn tokens lie in a law; None if one had no mass in its turn."""
    twice = without_replacement and len(set(drawn)) < len(drawn)
    if twice or any(token not in row.token_ids for token in drawn):
        return None
    slots = tuple(row.token_ids.index(token) for token in drawn)
    return slots if all(row.probabilities[slot] > 0 for slot in slots) else None


@dataclass(frozen=True, slots=True)
class Case:
    """A block, what was read of its draft, and its number in the batch."""

    block: Proposed
    draft: DraftRows
    number: int


def read_blocks(blocks: Sequence[Proposed]) -> list[Case]:
    """Check the drafts of a batch."""
    return [Case(block, _read_block(block), number) for number, block in enumerate(blocks)]


def _read_block(block: Proposed) -> DraftRows:
    """Nothing is judged by rejection where the target has no law, as nothing can follow there.

    A chain up to there is a shorter block: where it ends depends on the text before alone.
    """
    read = read_rows(block.tree, block.log_p.shape[-1])
    if not read.usable:
        return read
    lawless = block.log_p[:, 0].isnan().tolist()
    usable = {row: own for row, own in read.usable.items() if not lawless[row]}
    return replace(read, usable=usable)


@dataclass(frozen=True, slots=True)
class Laws:
    """All usable rows of a batch beside the target's law at the same tokens; CPU, float64.

    `q` [T + 1, N] sums to 1, `log_p` [T + 1, N]; behind a row's last token 0 and
    -inf. The last row, number T, is the padding of ragged batches: there the target
    has no mass on the draft's tokens. `index[block][row]` is the row's number.
    """

    q: Tensor
    log_p: Tensor
    index: tuple[dict[int, int], ...]

    @property
    def padding(self) -> int:
        """The number T of the padding row."""
        return len(self.q) - 1


def gather_laws(cases: Sequence[Case]) -> Laws:
    """Gather the target's law at q's tokens alone: no copy of a [V] row is made."""
    rows = [usable.law for case in cases for usable in case.draft.usable.values()]
    width = max((len(law.token_ids) for law in rows), default=1)
    ids = _padded([law.token_ids for law in rows], width, np.int64)
    q = _padded([law.probabilities for law in rows], width, np.float64)
    lengths = torch.tensor([len(law.token_ids) for law in rows], dtype=torch.int64)
    behind = torch.arange(width) >= lengths[:, None]
    log_p = _target_at(cases, ids).masked_fill(behind, -torch.inf)
    padding = torch.zeros(1, width, dtype=torch.float64)
    padding[0, 0] = 1.0  # A law, so that no ratio there is 0 / 0.
    return Laws(
        torch.cat((q / q.sum(-1, keepdim=True), padding)),
        torch.cat((log_p, torch.full_like(padding, -torch.inf))),
        _numbered(cases),
    )


def _numbered(cases: Sequence[Case]) -> tuple[dict[int, int], ...]:
    """Per block the number of each usable row, counted through the batch."""
    numbers = count()
    return tuple({row: next(numbers) for row in case.draft.usable} for case in cases)


def _target_at(cases: Sequence[Case], ids: Tensor) -> Tensor:
    """The target's log-law at tokens `ids` [T, N] of the T usable rows, float64 [T, N]."""
    parts = [torch.empty(0, ids.shape[-1], dtype=torch.float64)]
    own = torch.split(ids, [len(case.draft.usable) for case in cases])
    for case, tokens in zip(cases, own, strict=True):
        if case.draft.usable:
            log_p = case.block.log_p
            rows = torch.tensor(list(case.draft.usable), device=log_p.device)
            parts.append(log_p[rows[:, None], tokens.to(log_p.device)].double().cpu())
    return torch.cat(parts)


def _padded(rows: Sequence[tuple[float, ...]], width: int, dtype: type) -> Tensor:
    """Ragged rows as one tensor [T, width], zeros behind."""
    filled = [row + (0,) * (width - len(row)) for row in rows]
    # Three times as fast as torch.tensor on nested tuples.
    return torch.from_numpy(np.array(filled, dtype).reshape(len(rows), width))

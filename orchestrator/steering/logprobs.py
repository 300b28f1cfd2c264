"""Whether rows of logprobs that a worker tells can be what was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from services.contract.types import LogprobRow

LARGEST_LOGPROB = 1e-3
"""Above 0 by no more than rounding; NaN is not below it either."""


def new_rows(
    rows: Sequence[LogprobRow], position: int, known: int, lacking: int
) -> Sequence[LogprobRow] | None:
    """Of rows of a prompt from `position` on, those from `known` on; None: they cannot be.

    They may begin with some that are known, as a verifier may have to read again. No more than
    `lacking` can be new.
    """
    new = rows[max(0, known - position) :]
    return new if position <= known and len(new) <= lacking else None


def rows_fit(rows: Sequence[LogprobRow], asked: int, vocab_size: int) -> bool:
    """No more alternatives than asked for, known ones, and logarithms of probabilities.

    `vocab_size` 0: not checked.
    """
    return all(
        len(row.top_token_ids) <= asked
        and (not vocab_size or max(row.top_token_ids, default=0) < vocab_size)
        and all(value < LARGEST_LOGPROB for value in (row.logprob, *row.top_logprobs))
        for row in rows
    )

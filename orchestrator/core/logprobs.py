"""Whether rows of logprobs that a worker tells can be what was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from services.contract.types import LogprobRow

LARGEST_LOGPROB = 1e-3
"""Above 0 by no more than rounding; NaN is not below it either."""


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

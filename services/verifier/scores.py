"""How likely the tokens of a prompt are, told as the prompt is read.

A row of logits says what follows its token, so the rows from the one before the first token in
question on are computed, whatever K/V is cached: only what lies before them may be found there.
Few of them are in one step (`most_rows`), so that no [tokens, V] of a long prompt ever exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from services.contract.types import LogprobRow
from services.engine.sampling import likeliest
from services.verifier.fed_text import FedText

MOST_ROWS = 1024
MOST_NUMBERS = 1 << 25
"""Of a step's rows, that is 128 MiB."""
SLICE = 64
"""Rows that are made probabilities at a time, which takes as much again."""


def most_rows(vocab_size: int) -> int:
    """Rows of prompts that may have logits in one step."""
    return max(1, min(MOST_ROWS, MOST_NUMBERS // vocab_size))


def within(waiting: Sequence[FedText], shares: Sequence[int], rows: int) -> list[int]:
    """The shares of these prompts, cut so that no more than `rows` of them have logits."""
    kept = []
    for session, share in zip(waiting, shares, strict=True):
        over = max(0, session.scored_rows(share) - rows)
        rows -= session.scored_rows(share - over)
        kept.append(share - over)
    return kept


def score_rows(session: FedText, logits: Tensor) -> tuple[LogprobRow, ...]:
    """What the rows [rows, V] of a share of a prompt tell of its tokens from `scored` on."""
    tokens = session.opening.prompt[session.scored : session.scored + len(logits)]
    return tuple(_rows(logits, tokens, session.opening.sampling.prompt_logprobs or 0))


def _rows(logits: Tensor, tokens: Sequence[int], top: int) -> Iterator[LogprobRow]:
    for first in range(0, len(tokens), SLICE):
        some = slice(first, first + SLICE)
        yield from _slice(logits[some], tokens[some], top)


def _slice(logits: Tensor, tokens: Sequence[int], top: int) -> Iterator[LogprobRow]:
    """Of a few rows: only what is told leaves the device."""
    whole = torch.logsumexp(logits, dim=-1, keepdim=True)
    own = torch.tensor([tokens], device=logits.device).T
    best = likeliest(logits, top) if top else own[:, :0]
    numbers = (logits.gather(-1, torch.cat((own, best), dim=-1)) - whole).tolist()
    for (logprob, *values), ids in zip(numbers, best.tolist(), strict=True):
        yield LogprobRow(logprob, tuple(ids), tuple(values))

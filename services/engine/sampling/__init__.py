"""The law of every row of a forward pass, and the choices drawn from it.

One order of processing for every row, the same on drafter and verifier:
logit_bias, repetition, frequency and presence penalty, min_tokens,
allowed_token_ids, bad_words, the mask of a response format, temperature, cuts
(`cuts`). Penalties, bad words and masks see the exact prefix of the row's own
position, draft tokens included: frequency, presence and bad words look at the
output, repetition at prompt and output. An argmax (GREEDY) heeds all up to the
mask.

    history    counts of a text, for the penalties, and its last tokens
    bad_words  what may not follow the last tokens
    rows       what a row is told
    head       which tokens the columns of a row stand for
    adjust     bias, penalties, min_tokens, token limits, masks
    cuts       which tokens are left, by number and mass
    by_row     laws and choices, one row at a time: numpy on a CPU
    by_batch   the same, all rows at once: torch on any device
    choices    tokens; laws    probabilities, and draws from them
    ties       which choices rounding may turn
"""

from services.engine.sampling.choices import (
    best,
    choose,
    choose_closely,
    close_ones,
    coupled_best,
    highest_logits,
    likeliest,
)
from services.engine.sampling.head import Head, PartHead, WholeHead, head_of
from services.engine.sampling.history import History, wants_history
from services.engine.sampling.laws import draw, forbids_all, kept_laws, log_law, top_law
from services.engine.sampling.rows import NO_CHOICE, RowContext
from services.engine.sampling.ties import rounding

__all__ = [
    "NO_CHOICE",
    "Head",
    "History",
    "PartHead",
    "RowContext",
    "WholeHead",
    "best",
    "choose",
    "choose_closely",
    "close_ones",
    "coupled_best",
    "draw",
    "forbids_all",
    "head_of",
    "highest_logits",
    "kept_laws",
    "likeliest",
    "log_law",
    "rounding",
    "top_law",
    "wants_history",
]

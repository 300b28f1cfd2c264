"""What each source's word is worth: the weights of `mixture`, and tables made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

SUPPORT_SHIFT = 5
SUPPORTS = 256 >> SUPPORT_SHIFT


def share(count: int, total: int) -> float:
    """0..1: how much `count` of `total` says; a single one of one says less than all of ten."""
    return math.log1p(8.0 * count / (total + 1.0)) / _FULL_SHARE


_FULL_SHARE = math.log(9.0)


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of one softmax over candidates and `other`, the rest of the vocabulary.

    A candidate's score is the sum of what its sources say. `own`: this text, after 1, 2,
    3 and 5 tokens or more, times `share`; `pool`: texts of the same tenant, likewise;
    `latest` is added for what followed the longest match, and `long` times its length. `first` and
    `law`: of the file, for being there, times the code (0..1), and times code and
    support. `row`: of what the target said after that token in this session, for being there,
    times how early (1 to 1/8), and for being the first. `draft`: of a draft model, for being
    among its likeliest tokens, times the logarithm
    of its probability, and times that itself. `noise`: times -log E, E the exponential of the
    shared noise. The score of `other` is a constant and what it loses by each source that has a
    word; `other_rest`: times the logarithm of what a draft model leaves to all other tokens.
    """

    own1: float = 0.0
    own2: float = 0.0
    own3: float = 0.0
    own5: float = 0.0
    own_latest: float = 0.0
    own_long: float = 0.0
    pool1: float = 0.0
    pool2: float = 0.0
    pool3: float = 0.0
    pool5: float = 0.0
    pool_latest: float = 0.0
    pool_long: float = 0.0
    first: float = 0.0
    first_code: float = 0.0
    law1: float = 0.0
    law1_code: float = 0.0
    law1_sure: float = 0.0
    law2: float = 0.0
    law2_code: float = 0.0
    law2_sure: float = 0.0
    law3: float = 0.0
    law3_code: float = 0.0
    law3_sure: float = 0.0
    law4: float = 0.0
    law4_code: float = 0.0
    law4_sure: float = 0.0
    row: float = 0.0
    row_rank: float = 0.0
    row_first: float = 0.0
    draft: float = 0.0
    draft_log: float = 0.0
    draft_p: float = 0.0
    noise: float = 0.0
    other: float = 0.0
    other_file: float = 0.0
    other_own2: float = 0.0
    other_own3: float = 0.0
    other_own5: float = 0.0
    other_pool2: float = 0.0
    other_pool3: float = 0.0
    other_pool5: float = 0.0
    other_law2: float = 0.0
    other_law3: float = 0.0
    other_law4: float = 0.0
    other_row: float = 0.0
    other_draft: float = 0.0
    other_rest: float = 0.0


DEFAULTS: Mapping[str, float] = {
    "greedy.own1": 1.618,
    "greedy.own2": 1.577,
    "greedy.own3": 1.222,
    "greedy.own5": 1.289,
    "greedy.own_latest": -0.201,
    "greedy.own_long": 1.4,
    "greedy.pool1": 0.508,
    "greedy.pool2": 0.725,
    "greedy.pool3": 0.645,
    "greedy.pool5": 0.489,
    "greedy.pool_latest": 0.529,
    "greedy.pool_long": 0.538,
    "greedy.row": -0.742,
    "greedy.row_rank": 2.128,
    "greedy.row_first": 0.299,
    "greedy.other": 2.596,
    "greedy.other_own2": -0.493,
    "greedy.other_own3": 0.275,
    "greedy.other_own5": 0.075,
    "greedy.other_pool2": 0.391,
    "greedy.other_pool3": -0.383,
    "greedy.other_pool5": -0.254,
    "greedy.other_row": 0.09,
    "coupled.own1": 1.66,
    "coupled.own2": 1.447,
    "coupled.own3": 0.953,
    "coupled.own5": 1.153,
    "coupled.own_latest": 0.064,
    "coupled.own_long": 1.187,
    "coupled.pool1": 0.416,
    "coupled.pool2": 1.683,
    "coupled.pool3": 0.232,
    "coupled.pool5": -0.051,
    "coupled.pool_latest": 0.527,
    "coupled.pool_long": 0.181,
    "coupled.row": -0.537,
    "coupled.row_rank": 2.014,
    "coupled.row_first": 0.186,
    "coupled.noise": 0.606,
    "coupled.other": 3.471,
    "coupled.other_own2": -0.397,
    "coupled.other_own3": 0.168,
    "coupled.other_own5": 0.22,
    "coupled.other_pool2": 0.585,
    "coupled.other_pool3": -0.046,
    "coupled.other_pool5": 0.047,
    "coupled.other_row": 0.55,
    "greedy.draft.own1": 0.586,
    "greedy.draft.own2": 1.108,
    "greedy.draft.own3": 0.9,
    "greedy.draft.own5": 1.402,
    "greedy.draft.own_latest": -0.317,
    "greedy.draft.own_long": 2.087,
    "greedy.draft.pool1": -0.831,
    "greedy.draft.pool2": 0.208,
    "greedy.draft.pool3": -0.015,
    "greedy.draft.pool5": -0.079,
    "greedy.draft.pool_latest": 0.091,
    "greedy.draft.pool_long": -0.061,
    "greedy.draft.row": -0.541,
    "greedy.draft.row_rank": 1.405,
    "greedy.draft.row_first": 0.378,
    "greedy.draft.draft": 3.184,
    "greedy.draft.draft_log": 0.753,
    "greedy.draft.draft_p": 0.532,
    "greedy.draft.other": 2.316,
    "greedy.draft.other_own2": -0.415,
    "greedy.draft.other_own3": 0.287,
    "greedy.draft.other_own5": 0.048,
    "greedy.draft.other_pool2": 0.187,
    "greedy.draft.other_pool3": -0.26,
    "greedy.draft.other_pool5": -0.006,
    "greedy.draft.other_row": -0.003,
    "greedy.draft.other_draft": 1.158,
    "greedy.draft.other_rest": 0.747,
    "coupled.draft.own1": 0.698,
    "coupled.draft.own2": 1.136,
    "coupled.draft.own3": 0.635,
    "coupled.draft.own5": 1.259,
    "coupled.draft.own_latest": -0.234,
    "coupled.draft.own_long": 1.928,
    "coupled.draft.pool1": -0.48,
    "coupled.draft.pool2": 0.534,
    "coupled.draft.pool3": 0.353,
    "coupled.draft.pool5": -0.088,
    "coupled.draft.pool_latest": 0.196,
    "coupled.draft.pool_long": 0.073,
    "coupled.draft.row": -0.412,
    "coupled.draft.row_rank": 1.393,
    "coupled.draft.row_first": 0.221,
    "coupled.draft.draft": 3.29,
    "coupled.draft.draft_log": 0.744,
    "coupled.draft.draft_p": 0.417,
    "coupled.draft.noise": 0.77,
    "coupled.draft.other": 3.593,
    "coupled.draft.other_own2": -0.082,
    "coupled.draft.other_own3": 0.034,
    "coupled.draft.other_own5": 0.207,
    "coupled.draft.other_pool2": 0.141,
    "coupled.draft.other_pool3": 0.228,
    "coupled.draft.other_pool5": -0.646,
    "coupled.draft.other_row": 0.271,
    "coupled.draft.other_draft": 1.797,
    "coupled.draft.other_rest": 0.864,
}
"""Weights for both ways of decoding, alone and beside a draft model, where no n-gram file has
any: fitted on texts of the demo target, decoded with drafts, without its file."""

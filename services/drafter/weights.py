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
    support. `draft`: of a draft model, for being among its likeliest tokens, times the logarithm
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
    other_draft: float = 0.0
    other_rest: float = 0.0


DEFAULTS: Mapping[str, float] = {
    "greedy.own1": 3.257,
    "greedy.own2": 1.372,
    "greedy.own3": 1.247,
    "greedy.own5": 1.151,
    "greedy.own_latest": -0.286,
    "greedy.own_long": 2.168,
    "greedy.pool1": 0.878,
    "greedy.pool2": 0.255,
    "greedy.pool3": -0.065,
    "greedy.pool5": -0.035,
    "greedy.pool_latest": 0.95,
    "greedy.other": 3.232,
    "greedy.other_own2": 0.023,
    "greedy.other_own3": 0.386,
    "greedy.other_own5": 0.138,
    "greedy.other_pool2": -0.055,
    "greedy.other_pool3": 0.313,
    "greedy.other_pool5": 0.434,
    "coupled.own1": 3.198,
    "coupled.own2": 1.402,
    "coupled.own3": 1.228,
    "coupled.own5": 0.69,
    "coupled.own_latest": 0.383,
    "coupled.own_long": 1.262,
    "coupled.pool1": 1.45,
    "coupled.pool2": 1.341,
    "coupled.pool3": 0.077,
    "coupled.pool5": -0.042,
    "coupled.pool_latest": 0.573,
    "coupled.noise": 0.486,
    "coupled.other": 4.119,
    "coupled.other_own2": 0.152,
    "coupled.other_own3": 0.392,
    "coupled.other_own5": 0.139,
    "coupled.other_pool2": 0.591,
    "coupled.other_pool3": 0.354,
    "coupled.other_pool5": 0.027,
    "greedy.draft.own1": 1.142,
    "greedy.draft.own2": 1.332,
    "greedy.draft.own3": 0.366,
    "greedy.draft.own5": 0.638,
    "greedy.draft.own_latest": -0.271,
    "greedy.draft.own_long": 2.206,
    "greedy.draft.pool1": -0.549,
    "greedy.draft.pool2": 0.14,
    "greedy.draft.pool3": 0.101,
    "greedy.draft.pool5": 0.259,
    "greedy.draft.pool_latest": 0.335,
    "greedy.draft.pool_long": 0.148,
    "greedy.draft.draft": 3.51,
    "greedy.draft.draft_log": 0.876,
    "greedy.draft.draft_p": 0.25,
    "greedy.draft.other": 3.684,
    "greedy.draft.other_own2": -0.125,
    "greedy.draft.other_own3": -0.106,
    "greedy.draft.other_own5": 0.176,
    "greedy.draft.other_pool2": 0.242,
    "greedy.draft.other_pool3": -0.397,
    "greedy.draft.other_pool5": -0.053,
    "greedy.draft.other_rest": 0.84,
    "coupled.draft.own1": 1.105,
    "coupled.draft.own2": 1.45,
    "coupled.draft.own3": 0.587,
    "coupled.draft.own5": 0.18,
    "coupled.draft.own_latest": -0.079,
    "coupled.draft.own_long": 1.492,
    "coupled.draft.pool1": -0.574,
    "coupled.draft.pool2": 0.534,
    "coupled.draft.pool3": 0.136,
    "coupled.draft.pool5": -0.076,
    "coupled.draft.pool_latest": 0.321,
    "coupled.draft.pool_long": 0.05,
    "coupled.draft.draft": 3.43,
    "coupled.draft.draft_log": 0.812,
    "coupled.draft.draft_p": 0.235,
    "coupled.draft.noise": 0.737,
    "coupled.draft.other": 5.296,
    "coupled.draft.other_own2": 0.119,
    "coupled.draft.other_own3": 0.047,
    "coupled.draft.other_own5": 0.059,
    "coupled.draft.other_pool2": 0.176,
    "coupled.draft.other_pool3": 0.038,
    "coupled.draft.other_pool5": -0.207,
    "coupled.draft.other_rest": 0.784,
}
"""Weights for both ways of decoding, alone and beside a draft model, where no n-gram file has
any: fitted on texts of the demo target without its file."""

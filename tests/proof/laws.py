"""Small laws to enumerate, and what the verification rules do with them, by hand.

Texts are tuples of tokens 0..2. Every context has its own target law p and draft law q,
all of them different, some with a zero. The rules here are a second, scalar reading of
the papers in float64, against which the real ones are held.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, product
from math import prod

from services.contract.types import DraftTree, Proposal, SparseRow, VerifyMode

VOCAB = 3
Text = tuple[int, ...]
Law = tuple[float, ...]
LawOf = Callable[[Text], Law]


@cache
def target(text: Text) -> Law:
    """p after a text."""
    return _law(random.Random(f"target{text}"), zeros=0.15)


@cache
def drafted(text: Text) -> Law:
    """q after a text; one in three is cut to its two best tokens."""
    return _law(random.Random(f"draft{text}"), zeros=0.3)


def _law(source: random.Random, zeros: float) -> Law:
    weights = [source.gammavariate(0.8, 1.0) + 1e-3 for _ in range(VOCAB)]
    if source.random() < zeros:
        weights[weights.index(min(weights))] = 0.0
    return tuple(weight / sum(weights) for weight in weights)


def row(law: Law) -> SparseRow:
    """A draft law as it is sent."""
    kept = [token for token in range(VOCAB) if law[token] > 0]
    return SparseRow(tuple(kept), tuple(law[token] for token in kept))


def bad_row(law: Law) -> SparseRow:
    """A row that no verifier can use: its probabilities do not sum to one."""
    return SparseRow(tuple(range(VOCAB)), tuple(1.1 * mass for mass in law))


def is_bad(row_: SparseRow) -> bool:
    """Whether a row is one of those above."""
    return abs(sum(row_.probabilities) - 1.0) > 1e-4


def dense(row_: SparseRow) -> Law:
    """A sent row as a law over all tokens."""
    masses = dict(zip(row_.token_ids, row_.probabilities, strict=True))
    return tuple(masses.get(token, 0.0) / sum(row_.probabilities) for token in range(VOCAB))


def texts(
    length: int, stops: Iterable[int] = (), law: LawOf = target
) -> Iterator[tuple[Text, float]]:
    """Every text that a target of this law alone may write, to its end, with its probability."""
    grown: list[tuple[Text, float]] = [((), 1.0)]
    while grown:
        text, weight = grown.pop()
        if len(text) == length or (text and text[-1] in stops):
            yield text, weight
            continue
        grown += [((*text, token), weight * mass) for token, mass in enumerate(law(text))]


# --- the rules by hand ------------------------------------------------------------


def usable(tree: DraftTree) -> int:
    """How many tokens of a chain stand before the first one without a usable row of q."""
    if tree.proposal is not Proposal.SAMPLED or tree.q is None:
        return 0
    return next((i for i, row_ in enumerate(tree.q) if is_bad(row_)), len(tree))


def thresholds(
    text: Text, tree: DraftTree, mode: VerifyMode, law: LawOf = target
) -> tuple[list[float], list[float]]:
    """Per token with a usable q: the h below which its uniform accepts it, and its p_i.

    STANDARD: h = min(1, p/q) (Leviathan et al., 2211.17192); its p_i is 1, which leaves the
    residual unscaled. BLOCK: h and p of Sun et al., 2403.10444, algorithm 2.
    """
    ps, qs, ratios = [], [], []
    for index in range(usable(tree)):
        assert tree.q is not None
        ps.append(law(text + tree.token_ids[:index]))
        qs.append(dense(tree.q[index]))
        ratios.append(ps[-1][tree.token_ids[index]] / qs[-1][tree.token_ids[index]])
    if mode is VerifyMode.STANDARD:
        return [min(1.0, ratio) for ratio in ratios], [1.0] * len(ratios)
    scaled = list(accumulate(ratios, lambda last, ratio: min(1.0, last * ratio), initial=1.0))[1:]
    accept = []
    for index, mass in enumerate(scaled[:-1]):
        left = sum(residual(ps[index + 1], qs[index + 1], mass, normal=False))
        accept.append(left / (left + 1 - mass) if left + 1 - mass > 0 else 1.0)
    return [*accept, *scaled[-1:]], scaled


def residual(p: Sequence[float], q: Sequence[float], scale: float, *, normal: bool = True) -> Law:
    """(scale * p - q)+, normalised; p itself where nothing is left."""
    rest = [max(0.0, scale * a - b) for a, b in zip(p, q, strict=True)]
    if not normal:
        return tuple(rest)
    return tuple(mass / sum(rest) for mass in rest) if sum(rest) > 0 else tuple(p)


@dataclass(frozen=True)
class Fate:
    """One outcome of a block: its probability, what is accepted, the law of the token after."""

    weight: float
    accepted: int
    all_accepted: bool
    law: Law


@cache
def by_hand(text: Text, tree: DraftTree, mode: VerifyMode) -> tuple[Fate, ...]:
    """What may become of a chain of SAMPLED tokens; from an unusable row on by exact match."""
    accept, scaled = thresholds(text, tree, mode)
    fates: list[Fate] = []
    for passed in product((True, False), repeat=len(accept)):
        weight = prod(h if yes else 1 - h for h, yes in zip(accept, passed, strict=True))
        taken = _taken(passed, mode)
        if taken == len(accept):
            fates += _exact_from(text, tree, taken, weight)
        elif weight > 0:
            assert tree.q is not None
            p = target(text + tree.token_ids[:taken])
            scale = scaled[taken - 1] if taken else 1.0
            fates.append(Fate(weight, taken, False, residual(p, dense(tree.q[taken]), scale)))
    return tuple(fates)


def _taken(passed: Sequence[bool], mode: VerifyMode) -> int:
    """STANDARD stops at the first refusal, BLOCK counts to the last acceptance."""
    if mode is VerifyMode.BLOCK:
        return max((i + 1 for i, yes in enumerate(passed) if yes), default=0)
    return next((i for i, yes in enumerate(passed) if not yes), len(passed))


def _exact_from(text: Text, tree: DraftTree, start: int, weight: float) -> Iterator[Fate]:
    """The target samples for itself, as long as the draft says the same."""
    for index in range(start, len(tree)):
        p = target(text + tree.token_ids[:index])
        for token in range(VOCAB):
            if token != tree.token_ids[index] and weight * p[token] > 0:
                yield Fate(weight * p[token], index, False, one_hot(token))
        weight *= p[tree.token_ids[index]]
    if weight > 0:
        yield Fate(weight, len(tree), True, target(text + tree.token_ids))


def one_hot(token: int) -> Law:
    """Certainty."""
    return tuple(float(other == token) for other in range(VOCAB))


def downgraded(text: Text, tree: DraftTree) -> tuple[Fate, ...]:
    """A wrong rule: one bad row, and the whole block goes by exact match."""
    return tuple(_exact_from(text, tree, 0, 1.0))

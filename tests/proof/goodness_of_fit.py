"""Does a text follow a law that knows the last two tokens only?

Two views of the same question, none of which knows how the text was made:

- *Contexts*: the counts of the next token after each pair of tokens against the
  law of that pair (Pearson's chi-square; cells expected less than ten times are
  pooled; the contexts are summed, and the worst of them is looked at alone).
- *Probability integral transform* (Rosenblatt 1952, randomised for discrete laws
  as in Smith 1985): at each position F(x-) + U p(x) is uniform and independent of
  every other position. What depends on more than the context (a place in a block,
  a rejection before) shows as neighbours that know each other.

A token of probability 0 ends the matter: its p-value is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

ALARM = 1e-6
"""A p-value below this fails. Ten thousand tests a day give one false alarm in three months."""

FEWEST_EXPECTED = 10.0
_GRID = 12


@dataclass(frozen=True, slots=True)
class Text:
    """What one session gave: `output` followed `prompt` (two tokens or more)."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """p-values of one sample of texts; `impossible` counts tokens of probability 0."""

    tokens: int
    contexts: float
    worst_context: float
    uniform: float
    neighbours: float
    impossible: int

    @property
    def p_value(self) -> float:
        """Of the four tests together (Bonferroni)."""
        if self.impossible:
            return 0.0
        return min(1.0, 4 * min(self.contexts, self.worst_context, self.uniform, self.neighbours))


def fit(texts: Sequence[Text], law: np.ndarray, seed: int = 0) -> Fit:
    """Test `texts` against `law` [V, V, V] float64: law[a, b, x] is p(x) after ..., a, b.

    `seed` randomises the transform.
    """
    places = [_places(text) for text in texts]
    every = np.concatenate(places)
    impossible = int((law[tuple(every.T)] == 0).sum())
    if impossible:
        return Fit(len(every), 0.0, 0.0, 0.0, 0.0, impossible)
    contexts, worst = _by_context(_counts(every, law.shape[-1]), law)
    noise = np.random.default_rng(seed)
    transformed = [transform(law[own[:, 0], own[:, 1]], own[:, 2], noise) for own in places]
    return Fit(len(every), contexts, worst, uniform(transformed), neighbours(transformed), 0)


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(a chi-square with `freedom` degrees of freedom >= statistic); 1 without any."""
    if freedom <= 0:
        return 1.0
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _places(text: Text) -> np.ndarray:
    """(token before last, last token, next token) of each output position, [n, 3]."""
    whole = np.array([*text.prompt[-2:], *text.output])
    return np.stack([whole[:-2], whole[1:-1], whole[2:]], axis=1)


def _counts(places: np.ndarray, vocab: int) -> np.ndarray:
    index = np.ravel_multi_index(tuple(places.T), (vocab,) * 3)
    return np.bincount(index, minlength=vocab**3).reshape(vocab, vocab, vocab)


def _by_context(counts: np.ndarray, law: np.ndarray) -> tuple[float, float]:
    """p-value of all contexts together, and of the worst one times how many there are."""
    vocab = law.shape[-1]
    each = [
        _pearson(seen, seen.sum() * expected)
        for seen, expected in zip(counts.reshape(-1, vocab), law.reshape(-1, vocab), strict=True)
    ]
    told = [(statistic, freedom) for statistic, freedom in each if freedom > 0]
    together = chi_square_tail(sum(s for s, _ in told), sum(f for _, f in told))
    worst = min((chi_square_tail(*one) for one in told), default=1.0)
    return together, min(1.0, len(told) * worst)


def _pearson(seen: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """Statistic and degrees of freedom; cells expected too seldom are pooled into one."""
    often = expected >= FEWEST_EXPECTED
    rest_seen, rest = seen[~often].sum(), expected[~often].sum()
    seen, expected = seen[often], expected[often]
    if rest >= FEWEST_EXPECTED:
        seen, expected = np.append(seen, rest_seen), np.append(expected, rest)
    elif len(expected):
        # Too little to stand alone: it joins the smallest cell.
        smallest = int(expected.argmin())
        seen[smallest] += rest_seen
        expected[smallest] += rest
    return float(((seen - expected) ** 2 / expected).sum()), len(expected) - 1


def transform(rows: np.ndarray, tokens: np.ndarray, noise: np.random.Generator) -> np.ndarray:
    """Randomised probability integral transform of one text, [n] in [0, 1).

    rows: [n, V] float64, the law of each position; tokens: [n], what stands there.
    """
    at = np.arange(len(tokens)), tokens
    above = rows.cumsum(axis=-1)[at]
    places: np.ndarray = above - noise.random(len(tokens)) * rows[at]
    return places.clip(0.0, 1.0 - 1e-12)


def uniform(transformed: Sequence[np.ndarray], slices: int = 64) -> float:
    """p-value of texts whose transforms [n] should be uniform."""
    places = (np.concatenate(transformed) * slices).astype(int)
    seen = np.bincount(places, minlength=slices)
    return chi_square_tail(*_pearson(seen, np.full(slices, len(places) / slices)))


def neighbours(transformed: Sequence[np.ndarray]) -> float:
    """p-value: whether (place i, place i + 1) of one text fill the unit square evenly."""
    pairs = np.concatenate([np.stack([own[:-1], own[1:]], axis=1) for own in transformed])
    cells = (pairs * _GRID).astype(int) @ (_GRID, 1)
    seen = np.bincount(cells, minlength=_GRID**2)
    return chi_square_tail(*_pearson(seen, np.full(_GRID**2, len(cells) / _GRID**2)))

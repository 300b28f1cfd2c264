"""What comes next, by all that costs no forward: one softmax over the sources' candidates.

Sources: this text, after its last 1 to 5 tokens (prompt lookup, Saxena 2023); texts of the
same tenant, likewise; and of an n-gram file what the target says after one token by itself,
and its mean laws after one to four tokens of texts that it wrote (N-Grammys, Stewart et al.,
2411.03786; SuffixDecoding, Oliaro et al., 2411.04975); what the target said after that token
when it verified this session's drafts (Token Recycling, Luo et al., 2408.08696). They know
different things, so together they are right more often than the best of them. Where a draft
model has been to the place, its law is one more (`ahead`), and all have weights for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache

from services.contract.top_rows import WIDTH
from services.contract.types import DraftSource
from services.drafter.methods.ngram.text_index import LONGEST_MATCH, LONGEST_WALK, TextIndex, Votes
from services.drafter.methods.ngram.weights import SUPPORT_SHIFT, SUPPORTS, Weights, share
from services.engine.ngram_file import FIRSTS, DraftLaw, Laws, NgramFile, extend_key
from services.engine.random_keys import exponential, gumbel_halves

GREEDY, COUPLED = "greedy.", "coupled."
"""What the names of weights begin with in an n-gram file."""
INFORMED, HEADED = "draft.", "head."
"""What follows where a draft model has a word, too; and where a head on the target's states has."""
MOST_CANDIDATES = 8
"""Candidates of one place that are worth a look."""

Scores = dict[int, float]
Tables = tuple[tuple[float, ...], ...]


_SPEAKERS = (
    DraftSource.FIRSTS,
    DraftSource.LAWS,
    DraftSource.THIS_TEXT,
    DraftSource.OTHER_TEXTS,
    DraftSource.TARGET_ROWS,
    DraftSource.MODEL,
)


class Shares:
    """The scores of one place after each source in turn: who said how much of a candidate.

    Of a source that has no word there, they are those before it. `pool`: what the tenant's
    other texts said.
    """

    __slots__ = ("_speakers", "_steps", "pool")

    def __init__(
        self,
        steps: tuple[Scores, ...],
        pool: Votes | None,
        speakers: tuple[DraftSource, ...] = _SPEAKERS,
    ) -> None:
        """`steps`: after those of `speakers`."""
        self._steps, self._speakers = steps, speakers
        self.pool = pool

    def greatest(self, token: int) -> DraftSource:
        """The source that gave most of a candidate's score; without any, who brought it."""
        firsts, laws, text, others, rows, drafted = self._steps
        first, law = firsts.get(token, 0.0), laws.get(token, 0.0)
        here, told = text.get(token, 0.0), others.get(token, 0.0)
        row = rows.get(token, 0.0)
        gains = (first, law - first, here - law, told - here, row - told, drafted[token] - row)
        most = max(gains)
        if most > 0.0:
            return self._speakers[gains.index(most)]
        return self._speakers[[token in scores for scores in self._steps].index(True)]

    def recalled(self, token: int) -> bool:
        """Whether other texts have a say in the token."""
        pool = self.pool
        return pool is not None and (token in pool.counts[0] or token in pool.counts[1])


class Scorer:
    """The sources with their weights, made into tables. Shared by all sessions."""

    def __init__(
        self,
        weights: Weights,
        file: NgramFile | None = None,
        informant: DraftSource = DraftSource.MODEL,
    ) -> None:
        """`informant`: what a draft's law is of."""
        self.weights = weights
        self.file = file
        self._speakers = (*_SPEAKERS[:-1], informant)
        names = ("own1", "own2", "own3", "own5")
        self._own = _shares([getattr(weights, name) for name in names], 1)
        names = ("pool1", "pool2", "pool3", "pool5")
        self._pool = _shares([getattr(weights, name) for name in names], 2)
        self._own_others = (weights.other_own2, weights.other_own3, weights.other_own5)
        self._pool_others = (weights.other_pool2, weights.other_pool3, weights.other_pool5)
        self._first = _codes(weights.first, weights.first_code)
        orders = (1, 2, 3, 4)
        self._laws = tuple(_law_table(weights, order) for order in orders)
        self._row = _row_table(weights)
        self._law_others = (0.0, weights.other_law2, weights.other_law3, weights.other_law4)

    def score(
        self,
        context: Sequence[int],
        own: TextIndex,
        pool: Sequence[TextIndex],
        *,
        filed: bool,
        rows: Sequence[int] = (),
        draft: DraftLaw | None = None,
    ) -> tuple[Scores, float, Shares]:
        """Scores of all candidates after `context` (its last tokens), and that of `other`.

        `filed`: the file knows this vocabulary. `rows`: what the target said after the last token
        before, best first. `draft`: a draft model's law there. Last: what each source said.
        """
        weights = self.weights
        scores: Scores = {}
        firsts: Scores = {}
        laws = firsts
        other, heard = weights.other, None
        if filed and self.file is not None:
            gained, firsts = self._from_file(self.file, context, scores)
            other += weights.other_file + gained
            laws = scores.copy()
        votes = Votes()
        own.vote(context, votes)
        if votes.totals[0]:
            other += _add(
                votes, self._own, self._own_others, weights.own_latest, weights.own_long, scores
            )
        text = scores.copy() if pool else scores
        if pool:
            heard = Votes()
            for index in pool:
                index.vote(context, heard)
            if heard.totals[0]:
                latest, long = weights.pool_latest, weights.pool_long
                other += _add(heard, self._pool, self._pool_others, latest, long, scores)
        # Each source's scores are kept apart only where others come after it.
        told = scores
        if rows:
            told = scores.copy()
            text = text if pool else told
            other += weights.other_row
            for token, gained in zip(rows, self._row, strict=False):
                scores[token] = scores.get(token, 0.0) + gained
        before = scores
        if draft is not None:
            before = scores.copy()
            told = told if rows else before
            text = text if pool or rows else before
            other += self._from_model(draft, scores)
        steps = (firsts, laws, text, told, before, scores)
        return scores, other, Shares(steps, heard, self._speakers)

    def _from_model(self, draft: DraftLaw, scores: Scores) -> float:
        """Add what a draft model says; what `other` gains by it."""
        weights, exp = self.weights, math.exp
        for token, log in zip(draft.ids, draft.logs, strict=True):
            gained = weights.draft + weights.draft_log * log + weights.draft_p * exp(log)
            scores[token] = scores.get(token, 0.0) + gained
        return weights.other_draft + weights.other_rest * draft.rest

    def _from_file(
        self, file: NgramFile, context: Sequence[int], scores: Scores
    ) -> tuple[float, Scores]:
        """Add what the file says; what `other` gains, and the scores before the laws."""
        start = context[-1] * FIRSTS
        if start >= len(file.first_codes):
            return 0.0, {}
        ids, codes, table = file.first_ids, file.first_codes, self._first
        for place in range(start, start + FIRSTS):
            if codes[place]:
                scores[ids[place]] = table[codes[place]]
        firsts = scores.copy()
        key, other = 0, 0.0
        for order, laws in enumerate(file.laws[: len(context)]):
            key = extend_key(key, context[-1 - order])
            law = laws.find(key)
            if law >= 0:
                table = self._laws[order][laws.supports[law] >> SUPPORT_SHIFT]
                _add_law(laws, law, table, scores)
                other += self._law_others[order]
        return other, firsts


def _add_law(laws: Laws, law: int, table: Sequence[float], scores: Scores) -> None:
    ids, codes = laws.ids, laws.codes
    for place in range(laws.starts[law], laws.starts[law + 1]):
        token = ids[place]
        scores[token] = scores.get(token, 0.0) + table[codes[place]]


def _add(
    votes: Votes,
    tables: tuple[Tables, ...],
    others: tuple[float, float, float],
    latest: float,
    long: float,
    scores: Scores,
) -> float:
    """Add what a text says; what `other` gains by it."""
    gained = 0.0
    for place, (counts, total) in enumerate(zip(votes.counts, votes.totals, strict=True)):
        if not total:
            break
        table = tables[place][total]
        for token, count in counts.items():
            scores[token] = scores.get(token, 0.0) + table[count]
        if place:
            gained += others[place - 1]
    if votes.length:
        scores[votes.latest] += latest + long * (votes.length / LONGEST_MATCH)
    return gained


def probabilities(scores: Scores, other: float, least: float) -> list[tuple[float, int]]:
    """(probability, token) of the best candidates that reach `least`, best first."""
    if not scores:
        return []
    top = max(*scores.values(), other)
    exp = math.exp
    weighed = [(exp(score - top), token) for token, score in scores.items()]
    floor = least * (total := sum([weight for weight, _ in weighed]) + exp(other - top))
    kept = [(weight / total, token) for weight, token in weighed if weight >= floor]
    kept.sort(reverse=True)
    return kept[:MOST_CANDIDATES]


def with_noise(
    scores: Scores, other: float, weights: Weights, temperature: float, seed: int, position: int
) -> tuple[Scores, float]:
    """The scores where each candidate's own number of the shared noise is known.

    The target takes the token of the greatest log p / temperature - log E, and E is known here.
    """
    halves = gumbel_halves(seed, position)
    inverse, noise = 1.0 / temperature, weights.noise
    floor = max(scores.values(), default=0.0) - _FAR * temperature
    log = math.log
    return {
        token: inverse * score - noise * log(exponential(halves, token))
        for token, score in scores.items()
        if score >= floor
    }, inverse * other


_FAR = 5.0
"""So much less than the best, and the noise hardly ever makes up for it."""


@cache
def _share_rows(most: int) -> Tables:
    return tuple(
        tuple(share(count, total) for count in range(total + 1)) for total in range(most + 1)
    )


def _shares(weights: Sequence[float], texts: int) -> tuple[Tables, ...]:
    """For each weight, by total and count."""
    rows = _share_rows(texts * LONGEST_WALK)
    return tuple(tuple(tuple(weight * s for s in row) for row in rows) for weight in weights)


def _codes(constant: float, slope: float) -> tuple[float, ...]:
    return tuple(constant + slope * (code / 255.0) for code in range(256))


def _law_table(weights: Weights, order: int) -> Tables:
    """By support and code."""
    constant, slope, sure = (
        getattr(weights, f"law{order}{part}") for part in ("", "_code", "_sure")
    )
    steps = [step / (SUPPORTS - 1) for step in range(SUPPORTS)]
    return tuple(_codes(constant, slope + sure * step) for step in steps)


def _row_table(weights: Weights) -> tuple[float, ...]:
    """By rank."""
    ranks = range(WIDTH)
    return tuple(
        weights.row + weights.row_rank * (1.0 - rank / WIDTH) + (0.0 if rank else weights.row_first)
        for rank in ranks
    )


def weights_of(values: Mapping[str, float]) -> Weights:
    """Weights by name; a name that is not known is left out, one that is missing is 0."""
    known = {field.name for field in fields(Weights)}
    return Weights(**{name: value for name, value in values.items() if name in known})

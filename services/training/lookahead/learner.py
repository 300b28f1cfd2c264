"""Training look-ahead embeddings: where they are inserted, and what they learn there.

Row j (from 0) at a place of a text answers for the token j + 1 beyond the next one, so it
learns the target's distribution at that later place of the text, as the target wrote it. That is
the objective of PaSS (Monea et al., 2311.13581) with the drawn token replaced by the distribution
it was drawn from: the same in the mean, with less noise. What is minimised is the
distance that `learning` minimises, mostly total variation.

A text of R distributions is used at about R / L places, chosen anew in each epoch, so that
there are about as many rows as distributions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from services.training.learning import Score, distance, score_of
from services.training.lookahead.insertion import look_ahead
from services.training.texts import Text

#: Seed of the places that held-out texts are looked at from.
_HELD_SEED = 0

#: How far the untrained embeddings lie apart, in spreads of the model's own.
_STIR = 0.1


@dataclass(frozen=True, slots=True)
class Lookout:
    """Places [P] of one text, and what is to be seen from them.

    Of the distributions `token_ids` int64 and `probabilities` float32, both [P * L, n]; row
    p * L + j belongs to step j of place p. The best token stands first.
    """

    text: Sequence[int]
    places: Tensor
    token_ids: Tensor
    probabilities: Tensor


def lookout(text: Text, steps: int, seed: int) -> Lookout | None:
    """Places of a text from which `steps` distributions are known; None where there is none."""
    rows = np.full(len(text.token_ids) + steps + 2, -1)
    rows[text.prefixes] = np.arange(len(text.prefixes))
    places = np.arange(1, len(text.token_ids) + 1)
    laws = rows[places[:, None] + 1 + np.arange(steps)]
    known = np.flatnonzero((laws >= 0).all(1))
    if not len(known):
        return None
    count = min(len(known), max(1, len(text.prefixes) // steps))
    chance = np.random.default_rng((seed, text.number))
    chosen = np.sort(chance.choice(known, count, replace=False))
    seen = laws[chosen].ravel()
    return Lookout(
        text.token_ids[: places[chosen[-1]]].tolist(),
        torch.from_numpy(places[chosen]),
        torch.from_numpy(text.law_ids[seen].astype(np.int64)),
        torch.from_numpy(text.law_logs[seen]).float().exp(),
    )


class LookaheadLearner:
    """Embeddings [L, width] of a frozen model that runs the ragged attention."""

    def __init__(self, model: Any, embeddings: Tensor) -> None:
        self._model = model
        self.embeddings = nn.Parameter(embeddings.to(model.device, torch.float32))
        self.spread = float(known_embeddings(model, range(_vocabulary(model))).std())
        """Standard deviation of what the model's embedding module puts out."""

    @property
    def own(self) -> Mapping[str, nn.Parameter]:
        """The embeddings alone."""
        return {"embeddings": self.embeddings}

    @property
    def device(self) -> torch.device:
        """The model's."""
        device: torch.device = self._model.device
        return device

    def learn(self, texts: Sequence[Text], seed: int) -> int:
        """Add the gradient of the mean divergence over all rows, text by text."""
        lookouts = self._lookouts(texts, seed)
        rows = sum(len(one.token_ids) for one in lookouts)
        for one in lookouts:
            loss = distance(self._logits(one), *self._laws(one)).sum() / rows
            torch.autograd.backward(loss)
        return rows

    @torch.no_grad()
    def scores(self, texts: Sequence[Text]) -> list[Score]:
        """Per step, how well its rows do, given that the tokens before were drafted right."""
        totals = [Score()] * len(self.embeddings)
        for one in self._lookouts(texts, _HELD_SEED):
            logits, (ids, p) = self._logits(one), self._laws(one)
            for step in range(len(totals)):
                own = slice(step, None, len(totals))
                totals[step] += score_of(logits[own], ids[own], p[own], ids[own, 0])
        return totals

    def _lookouts(self, texts: Sequence[Text], seed: int) -> list[Lookout]:
        found = (lookout(text, len(self.embeddings), seed) for text in texts)
        return [one for one in found if one is not None]

    def _logits(self, one: Lookout) -> Tensor:
        return look_ahead(self._model, self.embeddings, one.text, one.places)

    def _laws(self, one: Lookout) -> tuple[Tensor, Tensor]:
        return one.token_ids.to(self.device), one.probabilities.to(self.device)


@torch.no_grad()
def known_embeddings(model: Any, token_ids: Sequence[int]) -> Tensor:
    """What the model's embedding module puts out for these tokens, float32 [n, width]."""
    ids = torch.tensor(list(token_ids), device=model.device)
    embeddings: Tensor = model.get_input_embeddings()(ids)
    return embeddings.float().cpu()


def fresh_embeddings(model: Any, texts: Sequence[Text], steps: int, seed: int) -> Tensor:
    """Where training begins, [steps, width]: the mean of the texts' embeddings, stirred."""
    known = known_embeddings(
        model, np.unique(np.concatenate([t.token_ids for t in texts])).tolist()
    )
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(steps, known.shape[-1], generator=generator)
    return known.mean(0) + _STIR * known.std(0) * noise


def _vocabulary(model: Any) -> int:
    size: int = model.get_input_embeddings().weight.shape[0]
    return size

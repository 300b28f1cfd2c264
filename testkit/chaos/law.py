"""Whether texts that were sampled through faults have the target's distribution.

The target's own forward says how likely each token was after all before it. Each token
becomes a number between 0 and 1 (Rosenblatt 1952, randomised as in Smith 1985): its place
among all tokens in the order of how much likelier the drafter makes them than the target
does. Under the distribution these numbers are uniform and know nothing of each other, whatever the
texts; a draft token kept too often, or drawn again after a fault because it displeased,
gathers them at one end.

Only a checkout has tests, whose statistics these are: import this where it is needed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from testkit.chaos.transcript import Drawn
from tests.proof.goodness_of_fit import ALARM, neighbours, transform

_TESTS = 2


@dataclass(frozen=True, slots=True)
class Fit:
    """The texts of one rule against the distribution; `p_value`: over all rules together."""

    rule: str
    sessions: int
    tokens: int
    p_value: float

    @property
    def complaint(self) -> str:
        """What is wrong; empty = nothing. A false one comes once in a million runs."""
        if self.p_value >= ALARM:
            return ""
        return f"{self.rule}: {self.tokens} tokens of another distribution, p = {self.p_value:.1e}"

    def __str__(self) -> str:
        return f"{self.rule}: {self.sessions} texts, {self.tokens} tokens, p = {self.p_value:.2g}"


class Models:
    """What drew: the target and its tokenizer, and what drafted for it, both in float32."""

    def __init__(self, target: str, draft: str = "") -> None:
        """Folders; without a draft model tokens stand in the order of their probability."""
        self._tokenizer: Any = AutoTokenizer.from_pretrained(target, trust_remote_code=False)
        self._target = _loaded(target)
        self._draft = _loaded(draft) if draft else None

    def fit(self, drawn: Sequence[Drawn], seed: int = 0) -> list[Fit]:
        """Of each rule among these texts; `seed` randomises the transform."""
        rules = sorted({one.rule for one in drawn})
        fits = []
        for rule in rules:
            texts = [one for one in drawn if one.rule == rule]
            p_value = min(1.0, len(rules) * self._p_value(texts, seed))
            fits.append(Fit(rule, len(texts), sum(len(one.token_ids) for one in texts), p_value))
        return fits

    def _p_value(self, texts: Sequence[Drawn], seed: int) -> float:
        noise = np.random.default_rng(seed)
        transformed = [self._transformed(one, noise) for one in texts]
        return _TESTS * min(_uniform(np.concatenate(transformed)), neighbours(transformed))

    def _transformed(self, one: Drawn, noise: np.random.Generator) -> np.ndarray:
        """The number of each token, [n] in [0, 1)."""
        prompt = self._tokenizer.encode(one.prompt)
        target = _log_law(self._target, prompt, one)
        draft = _log_law(self._draft, prompt, one) if self._draft is not None else 0.0
        order = np.argsort(draft - target, axis=-1, kind="stable")
        rows = np.exp(np.take_along_axis(target, order, axis=-1))
        return transform(rows, (order == np.array(one.token_ids)[:, None]).argmax(axis=-1), noise)


def _uniform(transformed: np.ndarray) -> float:
    """A bound of the p-value of n numbers that should be uniform, whatever n is.

    Dvoretzky, Kiefer and Wolfowitz, with the constant of Massart (1990).
    """
    count = len(transformed)
    steps = np.arange(count + 1) / count
    ordered = np.sort(transformed)
    farthest = max((ordered - steps[:-1]).max(), (steps[1:] - ordered).max())
    return min(1.0, 2.0 * math.exp(-2.0 * count * farthest**2))


def _loaded(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=False
    ).eval()


def _log_law(model: Any, prompt: Sequence[int], one: Drawn) -> np.ndarray:
    """Log-probabilities before each token of a text, [n, V] float64."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *one.token_ids]])).logits[0]
    before = logits[len(prompt) - 1 : -1].double() / one.temperature
    law: np.ndarray = torch.log_softmax(before, dim=-1).numpy()
    return law

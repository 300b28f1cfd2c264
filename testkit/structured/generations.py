"""The generations of a run: response formats, ways to draft and to verify, seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from testkit.chaos.transcript import Case
from testkit.structured.schemas import FORMS, Form

MAX_TOKENS = 192
"""More than any of the formats takes."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a generation is drafted and verified; `rule` as a request names it."""

    rule: str
    method: str
    num_candidates: int = 1

    @property
    def name(self) -> str:
        """As reports have it."""
        trees = f", {self.num_candidates} candidates" if self.num_candidates > 1 else ""
        return f"{self.rule} {self.method}{trees}"

    @property
    def reported_rule(self) -> str:
        """The rule that its rounds must say they had: AUTO with a seed is COUPLED."""
        return "coupled" if self.rule == "auto" else self.rule

    @property
    def same_text(self) -> bool:
        """Whether its text is that of plain decoding with the same seed."""
        return self.reported_rule == "coupled"


MODEL_WAYS = (
    Way("auto", "model"), Way("standard", "model"), Way("block", "model"), Way("auto", "ngram"),
    Way("standard", "model", 3), Way("auto", "model", 3), Way("block", "ngram,model"),
    Way("coupled", "graph", 3),
)  # fmt: skip
HEAD_WAYS = (
    *(replace(way, method=way.method.replace("model", "eagle")) for way in MODEL_WAYS[:-1]),
    Way("coupled", "ngram,eagle", 3),
)
METHODS, HEAD_METHODS = "model,ngram,graph", "eagle,ngram"
"""What those ways need of a drafter."""

NGRAM_WAYS = (Way("auto", "ngram"), Way("standard", "ngram"), Way("block", "ngram"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """One generation: `number` tells it from all others of its run."""

    number: int
    form: Form
    way: Way
    seed: int

    @property
    def case(self) -> Case:
        """What is asked for, at temperature 1."""
        drafts = {
            "rejection_sample_method": self.way.rule,
            "method": self.way.method,
            "num_candidates": self.way.num_candidates,
        }
        return Case(self.form.prompt, {**self._text, **drafts, "include_rounds": True})

    @property
    def _text(self) -> dict[str, Any]:
        return {
            "temperature": 1.0,
            "seed": self.seed,
            "max_tokens": MAX_TOKENS,
            "json_schema": self.form.text,
        }


def wanted(number: int, seed: int, ways: Sequence[Way]) -> Wanted:
    """Every format in every way, then again with other seeds.

    Ways that promise the same text share their seed.
    """
    turn, form = divmod(number, len(FORMS))
    turn, way = divmod(turn, len(ways))
    own = turn if ways[way].same_text else 1000 + number
    return Wanted(number, FORMS[form], ways[way], 1_000_000 * seed + 10_000 * form + own)

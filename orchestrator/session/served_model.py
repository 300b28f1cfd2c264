"""What a request is checked against: the model that is served, and its own defaults."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from services.contract.sampling import NUMBERS, Number, SamplingNumbers, to_float32
from services.contract.types import (
    LATER_FORMATS,
    estimate_capability,
    sampled_capability,
    split_methods,
    tree_capability,
)

# Generation config entries that change the output distribution but are not supported,
# with the value at which they do nothing.
UNSUPPORTED_DEFAULTS: dict[str, object] = {
    "encoder_repetition_penalty": 1.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "num_beams": 1,
    "guidance_scale": 1.0,
    "bad_words_ids": None,
    "sequence_bias": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "watermarking_config": None,
}


@dataclass(frozen=True, slots=True)
class ModelDefaults(SamplingNumbers):
    """A model's own sampling defaults, for parameters that a request leaves out.

    `warnings` names unsupported defaults; each is logged once, at the start. Those
    parameters are neutral: refusing them would make the model unusable.
    """

    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The target model. `methods` are the drafting methods that a request may name.

    `default_method` drafts where a request names none; empty = none does. `capabilities`
    are those of the drafters: `<method>:sampled`, it samples chains and sends their
    distributions; `<method>:tree`, it proposes several candidates at a node.
    `slow_methods` draft few tokens during a verification. `teams` are the sets of methods
    that one drafter runs: only methods of one team can draft for one session.
    `most_tokens`: the most that one request of this tenant may generate; None = the context.
    `structured`: outputs can follow a response format; `formats`: the capabilities that verifiers
    have beyond the first ones of those; `limits_tokens`: outputs can be kept to some tokens, and
    from some words. `scores`: tokens of prompts can be scored.
    """

    name: str
    vocab_size: int
    max_context_length: int
    methods: tuple[str, ...] = ()
    defaults: ModelDefaults = field(default_factory=ModelDefaults)
    default_method: str = ""
    capabilities: frozenset[str] = frozenset()
    slow_methods: frozenset[str] = frozenset()
    teams: frozenset[frozenset[str]] = frozenset()
    most_tokens: int | None = None
    structured: bool = False
    limits_tokens: bool = False
    scores: bool = False
    formats: frozenset[str] = frozenset(LATER_FORMATS)

    def samples(self, method: str) -> bool:
        """Whether a method samples its drafts and sends their distributions."""
        return sampled_capability(method) in self.capabilities

    def drafts_trees(self, method: str) -> bool:
        """Whether a method, or several together, can propose several candidates at a node."""
        return len(split_methods(method)) > 1 or tree_capability(method) in self.capabilities

    def estimates(self, method: str) -> bool:
        """Whether nodes of a method's trees carry chances, and no `q`: no rejection sampling."""
        return estimate_capability(method) in self.capabilities

    def runs_together(self, methods: Collection[str]) -> bool:
        """Whether some drafter runs all of these methods."""
        return any(team.issuperset(methods) for team in self.teams)


def parse_defaults(generation_config_json: str) -> ModelDefaults:
    """A model's defaults from its generation_config.json.

    `do_sample: false` does not force greedy. Entries that cannot be used are
    neutral and named in `warnings`; nothing raises.
    """
    try:
        config = json.loads(generation_config_json or "{}")
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        return ModelDefaults(warnings=("the model's generation config is not a JSON object",))
    warnings = _unsupported(config)
    numbers = {name: _number(config, name, one, warnings) for name, one in NUMBERS.items()}
    return ModelDefaults(**numbers, warnings=tuple(warnings))  # type: ignore[arg-type]


def _unsupported(config: dict[str, Any]) -> list[str]:
    return [
        f"{name} {config[name]!r} of the model's generation config is not supported yet"
        for name, neutral in UNSUPPORTED_DEFAULTS.items()
        if config.get(name) not in (None, neutral, [])
    ]


def _number(config: dict[str, Any], name: str, one: Number, warnings: list[str]) -> float:
    value = config.get(name)
    if value is None:
        return one.neutral
    if _is_number(value) and isinstance(value, one.kind | int) and one.allowed.holds(value):
        # Plus zero: -0.0 is 0.0.
        return value if one.kind is int else to_float32(value) + 0.0
    what = "a count" if one.kind is int else one.allowed.text
    warnings.append(f"{name} {value!r} of the model's generation config is not {what}")
    return one.neutral


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

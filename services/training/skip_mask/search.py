"""The search for a mask: Bayesian optimisation over 2 L yes-or-no choices. No timing here.

Draft & Verify (Zhang et al., 2309.08168) searches offline, once per model, for the
mask with the least time per verified token. Here the optimiser is optuna's
tree-structured Parzen estimator, which takes on/off choices as they are. It begins
with the sets one would try by hand, then with random masks of every share, then
goes by what it saw.

What is proposed depends on the seed and on the trials that were finished, not on
when the search was stopped: one that goes on ends as one that never stopped, but
for the clock's noise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from services.contract.errors import StartError
from services.engine.skip_mask import SkipMask, every_second, middle_half, whole
from services.training.skip_mask.figures import MaskStats

_NAME, _PLAN, _FIGURES = "skip mask", "plan", "figures"
_RANDOM_MASKS = 12
_LARGEST_SHARE = 0.6
_CHOICE = optuna.distributions.CategoricalDistribution((0, 1))
_CANDIDATES = 64

Measure = Callable[[SkipMask], MaskStats]


@dataclass(frozen=True, slots=True)
class Trial:
    """A mask that was measured."""

    mask: SkipMask
    figures: MaskStats


class Search:
    """The trials so far, and those to come. `journal` None: kept in memory only."""

    def __init__(
        self, layers: int, seed: int, plan: Mapping[str, Any], journal: Path | None = None
    ) -> None:
        """Take up what the journal holds; StartError for that of another plan."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._layers, self._seed = layers, seed
        self._study = optuna.create_study(
            storage=_storage(journal), study_name=_NAME, load_if_exists=True
        )
        known = self._study.user_attrs.get(_PLAN)
        if known is None:
            self._study.set_user_attr(_PLAN, dict(plan))
        self._openings = opening_masks(layers, seed)

    @property
    def trials(self) -> list[Trial]:
        """What was measured, in order."""
        finished = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return [
            Trial(self._mask(one.params), MaskStats(**one.user_attrs[_FIGURES])) for one in finished
        ]

    def run(self, count: int, measure: Measure) -> Iterator[Trial]:
        """Measure masks until there are `count` trials; each is kept once it is yielded."""
        for number in range(len(self.trials), count):
            mask = self._openings[number] if number < len(self._openings) else self._suggest(number)
            figures = measure(mask)
            # Added whole: a search that dies meanwhile leaves no trace of this trial.
            self._study.add_trial(
                optuna.create_trial(
                    params=self._choices(mask),
                    distributions=dict.fromkeys(self._names, _CHOICE),
                    value=figures.cost,
                    user_attrs={_FIGURES: asdict(figures)},
                )
            )
            yield Trial(mask, figures)

    def best(self, count: int) -> list[SkipMask]:
        """The masks of least cost, each once, the best first."""
        ranked = sorted(self.trials, key=lambda trial: trial.figures.cost)
        return list(dict.fromkeys(trial.mask for trial in ranked))[:count]

    def _suggest(self, number: int) -> SkipMask:
        """What the sampler would try next, given the trials so far."""
        sampler = optuna.samplers.TPESampler(
            # Its own for each trial: a search that was stopped goes on with the same numbers.
            seed=self._seed * 1_000_003 + number,
            n_startup_trials=0,
            n_ei_candidates=_CANDIDATES,
        )
        scratch = optuna.create_study(sampler=sampler)
        scratch.add_trials(self._study.get_trials(deepcopy=False))
        return self._mask(scratch.ask(dict.fromkeys(self._names, _CHOICE)).params)

    @property
    def _names(self) -> list[str]:
        kinds = ("attention", "mlp")
        return [f"{kind} {layer}" for layer in range(self._layers) for kind in kinds]

    def _choices(self, mask: SkipMask) -> dict[str, int]:
        skipped = {f"attention {layer}" for layer in mask.attention}
        skipped |= {f"mlp {layer}" for layer in mask.mlp}
        return {name: int(name in skipped) for name in self._names}

    def _mask(self, choices: Mapping[str, int]) -> SkipMask:
        skipped: dict[str, list[int]] = {"attention": [], "mlp": []}
        for name, chosen in choices.items():
            kind, _, layer = name.partition(" ")
            if chosen:
                skipped[kind].append(int(layer))
        return SkipMask.of(self._layers, skipped["attention"], skipped["mlp"])


def opening_masks(layers: int, seed: int) -> list[SkipMask]:
    """What a search begins with: nothing, SWIFT's set, the middle half, random masks."""
    source = random.Random(seed)
    masks = [whole(layers), every_second(layers), middle_half(layers)]
    for _ in range(_RANDOM_MASKS):
        share = source.uniform(0.0, _LARGEST_SHARE)
        attention, mlp = ([n for n in range(layers) if source.random() < share] for _ in "ab")
        masks.append(SkipMask.of(layers, attention, mlp))
    return masks


def require_plan(journal: Path, plan: Mapping[str, Any]) -> None:
    """Raise StartError, naming what differs, when this is the journal of another search."""
    if not journal.exists():
        return
    try:
        study = optuna.load_study(study_name=_NAME, storage=_storage(journal))
        known = study.user_attrs[_PLAN]
    except Exception:
        raise StartError(f"--journal: {journal} is there, but is no search's") from None
    told = [
        f"{name} was {known.get(name)}, not {value}"
        for name, value in plan.items()
        if known.get(name) != value
    ]
    if told:
        raise StartError(f"--journal: {journal} belongs to another search: {'; '.join(told)}")


def best_so_far(costs: Sequence[float]) -> list[float]:
    """The least cost up to each trial."""
    return [min(costs[: end + 1]) for end in range(len(costs))]


def _storage(journal: Path | None) -> BaseStorage:
    if journal is None:
        return InMemoryStorage()
    return JournalStorage(JournalFileBackend(str(journal.absolute())))

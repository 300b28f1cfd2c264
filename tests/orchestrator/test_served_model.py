"""What requests are checked against follows the workers that are there."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, cast

from orchestrator.session.offered_model import OfferedModel
from orchestrator.session.options import Options
from orchestrator.session.served_model import parse_defaults
from orchestrator.text import Tokenizer
from orchestrator.workers.pool import Target
from services.contract.sampling import NUMBERS
from services.contract.states import NO_STATES, StateShape
from services.contract.types import Role, WorkerDescription
from tests.orchestrator.text_kit import tokenizer

CONFIG = '{"temperature": 0.5, "repetition_penalty": 1.25, "min_p": 0.125}'


@dataclass
class Pool:
    """The part of the pool that answers for the drafters."""

    offered: tuple[str, ...] = ()
    able: frozenset[str] = frozenset()
    unpaired: frozenset[str] = frozenset()
    shape: StateShape = NO_STATES

    def states_for(self, methods: Collection[str]) -> StateShape | None:
        return None if set(methods) & self.unpaired else self.shape

    def methods(self) -> tuple[str, ...]:
        return self.offered

    def teams(self) -> frozenset[frozenset[str]]:
        return frozenset({frozenset(self.offered)})

    def capabilities(self, role: Role = Role.DRAFTER) -> frozenset[str]:
        return self.able if role is Role.DRAFTER else frozenset()

    def step_ms(self, role: Role, method: str = "") -> float:
        return 60.0 if role is Role.VERIFIER else {"model": 13.0, "ngram": 0.1}.get(method, 0.0)


def offer(pool: Pool, method: str = "", pacing: str = "adaptive") -> OfferedModel:
    worker = WorkerDescription("v", Role.VERIFIER, "tiny", vocab_size=9, max_context_length=64)
    known = Tokenizer(replace(tokenizer().bundle, generation_config_json=CONFIG))
    return OfferedModel(cast("Any", pool), Target(worker, known), options(method, pacing))


def options(method: str = "", pacing: str = "adaptive") -> Options:
    return Options("o", method, pacing)


def test_the_drafters_say_which_methods_there_are_and_what_they_can_do() -> None:
    pool = Pool(("model", "ngram"), frozenset({"model:sampled", "ngram:tree"}))
    model = offer(pool).served_model()
    assert (model.methods, model.default_method) == (("model", "ngram"), "model")
    assert [model.samples(method) for method in model.methods] == [True, False]
    assert [model.drafts_trees(method) for method in model.methods] == [False, True]


def test_the_servers_own_default_method_comes_first() -> None:
    model = offer(Pool(("model", "ngram")), method="ngram").served_model()
    assert (model.methods, model.default_method) == (("ngram", "model"), "ngram")


def test_the_default_is_the_first_method_with_all_that_have_a_word_in_its_trees() -> None:
    able = frozenset({"ngram:estimates", "ngram,model:estimates", "model:sampled"})
    assert offer(Pool(("ngram", "model"), able)).default_method() == "ngram,model"
    assert offer(Pool(("model", "ngram"), able)).default_method() == "model"
    assert offer(Pool(("ngram", "model"), able), method="ngram").default_method() == "ngram"
    alone = frozenset({"ngram:estimates"})
    assert offer(Pool(("ngram", "model"), alone)).default_method() == "ngram"
    assert offer(Pool()).default_method() == ""


def test_without_those_that_have_a_word_the_default_may_draft_alone() -> None:
    able = frozenset({"ngram:estimates", "ngram,model:estimates", "model:sampled"})
    both = Pool(("ngram", "model"), able)
    assert offer(both).default_methods() == ("ngram,model", "ngram")
    assert offer(both, method="ngram,model").default_methods() == ("ngram,model",)
    assert offer(Pool(("model", "ngram"), able)).default_methods() == ("model",)
    assert offer(Pool()).default_methods() == ()


def test_a_default_of_several_methods_serves_each_of_them() -> None:
    model = offer(Pool(), method="ngram,model").served_model()
    assert (model.methods, model.default_method) == (("ngram", "model"), "ngram,model")


def test_what_a_drafter_could_do_is_remembered_while_it_is_away() -> None:
    pool = Pool(("model",), frozenset({"model:sampled"}))
    offered = offer(pool, method="model")
    assert offered.served_model().samples("model")
    pool.offered, pool.able = (), frozenset()
    assert offered.served_model().runs_together(["model"])
    assert offered.served_model().methods == ("model",)
    assert offered.served_model().samples("model")


def test_the_models_own_defaults_are_told_without_the_warnings() -> None:
    told = json.loads(offer(Pool()).defaults_json())
    defaults = parse_defaults(CONFIG)
    assert (told["temperature"], told["repetition_penalty"], told["min_p"]) == (0.5, 1.25, 0.125)
    assert told == {name: getattr(defaults, name) for name in NUMBERS}


def test_a_method_is_slow_that_drafts_few_tokens_while_a_block_is_verified() -> None:
    pool = Pool(("model", "ngram", "other"))
    assert offer(pool).served_model().slow_methods == {"model"}


def test_no_method_is_slow_where_the_verifier_waits_for_whole_blocks() -> None:
    offered = offer(Pool(("model",)), pacing="fixed")
    assert offered.served_model().slow_methods == frozenset()


def test_a_method_whose_drafters_need_states_that_nobody_tells_is_no_default() -> None:
    pool = Pool(("eagle", "ngram"), unpaired=frozenset({"eagle"}))
    assert offer(pool).default_method() == "ngram"
    assert offer(pool).served_model().methods == ("eagle", "ngram")
    assert offer(pool, method="eagle").default_method() == "eagle"
    assert offer(Pool(("eagle",), unpaired=frozenset({"eagle"}))).default_method() == ""


def test_the_states_of_a_method_are_those_that_its_drafter_needs_and_a_verifier_tells() -> None:
    shape = StateShape((0, 1), 4)
    assert offer(Pool(("eagle",), shape=shape)).states(("eagle",)) == shape
    assert offer(Pool(("eagle",), unpaired=frozenset({"eagle"}))).states(("eagle",)) == NO_STATES

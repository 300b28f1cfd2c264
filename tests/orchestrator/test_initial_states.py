"""What sessions are opened with, by what was asked for and what is offered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.session.initial_state import InitialStates
from orchestrator.session.ports import SessionKey
from orchestrator.session.totals import SpecTotals
from orchestrator.settings import OrchestratorSettings
from orchestrator.steering.config import SessionConfig
from services.contract.states import NO_STATES, StateShape
from services.contract.types import VerifyMode
from tests.orchestrator.request_kit import make
from tests.orchestrator.test_served_model import Pool, offer, options
from tests.orchestrator.text_kit import tokenizer

KEY = SessionKey("t", "s")


class Estimating(Pool):
    """Drafters whose trees come with each node's chance."""

    def capabilities(self) -> frozenset[str]:
        return frozenset({"ngram:tree", "ngram:estimates"})


def config_of(pacing: str = "adaptive", **spec: object) -> SessionConfig:
    beginning = InitialStates(offer(Estimating(("ngram",))), options(pacing=pacing))
    asked = replace(make(), **{"mode": VerifyMode.COUPLED, **spec})
    return beginning.config(KEY, asked, 1, asked.text_stream(tokenizer()))


@pytest.mark.parametrize(
    ("pacing", "told"),
    [("adaptive", ""), ("fixed", "fixed"), ("matched", "matched"), ("eager", "eager")],
)
def test_verifiers_are_told_of_a_pacing_that_is_not_their_own(pacing, told) -> None:
    asked = make()
    beginning = InitialStates(offer(Pool(("model",))), options(pacing=pacing))
    config = beginning.config(KEY, asked, 1, asked.text_stream(tokenizer()))
    assert config.pacing == told


def test_the_adaptive_pacing_has_another_name() -> None:
    assert OrchestratorSettings(pacing="thompson").pacing == "adaptive"


def test_trees_with_chances_are_the_default_where_drafts_are_matched_exactly() -> None:
    config = config_of()
    assert (config.estimated, config.num_candidates, config.window) == (True, 8, 8)
    assert config.largest_block == 16
    assert config_of(window_cap=3).window == 3
    assert config_of(num_candidates=2).num_candidates == 2


def test_chains_are_drafted_for_who_asks_and_where_drafts_are_rejected() -> None:
    for changed in (
        {"chains": True},
        {"mode": VerifyMode.STANDARD},
        {"disable_speculation": True},
        {"method": ("ngram", "model")},
    ):
        assert not config_of(**changed).estimated
    assert not config_of("fixed").estimated


class Informed(Pool):
    """Drafters of small trees, some with a draft model beside."""

    def capabilities(self) -> frozenset[str]:
        able = {"ngram:tree", "ngram:estimates", "ngram,model:estimates", "ngram:rows"}
        return frozenset(able)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"method": ("ngram",)}, 8),
        ({"method": ("ngram", "model")}, 0),
        ({"method": ("ngram",), "chains": True}, 0),
        ({"method": ("ngram",), "mode": VerifyMode.STANDARD}, 0),
    ],
)
def test_verdicts_are_to_tell_the_targets_rows_to_small_trees_of_who_learns_from_them(
    asked, told
) -> None:
    beginning = InitialStates(offer(Informed(("ngram", "model"))), options())
    spec = replace(make(), **{"mode": VerifyMode.COUPLED, **asked})
    config = beginning.config(KEY, spec, 1, spec.text_stream(tokenizer()))
    assert config.top_rows == told


@pytest.mark.parametrize(
    ("asked", "shape"),
    [
        ({"method": ("eagle",)}, StateShape((0, 2), 8)),
        ({"method": ("eagle",), "mode": VerifyMode.STANDARD}, StateShape((0, 2), 8)),
        ({"disable_speculation": True}, NO_STATES),
    ],
)
def test_states_are_asked_for_where_the_sessions_method_needs_them(asked, shape) -> None:
    pool = Pool(("eagle",), shape=StateShape((0, 2), 8))
    spec = replace(make(), **asked)
    text = spec.text_stream(tokenizer())
    config = InitialStates(offer(pool), options()).config(KEY, spec, 1, text)
    assert config.states == shape


@pytest.mark.parametrize(
    ("own", "server", "methods"),
    [
        ({}, "", ["ngram,model", "ngram"]),
        ({"method": ("ngram", "model")}, "", ["ngram,model"] * 2),
        ({}, "ngram,model", ["ngram,model"] * 2),
        ({"chains": True}, "", ["ngram,model"] * 2),
        ({"mode": VerifyMode.STANDARD}, "", ["ngram,model"] * 2),
        ({"disable_speculation": True}, "", ["", ""]),
    ],
)
def test_a_session_draws_its_method_where_nobody_named_one(own, server, methods) -> None:
    beginning = InitialStates(offer(Informed(("ngram", "model")), method=server), options(server))
    asked = replace(make(), **{"mode": VerifyMode.COUPLED, **own})
    found = []
    for _ in methods:
        config = beginning.config(KEY, asked, 1, asked.text_stream(tokenizer()))
        found.append(config.method)
        beginning.learn(KEY, config, SpecTotals(emitted_tokens=40, ms=1.0))
    assert found == methods

"""What the sessions of one process learn from each other."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from orchestrator.core.pacing import (
    Fallback,
    FinishedRound,
    Fixed,
    Levels,
    Marginal,
    Policy,
    Thompson,
    make_policy,
)
from orchestrator.core.rounds import new_session
from orchestrator.session import pacing_memory as experiences_module
from orchestrator.session.initial_state import InitialStates
from orchestrator.session.pacing_memory import Paces, PacingMemory
from orchestrator.session.ports import SessionKey
from orchestrator.steering.config import SessionConfig
from services.contract.states import NO_STATES, StateShape
from services.contract.types import ResolvedSampling, StepTime, VerifyMode
from tests.orchestrator.request_kit import make
from tests.orchestrator.test_served_model import Pool, offer, options
from tests.orchestrator.text_kit import tokenizer

CONFIG = SessionConfig(
    "s",
    (1,),
    VerifyMode.GREEDY,
    ResolvedSampling(),
    seed=1,
    method="model",
    window=8,
    phrase_scope="acme",
)
LEARNED = Fallback(Thompson(8)).observe(FinishedRound(4, 4, 5, 70.0, 44.0))


def remembered(config: SessionConfig = CONFIG) -> PacingMemory:
    experiences = PacingMemory()
    experiences.remember(new_session(config, LEARNED))
    return experiences


def learned(seeded: Policy) -> Any:
    """What a model's drafts taught."""
    assert isinstance(seeded, Fallback)
    assert isinstance(seeded.inner, Thompson)
    return seeded.inner.learned


def fresh(experiences: PacingMemory, config: SessionConfig) -> bool:
    policy: Policy = make_policy("thompson", 8)
    return experiences.seeded(config, policy) == policy


def test_a_session_starts_from_what_one_of_its_kind_learned() -> None:
    seeded = remembered().seeded(replace(CONFIG, session="t"), make_policy("thompson", 8))
    assert learned(seeded).draft_ms == 11.0


def test_another_method_or_rule_or_trees_are_another_matter() -> None:
    experiences = remembered()
    assert not fresh(experiences, CONFIG)
    assert fresh(experiences, replace(CONFIG, method="ngram"))
    assert fresh(experiences, replace(CONFIG, mode=VerifyMode.COUPLED))
    assert fresh(experiences, replace(CONFIG, num_candidates=3))


def test_plain_sessions_leave_no_experience() -> None:
    plain = replace(CONFIG, method="")
    assert fresh(remembered(plain), plain)


def hits(experiences: PacingMemory, config: SessionConfig) -> float:
    """Tries of first draft tokens that a session begins with."""
    seeded = experiences.seeded(config, make_policy("thompson", 8))
    return learned(seeded).first.tries


def test_how_often_drafts_hit_stays_with_the_tenant_whose_texts_they_were() -> None:
    experiences = remembered()
    assert hits(experiences, CONFIG) == 1.0
    assert hits(experiences, replace(CONFIG, phrase_scope="other")) == 0.0
    assert hits(experiences, replace(CONFIG, phrase_scope="")) == 0.0


def test_an_ephemeral_session_leaves_what_rounds_cost_and_nothing_of_its_drafts() -> None:
    experiences = remembered(replace(CONFIG, phrase_scope=""))
    assert hits(experiences, CONFIG) == 0.0
    seeded = experiences.seeded(CONFIG, make_policy("thompson", 8))
    assert learned(seeded).draft_ms == 11.0
    assert learned(seeded).costs.known


def test_a_tenant_s_hits_meet_the_newest_costs() -> None:
    experiences = remembered()
    slower = Fallback(Thompson(8)).observe(FinishedRound(4, 4, 5, 140.0, 88.0))
    experiences.remember(new_session(replace(CONFIG, phrase_scope=""), slower))
    assert hits(experiences, CONFIG) == 1.0
    seeded = experiences.seeded(CONFIG, make_policy("thompson", 8))
    assert learned(seeded).draft_ms == 22.0


TREES = replace(CONFIG, method="ngram", num_candidates=8, estimated=True)


def after_trees(config: SessionConfig, experiences: PacingMemory, round_ms: float = 40.0) -> None:
    """A session of trees whose nodes were all promised and none of them taken."""
    policy: Policy = Marginal(8, 4)
    for _ in range(30):
        policy = policy.observe(FinishedRound(1, 0, 1, round_ms, 1.0, levels=1, reach=(0.9,)))
    experiences.remember(new_session(config, policy))


def tree_nodes(experiences: PacingMemory, config: SessionConfig) -> tuple[float, float]:
    """How far a session believes in a node, and what it knows of the time of a round."""
    seeded = experiences.seeded(config, Marginal(8, 4))
    assert isinstance(seeded, Marginal)
    (believed,) = seeded.learned.believed((0.9,))
    return believed, seeded.times[0] if seeded.times else 0.0


def test_how_far_chances_are_believed_stays_with_the_tenant_and_costs_do_not() -> None:
    experiences = PacingMemory()
    after_trees(TREES, experiences)
    believed, round_ms = tree_nodes(experiences, TREES)
    assert believed < 0.3
    for scope in ("other", ""):
        assert tree_nodes(experiences, replace(TREES, phrase_scope=scope)) == (0.9, round_ms)
    after_trees(replace(TREES, phrase_scope=""), experiences, round_ms=80.0)
    assert tree_nodes(experiences, TREES)[0] == believed
    assert tree_nodes(experiences, TREES)[1] > 1.2 * round_ms


def test_the_hits_of_many_tenants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiences_module, "MOST_KNOWN", 3)
    experiences = PacingMemory()
    tenants = [replace(CONFIG, phrase_scope=str(number)) for number in range(5)]
    for config in tenants:
        experiences.remember(new_session(config, LEARNED))
    assert [hits(experiences, config) for config in tenants] == [0.0, 0.0, 1.0, 1.0, 1.0]


def beginnings(pacing: str = "thompson") -> InitialStates:
    return InitialStates(offer(Pool(("model",))), options(pacing=pacing))


def test_a_session_that_begins_is_seeded_and_the_asked_for_baseline_is_left_alone() -> None:
    seeding = beginnings()
    seeding.learn(SessionKey("t", "s"), new_session(CONFIG, LEARNED))
    seeded = seeding.policy(CONFIG)
    assert learned(seeded).draft_ms == 11.0
    trees = seeding.policy(replace(CONFIG, num_candidates=3, window=4))
    assert trees == Fallback(Levels(4))
    assert beginnings("fixed").policy(CONFIG) == Fallback(Fixed(8))


def test_the_first_session_knows_what_its_verifiers_told_of_their_steps() -> None:
    told = tuple(StepTime(rows, 40.0 + 12.0 * (rows - 1)) for rows in (1, 2, 4, 8))
    beginning = InitialStates(offer(Estimating(("ngram",), told=told)), options())
    policy = beginning.policy(replace(CONFIG, estimated=True))
    assert isinstance(policy, Marginal)
    assert policy.times[:3] == pytest.approx([40.0, 52.0, 64.0])


class Estimating(Pool):
    """Drafters whose trees come with each node's chance."""

    def capabilities(self) -> frozenset[str]:
        return frozenset({"ngram:tree", "ngram:estimates"})


def config_of(pacing: str = "thompson", **spec: object) -> SessionConfig:
    beginning = InitialStates(offer(Estimating(("ngram",))), options(pacing=pacing))
    asked = replace(make(), **{"mode": VerifyMode.COUPLED, **spec})
    key = SessionKey("t", "s")
    state = beginning.state(key, asked, 1, (), asked.text_stream(tokenizer()))
    assert isinstance(state.policy, Marginal) is state.config.estimated
    return state.config


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


BOTH = ("ngram,model", "ngram")


def paced(paces: Paces, method: str, tokens_per_s: float, **other: object) -> None:
    """A session of 40 tokens by a method ends."""
    given = {"tenant": "acme", "tokens": 40, "mode": VerifyMode.GREEDY, **other}
    tokens = int(str(given["tokens"]))
    policy = replace(Marginal(8, 4), tokens=tokens, ms=1e3 * tokens / tokens_per_s)
    config = replace(TREES, method=method, mode=given["mode"])
    paces.remember(str(given["tenant"]), new_session(config, policy))


def chosen(
    paces: Paces, draw: object = 0, tenant: str = "acme", mode: VerifyMode = VerifyMode.GREEDY
) -> str:
    return paces.choose(tenant, mode, BOTH, str(draw))


@pytest.mark.parametrize(("with_model", "without"), [(36.0, 40.0), (40.0, 36.0), (40.0, 28.0)])
def test_sessions_find_out_which_method_is_faster_for_them(with_model, without) -> None:
    """Sessions differ by a quarter; of what the better one alone has, 3 % is given away."""
    speeds = dict(zip(BOTH, (with_model, without), strict=True))
    share = []
    for seed in range(20):
        paces, source, seconds = Paces(), Random(seed), 0.0
        for number in range(150):
            method = chosen(paces, f"{seed}/{number}")
            seconds += 1.0 / speeds[method]
            paced(paces, method, speeds[method] * math.exp(source.gauss(0.0, 0.25)))
        share.append(150 / seconds / max(speeds.values()))
    assert sum(share) / len(share) > 0.97


def test_what_became_slow_is_left_again() -> None:
    paces = Paces()
    for method, pace in zip(BOTH, (60.0, 30.0), strict=True):
        for _ in range(100):
            paced(paces, method, pace)
    assert Counter(chosen(paces, draw) for draw in range(50))["ngram,model"] > 45
    for _ in range(100):
        paced(paces, "ngram,model", 15.0)
    assert Counter(chosen(paces, draw) for draw in range(50))["ngram"] > 45


def test_a_method_that_nobody_has_tried_is_tried_in_the_order_given() -> None:
    paces = Paces()
    assert chosen(paces) == "ngram,model"
    paced(paces, "ngram,model", 1000.0)
    assert chosen(paces) == "ngram"
    paced(paces, "ngram", 10.0)
    assert {chosen(paces, draw) for draw in range(20)} == {"ngram,model"}


def test_methods_are_found_out_for_each_tenant_and_rule() -> None:
    paces = Paces()
    paced(paces, "ngram,model", 10.0)
    paced(paces, "ngram", 1000.0)
    assert chosen(paces) == "ngram"
    assert chosen(paces, tenant="other") == chosen(paces, mode=VerifyMode.COUPLED) == "ngram,model"


def test_short_sessions_and_others_paces_tell_nothing_and_no_session_tells_all() -> None:
    paces = Paces()
    paced(paces, "ngram,model", 1000.0, tokens=15)
    paces.remember("acme", new_session(TREES, LEARNED))
    assert chosen(paces) == "ngram,model"
    for method in BOTH:
        for _ in range(30):
            paced(paces, method, 40.0 if method == "ngram" else 50.0)
    paced(paces, "ngram,model", 0.001)
    assert Counter(chosen(paces, draw) for draw in range(50))["ngram,model"] > 45


def test_the_paces_of_many_tenants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiences_module, "MOST_KNOWN", 2)
    paces = Paces()
    for tenant in "abc":
        paced(paces, "ngram,model", 40.0, tenant=tenant)
    assert [chosen(paces, tenant=tenant) for tenant in "abc"] == ["ngram,model", "ngram", "ngram"]


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
    state = beginning.state(SessionKey("t", "s"), spec, 1, (), spec.text_stream(tokenizer()))
    assert state.config.top_rows == told


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
    key, text = SessionKey("t", "s"), spec.text_stream(tokenizer())
    state = InitialStates(offer(pool), options()).state(key, spec, 1, (), text)
    assert state.config.states == shape


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
    key, found = SessionKey("t", "s"), []
    for _ in methods:
        state = beginning.state(key, asked, 1, (), asked.text_stream(tokenizer()))
        found.append(state.config.method)
        policy = replace(state.policy, tokens=40, ms=1.0) if state.config.estimated else LEARNED
        beginning.learn(key, replace(state, policy=policy))
    assert found == methods

"""What the sessions of one process learn from each other."""

from __future__ import annotations

from dataclasses import replace
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
from orchestrator.session.pacing_memory import PacingMemory, Policies
from orchestrator.steering.config import SessionConfig
from services.contract.types import ResolvedSampling, StepTime, VerifyMode
from tests.orchestrator.test_served_model import Pool, offer, options

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


def beginnings(pacing: str = "thompson") -> Policies:
    return Policies(offer(Pool(("model",))), options(pacing=pacing))


def test_a_session_that_begins_is_seeded_and_the_asked_for_baseline_is_left_alone() -> None:
    seeding = beginnings()
    seeding.learn(new_session(CONFIG, LEARNED))
    seeded = seeding.policy(CONFIG)
    assert learned(seeded).draft_ms == 11.0
    trees = seeding.policy(replace(CONFIG, num_candidates=3, window=4))
    assert trees == Fallback(Levels(4))
    assert beginnings("fixed").policy(CONFIG) == Fallback(Fixed(8))


def test_the_first_session_knows_what_its_verifiers_told_of_their_steps() -> None:
    told = tuple(StepTime(rows, 40.0 + 12.0 * (rows - 1)) for rows in (1, 2, 4, 8))
    beginning = Policies(offer(Pool(("ngram",), told=told)), options())
    policy = beginning.policy(replace(CONFIG, estimated=True))
    assert isinstance(policy, Marginal)
    assert policy.times[:3] == pytest.approx([40.0, 52.0, 64.0])

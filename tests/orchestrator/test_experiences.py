"""What the sessions of one process learn from each other."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.beginnings import Beginnings
from orchestrator.core.pacing import (
    Fallback,
    Fixed,
    Levels,
    Outcome,
    Policy,
    Thompson,
    make_policy,
)
from orchestrator.core.rounds import new_session
from orchestrator.core.state import SessionConfig
from orchestrator.experiences import Experiences
from services.common.types import ResolvedSampling, VerifyMode
from tests.orchestrator.test_served_model import Pool, offer, options

CONFIG = SessionConfig(
    "s", (1,), VerifyMode.GREEDY, ResolvedSampling(), seed=1, method="model", window=8
)
LEARNED = Fallback(Thompson(8)).observe(Outcome(4, 4, 5, 70.0, 44.0))


def remembered(config: SessionConfig = CONFIG) -> Experiences:
    experiences = Experiences()
    experiences.remember(new_session(config, LEARNED))
    return experiences


def fresh(experiences: Experiences, config: SessionConfig) -> bool:
    policy: Policy = make_policy("thompson", 8)
    return experiences.seeded(config, policy) == policy


def test_a_session_starts_from_what_one_of_its_kind_learned() -> None:
    seeded = remembered().seeded(replace(CONFIG, session="t"), make_policy("thompson", 8))
    assert isinstance(seeded, Fallback)
    assert isinstance(seeded.inner, Thompson)
    assert seeded.inner.learned.draft_ms == 11.0


def test_another_method_or_rule_or_trees_are_another_matter() -> None:
    experiences = remembered()
    assert not fresh(experiences, CONFIG)
    assert fresh(experiences, replace(CONFIG, method="ngram"))
    assert fresh(experiences, replace(CONFIG, mode=VerifyMode.COUPLED))
    assert fresh(experiences, replace(CONFIG, num_candidates=3))


def test_plain_sessions_leave_no_experience() -> None:
    plain = replace(CONFIG, method="")
    assert fresh(remembered(plain), plain)


def beginnings(pacing: str = "thompson") -> Beginnings:
    return Beginnings(offer(Pool(("model",))), options(pacing=pacing))


def test_a_session_that_begins_is_seeded_and_the_asked_for_baseline_is_left_alone() -> None:
    seeding = beginnings()
    seeding.learn(new_session(CONFIG, LEARNED))
    seeded = seeding.policy(CONFIG)
    assert isinstance(seeded, Fallback)
    assert isinstance(seeded.inner, Thompson)
    assert seeded.inner.learned.draft_ms == 11.0
    trees = seeding.policy(replace(CONFIG, num_candidates=3, window=4))
    assert trees == Fallback(Levels(4))
    assert beginnings("fixed").policy(CONFIG) == Fallback(Fixed(8))

"""Completions of one prompt on a drafter: one of them reads the prompt, the others copy it."""

import pytest

from services.contract import types as t
from services.drafter.methods.graph.graph import GraphDrafter
from services.drafter.methods.model.model import ModelDrafter
from tests.services.drafter_kit import (
    PROMPT,
    VOCAB,
    Drafted,
    FakeEngine,
    FixedGrowth,
    Harness,
    real_engine,
    tokens_of,
)
from tests.services.hypothesis_kit import starting

LONG = [number * 7 % VOCAB for number in range(40)]
NAMES = ("r.0", "r.1", "r.2", "r.3")
CHUNK = 16
COUPLED = {"mode": t.VerifyMode.COUPLED, "temperature": 1.0}
DRAWN = {"mode": t.VerifyMode.STANDARD, "temperature": 1.0}
WAYS = {
    "chains": {},
    "coupled chains": COUPLED,
    "drawn chains": DRAWN,
    "combs": {**DRAWN, "num_candidates": 3},
    "trees": {"num_candidates": 3},
    "graphs": {"num_candidates": 3},
}


def harness_of(way: str, engine: FakeEngine | None = None) -> Harness:
    engine = engine or FakeEngine()
    if way == "graphs":
        made = GraphDrafter(engine, plan=FixedGrowth, step_tokens=CHUNK)
    else:
        trees = FixedGrowth if way == "trees" else None
        made = ModelDrafter(engine, step_tokens=CHUNK, trees=trees)
    return Harness(engine, drafter=made)


def opened(harness: Harness, names=NAMES, prompt=LONG, **options) -> list[Drafted]:
    for seed, name in enumerate(names):
        harness.open(name, prompt, **{"seed": seed, **options})
    return harness.run()


def read(harness: Harness) -> int:
    """Tokens that entered K/V by a forward before anything was drafted behind a prompt."""
    return sum(sum(step) for step in harness.engine.forwards)


@pytest.mark.parametrize("way", WAYS)
def test_the_prompt_is_read_once_and_drafts_are_those_of_sessions_apart(way):
    apart, shared = harness_of(way), harness_of(way)
    expected = opened(apart, **WAYS[way])
    drafts = opened(shared, fork_scope="acme/r", **WAYS[way])
    for name in NAMES:
        own = [draft.tree for draft in drafts if draft.session == name]
        assert own == [draft.tree for draft in expected if draft.session == name]
        assert own
    saved = (len(NAMES) - 1) * (len(LONG) - 1)
    assert read(apart) - read(shared) == saved
    assert shared.core.progress().copied_tokens == saved
    assert apart.core.progress().copied_tokens == 0


def test_real_models_draft_what_they_draft_apart():
    drafts = []
    for scope in ("", "acme/r"):
        harness = Harness(real_engine())
        drafts.append(opened(harness, prompt=PROMPT, fork_scope=scope, **COUPLED))
        assert harness.core.progress().copied_tokens == (3 * (len(PROMPT) - 1) if scope else 0)
    for name in NAMES:
        assert tokens_of(drafts[0], name) == tokens_of(drafts[1], name)


def test_one_that_rests_before_it_has_read_holds_nobody_up():
    harness = harness_of("chains")
    harness.open("r.0", LONG, fork_scope="acme/r", window=0)
    drafts = opened(harness, NAMES[1:], fork_scope="acme/r")
    assert {draft.session for draft in drafts} == set(NAMES[1:])
    assert harness.core.progress().copied_tokens == 2 * (len(LONG) - 1)
    harness.allow("r.0", 6)
    assert tokens_of(harness.run(), "r.0") == harness.engine.continuation(LONG, 6)
    assert harness.core.progress().copied_tokens == 3 * (len(LONG) - 1)


@pytest.mark.parametrize("how", ["is closed", "rests"])
def test_where_the_one_that_reads_is_gone_another_one_reads(how):
    harness = harness_of("chains")
    for name in NAMES:
        harness.open(name, LONG, fork_scope="acme/r")
    harness.core.step()
    assert harness.engine.forwards == [[CHUNK]]
    if how == "is closed":
        harness.close("r.0")
    else:
        harness.allow("r.0", 0)
    drafts = harness.run()
    for name in NAMES[1:]:
        assert tokens_of(drafts, name) == harness.engine.continuation(LONG, 6)
    assert harness.core.progress().copied_tokens == 2 * (len(LONG) - 1)


def test_a_prompt_is_copied_from_one_that_has_gone_on():
    for way in ("chains", "trees"):
        harness = harness_of(way)
        opened(harness, NAMES[:1], fork_scope="acme/r", **WAYS[way])
        tail = harness.engine.continuation(LONG, 20)
        harness.say("r.0", 0, tail)
        harness.run()
        harness.engine.forwards.clear()
        drafts = opened(harness, NAMES[1:2], fork_scope="acme/r", **WAYS[way])
        assert harness.engine.forwards[0] == [1]
        assert drafts[0].tree.token_ids[0] == tail[0]


def test_nothing_is_shared_between_other_prompts_scopes_and_links():
    harness = harness_of("chains")
    other = [LONG[0], *LONG]
    harness.open("a", LONG, fork_scope="acme/r")
    harness.open("b", other, fork_scope="acme/r")
    harness.open("c", LONG, fork_scope="acme/q")
    harness.open("d", LONG)
    harness.open("e", LONG)
    start = starting(harness.handle("f"), LONG, window=6, max_tokens=60, fork_scope="acme/r")
    harness.core.handle(1, start)
    drafts = harness.run()
    assert {draft.session for draft in drafts} == set("abcdef")
    assert harness.core.progress().copied_tokens == 0


def test_one_of_a_shorter_text_takes_part_and_all_room_comes_back():
    harness = harness_of("chains")
    opened(harness, fork_scope="acme/r", max_tokens=9)
    opened(harness, ["one"], prompt=[3], fork_scope="acme/s")
    for name in (*NAMES, "one"):
        harness.close(name)
    assert harness.engine.kv_tokens_used == 0
    assert not harness.drafter.prompts._members
    assert not harness.drafter.prompts._families

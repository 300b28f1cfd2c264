"""Synthetic engines under the real cores: what they say, and how long they take for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from services.contract.errors import Overloaded
from services.contract.frames import (
    DraftFrame,
    StepFrame,
    draft_frame,
    draft_rows,
    grants,
    step_rows,
)
from services.contract.types import (
    DraftTree,
    ResolvedSampling,
    VerifyMode,
)
from services.contract.worker_messages import DrafterEvent, StartDraft, StartVerify, VerifierEvent
from services.drafter.hypotheses import HypothesisCore
from services.drafter.methods.model.model import ModelDrafter
from services.engine.port import Segment
from services.engine.synthetic.engine import SyntheticEngine, target_engine
from services.engine.synthetic.laws import laws
from services.engine.synthetic.vocabulary import letters
from services.engine.synthetic.world import World
from services.verifier.running.core import RunningCore
from tests.services.running_bench import Fixed
from tests.synthetic.kit import PROMPT, FakeTime, drafter, spec, target

ACCEPTED = (6, 4, 1, 6, 6, 2, 1, 1, 5, 3, 6)
SAMPLING = ResolvedSampling(temperature=0.0, max_tokens=2000)


def rounds(
    mode: VerifyMode, count: int, *, with_laws: bool = True, **agreement: object
) -> Iterator[tuple[int, int]]:
    """(drafted, emitted) of whole drafts of five, each verified in a step, by both cores.

    `with_laws`: the verifier is told what tokens were drawn from, if they were.
    """
    drafts: list[DrafterEvent] = []
    steps: list[VerifierEvent] = []
    drafting = HypothesisCore(
        {"model": ModelDrafter(drafter(FakeTime(), **agreement))},
        emit=lambda _, event: drafts.append(event),
        worker_id="d",
    )
    judging = RunningCore(
        target(FakeTime(), **agreement),
        emit=lambda _, event: steps.append(event),
        worker_id="v",
        pacing=Fixed(),
    )
    sampling = SAMPLING if mode is VerifyMode.GREEDY else replace(SAMPLING, temperature=1.0)
    judging.handle(1, StartVerify(1, 1, "s", 1, PROMPT, (), 0, mode, sampling, 5, 8))
    while judging.step():
        pass
    drafting.handle(1, StartDraft(1, 1, "s", 1, PROMPT, (), mode, sampling, 5, 5, synchronous=True))
    done = 0
    for _ in range(count):
        while drafting.step():
            pass
        [row] = [
            row for frame in drafts if isinstance(frame, DraftFrame) for row in draft_rows(frame)
        ]
        drafts.clear()
        tree = row.tree if with_laws else DraftTree(row.tree.token_ids)
        judging.handle(1, draft_frame([row._replace(tree=tree)]))
        judging.handle(1, grants([(1, done + 1)]))
        while judging.step():
            pass
        frame = steps[-1]
        assert isinstance(frame, StepFrame)
        drafting.handle(1, frame)
        [said] = step_rows(frame)
        done += len(said.tokens)
        yield len(tree), len(said.tokens)


def test_synchronous_rounds_emit_what_the_published_ones_did():
    made = list(rounds(VerifyMode.GREEDY, len(ACCEPTED), accepted=ACCEPTED))
    assert made == [(5, emitted) for emitted in ACCEPTED]


def test_no_temperature_makes_an_engine_unsure_of_its_tokens():
    made = list(rounds(VerifyMode.COUPLED, len(ACCEPTED), accepted=ACCEPTED))
    assert made == [(5, emitted) for emitted in ACCEPTED]


def test_drafts_by_draws_are_accepted_where_target_and_drafter_agree():
    emitted = [count for _, count in rounds(VerifyMode.GREEDY, 12, rate=0.7)]
    engine = target(FakeTime())
    cache = engine.new_cache(8)
    engine.forward([Segment(cache, PROMPT)])
    world = cache._places[-1].world
    places = [spec().agreement().at(world, position) for position in range(200)]
    expected, at = [], 0
    for _ in emitted:
        run = places[at : at + 5]
        expected.append(run.index(False) + 1 if False in run else 6)
        at += expected[-1]
    assert emitted == expected


def test_after_a_wrong_token_a_drafter_never_says_the_target_s():
    world = World(letters(), spec(rate=1.0).agreement())
    for position in range(100):
        assert world.draft(3, position, right=True) == world.target(3, position)
        assert world.draft(3, position, right=False) != world.target(3, position)


def test_prompts_have_worlds_of_their_own_and_always_the_same():
    def said(prompt: tuple[int, ...]) -> list[int]:
        engine, text = target(FakeTime()), list(prompt)
        cache = engine.new_cache(100)
        for _ in range(20):
            [logits] = engine.forward([Segment(cache, text[cache.length :])])
            text.append(int(logits[-1].argmax()))
        return text[len(prompt) :]

    assert said(PROMPT) == said(PROMPT)
    assert said(PROMPT) != said((1, *PROMPT))


def forward_ms(engine: SyntheticEngine, time: FakeTime, *segments: Segment) -> float:
    began = time.now
    engine.forward(segments)
    return round(1e3 * (time.now - began), 6)


def test_forwards_take_the_time_of_their_prompts_drafts_and_sessions():
    time = FakeTime()
    engine = target(time)
    one, other = engine.new_cache(100), engine.new_cache(100)
    assert forward_ms(engine, time, Segment(one, PROMPT[:-1], logits_from=3)) == 20
    assert forward_ms(engine, time, Segment(other, PROMPT[:-1], logits_from=3)) == 20
    assert forward_ms(engine, time, Segment(one, PROMPT[-1:])) == 20
    assert forward_ms(engine, time, Segment(one, (1, 2, 3))) == 26
    assert forward_ms(engine, time, Segment(one, (4,)), Segment(other, (PROMPT[-1], 2))) == 27.5


def test_what_a_sleep_was_late_is_taken_off_the_next_one_up_to_a_limit():
    prompt = Segment(target(FakeTime()).new_cache(9), PROMPT)
    for late, expected in ((0.1e-3, 19.9e-3), (3e-3, 19.8e-3)):
        time = FakeTime(late)
        engine = target(time)
        cache = engine.new_cache(9)
        engine.forward([Segment(cache, prompt.token_ids)])
        cache.rollback(3)
        engine.forward([Segment(cache, PROMPT[3:])])
        assert time.slept[1] == pytest.approx(expected)


@pytest.mark.parametrize(("whole_steps", "expected"), [(True, 19.0), (False, 20.0)])
def test_what_is_computed_between_forwards_is_part_of_the_next_step(whole_steps, expected):
    time = FakeTime()
    engine = target_engine(spec(), pacemaker=time.pacemaker(whole_steps=whole_steps))
    cache = engine.new_cache(9)
    engine.forward([Segment(cache, PROMPT)])
    time.compute(1e-3)
    engine.forward([Segment(cache, (1,))])
    assert time.slept[1] == pytest.approx(1e-3 * expected)


def firsts(mode: VerifyMode, *, with_laws: bool = True) -> float:
    """How often the first token of a draft was accepted, of 300; a standard error is 0.027."""
    made = list(rounds(mode, 300, with_laws=with_laws, rate=0.7, overlap=0.1))
    assert all(drafted for drafted, _ in made)
    return sum(emitted > 1 for _, emitted in made) / len(made)


def test_without_shared_noise_a_draft_is_accepted_as_often_as_the_laws_agree():
    assert firsts(VerifyMode.STANDARD) == pytest.approx(0.7, abs=0.08)
    # A block accepts its first token at least as often.
    assert firsts(VerifyMode.BLOCK) > 0.7 - 0.08


def test_with_shared_noise_a_draft_is_accepted_as_often_as_both_races_have_one_winner():
    assert firsts(VerifyMode.COUPLED) == pytest.approx(laws(0.7, 0.1).coupled, abs=0.08)


def test_a_draft_whose_law_nobody_told_is_accepted_as_often_as_the_laws_meet():
    assert firsts(VerifyMode.STANDARD, with_laws=False) == pytest.approx(0.1, abs=0.06)


def test_what_target_and_drafter_draw_from_are_exactly_the_laws_over_other_tokens_each_time():
    engines = [make(FakeTime(), rate=0.7, overlap=0.3) for make in (target, drafter)]
    p, q = (
        engine.forward([Segment(engine.new_cache(9), (*PROMPT, 1, 2, 3))])[0].double().softmax(-1)
        for engine in engines
    )
    assert torch.minimum(p, q).sum(-1).tolist() == pytest.approx([0.7] * len(p), abs=1e-6)
    assert (p * q).sum(-1).tolist() == pytest.approx([0.3] * len(p), abs=1e-6)
    assert len({*q.argmax(-1).tolist()}) > 1


def test_a_step_after_a_wait_takes_its_whole_time_again():
    time = FakeTime()
    engine = target(time)
    cache = engine.new_cache(9)
    engine.forward([Segment(cache, PROMPT)])
    time.compute(1e-3)
    time.now += 7e-3
    engine.forward([Segment(cache, (1,))])
    assert time.slept[1] == pytest.approx(20e-3)


def test_what_a_thread_computed_before_its_first_forward_is_no_part_of_it():
    time = FakeTime()
    engine = target(time)
    time.compute(5.0)
    cache = engine.new_cache(9)
    engine.forward([Segment(cache, PROMPT)])
    assert time.slept == [pytest.approx(26.5e-3)]


def test_a_cache_takes_from_the_budget_until_it_is_freed():
    engine = target(FakeTime())
    engine.budget.capacity = 10
    cache = engine.new_cache(8)
    assert (engine.kv_tokens_used, engine.kv_tokens_capacity) == (8, 10)
    with pytest.raises(Overloaded):
        engine.new_cache(3)
    cache.free()
    assert engine.kv_tokens_used == 0


def test_in_a_tree_every_node_follows_its_own_path():
    engine = drafter(FakeTime(), rate=1.0)
    cache = engine.new_cache(100)
    [logits] = engine.forward([Segment(cache, PROMPT, logits_from=3)])
    first = int(logits[0].argmax())
    wrong = first - 1
    # Two roots, a child of each: after the right one, the right token follows.
    [after] = engine.forward([Segment(cache, (wrong, first), (-1, -1))])
    cache.keep_path(len(PROMPT), (1,))
    [again] = engine.forward([Segment(cache, (int(after[1].argmax()),))])
    world = World(letters(), spec(rate=1.0).agreement())
    place = cache._places[-1]
    assert place.right
    assert int(again[0].argmax()) == world.target(place.world, place.position)
    assert int(after[0].argmax()) != int(after[1].argmax())

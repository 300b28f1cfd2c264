"""What the target writes, and the laws that are kept with it."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch

from services.engine.port import Segment
from services.training.writing import _draw
from tests.training.kit import plan_for, write


def own_laws(engine, text):
    """The model's log-probabilities after every prefix that has a law, [R, V]."""
    cache = engine.new_cache(len(text.token_ids))
    [logits] = engine.forward([Segment(cache, text.token_ids.tolist())])
    cache.free()
    return logits.log_softmax(-1)[torch.from_numpy(text.prefixes.astype(np.int64)) - 1]


@pytest.mark.parametrize("prompts", [(), ([40, 41, 42],)])
def test_the_laws_of_a_text_are_the_models_own_softmax(engine, prompts):
    for text in write(engine, plan_for(engine, prompts=prompts), range(6), batch=4).values():
        expected = own_laws(engine, text)
        best = expected.topk(64)
        ids = torch.from_numpy(text.law_ids.astype(np.int64))
        assert torch.equal(ids[:, 0], best.indices[:, 0])
        logs = torch.from_numpy(text.law_logs).float()
        # float16 keeps a log-probability of 10 within 0.004.
        assert (logs - best.values).abs().max() < 0.01
        assert (expected.gather(-1, ids) - best.values).abs().max() < 1e-4


def test_every_token_from_the_first_law_on_was_drawn_after_its_law(engine):
    plan = plan_for(engine, temperatures=(0.0,), prompts=([40, 41, 42],))
    start = plan.dialogue.prompt([40, 41, 42])
    for text in write(engine, plan, range(3), batch=2).values():
        assert text.token_ids[: len(start)].tolist() == start
        assert text.prefixes.tolist() == list(range(len(start), len(start) + len(text.prefixes)))
        drawn = text.token_ids[len(start) :]
        assert text.law_ids[: len(drawn), 0].tolist() == drawn.tolist()


def test_a_text_of_the_targets_own_is_prompt_and_answer_around_the_template(engine):
    plan = plan_for(engine, openings=[[50, 51]])
    before, after = plan.dialogue.before, list(plan.dialogue.after)
    for text in write(engine, plan, range(8), batch=4).values():
        ids = text.token_ids.tolist()
        words = plan.dialogue.words_of(ids)
        assert ids[: len(before)] == list(before)
        assert list(words[:2]) == [50, 51]
        assert 2 <= len(words) <= 2 + plan.prompt_tokens
        rest = ids[len(before) + len(words) :]
        assert rest[: len(after)] == after
        assert len(rest) <= len(after) + plan.answer_tokens


def test_a_text_does_not_depend_on_its_neighbours(engine):
    plan = plan_for(engine)
    together = write(engine, plan, range(12), batch=12)
    for number, text in write(engine, plan, range(12), batch=3).items():
        assert text.token_ids.tolist() == together[number].token_ids.tolist()
    [alone] = write(engine, plan, range(7, 8), batch=1).values()
    assert alone.token_ids.tolist() == together[7].token_ids.tolist()


def test_another_seed_writes_other_texts(engine):
    one, other = (write(engine, plan_for(engine, seed=s), range(4), 4) for s in (1, 2))
    assert all(one[n].token_ids.tolist() != other[n].token_ids.tolist() for n in range(4))


@pytest.mark.parametrize("heat", [0.7, 1.0])
def test_first_tokens_are_drawn_by_the_law_at_their_temperature(engine, heat):
    plan = plan_for(engine, prompts=([60, 61],), temperatures=(heat,), answer_tokens=1)
    texts = write(engine, plan, range(1500), batch=64)
    law = torch.softmax(own_laws(engine, texts[0])[0] / heat, -1)
    start = len(plan.dialogue.prompt([60, 61]))
    ended = 1  # `<|im_end|>` ends a text and is not kept
    drawn = collections.Counter(
        int(t.token_ids[start]) if len(t.token_ids) > start else ended for t in texts.values()
    )
    for token in law.topk(8).indices.tolist():
        p = float(law[token])
        # Five standard deviations.
        assert abs(drawn[token] / 1500 - p) < 5 * (p * (1 - p) / 1500) ** 0.5 + 1e-9


def test_inversion_takes_the_token_whose_share_holds_the_random_number():
    logits = torch.log(torch.tensor([0.2, 0.5, 0.3]))
    drawn = [_draw(logits, [1], 1.0, u) for u in (0.0, 0.19, 0.21, 0.69, 0.71, 0.999999)]
    assert drawn == [0, 0, 1, 1, 2, 2]
    assert _draw(logits, [1], 0.0, 0.99) == 1


def test_all_memory_for_keys_and_values_is_given_back(engine):
    used = engine.kv_tokens_used
    plan = plan_for(engine)
    write(engine, plan, range(5), batch=2)
    # Only the header that a writer's texts begin with stays.
    assert engine.kv_tokens_used - used <= len(plan.dialogue.before)


def test_the_targets_own_prompts_keep_their_temperature_and_answers_get_theirs(engine):
    plan = plan_for(engine, temperatures=(0.0,), prompt_temperature=1.0)
    likeliest = {"prompt": [], "answer": []}
    for text in write(engine, plan, range(12), batch=6).values():
        words = len(plan.dialogue.words_of(text.token_ids.tolist()))
        answer = len(plan.dialogue.before) + words + len(plan.dialogue.after)
        for place, best in zip(text.prefixes, text.law_ids[:, 0], strict=True):
            if place < len(text.token_ids):
                part = "answer" if place >= answer else "prompt"
                likeliest[part].append(best == text.token_ids[place])
    assert len(likeliest["answer"]) > 50
    assert all(likeliest["answer"])
    assert sum(likeliest["prompt"]) < len(likeliest["prompt"]) * 0.9

"""Known wrong ways of speculative sampling, patched into the real services: each is caught.

The test that the right services pass (`test_services_law`) must fail for every one
of them. A small vocabulary and a draft model that errs a good deal make a few
thousand tokens enough.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.workers.link import LinkLimits
from services.contract.types import SparseRow
from services.drafter.methods.model import candidates
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.protocol import Ask, Proposed
from services.engine.noise import Stream, uniform
from services.engine.sampling import by_row, log_law
from services.verifier.rules import block, chains, rows
from services.verifier.running import deciding
from services.verifier.running.turns import Turn
from tests.integration.cluster import cluster
from tests.models import tiny_model, tiny_tokenizer
from tests.proof.goodness_of_fit import ALARM
from tests.proof.services_kit import Case, Services, engine_of, sample, start_verifier_of

SMALL = Services(window=3, burst=3, angle=0.4, vocab=4, target_table=True)
BLOCK = Case("block", "block")
STANDARD = Case("standard", "standard")
LENGTH = 400


async def p_value(
    case: Case, tokens: int, services: Services = SMALL, method: Any = ModelDrafter
) -> float:
    [one] = await sample([case], tokens, LENGTH, services, method=method)
    print(one)
    return one.fit().p_value


class Changed:
    """The model drafter with one habit more: `change(ask, proposed)` is what it answers."""

    def __init__(self, engine: Any) -> None:
        self._method = ModelDrafter(engine)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def propose(self, asks: list[Ask]) -> list[Proposed]:
        answers = self._method.propose(asks)
        return [self.change(*pair) for pair in zip(asks, answers, strict=True)]

    def change(self, ask: Ask, proposed: Proposed) -> Proposed:
        raise NotImplementedError


# --- of the rules -----------------------------------------------------------------


async def test_a_block_rule_that_stops_at_the_first_rejection_is_caught(monkeypatch):
    def first_rejection(h, u):
        return (u < h).long().cumprod(-1).sum(-1)

    monkeypatch.setattr(block, "accepted", first_rejection)
    assert await p_value(BLOCK, 4_000) < ALARM


@pytest.mark.proof
async def test_a_residual_without_the_reach_is_caught(monkeypatch):
    rightly = chains._left_over

    def unscaled(log_p, q, log_scale, accepted):
        return rightly(log_p, q, torch.zeros_like(log_scale), accepted)

    monkeypatch.setattr(chains, "_left_over", unscaled)
    far = replace(SMALL, window=4, burst=4, angle=0.7)
    assert await p_value(BLOCK, 60_000, far) < ALARM


async def test_a_residual_drawn_with_the_number_that_rejected_is_caught(monkeypatch):
    def reused(turn, stream, node, candidate):
        opening = turn.session.opening
        stream = Stream.ACCEPT if stream is Stream.RESIDUAL else stream
        counters = (opening.term, opening.opening, turn.step, node, candidate)
        return uniform(opening.seed, stream, *counters)

    monkeypatch.setattr(Turn, "number", reused)
    assert await p_value(STANDARD, 4_000) < ALARM


# --- of the draft -----------------------------------------------------------------


async def test_an_argmax_draft_with_a_soft_q_is_caught(monkeypatch):
    def best_first(left, places, counts):
        return [list(range(count)) for count in counts]

    monkeypatch.setattr(candidates, "_draw_all", best_first)
    assert await p_value(STANDARD, 3_000) < ALARM


async def test_a_q_cut_but_not_renormalised_is_caught(monkeypatch):
    """By a verifier that takes it as it comes; ours takes it for what it sums to."""

    def best_two(logits, contexts, count, head):
        p, ids = torch.softmax(log_law(logits, contexts), -1).topk(2, dim=-1)
        return ids, p

    def trusting(cases):
        laws = judged_rightly(cases)
        sums = [sum(u.law.probabilities) for case in cases for u in case.draft.usable.values()]
        return replace(laws, q=laws.q * torch.tensor([*sums, 1.0])[:, None])

    judging_rules = import_module("services.verifier.rules.judge")
    judged_rightly = judging_rules.gather_laws
    monkeypatch.setattr(candidates, "top_law", best_two)
    monkeypatch.setattr(rows, "SUM_TOLERANCE", 1.0)
    assert await p_value(STANDARD, 6_000) > ALARM
    monkeypatch.setattr(judging_rules, "gather_laws", trusting)
    assert await p_value(STANDARD, 8_000) < ALARM


class HoldsBack(Changed):
    """A token that looks bad never leaves, and the draft ends before it."""

    def change(self, ask: Ask, proposed: Proposed) -> Proposed:
        return Proposed(final=True) if proposed.tree.token_ids == (0,) else proposed


class EndsEarly(Changed):
    """A token that looks bad ends the draft, and is part of it."""

    def change(self, ask: Ask, proposed: Proposed) -> Proposed:
        return replace(proposed, final=proposed.tree.token_ids == (0,))


@pytest.mark.parametrize("case", [STANDARD, BLOCK], ids=lambda case: case.name)
async def test_a_drawn_token_held_back_for_what_it_is_is_caught(case):
    assert await p_value(case, 6_000, method=HoldsBack) < ALARM


@pytest.mark.proof
@pytest.mark.parametrize("case", [STANDARD, BLOCK], ids=lambda case: case.name)
async def test_a_drawn_token_may_end_the_draft_that_it_is_part_of(case):
    assert await p_value(case, 12_000, method=EndsEarly) > ALARM


class SpoilsRows(Changed):
    """What follows a certain token is sent without a law."""

    def change(self, ask: Ask, proposed: Proposed) -> Proposed:
        if proposed.tree.q is None or ask.text[-1] != 0:
            return proposed
        return replace(proposed, tree=replace(proposed.tree, q=(SparseRow((), ()),)))


def downgraded_whole(tree, vocab):
    """The rows of a draft, none of which is usable if one is not."""
    read = read_rightly(tree, vocab)
    return replace(read, usable={}) if read.bad else read


read_rightly = rows.read_rows


@pytest.mark.parametrize("case", [STANDARD, BLOCK], ids=lambda case: case.name)
async def test_a_whole_block_downgraded_for_one_bad_row_is_caught(case, monkeypatch):
    monkeypatch.setattr(rows, "read_rows", downgraded_whole)
    assert await p_value(case, 8_000, method=SpoilsRows) < ALARM


@pytest.mark.proof
@pytest.mark.parametrize("case", [STANDARD, BLOCK], ids=lambda case: case.name)
async def test_rows_that_are_bad_for_what_came_before_them_keep_the_law(case):
    assert await p_value(case, 6_000, method=SpoilsRows) > ALARM


# --- of the last row --------------------------------------------------------------


AHEAD = replace(SMALL, window=6, burst=2, ahead=True)


@pytest.mark.parametrize("case", [STANDARD, BLOCK], ids=lambda case: case.name)
async def test_an_independent_bonus_beside_a_surviving_tail_is_caught(case, monkeypatch):
    """The target's own token is drawn, too, where a draft token of the last row is rejected."""
    rightly = deciding._draw

    def own(lasts):
        return rightly(
            {
                i: (asked, replace(end, law=asked.log_p[end.final[1]].double().exp()))
                for i, (asked, end) in lasts.items()
            }
        )

    assert await p_value(case, 8_000, AHEAD) > ALARM
    monkeypatch.setattr(deciding, "_draw", own)
    assert await p_value(case, 8_000, AHEAD) < ALARM


# --- of the noise -----------------------------------------------------------------


WIDE = 49_152


@cache
def wide_model() -> Any:
    """A vocabulary of the usual size and a sharp law: nearly every token is out of question."""
    model = tiny_model("llama", vocab=WIDE, num_hidden_layers=1, max_position_embeddings=1024)
    with torch.no_grad():
        model.lm_head.weight.mul_(3.0)
    return model


@torch.no_grad()
def least_likely(prompt: list[int], output: tuple[int, ...]) -> float:
    """The smallest mass, over a text's tokens, of all that is no more likely than the token."""
    logits = wide_model()(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
    laws = torch.softmax(logits.double(), dim=-1)
    own = laws.gather(-1, torch.tensor(output)[:, None])
    return float((laws * (laws <= own)).sum(-1).min())


async def luck_needed(sessions: int = 8, length: int = 500) -> float:
    """How likely anything as unlikely as the least likely token is, in so many tokens."""
    verifier = await start_verifier_of(engine_of(wide_model(), tiny_tokenizer()))
    prompt, sampling = [5, 6, 7], {"max_tokens": length, "ignore_eos": True, "temperature": 1.0}
    async with cluster([verifier], [], LinkLimits(silence=60.0)) as running:
        runs = await asyncio.gather(
            *(running.client.generate(tokens=prompt, seed=s, **sampling) for s in range(sessions))
        )
    return sessions * length * min(least_likely(prompt, run.token_ids) for run in runs)


@pytest.mark.proof
async def test_a_uniform_that_rounds_to_one_is_caught(monkeypatch):
    """Then its exponential is 0, and whatever token it belongs to wins the race."""

    def rounded(row, top, temperature, words, count):
        numbers = (np.float32(0.5) + (~words).astype(np.float32)) * np.float32(2.0**-32)
        with np.errstate(divide="ignore"):
            scores = (row - top) / temperature - np.log(-np.log(numbers))
        return np.argsort(-scores, kind="stable")[:count]

    assert await luck_needed() > ALARM
    monkeypatch.setattr(by_row, "_fastest", rounded)
    assert await luck_needed() < ALARM

"""Every sampling parameter under every rule, through the services, against plain reckoning."""

import asyncio
from typing import Any

import pytest
import torch
from paceline import Method

from tests.integration.cluster import cluster, start_verifier, target
from tests.integration.plain_reckoning import (
    TOKENS,
    behind_its_noise,
    behind_the_best,
    generate,
    laws_along,
    logits_along,
    places,
    prompt_ids,
    resolved,
    rules_of,
    start_near_drafter,
)
from tests.proof.goodness_of_fit import ALARM, uniform

STOPS = (5, 17, 40, 77, 101, 150, 200, 222, 260, 300)
# Tokens so likely that they come again and again, for the penalties to bear on.
OFTEN = dict.fromkeys(range(20, 320, 12), 30.0)
PARAMETERS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8, "temperature": 1.3},
    "min_p": {"min_p": 0.1},
    "frequency_penalty": {"frequency_penalty": 2.0, "logit_bias": OFTEN},
    "presence_penalty": {"presence_penalty": 2.0, "logit_bias": OFTEN},
    "repetition_penalty": {"repetition_penalty": 1.6, "logit_bias": OFTEN},
    "logit_bias": {"logit_bias": {7: 4.0, 60: -100.0, 99: 6.0}},
    "min_tokens": {"min_tokens": 12, "stop_token_ids": STOPS},
    "allowed_token_ids": {"allowed_token_ids": [*OFTEN]},
    # Of the bytes that OFTEN brings, one, two and three tokens.
    "bad_words": {"bad_words": ["J", "2>", ">>", "b2", "nV2", "the"], "logit_bias": OFTEN},
    "all of them": {
        "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "frequency_penalty": 0.4,
        "presence_penalty": 0.3, "repetition_penalty": 1.2, "logit_bias": {99: 3.0},
        "min_tokens": 8, "stop_token_ids": STOPS, "allowed_token_ids": [*range(5, 310)],
        "bad_words": ["the", "J", "2>"],
    },
}  # fmt: skip
RULES = ("coupled", "standard", "block")


# --- the law, parameter by parameter ----------------------------------------------


@pytest.mark.parametrize("rule", RULES)
async def test_every_parameter_gives_its_own_law(rule):
    """Each position's token under the reference's law there; draft tokens are in its prefix."""
    drafters = [await start_near_drafter()]
    async with cluster([await start_verifier()], drafters, pacing="fixed") as live:
        runs = await asyncio.gather(
            *(
                generate(live, seed, rejection_sample_method=rule, num_speculative_tokens=5, **own)
                for own in PARAMETERS.values()
                for seed in range(8)
            )
        )
    assert all(rules_of(run) == {rule} for run in runs)
    assert sum(run.speculation.num_accepted_draft_tokens for run in runs) > 0.1 * TOKENS * len(runs)
    for number, (name, options) in enumerate(PARAMETERS.items()):
        own = [list(run.token_ids) for run in runs[8 * number : 8 * number + 8]]
        laws = [laws_along(prompt_ids(), output, resolved(options)) for output in own]
        chances = [law[range(len(o)), o] for law, o in zip(laws, own, strict=True)]
        assert min(chance.min() for chance in chances) > 0, f"{name}: an impossible token"
        assert uniform(places(own, resolved(options)), slices=8) > ALARM, name


async def test_a_law_that_forgets_a_parameter_is_told_apart():
    """The test above can fail: texts under one parameter, held against the law without it."""
    drafters = [await start_near_drafter()]
    async with cluster([await start_verifier()], drafters) as live:
        names = ("frequency_penalty", "presence_penalty", "repetition_penalty")
        each = [
            await asyncio.gather(*(generate(live, seed, **PARAMETERS[name]) for seed in range(16)))
            for name in names
        ]
    for name, runs in zip(names, each, strict=True):
        own = [list(run.token_ids) for run in runs]
        without = {key: value for key, value in PARAMETERS[name].items() if key != name}
        assert uniform(places(own, resolved(without)), slices=8) < ALARM, name
        assert uniform(places(own, resolved(PARAMETERS[name])), slices=8) > ALARM, name


@pytest.mark.parametrize("name", PARAMETERS)
async def test_a_coupled_text_is_the_targets_own_sample_whoever_drafts(name):
    own = PARAMETERS[name]
    ways: list[dict[str, Any]] = [
        {"disable_speculative_decoding": True}, {"method": "model"}, {"method": "ngram"},
        {"method": "model", "num_candidates": 3}, {"method": "model", "num_speculative_tokens": 2},
        {"method": "ngram,model"}, {"method": "ngram,model", "num_candidates": 3},
        {"method": "model,ngram", "num_candidates": 2},
    ]  # fmt: skip
    async with cluster([await start_verifier()], [await start_near_drafter()]) as live:
        runs = [await generate(live, 5, **own, **way) for way in ways]
    assert len({run.token_ids for run in runs}) == 1
    assert all(rules_of(run) == {"coupled"} for run in runs)
    # Float32 may choose otherwise where two tokens arrive together.
    assert behind_its_noise(5, list(runs[0].token_ids), resolved(own)) < 1e-3


# --- greedy -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "theirs"),
    [
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        (
            {"logit_bias": {7: 5.0, 99: 5.0, 150: -20.0}},
            {"sequence_bias": {(7,): 5.0, (99,): 5.0, (150,): -20.0}},
        ),
        (
            {"min_tokens": 20, "stop_token_ids": STOPS},
            {"min_new_tokens": 20, "eos_token_id": list(STOPS)},
        ),
        (
            {"repetition_penalty": 0.8, "logit_bias": {7: 3.0}, "top_k": 3, "top_p": 0.5},
            {"repetition_penalty": 0.8, "sequence_bias": {(7,): 3.0}},
        ),
        (
            {"allowed_token_ids": [7, 99, *range(150, 200)]},
            {"suppress_tokens": [*range(7), *range(8, 99), *range(100, 150), *range(200, 320)]},
        ),
        (
            {"logit_bias": {32: 60.0, 20: 58.0}, "bad_words": [">>", ">2>", "2222"]},
            {
                "sequence_bias": {(32,): 60.0, (20,): 58.0},
                "bad_words_ids": [[32, 32], [32, 20, 32], [20] * 4],
            },
        ),
    ],
    ids=["repetition", "bias", "min_tokens", "together", "allowed tokens", "bad words"],
)
async def test_greedy_text_is_that_of_transformers(options, theirs):
    ids = torch.tensor([prompt_ids()])
    settings = {"eos_token_id": None, "pad_token_id": 0, **theirs}
    with torch.no_grad():
        out = target().generate(ids, max_new_tokens=40, do_sample=False, **settings)
    expected = out[0, ids.shape[1] :].tolist()
    ways: list[dict[str, Any]] = [
        {"method": "model"},
        {"method": "ngram"},
        {"num_candidates": 3},
        {"method": "ngram,model"},
        {"method": "ngram,model", "num_candidates": 3},
    ]
    async with cluster([await start_verifier()], [await start_near_drafter()]) as live:
        runs = [
            await generate(live, None, max_tokens=40, **{**options, "temperature": 0.0, **way})
            for way in ways
        ]
    assert [list(run.token_ids) for run in runs] == [expected] * len(ways)
    assert all(rules_of(run) == {"greedy"} for run in runs)


async def test_greedy_text_under_the_penalties_that_transformers_lacks_is_the_plain_argmax():
    own = {"frequency_penalty": 0.9, "presence_penalty": 0.7, "temperature": 0.0}
    async with cluster([await start_verifier()], [await start_near_drafter()]) as live:
        run = await generate(live, None, **own)
    output = list(run.token_ids)
    assert behind_the_best(output, resolved(own)) < 1e-3
    assert max(output.count(token) for token in output) < len(output) // 4


# --- what is told beside the text -------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
async def test_logprobs_and_their_alternatives_are_those_of_the_raw_law(rule):
    options = {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.3, "logprobs": 4}
    async with cluster([await start_verifier()], [await start_near_drafter()]) as live:
        run = await generate(live, rejection_sample_method=rule, **options)
    output = list(run.token_ids)
    raw = torch.log_softmax(torch.from_numpy(logits_along(prompt_ids(), output)), dim=-1)
    assert [entry.token_id for entry in run.logprobs] == output
    for entry, row in zip(run.logprobs, raw, strict=True):
        best = torch.topk(row, 4)
        assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=1e-3)
        assert entry.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-3)
        assert row[list(entry.top_token_ids)].tolist() == pytest.approx(
            best.values.tolist(), abs=1e-3
        )


async def test_auto_follows_temperature_seed_and_drafter():
    asked: list[tuple[dict[str, Any], str]] = [
        ({"temperature": 0.0, "seed": 3}, "greedy"),
        ({"seed": 3}, "coupled"),
        ({"seed": None}, "block"),
        ({"seed": None, "num_candidates": 3}, "standard"),
        ({"seed": None, "method": "ngram"}, "coupled"),
        ({"seed": None, "method": "ngram,model"}, "coupled"),
        ({"seed": None, "disable_speculative_decoding": True}, "coupled"),
        ({"seed": 3, "rejection_sample_method": Method.STANDARD}, "standard"),
    ]
    workers = [await start_verifier()], [await start_near_drafter()]
    # Drafting ahead, how fast the workers are would have a say, too.
    async with cluster(*workers, pacing="fixed") as live:
        runs = [await generate(live, max_tokens=12, **options) for options, _ in asked]
    assert [rules_of(run) for run in runs] == [{rule} for _, rule in asked]

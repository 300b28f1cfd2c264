"""The text that leaves the real services has the target's law, under every rule.

Client, orchestrator, Valkey, drafter and verifier over gRPC; all cases of a
cluster run at the same time, so blocks of every rule meet in one batch. A p-value
below one in a million fails. `make test-all` looks at every other case and 120 000 tokens,
`make proof` at every case and 1.7 million, with the draft model in its real engine, too.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from services.drafter.combined import CombinedDrafter
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.ngram.chains import ChainLengths
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.drafter.methods.ngram.small_tree import SmallTrees
from services.drafter.methods.self_draft.lookahead import LookaheadDrafter
from services.engine.native import NativeEngine
from services.engine.ngram_file import FIRSTS, NgramFile
from tests.proof.goodness_of_fit import ALARM
from tests.proof.services_kit import Case, Sample, Services, sample

PLAIN = [
    Case("coupled", "coupled", {"temperature": 1.3}),
    Case("coupled top_p", "coupled", {"temperature": 0.7, "top_p": 0.85}),
    Case("standard cold", "standard", {"temperature": 0.7}),
    Case("standard hot top_p", "standard", {"temperature": 1.3, "top_p": 0.85}),
    Case("standard min_p", "standard", {"temperature": 1.3, "min_p": 0.08}),
    Case("block hot", "block", {"temperature": 1.3}),
    Case("block cold top_k", "block", {"temperature": 0.7, "top_k": 4}),
    Case("block top_k top_p", "block", {"temperature": 1.3, "top_k": 6, "top_p": 0.9}),
]
TREES = [
    Case("standard tree", "standard", {"temperature": 0.7}, {"num_candidates": 3}),
    Case(
        "standard hot tree", "standard", {"temperature": 1.3, "top_p": 0.88}, {"num_candidates": 3}
    ),
    Case("coupled tree", "coupled", {"temperature": 1.3, "top_k": 5}, {"num_candidates": 3}),
]
CHAINED = [
    Case("coupled chained", "coupled", {"temperature": 0.7}),
    Case("standard chained", "standard", {"temperature": 1.3}),
    Case("standard chained top_k", "standard", {"temperature": 0.7, "top_k": 5}),
    Case("block chained", "block", {"temperature": 1.3, "top_p": 0.88}),
    Case("block chained cold", "block", {"temperature": 0.7}),
]
AHEAD = [
    Case("coupled ahead", "coupled", {"temperature": 1.3}),
    Case("standard ahead", "standard", {"temperature": 0.7, "top_p": 0.85}),
    Case("block ahead", "block", {"temperature": 1.3}),
    Case("block ahead cold", "block", {"temperature": 0.7, "top_k": 4}),
]
MIXED = [
    Case("standard mixed", "standard", {"temperature": 0.7}),
    Case("standard mixed hot top_k", "standard", {"temperature": 1.3, "top_k": 5}),
    Case("block mixed", "block", {"temperature": 1.3, "top_p": 0.88}),
    Case("block mixed cold", "block", {"temperature": 0.7}),
]
FREE = [
    Case("coupled free tree", "coupled", {"temperature": 1.3}, {"num_candidates": 6}),
    Case("coupled free cold", "coupled", {"temperature": 0.7, "top_k": 5}, {"num_candidates": 6}),
    Case(
        "coupled free top_p", "coupled", {"temperature": 1.0, "top_p": 0.88}, {"num_candidates": 6}
    ),
]
FEW = {"allowed_token_ids": (0, 1, 2, 3, 5, 7, 8, 10)}
WORDS = {"bad_words": ("d", "ab", "ba", "cc", "fb", "bac", "hhh", "cha")}
LIMITS = [
    Case("coupled words", "coupled", {"temperature": 1.3, **WORDS}),
    Case("standard few words", "standard", {"temperature": 1.3, **FEW, **WORDS}),
    Case("block words top_k", "block", {"temperature": 1.3, "top_k": 6, **WORDS}),
    Case("block few", "block", {"temperature": 0.7, **FEW}),
]
LIMITED_TREES = [
    Case("standard tree words", "standard", {"temperature": 1.3, **WORDS}, {"num_candidates": 3}),
    Case("coupled tree both", "coupled", {**FEW, **WORDS}, {"num_candidates": 3}),
]
TOGETHER = Services(window=5, burst=5, angle=0.2)
IN_FLIGHT = Services(window=8, burst=3, ahead=True, angle=0.2)
EACH = 6_250
"""Tokens of a case. Most mistakes of `test_wrong_services` stand out by 3 000 to 8 000."""
LENGTH = 250

pytestmark = pytest.mark.timeout(1800)


def looking_ahead(engine: NativeEngine) -> LookaheadDrafter:
    """The target with embeddings of its own tokens in place of learned ones."""
    engine.give_soft_tokens(engine.model.get_input_embeddings().weight[:3])
    return LookaheadDrafter(engine)


def free_trees(engine: NativeEngine) -> NgramDrafter:
    """Trees of this text and of a file, whose scores know the noise that the target will draw with.

    Of each token, the file says others at random, so that some drafts are right and some are not.
    """
    drawn, size = random.Random(5), engine.vocab_size
    ids, codes = [0] * size * FIRSTS, bytearray(size * FIRSTS)
    for place in range(size):
        said = drawn.sample(range(size), min(FIRSTS, size))
        start = place * FIRSTS
        ids[start : start + len(said)] = said
        codes[start : start + len(said)] = bytes(drawn.randrange(1, 256) for _ in said)
    weights = {"coupled.first_code": 2.0, "coupled.own1": 1.0, "coupled.noise": 1.0}
    tokenizer = engine.bundle.fingerprint if engine.bundle else ""
    file = NgramFile("t", "", tokenizer, size, ids, bytes(codes), (), weights)
    return NgramDrafter(small=SmallTrees(file))


def copying_first(engine: NativeEngine) -> CombinedDrafter:
    """Prompt lookup by single tokens, which nearly always finds something, and the draft model.

    Copies of one token at a time, so that both have their turns.
    """
    return CombinedDrafter(
        {"ngram": NgramDrafter(ChainLengths(2, 2)), "model": ModelDrafter(engine)}
    )


def check(samples: list[Sample]) -> None:
    for one in samples:
        print(one)
    assert all(one.rules == {one.case.rule} for one in samples)
    assert all(sum(one.accepted) > 0 for one in samples)
    wrong = [str(one) for one in samples if one.fit().p_value < ALARM]
    assert not wrong, "\n".join(wrong)


HALF = slice(None, None, 2)
OTHERS = slice(1, None, 2)
HALVES = pytest.mark.parametrize(
    "part", [HALF, pytest.param(OTHERS, marks=pytest.mark.proof)], ids=["half", "others"]
)


@HALVES
async def test_every_rule_and_parameter_keeps_the_law_block_by_block(part):
    check(await sample((PLAIN + TREES)[part], EACH, LENGTH, TOGETHER))


@HALVES
async def test_every_rule_keeps_the_law_with_chained_blocks_under_way(part):
    check(await sample(CHAINED[part], EACH, LENGTH, IN_FLIGHT))


@HALVES
async def test_token_limits_keep_the_law_along_chains_and_trees(part):
    check(await sample((LIMITS + LIMITED_TREES)[part], EACH, LENGTH, TOGETHER))


@HALVES
async def test_token_limits_keep_the_law_with_chained_blocks_under_way(part):
    check(await sample(LIMITS[part], EACH, LENGTH, IN_FLIGHT))


@HALVES
async def test_drafts_whose_tokens_do_not_see_each_other_keep_the_law(part):
    """Look-ahead rows of the target itself: wrong rows ahead, penalties and min_tokens apart."""
    pace = replace(TOGETHER, burst=1, draft_table=False, angle=0.0)
    done = await sample(AHEAD[part], EACH // 4, LENGTH, pace, method=looking_ahead)
    check(done)
    assert all(sum(one.accepted) < sum(one.drafted) for one in done)


@HALVES
async def test_copies_and_draws_in_one_chain_keep_the_law(part):
    """What stood before in the text, else a draw of the draft model; both in one block."""
    done = await sample(MIXED[part], EACH // 2, LENGTH, TOGETHER, method=copying_first)
    check(done)
    assert all(sum(one.accepted) < sum(one.drafted) for one in done)


@HALVES
async def test_trees_that_know_the_noise_keep_the_law(part):
    """Drafts are chosen by the very numbers that the target's tokens are drawn with."""
    done = await sample(FREE[part], EACH, LENGTH, TOGETHER, method=free_trees)
    check(done)
    assert all(sum(one.accepted) < sum(one.drafted) for one in done)


async def test_block_verification_accepts_no_less_than_token_level():
    """Measured with blocks of five tokens; noise of three standard errors is forgiven."""
    cases = [Case(rule, rule, {"temperature": 1.0}) for rule in ("standard", "block")]
    token, block = await sample(cases, 4_000, 500, TOGETHER)
    (low, low_error), (high, high_error) = token.accepted_per_round, block.accepted_per_round
    print(f"accepted by a verification: {low:.3f} token by token, {high:.3f} by block")
    assert high > low - 3 * (low_error**2 + high_error**2) ** 0.5


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(4))
async def test_the_law_holds_over_a_million_and_a_half_tokens(part):
    """A quarter of the tokens in each part, in texts of many thousand tokens."""
    table = part % 2 == 0
    for cases, services in ((PLAIN + TREES, TOGETHER), (CHAINED, IN_FLIGHT)):
        pace = replace(services, draft_table=table, angle=(0.1, 0.2, 0.3, 0.2)[part])
        check(await sample(cases, 4 * EACH, 5000, pace, seed=part + 2))

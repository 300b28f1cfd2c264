import random

import pytest
import torch

from services.contract.types import CloseVerify, FailureReason, Role, Verdict, VerifyOpened
from tests.fake_engine import VOCAB, FakeEngine, law
from tests.services.verifier_bench import (
    COUPLED,
    EXACT,
    PROMPT,
    TEXT,
    Table,
    block,
    opening,
    other,
    target_text,
)


def random_chain(seed, window=8):
    rng = random.Random(seed)
    return lambda output: ([rng.randrange(VOCAB) for _ in range(rng.randrange(window + 1))], None)


def good_chain(text, seed, window=8):
    """Mostly the target's own tokens, of varying length, now and then a wrong one."""
    rng = random.Random(seed)

    def draft(output):
        tail = text[len(output) : len(output) + rng.randrange(window + 1)]
        return [token if rng.random() < 0.9 else other(token) for token in tail], None

    return draft


def good_tree(text, seed, window=8):
    rng = random.Random(seed)

    def draft(output):
        size = rng.randrange(1, window + 1)
        parents = tuple(rng.randrange(-1, node) for node in range(size))
        tokens = [rng.randrange(VOCAB) for _ in range(size)]
        at, where = -1, len(output)
        for node, parent in enumerate(parents):
            if parent == at and where < len(text):
                tokens[node], at, where = text[where], node, where + 1
        return tokens, parents

    return draft


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("seed", range(6))
def test_any_chain_gives_the_targets_text(mode, seed):
    command = opening(mode=mode, temperature=0.8, top_k=6)
    text = target_text(command, 40)
    for draft in (random_chain(seed), good_chain(text, seed)):
        assert Table().decode(command, draft, 40) == text


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("seed", range(6))
def test_any_tree_gives_the_targets_text(mode, seed):
    command = opening(mode=mode, top_p=0.9)
    text = target_text(command, 40)
    assert Table().decode(command, good_tree(text, seed), 40) == text


@pytest.mark.parametrize("mode", EXACT)
def test_a_perfect_draft_is_accepted_whole_with_a_bonus(mode):
    table = Table()
    command = table.opened(mode=mode)
    text = target_text(command, 6)
    verdict = table.verdict(block(1, 0, text[:5]))
    assert verdict.token_ids == tuple(text)
    assert (verdict.accepted, verdict.all_accepted, verdict.draft_tokens) == (5, True, 5)
    assert verdict.mode is mode


def test_without_a_bonus_only_the_draft_is_emitted(table):
    first = table.verdict(block(1, 0, TEXT[:2], want_bonus=False))
    assert (first.token_ids, first.all_accepted) == (TEXT[:2], True)
    assert table.verdict(block(2, 2)).token_ids == TEXT[2:3]


def test_a_rejection_is_answered_with_the_recovered_token_even_without_bonus(table):
    verdict = table.verdict(block(1, 0, [TEXT[0], other(TEXT[1])], want_bonus=False))
    assert (verdict.token_ids, verdict.accepted) == (TEXT[:2], 1)
    assert not verdict.all_accepted


def test_a_tree_verdict_names_the_accepted_nodes(table):
    tokens = [other(TEXT[0]), TEXT[0], 0, TEXT[1]]
    verdict = table.verdict(block(1, 0, tokens, (-1, -1, 0, 1)))
    assert verdict.accepted_nodes == (1, 3)
    assert verdict.token_ids == TEXT[:3]
    assert verdict.all_accepted


def test_a_chain_spelled_as_a_tree_is_a_chain(table):
    verdict = table.verdict(block(1, 0, TEXT[:2], (-1, 0)))
    assert (verdict.token_ids, verdict.accepted_nodes) == (TEXT[:3], ())


def test_min_tokens_holds_stop_tokens_back_at_their_own_position():
    free = opening(max_tokens=12)
    stops = tuple(target_text(free, 3))
    command = opening(max_tokens=12, min_tokens=6, stop_token_ids=stops)
    text = target_text(command, 12)
    assert not set(text[:6]) & set(stops)
    assert Table().decode(command, good_chain(text, 3), 12) == text


def test_a_chain_is_checked_only_up_to_max_tokens():
    table = Table(FakeEngine(context=len(PROMPT) + 4))
    table.opened(max_tokens=4, window=16)
    verdict = table.verdict(block(1, 0, [*TEXT[:5], 0, 0, 0, 0, 0]))
    assert verdict.draft_tokens == 4
    assert verdict.token_ids[:4] == TEXT[:4]


def test_a_tree_is_checked_only_up_to_max_tokens():
    table = Table(FakeEngine(context=len(PROMPT) + 2))
    table.opened(max_tokens=2)
    tokens = [other(TEXT[0]), 0, 0, TEXT[0], TEXT[1], 0]
    verdict = table.verdict(block(1, 0, tokens, (-1, 0, 1, -1, 3, 4)))
    assert verdict.accepted_nodes == (3, 4)
    assert verdict.token_ids == TEXT[:3]


def test_logprobs_are_those_of_the_raw_law():
    table = Table()
    command = table.opened(mode=COUPLED, temperature=0.5, top_k=3, logprobs=4)
    text = target_text(command, 4)
    verdict = table.verdict(block(1, 0, text[:3]))
    assert len(verdict.logprobs) == len(verdict.token_ids) == 4
    for i, row in enumerate(verdict.logprobs):
        expected = torch.log_softmax(law([*PROMPT, *text[:i]]), dim=-1)
        assert row.logprob == pytest.approx(float(expected[text[i]]), abs=1e-6)
        best = torch.topk(expected, 4)
        assert list(row.top_token_ids) == best.indices.tolist()
        assert list(row.top_logprobs) == pytest.approx(best.values.tolist(), abs=1e-6)


def test_logprobs_of_a_tree_follow_the_accepted_path():
    table = Table()
    table.opened(logprobs=0)
    verdict = table.verdict(block(1, 0, [other(TEXT[0]), TEXT[0]], (-1, -1)))
    expected = [float(torch.log_softmax(law([*PROMPT, *TEXT[:i]]), -1)[TEXT[i]]) for i in range(2)]
    assert [row.logprob for row in verdict.logprobs] == pytest.approx(expected, abs=1e-6)
    assert verdict.logprobs[0].top_token_ids == ()


def test_logprobs_are_left_out_unless_asked_for(table):
    assert table.verdict(block(1, 0)).logprobs == ()


def test_kv_holds_all_text_but_the_last_token_after_every_verdict(table):
    draft, trees = good_chain(TEXT, 5), good_tree(TEXT, 6)
    output = []
    session = table.core._sessions[1, "s"]
    for round_ in range(1, 12):
        tokens, parents = (draft if round_ % 2 else trees)(output)
        output += table.verdict(block(round_, len(output), tokens, parents)).token_ids
        assert session.cache.tokens == [*PROMPT, *output][:-1]


def test_the_description_says_what_the_verifier_can_do():
    worker = Table().core.describe()
    assert worker.role is Role.VERIFIER
    assert worker.capabilities == ("tree", "coupled", "greedy", "token_limits", "states", "scores")
    assert (worker.model_fingerprint, worker.vocab_size) == ("fake-fingerprint", VOCAB)
    assert (worker.hidden_layers, worker.hidden_width) == (4, 3)


def test_closing_and_dropping_links_free_their_sessions_and_only_those():
    table = Table()
    table.run(opening("a"), opening("b"), link=1)
    table.run(opening("a"), link=2)
    assert table.core.progress().sessions == 3
    table.give(CloseVerify("b"), link=1)
    table.core.drop_link(1)
    assert table.core.progress().sessions == 1
    assert isinstance(table.run(block(1, 0, session="a"), link=2)[0], Verdict)
    table.core.drop_link(2)
    assert table.engine.kv_tokens_used == 0

    assert table.run(CloseVerify("nobody")) == []


def test_a_session_of_one_token_opens_at_once():
    table = Table()
    table.give(opening(prompt=(3,)))
    assert isinstance(table.taken()[0], VerifyOpened)
    assert table.verdict(block(1, 0)).token_ids == tuple(target_text(opening(prompt=(3,)), 1))


def test_a_verify_before_any_open_fails_that_session_only(table):
    failed = table.failure(block(1, 0, session="other", epoch=4))
    assert (failed.session, failed.epoch) == ("other", 4)
    assert failed.reason is FailureReason.UNKNOWN_SESSION
    assert table.verdict(block(1, 0)).token_ids

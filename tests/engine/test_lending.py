"""K/V lent to a drafter beside the verifier: one memory, two texts, neither harms the lender."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.engine.lending import Lending
from services.engine.native import NativeEngine, PagedCache
from services.engine.native.kv import Loan
from services.engine.port import Segment
from services.engine.skip_mask import SkipMask
from tests.engine.conftest import CLOSE, engine_of, feed, random_text, stock_logits
from tests.tries import tries

MASK = SkipMask.of(2, attention=[1], mlp=[0])
TOKENS = st.lists(st.integers(3, 319), min_size=1, max_size=7)
ROUNDS = st.lists(
    st.tuples(TOKENS, st.integers(0, 7), TOKENS, st.booleans()), min_size=1, max_size=8
)


def lent(engine: NativeEngine, text: list[int], reserve: int = 64) -> tuple[PagedCache, Loan]:
    """A text, and a loan that has taken all of it over."""
    lender = engine.new_cache(reserve)
    feed(engine, lender, text)
    loan = Loan(lender)
    loan.adopt(len(text))
    return lender, loan


def masked(engine: NativeEngine, cache: PagedCache, tokens: list[int]) -> torch.Tensor:
    [logits] = engine.forward([Segment(cache, tokens)], MASK)
    return logits


@pytest.mark.parametrize("arch", ["llama", "mistral", "gemma2"])
@tries(15)
@given(rounds=ROUNDS)
def test_whatever_a_loan_writes_the_lender_computes_as_if_it_were_alone(arch, rounds):
    engine = engine_of(arch)
    lender, text = engine.new_cache(128), random_text(9)
    feed(engine, lender, text)
    loan = Loan(lender)
    for drafted, accepted, verified, as_tree in rounds:
        loan.rollback(min(loan.length, len(text)))
        loan.adopt(len(text))
        for token in drafted:
            masked(engine, loan, [token])
        block = drafted[:accepted] + verified
        if as_tree and len(block) > 1:
            # A second candidate beside the block's first token: never kept.
            parents = [-1, -1, 0, *range(2, len(block))]
            logits = feed(engine, lender, [block[0], 5, *block[1:]], parents=parents)
            lender.keep_path(len(text), [0, *range(2, len(block) + 1)])
        else:
            logits = feed(engine, lender, block)
        text = text + block
        torch.testing.assert_close(logits[-1], stock_logits(arch, text)[-1], **CLOSE)
        text = text[: len(text) - len(verified) + 1]
        lender.rollback(len(text))
    torch.testing.assert_close(
        feed(engine, lender, [7]), stock_logits(arch, [*text, 7])[-1:], **CLOSE
    )
    loan.free()
    lender.free()
    assert engine.kv_tokens_used == 0


def test_a_loan_drafts_from_the_lenders_kv_as_from_its_own(llama):
    text, drafted = random_text(20), random_text(6, seed=1)
    own, (_, loan) = llama.new_cache(64), lent(llama, text)
    feed(llama, own, text)
    for token in drafted:
        expected = masked(llama, own, [token])
        torch.testing.assert_close(masked(llama, loan, [token]), expected, rtol=0, atol=0)


def test_where_the_lender_verified_the_draft_the_loan_has_the_whole_models_kv(llama):
    text, drafted = random_text(20), random_text(6, seed=1)
    own, (lender, loan) = llama.new_cache(64), lent(llama, text)
    # In the lender's pieces: products of other sizes may round otherwise.
    feed(llama, own, text)
    feed(llama, own, drafted[:4])
    masked(llama, own, drafted[4:])
    masked(llama, loan, drafted)
    assert loan.lacking == {1}
    feed(llama, lender, drafted[:4])
    loan.adopt(24)
    loan.rollback(24)
    assert loan.lacking == frozenset()
    masked(llama, loan, drafted[4:])
    torch.testing.assert_close(masked(llama, loan, [3]), masked(llama, own, [3]), rtol=0, atol=0)


def test_adopting_keeps_what_is_drafted_behind(llama):
    lender, loan = lent(llama, random_text(8))
    masked(llama, loan, random_text(6))
    feed(llama, lender, random_text(6)[:2])
    loan.adopt(10)
    assert (loan.length, loan.lacking) == (14, {1})
    with pytest.raises(ValueError, match="lack K/V"):
        feed(llama, loan, [3])


def test_a_loan_takes_no_memory_and_no_reservation(llama):
    lender, loan = lent(llama, random_text(8))
    used, memory = 64, lender._memory
    masked(llama, loan, random_text(20))
    assert llama.kv_tokens_used == used
    assert loan._memory is lender._memory is memory
    loan.free()
    loan.free()
    assert llama.kv_tokens_used == used
    feed(llama, lender, [3])


@pytest.mark.parametrize("grower", ["loan", "lender"])
def test_memory_that_grows_keeps_the_text_of_both(llama, grower):
    text, drafted = random_text(60), random_text(40, seed=2)
    lender, loan = lent(llama, text[:30] if grower == "lender" else text, 128)
    if grower == "lender":
        masked(llama, loan, drafted[:30])
        more = random_text(60, seed=3)
        logits = feed(llama, lender, more)
        expected = stock_logits("llama", [*text[:30], *more])
    else:
        masked(llama, loan, drafted)
        logits = feed(llama, lender, [9])
        expected = stock_logits("llama", [*text, 9])
    torch.testing.assert_close(logits[-1], expected[-1], **CLOSE)


def test_a_loan_never_writes_where_the_lender_has_text(llama):
    lender = llama.new_cache(64)
    feed(llama, lender, random_text(8))
    loan = Loan(lender)
    with pytest.raises(ValueError, match="the lender holds 8 tokens, not 0"):
        masked(llama, loan, [3])
    loan.adopt(8)
    feed(llama, lender, [3])
    with pytest.raises(ValueError, match="the lender holds 9 tokens, not 8"):
        masked(llama, loan, [3])
    with pytest.raises(ValueError, match="10 tokens of a lender that has 9"):
        loan.adopt(10)


def test_the_lenders_end_is_the_loans(llama):
    lender, loan = lent(llama, random_text(8))
    lender.free()
    assert loan.ended
    with pytest.raises(ValueError, match="freed"):
        masked(llama, loan, [3])


def test_an_offer_is_found_by_its_session_until_it_is_withdrawn(llama):
    lending, first, second = Lending(), llama.new_cache(8), llama.new_cache(8)
    text = [3, 4, 5]
    earlier = lending.offer("s", first, text)
    text.append(6)
    found = lending.find("s")
    assert found is not None
    assert (found.cache, list(found.text)) == (first, [3, 4, 5, 6])
    assert lending.find("t") is None
    later = lending.offer("s", second, text)
    lending.withdraw("s", earlier)
    assert lending.find("s") is not None
    lending.withdraw("s", later)
    assert lending.find("s") is None

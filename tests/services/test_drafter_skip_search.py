"""A skipping drafter that searches: what it costs its sessions, and what comes of it."""

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from services.contract.types import ResolvedSampling, VerifyMode
from services.engine.port import Segment
from tests.services.skip_search_kit import (
    BAD,
    FREE,
    LONG,
    PROMPT,
    Searching,
    engine,
    own_text,
    read,
)
from tests.tries import tries

# --- at whose cost --------------------------------------------------------------------


MOVES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(1, 30)), max_size=6)


@tries(25, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(list(VerifyMode)), MOVES, st.integers(0, 3))
def test_kv_is_always_that_of_a_fresh_reading_and_the_budget_is_the_sessions_own(mode, moves, seed):
    """Whatever is committed, drafted and searched in between."""
    harness = Searching(seed=seed)
    before = engine().kv_tokens_used
    sampling = ResolvedSampling(max_tokens=250, temperature=0.0 if mode is VerifyMode.GREEDY else 1)
    harness.open("s", PROMPT, output=own_text()[:20], mode=mode, sampling=sampling)
    session, cache = harness.session, harness.cache_of()
    reserved = engine().kv_tokens_used
    try:
        for searched, agreed, other in moves:
            harness.draft_all()
            for _ in range(searched):
                _search_once(harness)
                assert engine().kv_tokens_used == reserved
            start = session.prompt_length + session.committed_length
            tail = session.text[start : start + agreed]
            harness.say("s", session.committed_length, [*tail, *own_text()[:other]])
        harness.draft_all()
        _search_once(harness)
        mask = harness.mask
        assert mask == harness.search.best
        branch = cache.fork(cache.reserve)
        text = session.text[: branch.length]
        branch.rollback(len(text) - 1)
        whole_model = len(text) <= len(PROMPT)
        (kept,) = engine().forward([Segment(branch, text[-1:])], None if whole_model else mask)
        branch.free()
        torch.testing.assert_close(kept[-1], read(text, mask)[-1], atol=1e-4, rtol=1e-4)
    finally:
        harness.core.drop_link(0)
    assert engine().kv_tokens_used == before


def _search_once(harness):
    """One step of the search: K/V of the session stays as it is unless the mask is another."""
    cache, mask = harness.cache_of(), harness.mask
    length, lacking = cache.length, cache.lacking
    harness.core.step()
    if harness.mask == mask:
        assert (cache.length, cache.lacking) == (length, lacking)
    else:
        assert (cache.length, cache.lacking) == (min(length, len(PROMPT)), frozenset())


def test_a_better_mask_is_every_sessions_and_each_reads_its_output_again():
    harness = Searching()
    harness.begin(40, "a")
    harness.begin(12, "b")
    while harness.mask == BAD:
        assert harness.core.step()
    mask = harness.mask
    for session, said in (("a", 40), ("b", 12)):
        assert harness.cache_of(session).length == len(PROMPT)
        harness.say(session, said, own_text()[said : said + 1])
        text = list(harness.session_of(session).text)
        drafted = harness.draft_all(session)
        assert drafted
        for token in drafted:
            assert token == int(read(text, mask)[-1].argmax())
            text.append(token)
        assert harness.cache_of(session).lacking == mask.attention


def test_outputs_that_are_read_again_come_in_chunks_like_prompts():
    harness = Searching(step_tokens=16)
    for session in ("a", "b"):
        harness.begin(40, session)
    while harness.mask == BAD:
        assert harness.core.step()
    sizes = []
    forward = engine().forward

    def counting(segments, skip=None):
        sizes.append(sum(len(segment.token_ids) for segment in segments))
        return forward(segments, skip)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine(), "forward", counting)
        for session in ("a", "b"):
            harness.say(session, 40, own_text()[40:41])
        harness.draft_all()
    assert max(sizes) <= 16 + 4
    assert sum(sizes) >= 2 * 41


# --- to what end ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_it_finds_sub_layers_that_cost_nothing_and_drafts_are_accepted_then(seed):
    """From a start that skips the four inner ones that do."""
    harness = Searching(seed=seed)
    harness.begin(40)
    harness.core.step()
    before = harness.search.score
    assert before < 0.7
    harness.run()
    found = harness.mask
    assert harness.search.ended
    assert harness.search.score == 1.0
    assert found == FREE
    accepted = {mask: _accepted(mask) for mask in (BAD, found)}
    assert accepted[found] > accepted[BAD]


def _accepted(mask):
    """Draft tokens that are the target's own, in rounds of six."""
    harness = Searching(mask, None)
    harness.open("s", PROMPT, sampling=LONG)
    said = right = 0
    while said < 120:
        drafted = harness.draft_all()
        wanted = own_text()[said : said + len(drafted) + 1]
        kept = next((i for i, token in enumerate(drafted) if token != wanted[i]), len(drafted))
        right += kept
        harness.say("s", said, wanted[: kept + 1])
        said += kept + 1
    harness.core.drop_link(0)
    return right


def test_a_better_mask_is_told_with_the_scores_before_and_after(caplog):
    caplog.set_level("INFO")
    harness = Searching()
    harness.begin(40)
    harness.core.step()
    before = harness.search.score
    while harness.mask == BAD:
        harness.core.step()
    (line,) = [line for line in caplog.messages if line.startswith("skip leaves out")]
    assert line.endswith(f"scores {harness.search.score:.2f}, before {before:.2f}")
    assert str(harness.mask) in line

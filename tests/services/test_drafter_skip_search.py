"""A skipping drafter that searches: what it costs its sessions, and what comes of it."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from services.contract.types import ResolvedSampling, VerifyMode
from services.drafter.methods.self_draft.mask_search import MaskSearch
from services.drafter.methods.self_draft.skip import SkipDrafter
from services.engine.port import Segment
from services.engine.skip_mask import SkipMask
from tests.services.drafter_kit import Harness
from tests.services.skip_search_kit import (
    BAD,
    FREE,
    LONG,
    NEVER,
    PROMPT,
    RULES,
    cache_of,
    draft,
    drafter_of,
    engine,
    harness_of,
    opened,
    own_text,
    read,
    search_of,
)

# --- at whose cost --------------------------------------------------------------------


MOVES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(1, 30), st.booleans()), max_size=6
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(list(VerifyMode)), MOVES, st.integers(0, 3))
def test_kv_is_always_that_of_a_fresh_reading_and_the_budget_is_the_sessions_own(mode, moves, seed):
    """Whatever is committed, drafted and searched in between."""
    harness = harness_of(seed=seed)
    before = engine().kv_tokens_used
    sampling = ResolvedSampling(max_tokens=250, temperature=0.0 if mode is VerifyMode.GREEDY else 1)
    harness.open("s", PROMPT, committed=own_text()[:20], mode=mode, sampling=sampling)
    epoch, session, cache = 1, harness.core._entries[0, "s"].session, cache_of(harness)
    reserved = engine().kv_tokens_used
    try:
        for searched, agreed, other, bump in moves:
            draft(harness)
            for _ in range(searched):
                _search_once(harness)
                assert engine().kv_tokens_used == reserved
            start = session.prompt_length + session.committed_length
            epoch += bump
            tail = session.text[start : start + agreed]
            harness.commit("s", session.committed_length, [*tail, *own_text()[:other]], epoch)
        draft(harness)
        _search_once(harness)
        mask = drafter_of(harness)._mask
        assert mask == search_of(harness).best
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


def _search_once(harness: Harness) -> None:
    """One step of the search: K/V of the session stays as it is unless the mask is another."""
    cache, mask = cache_of(harness), drafter_of(harness)._mask
    length, lacking = cache.length, cache.lacking
    harness.core.step()
    if drafter_of(harness)._mask == mask:
        assert (cache.length, cache.lacking) == (length, lacking)
    else:
        assert (cache.length, cache.lacking) == (min(length, len(PROMPT)), frozenset())


def test_a_better_mask_is_every_sessions_and_each_reads_its_output_again():
    harness = harness_of()
    opened(harness, 40, "a")
    opened(harness, 12, "b")
    while drafter_of(harness)._mask == BAD:
        assert harness.core.step()
    mask = drafter_of(harness)._mask
    for session, said in (("a", 40), ("b", 12)):
        assert cache_of(harness, session).length == len(PROMPT)
        harness.commit(session, said, own_text()[said : said + 1])
        drafted = draft(harness)
        text = [*PROMPT, *own_text()[: said + 1]]
        for token in drafted:
            assert token == int(read(text, mask)[-1].argmax())
            text.append(token)
        assert cache_of(harness, session).lacking == mask.attention


def test_outputs_that_are_read_again_come_in_chunks_like_prompts():
    search = MaskSearch(BAD, RULES)
    harness = Harness(
        engine(), drafter=SkipDrafter(engine(), BAD, NEVER, step_tokens=16, search=search)
    )
    for session in ("a", "b"):
        opened(harness, 40, session)
    while drafter_of(harness)._mask == BAD:
        assert harness.core.step()
    sizes: list[int] = []
    forward = engine().forward

    def counting(segments: Sequence[Segment], skip: SkipMask | None = None) -> list[Tensor]:
        sizes.append(sum(len(segment.token_ids) for segment in segments))
        return forward(segments, skip)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine(), "forward", counting)
        for session in ("a", "b"):
            harness.commit(session, 40, own_text()[40:41])
        draft(harness)
    assert max(sizes) <= 16 + 4
    assert sum(sizes) >= 2 * 41


# --- to what end ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_it_finds_sub_layers_that_cost_nothing_and_drafts_are_accepted_then(seed):
    """From a start that skips the four inner ones that do."""
    harness = harness_of(seed=seed)
    opened(harness, 40)
    harness.core.step()
    before = search_of(harness).score
    assert before is not None
    assert before < 0.7
    harness.run()
    found = drafter_of(harness)._mask
    assert search_of(harness).ended
    assert search_of(harness).score == 1.0
    assert found == FREE
    accepted = {mask: _accepted(mask) for mask in (BAD, found)}
    assert accepted[found] > accepted[BAD]


def _accepted(mask: SkipMask) -> int:
    """Draft tokens that are the target's own, in rounds of six."""
    harness = Harness(engine(), drafter=SkipDrafter(engine(), mask, NEVER))
    harness.open("s", PROMPT, sampling=LONG)
    said = right = 0
    while said < 120:
        drafted = draft(harness)
        wanted = own_text()[said : said + len(drafted) + 1]
        kept = next((i for i, token in enumerate(drafted) if token != wanted[i]), len(drafted))
        right += kept
        harness.commit("s", said, wanted[: kept + 1], epoch=2 + said)
        said += kept + 1
    harness.core.drop_link(0)
    return right


def test_a_better_mask_is_told_with_the_scores_before_and_after(caplog):
    caplog.set_level("INFO")
    harness = harness_of()
    opened(harness, 40)
    harness.core.step()
    before = search_of(harness).score
    while drafter_of(harness)._mask == BAD:
        harness.core.step()
    (line,) = [line for line in caplog.messages if line.startswith("skip leaves out")]
    assert line.endswith(f"scores {search_of(harness).score:.2f}, before {before:.2f}")
    assert str(drafter_of(harness)._mask) in line

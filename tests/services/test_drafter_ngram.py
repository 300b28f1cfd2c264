"""Prompt lookup: what is copied, and that the index follows the text."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from services.contract import types as t
from services.drafter.core import DrafterCore
from services.drafter.methods.ngram.ngram import NgramDrafter, NgramIndex, copy_from


def start(
    prompt: Sequence[int], window: int = 5, mode: t.VerifyMode = t.VerifyMode.GREEDY
) -> tuple[DrafterCore, list[t.DrafterEvent]]:
    events: list[t.DrafterEvent] = []
    core = DrafterCore(
        {"ngram": NgramDrafter(2, 3)}, emit=lambda _, event: events.append(event), worker_id="n"
    )
    sampling = t.ResolvedSampling(max_tokens=1000)
    core.handle(0, t.OpenDraft("s", 1, tuple(prompt), (), mode, sampling, 0, window))
    events.clear()
    return core, events


def run(core: DrafterCore, events: list[t.DrafterEvent]) -> list[t.Draft]:
    while core.step():
        pass
    drafts = [event for event in events if isinstance(event, t.Draft)]
    events.clear()
    return drafts


def commit(core: DrafterCore, base: int, *tokens: int, epoch: int = 1) -> None:
    core.handle(0, t.CommitDraft("s", epoch, base, tokens))


def test_what_followed_the_last_tokens_is_copied():
    core, events = start([1, 2, 3, 4, 5, 6, 7, 1, 2, 3])
    (draft,) = run(core, events)
    assert draft.tree.token_ids == (4, 5, 6, 7, 1)
    assert draft.tree.proposal is t.Proposal.ONE_HOT
    assert draft.final


def test_the_longest_match_wins_over_a_later_shorter_one():
    core, events = start([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], window=1)
    (draft,) = run(core, events)
    assert draft.tree.token_ids == (4,)


def test_among_equally_long_matches_the_latest_wins():
    core, events = start([2, 3, 4, 0, 2, 3, 5, 0, 2, 3], window=1)
    (draft,) = run(core, events)
    assert draft.tree.token_ids == (5,)


def test_without_a_match_one_empty_final_draft_is_sent_per_state():
    core, events = start([1, 2, 3, 4])
    (draft,) = run(core, events)
    assert (draft.tree.token_ids, draft.final, draft.base_committed_len) == ((), True, 0)
    assert run(core, events) == []
    commit(core, 0, 9)
    (draft,) = run(core, events)
    assert (draft.tree.token_ids, draft.final, draft.base_committed_len) == ((), True, 1)


def test_a_repetition_is_continued_beyond_the_end_of_the_text():
    core, events = start([7, 1, 2, 1, 2], window=6)
    (draft,) = run(core, events)
    assert draft.tree.token_ids == (1, 2, 1, 2, 1, 2)


def test_a_commit_that_agrees_lets_the_copy_go_on():
    core, events = start([1, 2, 3, 4, 5, 6, 7, 8, 1, 2], window=3)
    assert run(core, events)[0].tree.token_ids == (3, 4, 5)
    commit(core, 0, 3, 4)
    (draft,) = run(core, events)
    assert (draft.first_position, draft.tree.token_ids) == (3, (6, 7))


def test_after_a_rejection_the_new_text_is_looked_up():
    core, events = start([1, 2, 3, 4, 5, 1, 9, 8, 7, 1, 2], window=3)
    assert run(core, events)[0].tree.token_ids == (3, 4, 5)
    commit(core, 0, 1, 9, epoch=2)
    (draft,) = run(core, events)
    assert (draft.epoch, draft.first_position, draft.tree.token_ids) == (2, 2, (8, 7, 1))


def test_every_mode_is_served():
    for mode in t.VerifyMode:
        core, events = start([1, 2, 3, 1, 2], mode=mode)
        assert run(core, events)[0].tree.token_ids[:1] == (3,)


def test_the_worker_is_bound_to_no_tokenizer():
    worker = start([1])[0].describe()
    assert (worker.tokenizer_fingerprint, worker.model, worker.methods) == ("", "", ("ngram",))


def test_a_copy_reads_its_own_tokens_past_the_end():
    assert copy_from([1, 2, 3], 1, 5) == [2, 3, 2, 3, 2]
    assert copy_from([1, 2, 3], 0, 2) == [1, 2]


def slow_match(text: list[int], shortest: int, longest: int) -> int:
    for n in range(longest, shortest - 1, -1):
        for end in range(len(text) - 1, n - 1, -1):
            if len(text) >= n and text[end - n : end] == text[len(text) - n :]:
                return end
    return 0


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.lists(st.integers(0, 2), max_size=8)), max_size=12)
)
def test_the_index_equals_a_search_of_the_text_after_any_rewinds(edits):
    index, text = NgramIndex(1, 3), []
    for keep, tokens in edits:
        index.rewind(keep)
        text = text[:keep] + tokens
        index.extend(text)
        assert index.length == len(text)
        assert index.match() == slow_match(text, 1, 3)

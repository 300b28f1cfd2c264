"""Prompt lookup: what is copied of a text."""

import pytest

from services.contract import types as t
from services.drafter.methods.ngram.chains import ChainLengths, copy_from
from services.drafter.methods.ngram.ngram import NgramDrafter
from tests.services.drafter_kit import Worker


def ngram():
    return Worker({"ngram": NgramDrafter(ChainLengths(2, 3))})


def drafted(prompt, window=5):
    """The only draft behind a text."""
    return ngram().draft(prompt, window=window, max_tokens=1000)


def test_what_followed_the_last_tokens_is_copied():
    draft = drafted([1, 2, 3, 4, 5, 6, 7, 1, 2, 3])
    assert draft.tree.token_ids == (4, 5, 6, 7, 1)
    assert draft.tree.proposal is t.Proposal.ONE_HOT
    assert draft.final


COPIES = {
    "the longest match wins over a later shorter one": ([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], (4,)),
    "among equally long matches the latest wins": ([2, 3, 4, 0, 2, 3, 5, 0, 2, 3], (5,)),
    "a repetition goes on beyond the end": ([7, 1, 2, 1, 2], (1, 2, 1, 2, 1, 2)),
}


@pytest.mark.parametrize(("prompt", "copied"), COPIES.values(), ids=COPIES)
def test_what_is_copied(prompt, copied):
    assert drafted(prompt, len(copied)).tree.token_ids == copied


def test_without_a_match_one_empty_final_draft_is_sent_for_each_text():
    worker = ngram()
    draft = worker.draft([1, 2, 3, 4])
    assert (draft.tree.token_ids, draft.final, draft.position) == ((), True, 0)
    assert worker.run() == []
    worker.say("s", 0, (9,))
    (draft,) = worker.run()
    assert (draft.tree.token_ids, draft.final, draft.position) == ((), True, 1)


def test_a_step_that_agrees_lets_the_copy_go_on():
    worker = ngram()
    draft = worker.draft([1, 2, 3, 4, 5, 6, 7, 8, 1, 2], window=3)
    assert draft.tree.token_ids == (3, 4, 5)
    worker.say("s", 0, (3, 4))
    (draft,) = worker.run()
    assert (draft.position, draft.tree.token_ids) == (3, (6, 7))


def test_after_a_rejection_the_new_text_is_looked_up():
    worker = ngram()
    draft = worker.draft([1, 2, 3, 4, 5, 1, 9, 8, 7, 1, 2], window=3)
    assert draft.tree.token_ids == (3, 4, 5)
    worker.say("s", 0, (1, 9))
    (draft,) = worker.run()
    assert (draft.name.number, draft.position, draft.tree.token_ids) == (1, 2, (8, 7, 1))


def test_the_worker_is_bound_to_no_tokenizer():
    worker = ngram().core.describe()
    assert (worker.tokenizer_fingerprint, worker.model, worker.methods) == ("", "", ("ngram",))


def test_a_copy_reads_its_own_tokens_past_the_end():
    assert copy_from([1, 2, 3], 1, 5) == [2, 3, 2, 3, 2]
    assert copy_from([1, 2, 3], 0, 2) == [1, 2]

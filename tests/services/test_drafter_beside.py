"""A drafter that borrows its verifier's K/V: it reads no text twice, and goes on without a loan."""

from itertools import pairwise

import pytest
import torch

from services.contract.frames import StepFrame, step_rows
from services.drafter.local import LocalProposer
from services.drafter.methods.self_draft.borrowing import Borrowing
from services.drafter.methods.self_draft.exits import Exit
from services.drafter.methods.self_draft.lookahead import LookaheadDrafter
from services.drafter.methods.self_draft.skip import SkipDrafter
from services.engine.lending import Lending
from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.engine.skip_mask import SkipMask
from services.verifier.options import VerifierOptions
from services.verifier.running.core import RunningCore
from tests.services.drafter_kit import PROMPT, real_engine
from tests.services.running_bench import Fixed
from tests.services.test_local_drafts import KEY, MASK, Lender, looking_ahead, skipping, starting


class Counting(NativeEngine):
    """Counts the tokens fed, by whether sub-layers were skipped."""

    fed: dict[bool, int]

    def forward(self, segments, skip=None):
        self.fed[skip is not None] += sum(len(segment.token_ids) for segment in segments)
        return super().forward(segments, skip)


def counted(lender):
    """From now on."""
    lender.engine.__class__ = Counting
    lender.engine.fed = {False: 0, True: 0}
    return lender.engine.fed


def skipping_nothing(engine, borrowing):
    return SkipDrafter(engine, SkipMask.of(2), Exit(0.0, adaptive=False), borrowing=borrowing)


def riding(engine, borrowing):
    return LookaheadDrafter(engine, borrowing=borrowing)


@pytest.mark.parametrize(("make", "count"), [(skipping_nothing, 6), (looking_ahead, 1)])
def test_a_draft_of_the_target_itself_is_right_and_nothing_is_read_twice(make, count):
    lender = Lender(make)
    fed = counted(lender)
    for _ in range(4):
        drafted = lender.verifier.tokens(room=count)
        assert len(drafted) == count
        assert lender.judge(drafted) == count
    # The judge's own reckoning reads the text anew.
    text = len(PROMPT)
    own = sum(text + step * (count + 1) + count for step in range(4))
    # Each drafted token costs its row; each step its own, and one more.
    assert sum(fed.values()) - own == 4 * count + 4 * (count + 1)


def test_drafts_start_from_the_whole_models_k_v_of_all_verified_text():
    lender = Lender(skipping)
    for _ in range(3):
        lender.judge(lender.verifier.tokens(room=2))
    drafted = lender.verifier.tokens(room=6)
    fresh, text = real_engine(threads=1), list(lender.text)
    cache = fresh.new_cache(80)
    fresh.forward([Segment(cache, text[:-1])])
    expected = []
    for _ in drafted:
        [row] = fresh.forward([Segment(cache, text[-1:], logits_from=0)], MASK)
        text.append(int(row.argmax()))
        expected.append(text[-1])
    assert len(drafted) == 6
    assert drafted == expected


@pytest.fixture(scope="module")
def steps():
    """What a verifier with a look-ahead drafter that rides judged and took, and its forwards."""
    engine, lending, events = real_engine(threads=1), Lending(), []
    engine.give_soft_tokens(torch.randn(3, 64, generator=torch.Generator().manual_seed(1)))
    proposer = LocalProposer({"lookahead": riding(engine, Borrowing(lending, engine))})
    options = VerifierOptions(lending=lending)
    emit = lambda _, event: events.append(event)  # noqa: E731
    core = RunningCore(
        engine, emit=emit, worker_id="v", options=options, pacing=Fixed(), proposer=proposer
    )
    core.handle(1, starting(PROMPT, method="lookahead", depth=6, max_tokens=40))
    forwards = engine.forward
    calls = []
    engine.forward = lambda segments, skip=None: calls.append(segments) or forwards(segments, skip)
    while core.step():
        pass
    rows = [row for event in events if isinstance(event, StepFrame) for row in step_rows(event)]
    return [(len(row.judged), row.accepted) for row in rows], len(calls)


def test_rows_behind_a_draft_that_was_taken_whole_are_the_next_one(steps):
    """Nothing is fed for them: each step has one forward."""
    judged, forwards = steps
    behind = [after for (size, taken), (after, _) in pairwise(judged) if size == taken]
    assert len(behind) > 5
    assert set(behind[1:-1]) == {3}
    assert forwards == len(judged)


def test_rows_behind_a_draft_that_was_not_taken_whole_say_nothing(steps):
    judged, _ = steps
    behind = [after for (size, taken), (after, _) in pairwise(judged) if size > taken]
    assert len(behind) > 5
    assert set(behind) == {0}


def test_once_nobody_borrows_no_rows_are_wanted_behind_a_draft():
    lender = Lender(riding)
    lender.verifier.draft()
    assert len(lender.offer.look_ahead) == 3
    lender.verifier.proposer.close(KEY)
    assert not lender.offer.look_ahead


def lend_anew(lender):
    """The verifier has the text in other K/V."""
    cache = lender.engine.new_cache(100)
    lender.lending.offer(KEY, cache, lender.text)
    lender.engine.forward([Segment(cache, lender.text[:-1])])
    return cache


def test_a_text_without_a_loan_waits_until_there_is_one():
    lender = Lender(skipping)
    lender.lending.withdraw(KEY, lender.offer)
    assert lender.verifier.tokens() == []
    lender.verifier.say(7)
    assert lender.verifier.tokens() == []
    lend_anew(lender)
    assert len(lender.verifier.tokens(room=6)) == 6


def test_a_loan_ends_with_its_lender_and_all_room_comes_back():
    lender = Lender(skipping)
    assert len(lender.verifier.tokens(room=6)) == 6
    lender.lending.withdraw(KEY, lender.offer)
    lender.cache.free()
    lender.verifier.say(7)
    assert lender.verifier.tokens() == []
    cache = lend_anew(lender)
    assert len(lender.verifier.tokens(room=6)) == 6
    lender.verifier.proposer.close(KEY)
    cache.free()
    assert lender.engine.kv_tokens_used == 0

"""A drafter that borrows its verifier's K/V: it reads no text twice, and goes on without a loan."""

import pytest

from services.drafter.methods.self_draft.exits import Exit
from services.drafter.methods.self_draft.lookahead import LookaheadDrafter
from services.drafter.methods.self_draft.skip import SkipDrafter
from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.engine.skip_mask import SkipMask
from tests.services.drafter_kit import PROMPT, real_engine
from tests.services.test_local_drafts import KEY, MASK, Lender, looking_ahead, skipping


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


def test_once_nobody_borrows_no_rows_are_wanted_behind_a_draft():
    lender = Lender(riding)
    lender.verifier.draft()
    assert len(lender.offer.look_ahead) == 3
    lender.verifier.proposer.close(KEY)
    assert not lender.offer.look_ahead


def test_a_text_without_a_loan_waits_and_goes_on_with_k_v_of_its_own_once_it_has_grown():
    lender = Lender(skipping)
    lender.lending.withdraw(KEY, lender.offer)
    assert lender.verifier.tokens() == []
    used = lender.engine.kv_tokens_used
    lender.verifier.say(7)
    while not (drafted := lender.verifier.tokens(room=6)):
        pass
    assert len(drafted) == 6
    assert lender.engine.kv_tokens_used >= used + len(PROMPT)


def test_a_loan_ends_with_its_lender_and_all_room_comes_back():
    lender = Lender(skipping)
    assert len(lender.verifier.tokens(room=6)) == 6
    lender.lending.withdraw(KEY, lender.offer)
    lender.cache.free()
    lender.verifier.say(7)
    while not lender.verifier.tokens(room=6):
        pass
    lender.verifier.proposer.close(KEY)
    assert lender.engine.kv_tokens_used == 0

"""A drafter that borrows its verifier's K/V: it never harms it, and reads no text twice."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.contract import types as t
from services.drafter.methods.self_draft.borrowing import Borrowing
from services.drafter.methods.self_draft.exits import Exit
from services.drafter.methods.self_draft.lookahead import LookaheadDrafter
from services.drafter.methods.self_draft.skip import SkipDrafter
from services.engine.lending import Lending
from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.engine.skip_mask import SkipMask
from tests.services.drafter_kit import Worker, real_engine, tokens_of
from tests.services.verifier_bench import Table, block
from tests.tries import tries

PROMPT = tuple(range(10, 30))
MASK = SkipMask.of(2, attention=[1], mlp=[0])


SOFT = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))


def load(capacity=None):
    return real_engine(threads=1, kv_capacity_tokens=capacity)


class Counting(NativeEngine):
    """Counts the tokens fed, by whether sub-layers were skipped."""

    fed: dict[bool, int]

    def forward(self, segments, skip=None):
        self.fed[skip is not None] += sum(len(segment.token_ids) for segment in segments)
        return super().forward(segments, skip)


class Process:
    """A verifier and a drafter on one engine, and another verifier that lends nothing."""

    def __init__(self, method="skip", mask=MASK, window=6, capacity=None):
        self.engine = load(capacity)
        self.engine.__class__ = Counting
        self.engine.fed = {False: 0, True: 0}
        self.engine.give_soft_tokens(SOFT)
        lending = Lending()
        self.judge = Table(self.engine, lending=lending)
        self.other = Table(load())
        borrowing = Borrowing(lending, self.engine)
        drafters = {
            "skip": lambda: SkipDrafter(
                self.engine, mask, Exit(0.0, adaptive=False), borrowing=borrowing
            ),
            "lookahead": lambda: LookaheadDrafter(self.engine, borrowing=borrowing, riding=False),
            "riding": lambda: LookaheadDrafter(self.engine, borrowing=borrowing),
        }
        self.drafter = Worker({"m": drafters[method]()})
        self.output = []
        self.untold = []
        self.round = 0
        law = {"max_tokens": 40, "logprobs": 3, "seed": 9}
        self.drafter.open("s", PROMPT, window=window, **law)

    def open_judges(self):
        for table in (self.judge, self.other):
            table.opened(prompt=PROMPT, logprobs=3)
        return self

    @property
    def tail(self):
        """What was drafted behind the output, if the drafter's text agrees with it."""
        text = self.drafter.session.text[len(PROMPT) :]
        return text[len(self.output) :] if text[: len(self.output)] == self.output else []

    def verify(self, tokens):
        """Both verifiers say the same, to the probabilities."""
        self.round += 1
        command = block(self.round, len(self.output), tuple(tokens))
        mine, theirs = self.judge.verdict(command), self.other.verdict(command)
        assert mine.token_ids == theirs.token_ids
        for own, reference in zip(mine.logprobs, theirs.logprobs, strict=True):
            assert own.logprob == pytest.approx(reference.logprob, abs=1e-4)
        commit = t.CommitDraft("s", 1 + self.round, len(self.output), tuple(mine.token_ids))
        self.output += mine.token_ids
        self.untold.append(commit)

    def tell(self):
        for commit in self.untold:
            self.drafter.core.handle(0, commit)
        self.untold.clear()

    def draft(self):
        worked = self.drafter.core.step()
        assert not self.drafter.failed
        return worked

    def drafted(self):
        """All that the drafter gives for the text it knows."""
        self.drafter.events.clear()
        while self.draft():
            pass
        return tokens_of(self.drafter.take())

    def close(self):
        self.drafter.close()
        for table in (self.judge, self.other):
            table.give(t.CloseVerify("s"))


MOVES = st.lists(
    st.tuples(st.sampled_from(["draft", "verify", "guess", "tell"]), st.integers(0, 5)),
    min_size=4,
    max_size=14,
)


@tries(40)
@given(MOVES, st.sampled_from(["skip", "lookahead", "riding"]))
def test_whatever_is_drafted_meanwhile_the_verifier_says_the_same(moves, method):
    process = Process(method).open_judges()
    for move, count in moves:
        if len(process.output) > 25:
            break
        match move:
            case "draft":
                for _ in range(count):
                    process.draft()
            case "verify":
                process.verify(process.tail[:count])
            case "guess":
                process.verify([(7 * count + i) % 90 + 5 for i in range(count)])
            case "tell":
                process.tell()
    process.close()
    assert process.engine.kv_tokens_used == 0


@pytest.mark.parametrize("method", ["skip", "lookahead"])
def test_the_target_itself_is_accepted_whole_and_reads_nothing_twice(method):
    process = Process(method, SkipMask.of(2), window=6 if method == "skip" else 1).open_judges()
    prompt = process.engine.fed[False]
    assert prompt == len(PROMPT) - 1
    for _ in range(4):
        tokens = process.drafted()
        assert len(tokens) == (6 if method == "skip" else 1)
        before = len(process.output)
        process.verify(tokens)
        assert process.output[before : before + len(tokens)] == tokens
        process.tell()
    fed = sum(process.engine.fed.values()) - prompt
    # Each drafted token costs its row; each block its own and one more.
    assert fed == len(process.output) + 4 * len(tokens)


def test_drafts_start_from_the_whole_models_kv_of_all_verified_text():
    process = Process().open_judges()
    for tokens in ((3, 4), (5,), ()):
        process.verify(tokens)
    process.tell()
    drafted = process.drafted()
    fresh = load()
    text = [*PROMPT, *process.output]
    cache = fresh.new_cache(80)
    fresh.forward([Segment(cache, text[:-1])])
    expected = []
    for _ in drafted:
        [row] = fresh.forward([Segment(cache, text[-1:], logits_from=0)], MASK)
        text.append(int(row.argmax()))
        expected.append(text[-1])
    assert drafted == expected


def test_rows_behind_an_accepted_block_draft_without_a_forward():
    process = Process("riding").open_judges()
    assert process.drafted() == []
    process.verify(())
    process.tell()
    before = dict(process.engine.fed)
    drafted = process.drafted()
    assert len(drafted) == 3
    assert process.engine.fed == before
    fresh = load()
    fresh.give_soft_tokens(SOFT)
    text = [*PROMPT, *process.output]
    rows = [*text[:-1], *fresh.soft_ids]
    [logits] = fresh.forward([Segment(fresh.new_cache(80), rows, logits_from=len(text) - 1)])
    assert drafted == logits.argmax(-1).tolist()


def test_once_nobody_borrows_no_rows_are_fed_behind_a_block():
    process = Process("riding").open_judges()
    process.drafted()
    fed = process.engine.fed
    before = fed[False]
    process.verify((5, 6))
    assert fed[False] == before + 3 + 3
    process.drafter.close()
    before = fed[False]
    process.verify((5, 6))
    assert fed[False] == before + 3


def test_nothing_is_drafted_where_the_block_before_was_not_accepted_whole():
    process = Process("riding").open_judges()
    process.drafted()
    process.verify((5, 6, 7))
    process.tell()
    assert len(process.output) < 4
    assert process.drafted() == []


def test_before_the_verifier_has_the_prompt_the_drafter_waits_without_spinning():
    process = Process()
    assert process.draft() is False
    assert process.drafter.take() == []
    process.open_judges()
    assert len(process.drafted()) == 6


def test_what_the_drafter_was_not_told_yet_is_waited_for():
    process = Process().open_judges()
    process.verify((5,))
    assert process.draft() is False
    process.tell()
    assert process.draft() is True


def test_without_an_offer_after_a_commit_the_session_has_kv_of_its_own():
    process = Process()
    assert process.draft() is False
    process.drafter.commit("s", 0, (7,), 2)
    assert len(process.drafted()) == 6
    assert process.engine.kv_tokens_used >= len(PROMPT) + 40


def test_a_verifier_that_ends_ends_the_loan():
    process = Process().open_judges()
    first = process.drafted()
    assert len(first) == 6
    process.verify(first[:1])
    process.judge.give(t.CloseVerify("s"))
    process.tell()
    assert len(process.drafted()) == 6
    process.drafter.close()
    assert process.engine.kv_tokens_used == 0


def test_without_room_for_kv_of_its_own_the_session_fails_with_the_reason():
    process = Process(capacity=50)
    process.drafter.core.step()
    process.drafter.commit("s", 0, (7,), 2)
    process.drafter.core.step()
    [failed] = process.drafter.failed
    assert "KV cache" in failed.message

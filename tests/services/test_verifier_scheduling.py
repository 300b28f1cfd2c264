"""Prefill in chunks, capacity, refusals, failures, and what tracing is told."""

import pytest

from services.contract.types import FailureReason, SessionFailed, Verdict, VerifyMode, VerifyOpened
from services.scheduling.step_time import StepTimeModel
from services.verifier.scheduling import PrefillPace, share_prefill
from tests.fake_engine import VOCAB, FakeEngine
from tests.services.verifier_bench import (
    COUPLED,
    EXACT,
    PROMPT,
    TEXT,
    Table,
    Timed,
    block,
    frozen,
    only,
    opening,
    other,
    target_text,
)

LONG = tuple(i % VOCAB for i in range(300))


def test_half_of_the_room_is_for_who_came_first_and_half_for_who_has_least_left():
    assert share_prefill([100, 100], 60) == [60, 0]
    assert share_prefill([1000, 10, 40], 120) == [70, 10, 40]
    assert share_prefill([1000, 500, 40, 30], 100) == [50, 0, 20, 30]
    assert share_prefill([30, 1000, 10], 400) == [30, 360, 10]
    assert share_prefill([5], 100) == [5]
    assert share_prefill([], 100) == []
    assert sum(share_prefill([9] * 7, 20)) == 20
    # With less room than prompts the first ones come first.
    assert share_prefill([9] * 5, 3) == [3, 0, 0, 0, 0]
    assert share_prefill([100, 1, 100], 2) == [1, 1, 0]


def test_the_prefill_pace_follows_what_the_machine_does():
    pace = PrefillPace(target_ms=100, most=512)
    for _ in range(40):
        pace.observe(64, 64, step_ms=640, alone=StepTimeModel())
    assert pace.room(0) == 16  # never none, however slow
    for _ in range(40):
        pace.observe(64, 64, step_ms=64, alone=StepTimeModel())
    assert 98 <= pace.room(0) <= 102
    assert 78 <= pace.room(20) <= 82
    for _ in range(40):
        pace.observe(64, 64, step_ms=0.1, alone=StepTimeModel())
    assert pace.room(0) == 512
    assert pace.room(512) == 16


def test_beside_decoding_prompts_make_a_step_longer_by_no_more_than_allowed():
    line = StepTimeModel()
    for rows in (1, 9, 33, 65) * 20:
        line = line.add(rows, 0.030 + 0.002 * rows)
    pace = PrefillPace(target_ms=10_000, most=512, slowdown=1.5)
    # A step of ten rows takes 50 ms; what a prompt's row takes is not known yet.
    assert 11 <= pace.room(10, line) <= 13
    # It is half of what a row of another session takes: 25 ms are 25 rows.
    for _ in range(40):
        pace.observe(74, 64, step_ms=50 + 64, alone=line)
    assert 23 <= pace.room(10, line) <= 27
    assert pace.room(10) == 502
    assert pace.room(510, line) == 8  # never none, however little is left
    # Three times as many wait for their prompts as decode.
    assert 70 <= pace.room(10, line, crowd=3.0) <= 80
    assert pace.room(10, line, crowd=0.2) == pace.room(10, line)
    assert PrefillPace(10_000, 512, 1.5).room(10, StepTimeModel()) == 54  # nothing is known


def test_a_long_prompt_is_fed_in_chunks_within_the_step_budget():
    table = Table(max_step_tokens=64, clock=frozen)
    command = table.opened(prompt=LONG)
    assert max(max(sizes) for sizes in table.engine.forwards) <= 64
    assert sum(sum(sizes) for sizes in table.engine.forwards) == len(LONG) - 1
    assert table.verdict(block(1, 0)).token_ids == tuple(target_text(command, 1))


def test_a_long_prompt_stalls_no_session_that_decodes():
    table = Table(max_step_tokens=32, clock=frozen)
    table.opened(opening("quick"))
    table.give(opening("slow", prompt=LONG))
    for position in range(8):
        table.give(block(position + 1, position, session="quick"))
        assert table.core.step()
        [verdict] = table.taken()
        assert verdict.token_ids == TEXT[position : position + 1]
    assert any(isinstance(event, VerifyOpened) for event in table.run())


def rows_beside_a_long_prompt(table, rounds):
    """Prompt rows in each step that verifies a block of the session `quick`."""
    fed = []
    for position in rounds:
        table.give(block(position + 1, position, session="quick"))
        assert table.core.step()
        fed.append(sum(table.engine.forwards[-1]) - 1)
    return fed


@pytest.fixture
def timed():
    """Steps of 10 ms and one more for every row."""
    engine = Timed(10, 1)
    return Table(engine, max_step_tokens=64, prefill_slowdown=1.5, clock=engine.clock)


def test_who_decoded_before_a_prompt_came_is_spared_most_of_its_rows(timed):
    timed.opened(opening("quick"))
    rows_beside_a_long_prompt(timed, range(12))
    timed.give(opening("slow", prompt=LONG))
    assert all(8 <= rows <= 10 for rows in rows_beside_a_long_prompt(timed, range(12, 16)))


def test_who_came_with_a_prompt_has_no_claim_before_it(timed):
    timed.give(opening("slow", prompt=LONG), opening("quick"))
    assert timed.core.step()
    assert rows_beside_a_long_prompt(timed, range(3)) == [63, 63, 63]


def test_a_block_that_came_with_the_opening_is_verified_in_the_step_that_ends_the_prompt():
    records = []
    table = Table(max_step_tokens=64, clock=frozen, on_step=records.append)
    command = opening(prompt=LONG)
    text = target_text(command, 4)
    opened, verdict = table.run(command, block(1, 0, text[:2]))
    assert isinstance(opened, VerifyOpened)
    assert verdict.token_ids == tuple(text[:3])
    assert verdict.accepted == 2
    # 299 rows of the prompt, its last one and two that were drafted.
    assert [sum(sizes) for sizes in table.engine.forwards] == [64, 64, 64, 64, 43 + 3]
    last = [(entry.kind, entry.tokens) for entry in records[-1].entries]
    assert last == [("prefill", 43), ("verify", 2)]
    assert table.verdict(block(2, 3, text[3:])).token_ids[:1] == tuple(text[3:])


@pytest.mark.parametrize("mode", EXACT)
def test_blocks_of_many_sessions_come_with_their_openings(mode):
    table = Table(max_step_tokens=16, clock=frozen)
    commands = [opening(f"s{i}", mode, prompt=tuple(range(1, 4 + i))) for i in range(6)]
    for number, command in enumerate(commands):
        table.give(command, block(1, 0, session=f"s{number}"))
    verdicts = {event.session: event for event in table.run() if isinstance(event, Verdict)}
    for command in commands:
        assert verdicts[command.session].token_ids == tuple(target_text(command, 1))


@pytest.mark.parametrize("stale", [[], [block(1, 7)]], ids=["alone", "behind one that fits not"])
def test_a_tree_that_came_with_the_opening_waits_for_the_next_step(stale):
    table = Table(clock=frozen)
    tree = block(2, 0, [other(TEXT[0]), TEXT[0]], (-1, -1))
    *discarded, opened, verdict = table.run(opening(), *stale, tree)
    assert [event.discarded for event in discarded] == [True] * len(stale)
    assert isinstance(opened, VerifyOpened)
    assert (verdict.round, verdict.accepted_nodes) == (2, (1,))
    assert table.engine.forwards == [[len(PROMPT) - 1], [3]]


@pytest.mark.parametrize("asked", [False, True])
def test_a_prompt_that_fails_fails_its_session_alone(asked):
    table = Table(FakeEngine(explode=11))
    for command in (opening(prompt=(11, 1)), opening("good")):
        table.give(command, *[block(1, 0, session=command.session)] * asked)
    events = {(type(event), event.session) for event in table.run()}
    verdicts = {(Verdict, "good")} if asked else set()
    assert events == {(SessionFailed, "s"), (VerifyOpened, "good")} | verdicts


def test_a_short_prompt_does_not_wait_for_a_long_one():
    table = Table(max_step_tokens=32, clock=frozen)
    table.give(opening("slow", prompt=LONG), opening("quick"))
    table.core.step()
    assert [event.session for event in table.taken()] == ["quick"]


def test_more_blocks_than_a_step_holds_are_served_oldest_first():
    ticks = iter(range(10_000))
    table = Table(max_step_tokens=4, clock=lambda: float(next(ticks)))
    table.run(*[opening(f"s{i}") for i in range(6)])
    table.give(*[block(1, 0, [0], session=f"s{i}") for i in (3, 1, 5, 0, 2, 4)])
    order = []
    while table.core.step():
        order.append([event.session for event in table.taken()])
    assert order == [["s3", "s1"], ["s5", "s0"], ["s2", "s4"]]


def test_closing_in_the_middle_of_a_prefill_frees_its_memory():
    table = Table(max_step_tokens=32)
    table.give(opening(prompt=LONG))
    table.core.step()
    table.core.drop_link(1)
    assert table.engine.kv_tokens_used == 0
    assert table.core.step() is False


def test_a_full_verifier_refuses_the_newcomer_only():
    needed = len(PROMPT) + 40 + 8
    table = Table(FakeEngine(capacity=needed + 10))
    table.opened()
    failed = table.failure(opening("late", epoch=3))
    assert (failed.session, failed.reason, failed.epoch) == ("late", FailureReason.CAPACITY, 3)
    assert table.verdict(block(1, 0, TEXT[:1])).token_ids == TEXT[:2]
    table.core.drop_link(1)
    table.opened(opening("late"))


def test_the_reservation_holds_whatever_a_session_may_ask_for():
    table = Table(FakeEngine(capacity=len(PROMPT) + 10 + 4, context=len(PROMPT) + 10))
    text = target_text(table.opened(max_tokens=10, window=4), 12)
    output = []
    for round_ in range(1, 20):
        if len(output) >= 10:
            break
        tail = [*text[len(output) :], 0, 0, 0, 0][:4]
        output += table.verdict(block(round_, len(output), tail)).token_ids
    assert output[:10] == text[:10]


UNFIT = {
    "sampling.min_p": [{"min_p": 1.5}],
    "sampling.temperature": [
        {"mode": mode, "temperature": 0.0} for mode in (COUPLED, VerifyMode.BLOCK)
    ],
    "sampling.logit_bias": [{"logit_bias": ((VOCAB, 2.0),)}, {"logit_bias": ((1, float("nan")),)}],
    "sampling.logprobs": [{"logprobs": 21}],
    "sampling.stop_token_ids": [{"stop_token_ids": (VOCAB,)}],
    "sampling.allowed_token_ids": [{"allowed_token_ids": ids} for ids in ((1, VOCAB), (1,) * 4097)],
    "sampling.bad_words": [{"bad_words": words} for words in (((1, VOCAB),), ((1,),) * 257)],
    "sampling.bad_words[1]": [{"bad_words": ((1,), ())}],
    "sampling.bad_words[0]": [{"bad_words": ((1,) * 514,)}],
    "priority": [{"priority": 101}],
    "prompt": [{"prompt": ()}, {"prompt": (1, VOCAB)}],
    "committed": [{"committed": (VOCAB,)}, {"committed": (1, 2, 3), "max_tokens": 2}],
    "max_tokens": [{"max_tokens": 0}, {"max_tokens": 508}],
}
"""Of numbers some; tests/services/test_sampling_checks.py has them all."""


@pytest.mark.parametrize("word", UNFIT)
def test_an_open_out_of_range_is_refused_by_name_and_reserves_nothing(word):
    for more in UNFIT[word]:
        table = Table()
        failed = table.failure(opening(**more))
        assert failed.reason is FailureReason.INVALID
        assert word in failed.message
        assert table.engine.kv_tokens_used == 0


@pytest.mark.parametrize(
    ("tokens", "parents", "word"),
    [
        ([VOCAB], None, "token_ids"),
        ([1, 2], (-1, 1), r"parents[1]"),
        ([1, 2], (-2, 0), r"parents[0]"),
        ([1, 2], (-1,), "parents"),
        ([1] * 9, None, "window"),
    ],
)
def test_a_malformed_block_fails_its_session_and_no_other(table, tokens, parents, word):
    table.run(opening("good"))
    events = table.run(block(1, 0, tokens, parents), block(1, 0, session="good"))
    failed = only(SessionFailed, events)
    assert (failed.session, failed.reason) == ("s", FailureReason.INVALID)
    assert word in failed.message
    assert only(Verdict, events).token_ids == TEXT[:1]
    assert table.core.progress().sessions == 1


@pytest.mark.parametrize("mode", VerifyMode)
def test_a_row_of_nan_fails_its_session_and_not_the_batch(mode):
    table = Table(FakeEngine(poison=[*PROMPT]))
    table.run(opening(mode=mode), opening("good", mode, prompt=(7, 8)))
    events = table.run(block(1, 0), block(1, 0, session="good"))
    assert {type(event): event.session for event in events} == {SessionFailed: "s", Verdict: "good"}
    assert only(SessionFailed, events).reason is FailureReason.INTERNAL
    assert len(only(Verdict, events).token_ids) == 1
    assert table.engine.kv_tokens_used == 2 + 40 + 8


def test_a_row_of_nan_beyond_the_accepted_path_is_nothing():
    wrong = other(TEXT[0])
    table = Table(FakeEngine(poison=[*PROMPT, wrong]))
    table.opened()
    assert table.verdict(block(1, 0, [wrong])).token_ids == TEXT[:1]


def test_a_forward_that_raises_fails_only_the_session_that_causes_it():
    table = Table(FakeEngine(explode=11))
    table.run(opening(), opening("good"))
    events = table.run(block(1, 0, [11]), block(1, 0, [0], session="good"))
    assert {type(event): event.session for event in events} == {SessionFailed: "s", Verdict: "good"}
    failed = only(SessionFailed, events)
    assert failed.reason is FailureReason.INTERNAL
    assert "RuntimeError" in failed.message


def test_tracing_learns_each_sessions_part_of_a_step():
    records = []
    table = Table(on_step=records.append)
    table.run(opening("a", traceparent="t-a"), opening("b", traceparent="t-b"))
    [prefill] = records
    assert {(own.session, own.kind, own.tokens) for own in prefill.entries} == {
        ("a", "prefill", 4),
        ("b", "prefill", 4),
    }
    ask = block(1, 0, [1, 2], session="a")._replace(traceparent="t-1")
    table.run(ask, block(1, 0, session="b"), block(2, 9, session="b"))
    entries = {own.session: own for own in records[-1].entries}
    assert (entries["a"].round, entries["a"].tokens, entries["a"].traceparent) == (1, 2, "t-1")
    assert entries["b"].traceparent == "t-b", "a block without one has that of the opening"
    assert entries["a"].kind == "verify"
    assert records[-1].ended_ns >= records[-1].started_ns


def test_progress_counts_steps_and_waiting_rows():
    table = Table()
    table.give(opening())
    waiting = table.core.progress()
    assert (waiting.steps, waiting.sessions, waiting.queued_tokens) == (0, 1, len(PROMPT) - 1)
    table.run()
    table.give(block(1, 0, [1, 2]))
    assert table.core.progress().queued_tokens == 3
    table.run()
    done = table.core.progress()
    assert (done.steps, done.queued_tokens) == (2, 0)
    assert done.kv_tokens_used == len(PROMPT) + 40 + 8


def test_verdicts_carry_their_times():
    ticks = iter(range(10_000))
    table = Table(clock=lambda: next(ticks) / 1000)
    table.opened()
    verdict = table.verdict(block(1, 0))
    assert verdict.queue_ms > 0
    assert verdict.verify_ms > 0

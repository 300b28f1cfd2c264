"""Who is in a step of a saturated verifier: turns, priorities, prompts, heavy formats."""

from collections import Counter
from itertools import count

import pytest

from services.contract import types as t
from services.contract.types import FailureReason
from services.contract.worker_messages import SessionGone, SessionStarted
from services.grammar.spending import LIGHT, OUTPUTS, Allowance
from services.verifier.forms import SHARE
from tests.fake_engine import VOCAB, FakeEngine
from tests.services.forms_kit import Anything, Compiler
from tests.services.running_bench import (
    EXACT,
    FREE,
    TEXT,
    Fixed,
    Running,
    Timed,
    draft,
    limit,
    of_kind,
    only,
    other,
    start,
    text_of,
)

LONG = tuple(i % VOCAB for i in range(300))
TOKENS = 400
FORM = t.ResponseFormat(t.FormatKind.REGEX, ("a+",))


def served(table, steps):
    """How many of these steps each session was in."""
    turns = Counter()
    for _ in range(steps):
        turns.update(row.handle for row in table.step())
    return turns


def decoding(table, commands):
    """Let sessions say their first token, and have no draft."""
    table.give(*commands)
    while any(not table.output(own.handle) for own in commands):
        table.core.step()
        table.taken()
    return table


def plain(handle, **more):
    prompt = (handle % VOCAB, 1 + handle // VOCAB)
    return start(handle, **({"prompt": prompt, "max_tokens": TOKENS} | more))


def test_long_drafts_and_trees_get_no_more_and_no_fewer_turns_than_plain_sessions():
    table = Running(max_step_tokens=12)
    commands = [plain(handle) for handle in range(1, 11)]
    texts = {own.handle: text_of(own, TOKENS) for own in commands}
    decoding(table, commands)
    turns = Counter(dict.fromkeys(texts, 0))
    for number in range(60):
        for handle, size in ((1, 8), (2, 8), (3, 4), (4, 3)):
            said = table.output(handle)
            right = texts[handle][len(said) :][:size]
            tree = t.DraftTree(right)
            if handle == 4:
                # The right path, and beside each of its tokens a wrong one.
                tokens = (*right, *map(other, right))
                tree = t.DraftTree(tokens, (*range(-1, size - 1), *range(-1, size - 1)))
            table.give(draft((), said, number, handle, tree=tree))
        turns.update(row.handle for row in table.step())
        assert max(turns.values()) - min(turns.values()) <= 1, turns
    assert min(turns.values()) >= 10


def prioritised(table, tenants):
    """Sessions of (tenant, priority), by handle from 1 on."""
    commands = [
        plain(handle, cache_scope=tenant, priority=priority)
        for handle, (tenant, priority) in enumerate(tenants, 1)
    ]
    return decoding(table, commands)


def test_a_tenants_sooner_sessions_are_served_more_often_and_all_in_the_end():
    table = Running(max_step_tokens=4)
    prioritised(table, [("a", priority) for priority in (-100, 100) for _ in range(6)])
    turns = served(table, 90)
    sooner, later = ([turns[own] for own in range(first, first + 6)] for first in (1, 7))
    assert max(sooner) - min(sooner) <= 1
    assert max(later) - min(later) <= 1
    assert min(sooner) > 5 * max(later)
    # Twenty steps of the engine, as two hundred of priority are worth, and a round of the others.
    assert min(later) >= 90 // 25


@pytest.mark.parametrize("priorities", [(0, 0), (-100, 100), (-100, -100)])
def test_a_tenant_has_as_many_turns_whatever_its_priorities(priorities):
    table = Running(max_step_tokens=3)
    prioritised(table, [("a", priorities[i % 2]) for i in range(6)] + [("b", 0)] * 3)
    turns = served(table, 60)
    assert sum(turns[own] for own in range(1, 7)) == 120
    assert {turns[own] for own in range(7, 10)} == {20}


def test_sessions_that_leave_nothing_behind_are_of_nobody_and_have_no_priority():
    table = Running(max_step_tokens=3)
    prioritised(table, [("", priority) for priority in (-100, 100) for _ in range(3)])
    assert set(served(table, 20).values()) == {10}


# --- prompts --------------------------------------------------------------------------


def test_a_long_prompt_takes_no_turn_from_those_that_decode_and_gets_in_itself():
    table = decoding(Running(max_step_tokens=8), [plain(handle) for handle in range(1, 13)])
    table.give(plain(13, prompt=LONG[:100]))
    turns = Counter(dict.fromkeys(range(1, 13), 0)) + served(table, 3)
    assert set(turns.values()) == {2}
    for _ in range(30):
        table.step()
    assert table.output(13)


def test_who_came_first_is_fed_however_many_shorter_prompts_come_after_it():
    table = Running(max_step_tokens=8)
    table.give(plain(1, prompt=LONG[:100], limit=0))
    started, steps = [], 0
    for handle in range(2, 100):
        table.give(plain(handle, prompt=(1, 2, 3, 4, 5, 6, 7), limit=0))
        steps += table.core.step()
        started += [event.handle for event in of_kind(SessionStarted, table.taken())]
        if 1 in started:
            break
    assert steps <= 30
    assert 2 in started[:2]


def test_a_short_prompt_does_not_wait_for_a_long_one():
    table = Running(max_step_tokens=32)
    events = table.run(plain(1, prompt=LONG), plain(2), steps=1)
    assert only(SessionStarted, events).handle == 2


def test_a_sooner_prompt_is_read_before_those_of_its_tenant_that_came_before():
    table = Running(max_step_tokens=8)
    for handle, tenant, priority in ((1, "a", 0), (2, "b", 0), (3, "a", -8)):
        long = tuple((i + handle) % VOCAB for i in range(100))
        table.give(plain(handle, prompt=long, cache_scope=tenant, priority=priority, limit=0))
        table.clock.now += 0.5
    assert [event.handle for event in of_kind(SessionStarted, table.run())] == [3, 2, 1]


@pytest.mark.parametrize("mode", EXACT)
def test_first_tokens_of_many_sessions_come_with_their_prompts(mode):
    table = Running(max_step_tokens=16)
    commands = [start(i, mode, prompt=tuple(range(1, 4 + i)), limit=1) for i in range(6)]
    table.run(*commands)
    for command in commands:
        assert table.output(command.handle) == text_of(command, 1)


@pytest.mark.parametrize("count", [0, 3])
def test_a_prompt_that_fails_fails_its_session_alone(count):
    """A prompt that is read alone, and one whose first token would come with it."""
    table = Running(FakeEngine(explode=11))
    events = table.run(start(1, prompt=(11, 1), limit=count), start(2, limit=count))
    assert only(SessionGone, events).handle == 1
    assert only(SessionStarted, events).handle == 2
    assert table.output(2) == TEXT[:count]


def rows_beside_a_long_prompt(table, steps):
    """Prompt rows in each of these steps, in which one session decodes."""
    fed = []
    for _ in range(steps):
        assert table.core.step()
        fed.append(sum(table.engine.forwards[-1]) - 1)
    return fed


@pytest.fixture
def timed():
    """Steps of 10 ms and one more for every row."""
    engine = Timed(10, 1)
    return Running(engine, max_step_tokens=64, prefill_slowdown=1.5, clock=engine.clock)


def test_who_decoded_before_a_prompt_came_is_spared_most_of_its_rows(timed):
    timed.give(plain(1))
    rows_beside_a_long_prompt(timed, 12)
    timed.give(plain(2, prompt=LONG, max_tokens=100))
    assert all(8 <= rows <= 10 for rows in rows_beside_a_long_prompt(timed, 4))


def test_who_came_with_a_prompt_has_no_claim_before_it(timed):
    timed.give(plain(1, prompt=LONG, max_tokens=100), plain(2))
    assert timed.core.step()
    assert rows_beside_a_long_prompt(timed, 3) == [63, 63, 63]


def test_progress_counts_steps_and_the_tokens_of_prompts_that_wait():
    table = Running(prefix_cache_tokens=0)
    table.give(start(prompt=LONG[:9], limit=1))
    waiting = table.core.progress()
    assert (waiting.steps, waiting.sessions, waiting.queued_tokens) == (0, 1, 8)
    table.run()
    done = table.core.progress()
    assert (done.steps, done.queued_tokens) == (1, 0)
    assert done.kv_tokens_used == 9 + 40 + 8


UNFIT = {
    "sampling.min_p": [{"min_p": 1.5}],
    "sampling.temperature": [
        {"mode": mode, "temperature": 0.0} for mode in (EXACT[1], t.VerifyMode.BLOCK)
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
    "committed": [{"output": (VOCAB,)}, {"output": (1, 2, 3), "max_tokens": 2}],
    "max_tokens": [{"max_tokens": 0}, {"max_tokens": 508}],
    "state_layers": [{"state_layers": layers} for layers in ((1, 1), (2, 1))],
}
"""Of numbers some; tests/services/test_sampling_checks.py has them all."""


@pytest.mark.parametrize("word", UNFIT)
def test_an_opening_out_of_range_is_refused_by_name_and_reserves_nothing(word):
    for more in UNFIT[word]:
        table = Running()
        gone = only(SessionGone, table.run(start(**more)))
        assert gone.reason is FailureReason.INVALID
        assert word in gone.message
        assert table.engine.kv_tokens_used == 0


# --- what following a form takes ---------------------------------------------------------

ALL_TEXT = text_of(start(), 400)
STEP = 0.02
"""Seconds of a forward, whatever is in it."""


class Crowd:
    """Sessions on a virtual clock; the `heavy` ones' forms have masks that take `mask` seconds.

    `turns`: the steps that each was in. `judged`: draft tokens of each.
    """

    def __init__(self, heavy=(), plain=(), mask=0.03, allowance=OUTPUTS, output=()):
        self.engine = Timed(1e3 * STEP, 0.0)
        compiler = Compiler()
        compiler.matcher = self.follow
        self.matchers, self._mask, self._allowance = [], mask, allowance
        self.table = Running(
            self.engine, pacing=Fixed(), structures=compiler, clock=self.engine.clock
        )
        self.turns = {handle: [] for handle in (*heavy, *plain)}
        self.judged, self._numbers = Counter(), count(1)
        self.gone = {}
        for handle in heavy:
            self.table.give(
                start(handle, response_format=FORM, max_tokens=400, output=output, limit=FREE)
            )
            compiler.finish()
        for handle in plain:
            self.table.give(start(handle, max_tokens=400))

    def follow(self):
        self.matchers.append(Anything(self._mask, self._allowance, self.engine))
        return self.matchers[-1]

    def serve(self, seconds, drafts=False):
        """Let the core have so much time; with `drafts` each session is drafted for, and well."""
        until = self.engine.now + seconds
        while self.engine.now < until:
            if drafts:
                self.draft()
            if not self.table.core.step():
                rest = self.table.core.patience()
                assert rest > 0
                self.engine.now += min(rest, 1e-3)
            events = self.table.taken()
            for event in of_kind(SessionGone, events):
                self.gone[event.handle] = event
            frames = [event for event in events if hasattr(event, "step_ms")]
            for frame in frames:
                for row in self.table.rows_of([frame]):
                    self.turns[row.handle].append(frame)
                    self.judged[row.handle] += len(row.judged)
        return self

    def draft(self):
        number = next(self._numbers)
        for handle in self.turns:
            said = self.table.output(handle)
            ahead = ALL_TEXT[len(said) :][:2]
            if ahead:
                self.table.give(draft(ahead, said, number=number, handle=handle))

    def count(self, handle):
        return len(self.turns[handle])


def test_heavy_forms_together_take_a_small_part_of_the_time_where_others_wait():
    undisturbed = Crowd(plain=(4, 5)).serve(4.0)
    crowd = Crowd(heavy=(1, 2, 3), plain=(4, 5)).serve(4.0)
    spent = 0.03 * sum(map(crowd.count, (1, 2, 3)))
    assert not crowd.gone
    assert 0.05 * 4.0 < spent < SHARE * 4.0 + 0.2
    assert crowd.count(4) > 0.85 * undisturbed.count(4)
    # They take turns.
    assert max(map(crowd.count, (1, 2, 3))) - min(map(crowd.count, (1, 2, 3))) <= 1


def test_one_step_holds_one_heavy_form():
    crowd = Crowd(heavy=(1, 2, 3), plain=(4, 5)).serve(4.0)
    together = [frame.sessions for handle in (1, 2, 3) for frame in crowd.turns[handle][1:]]
    assert max(together) <= 3


def test_a_heavy_form_s_mask_is_made_beside_the_forward_and_takes_nobody_s_time():
    crowd = Crowd(heavy=(1,), plain=(4, 5)).serve(0.2)
    [matcher], forward, waited = crowd.matchers, crowd.engine.forward, []

    def forward_beside(segments):
        if len(segments) == 3:
            assert matcher.prepared.wait(60)
            waited.append(True)
        return forward(segments)

    crowd.engine.forward = forward_beside
    before = crowd.count(4)
    crowd.serve(4.0)
    assert len(waited) > 5
    assert crowd.count(4) - before >= 4.0 / STEP - 1


def test_a_heavy_form_has_no_draft_judged_where_others_wait():
    """Each of its rows would want a mask, and one is made beside the forward."""
    crowd = Crowd(heavy=(1,), plain=(4,)).serve(0.2)
    crowd.judged.clear()
    crowd.serve(1.5, drafts=True)
    assert (crowd.judged[1], crowd.judged[4] > 20, crowd.count(1) > 3) == (0, True, True)
    alone = Crowd(heavy=(1,), allowance=Allowance(0.05, 1.0)).serve(0.2)
    assert alone.serve(4.0, drafts=True).judged[1] > 20


def test_a_heavy_form_is_not_held_up_where_nobody_else_is():
    alone = Crowd(heavy=(1,), allowance=Allowance(0.05, 1.0)).serve(4.0)
    assert alone.count(1) > 0.95 * 4.0 / STEP


def test_usual_forms_are_never_held_up():
    crowd = Crowd(heavy=(1, 2, 3), plain=(4, 5), mask=0.9 * LIGHT).serve(4.0)
    assert abs(crowd.count(1) - crowd.count(4)) <= 2


def test_nobody_learns_from_what_forms_take():
    crowd = Crowd(heavy=(1,), plain=(4, 5)).serve(2.0)
    told = [frame.step_ms for handle in (1, 4, 5) for frame in crowd.turns[handle]]
    assert max(told) == pytest.approx(1e3 * STEP)
    assert crowd.table.core.progress().step_ms == pytest.approx(1e3 * STEP)


def test_a_session_whose_form_takes_more_than_it_may_ends_alone_and_for_good():
    crowd = Crowd(heavy=(1,), plain=(4, 5), allowance=Allowance(0.01, 0.1)).serve(2.0)
    [gone] = crowd.gone.values()
    assert (gone.handle, gone.reason) == (1, FailureReason.FORMAT_COST)
    assert gone.reason.for_good
    assert "sampling.response_format" in gone.message
    # 20 ms a mask beyond what is allowed, and one that is on its way.
    assert crowd.count(1) == 6
    assert crowd.count(4) > 80
    assert crowd.table.core.progress().sessions == 2


def test_the_text_of_a_session_that_comes_back_is_followed_bit_by_bit():
    """Others are served meanwhile, and it goes on behind all of its text."""
    text, each = (7,) * 300, 0.5e-3
    crowd = Crowd(heavy=(1,), plain=(4, 5), mask=each, output=text).serve(0.06)
    assert crowd.count(4) >= 2
    assert not crowd.count(1)
    crowd.serve(4.0)
    assert crowd.count(1)
    assert crowd.table.output(1)[:300] == text
    assert max(frame.step_ms for frame in crowd.turns[4]) < 2e3 * STEP


def test_a_text_that_takes_too_much_to_follow_ends_its_session_and_holds_nobody_up():
    text = (7,) * 300
    crowd = Crowd(heavy=(1,), plain=(4, 5), output=text, allowance=Allowance(0.01, 0.1)).serve(4.0)
    assert crowd.gone[1].reason is FailureReason.FORMAT_COST
    assert crowd.count(4) > 0.85 * Crowd(plain=(4, 5)).serve(4.0).count(4)


def test_a_step_of_more_rows_than_it_may_have_begins_with_who_was_served_longest_ago():
    table = decoding(Running(max_step_tokens=2), [plain(handle) for handle in range(1, 7)])
    order = [row.handle for _ in range(6) for row in table.step()]
    assert order[:6] == order[6:]
    assert sorted(order[:6]) == [1, 2, 3, 4, 5, 6]


def test_limits_are_looked_at_before_turns():
    table = decoding(Running(max_step_tokens=2), [plain(own, limit=1) for own in range(1, 5)])
    table.give(*[limit(9, own) for own in (2, 4)])
    assert {row.handle for row in table.step()} == {2, 4}

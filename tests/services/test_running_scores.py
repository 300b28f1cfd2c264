"""What a verifier that runs its sessions tells of prompts, on a table whose laws are known."""

import pytest

from services.contract.frames import StepFrame
from services.contract.types import FailureReason
from services.contract.worker_messages import EndSession, PromptScores, SessionGone, SessionStarted
from services.verifier import scores
from tests.fake_engine import VOCAB, FakeEngine, law
from tests.services.running_bench import (
    PROMPT,
    Running,
    limit,
    of_kind,
    only,
    start,
    text_of,
)

TEXT = tuple((5 * i + i // 7) % VOCAB for i in range(60))
SCOPE = {"cache_scope": "acme"}


def told_of(handle=1, **more):
    """A session whose whole prompt is told of, and which says nothing yet."""
    return start(handle, **({"prompt": TEXT, "prompt_logprobs": 2, "limit": 0} | more))


def scoring(handle=1, prompt=TEXT, first=40, top=2, **more):
    asked = {"prompt_logprobs": top, "max_tokens": 1, "window": 0, "score_from": first}
    return start(handle, prompt=prompt, **(asked | SCOPE | more))


def told(events, handle=1):
    """Position and row of each token that is told of."""
    found = [one for one in of_kind(PromptScores, events) if one.handle == handle]
    return [(one.position + i, row) for one in found for i, row in enumerate(one.rows)]


def check(found, text, first=1, top=2):
    assert [position for position, _ in found] == list(range(first, len(text)))
    for position, row in found:
        whole = law(text[:position]).log_softmax(-1)
        best = whole.topk(top)
        assert row.logprob == pytest.approx(whole[text[position]].item(), abs=1e-5)
        assert row.top_token_ids == tuple(best.indices.tolist())
        assert row.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-5)


def fed(table):
    """How many tokens were, since this was asked last."""
    count = sum(map(sum, table.engine.forwards))
    table.engine.forwards.clear()
    return count


def test_a_prompt_is_told_of_before_the_session_has_started():
    *before, last = Running().run(told_of())
    assert isinstance(last, SessionStarted)
    check(told(before), TEXT)


def test_no_alternatives_are_told_where_none_are_asked_for():
    rows = told(Running().run(told_of(prompt_logprobs=0)))
    assert all(row.top_token_ids == () == row.top_logprobs for _, row in rows)
    assert len(rows) == len(TEXT) - 1


class Rows(FakeEngine):
    """Counts the rows of each forward that have logits."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def forward(self, segments):
        found = super().forward(segments)
        self.asked.append(sum(map(len, found)))
        return found


def test_few_rows_of_a_prompt_have_logits_in_one_step(monkeypatch):
    monkeypatch.setattr(scores, "MOST_ROWS", 7)
    monkeypatch.setattr("services.verifier.running.choosing.most_rows", lambda _: 7)
    engine = Rows()
    events = Running(engine).run(*map(told_of, (1, 2, 3)))
    for handle in (1, 2, 3):
        check(told(events, handle), TEXT)
    assert max(engine.asked) == 7


def test_rows_are_made_probabilities_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(scores, "SLICE", 4)
    check(told(Running().run(told_of())), TEXT)


@pytest.mark.parametrize(("vocab", "rows"), [(VOCAB, 1024), (151_936, 220), (1 << 30, 1)])
def test_the_bound_is_of_numbers_and_of_rows(vocab, rows):
    assert scores.most_rows(vocab) == rows


def test_the_first_step_comes_behind_such_a_prompt():
    events = Running().run(start(prompt_logprobs=2, limit=1))
    assert [type(event) for event in events] == [PromptScores, SessionStarted, StepFrame]


def test_what_has_an_output_already_is_not_told_of_again():
    output = text_of(start(), 3)
    assert told(Running().run(start(output=output, prompt_logprobs=2))) == []


def test_cached_rows_are_computed_again_where_they_are_to_be_told():
    table = Running()
    table.run(start(1, prompt=TEXT, limit=0, **SCOPE))
    table.run(EndSession(1))
    events = table.run(told_of(2, **SCOPE))
    check(told(events, 2), TEXT)
    assert events[-1].cached_tokens == 0
    again = table.run(start(3, prompt=TEXT, limit=0, **SCOPE))
    assert only(SessionStarted, again).cached_tokens > 0


def test_a_context_is_cached_and_what_follows_it_is_told():
    table = Running()
    table.run(start(9, prompt=TEXT, limit=0, **SCOPE))
    table.run(EndSession(9))
    events = table.run(scoring())
    check(told(events), TEXT, first=40)
    assert events[-1].cached_tokens == 39


def test_continuations_of_one_context_share_its_prefill():
    table = Running()
    texts = {own: (*TEXT[:48], own, own, 3) for own in range(1, 7)}
    events = table.run(*(scoring(own, text, 48) for own, text in texts.items()))
    for own, text in texts.items():
        check(told(events, own), text, first=48)
    assert fed(table) < 48 + 6 * 4


def test_what_is_only_scored_is_gone_by_itself_and_leaves_its_context():
    table = Running()
    table.run(scoring())
    assert table.core.progress().sessions == 0
    assert table.engine.budget.spare == 39
    assert table.run(EndSession(1)) == []


def small(**options):
    return Running(FakeEngine(100), **options)


def alone(handle, own, **more):
    """Tokens behind a context of 57, above half of what there is room for."""
    return scoring(handle, (*TEXT[:57], *own), 57, **{"fork_scope": "call", **more})


@pytest.mark.parametrize("scope", ["", "acme"])
@pytest.mark.parametrize("kept", [None, 0])
def test_a_context_is_taken_over_from_text_to_text_where_no_two_fit(scope, kept):
    table = small(prefix_cache_tokens=kept)
    for own in range(4):
        found = told(table.run(alone(own, (own, 3, 9), cache_scope=scope)), own)
        check(found, (*TEXT[:57], own, 3, 9), first=57)
        assert fed(table) == 3 + (0 if own else 56)
    # Only what the last one left is there still.
    table.run(*map(EndSession, range(3)))
    assert table.engine.budget.spare >= 56
    table.run(EndSession(3))
    assert (table.engine.budget.spare, table.engine.budget.used) == (0, 0)


def test_what_a_tenant_may_keep_of_a_context_stays_when_the_call_is_over():
    table = Running()
    table.run(alone(1, (1, 2, 3)))
    table.run(EndSession(1))
    table.run(alone(2, (3, 2, 1), fork_scope="another call"))
    assert fed(table) == 59 + 3


@pytest.mark.parametrize("scopes", [{"fork_scope": "another"}, {"cache_scope": "beta"}])
def test_a_context_that_is_held_is_found_by_its_own_call_alone(scopes):
    table = Running()
    own = {"cache_scope": ""} if "fork_scope" in scopes else {"cache_scope": "acme"}
    table.run(alone(1, (1, 2, 3), **own))
    table.run(alone(2, (3, 2, 1), **own | scopes))
    assert fed(table) == 59 * 2


def test_a_session_that_needs_the_room_gets_that_of_a_context_that_is_held():
    table = small()
    table.run(alone(1, (1, 2, 3), cache_scope=""))
    assert only(SessionStarted, table.run(start(2, prompt=TEXT, max_tokens=30, limit=0)))
    assert table.engine.budget.spare == 0
    table.run(EndSession(2), EndSession(1))
    assert (table.engine.budget.spare, table.engine.budget.used) == (0, 0)


def test_texts_that_ended_give_way_before_a_context_that_is_held():
    table = small()
    table.run(alone(1, (1, 2, 3), cache_scope=""))
    short = {"prompt": TEXT[:20], "window": 0, "limit": 0}
    table.run(start(2, max_tokens=1, cache_scope="acme", **short))
    table.run(EndSession(2))
    assert only(SessionStarted, table.run(start(3, max_tokens=5, cache_scope="beta", **short)))
    fed(table)
    table.run(EndSession(3), alone(4, (3, 2, 1), cache_scope=""))
    assert fed(table) == 3


def test_a_link_that_breaks_gives_up_what_its_sessions_held():
    table = small()
    table.run(alone(1, (1, 2, 3), cache_scope=""), link=2)
    assert table.engine.budget.spare
    table.core.drop_link(1)
    assert table.engine.budget.spare
    table.core.drop_link(2)
    assert (table.engine.budget.spare, table.engine.budget.used) == (0, 0)


def test_it_needs_no_more_context_than_its_tokens():
    table = Running()
    most = table.engine.max_context_length
    text = tuple(i % VOCAB for i in range(most))
    check(told(table.run(scoring(prompt=text, first=most - 3))), text, first=most - 3)


def test_one_that_gave_its_memory_up_goes_on_where_it_was(monkeypatch):
    monkeypatch.setattr("services.verifier.running.choosing.most_rows", lambda _: 5)
    table = Running()
    table.give(start(2, prompt=PROMPT, limit=0), told_of())
    events = []
    for _ in range(4):
        table.core.step()
        events += table.taken()
    session = table.core._sessions.every[1, 1]
    assert 1 < session.scored < len(TEXT)
    table.core._sessions.caches._preempt(session)
    check(told([*events, *table.run()]), TEXT)


@pytest.mark.parametrize("wrong", [{"first": len(TEXT) + 1}, {"top": 21}])
def test_what_cannot_be_told_is_refused(wrong):
    assert only(SessionGone, Running().run(scoring(**wrong))).reason is FailureReason.INVALID


def test_a_failure_while_probabilities_are_made_is_one_sessions_own(monkeypatch):
    def broken(session, logits):
        raise RuntimeError("broken")

    monkeypatch.setattr("services.verifier.running.reading.score_rows", broken)
    events = Running().run(start(2, prompt=PROMPT, limit=0), scoring(1))
    assert only(SessionGone, events).handle == 1
    assert only(SessionStarted, events).handle == 2


def test_a_session_that_is_told_of_its_prompt_goes_on_as_others_do():
    table = Running()
    table.run(told_of(), limit(40))
    assert table.output() == text_of(told_of(), 40)

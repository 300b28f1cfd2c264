"""What a verifier tells of prompts, on a table whose laws are known."""

import pytest

from services.contract.types import (
    CloseVerify,
    FailureReason,
    PromptScores,
    SessionFailed,
    Verdict,
    VerifyOpened,
)
from services.verifier import scores
from tests.fake_engine import VOCAB, FakeEngine, law
from tests.services.verifier_bench import PROMPT, Table, block, opening, target_text

TEXT = tuple((5 * i + i // 7) % VOCAB for i in range(60))
SCOPE = {"cache_scope": "acme"}


def scoring(session="s", prompt=TEXT, start=40, top=2, **more):
    asked = {"prompt_logprobs": top, "max_tokens": 1, "window": 0, "score_from": start}
    return opening(session, prompt=prompt, **(asked | SCOPE | more))


def told(events, session="s"):
    """Position and row of each token that is told of."""
    of = [one for one in events if isinstance(one, PromptScores) and one.session == session]
    return [(one.position + i, row) for one in of for i, row in enumerate(one.rows)]


def check(found, text, start=1, top=2):
    assert [position for position, _ in found] == list(range(start, len(text)))
    for position, row in found:
        whole = law(text[:position]).log_softmax(-1)
        best = whole.topk(top)
        assert row.logprob == pytest.approx(whole[text[position]].item(), abs=1e-5)
        assert row.top_token_ids == tuple(best.indices.tolist())
        assert row.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-5)


def test_a_prompt_is_told_of_before_the_session_is_open():
    table = Table()
    *before, last = table.run(opening(prompt=TEXT, prompt_logprobs=2))
    assert isinstance(last, VerifyOpened)
    check(told(before), TEXT)


def test_no_alternatives_are_told_where_none_are_asked_for():
    rows = told(Table().run(opening(prompt=TEXT, prompt_logprobs=0)))
    assert all(row.top_token_ids == () == row.top_logprobs for _, row in rows)
    assert len(rows) == len(TEXT) - 1


def test_few_rows_of_a_prompt_have_logits_in_one_step(monkeypatch):
    monkeypatch.setattr(scores, "MOST_ROWS", 7)
    engine = Rows()
    events = Table(engine).run(*(opening(name, prompt=TEXT, prompt_logprobs=2) for name in "abc"))
    for name in "abc":
        check(told(events, name), TEXT)
    assert max(engine.asked) == 7


class Rows(FakeEngine):
    """Counts the rows of each forward that have logits."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def forward(self, segments):
        found = super().forward(segments)
        self.asked.append(sum(map(len, found)))
        return found


def test_rows_are_made_probabilities_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(scores, "SLICE", 4)
    check(told(Table().run(opening(prompt=TEXT, prompt_logprobs=2))), TEXT)


@pytest.mark.parametrize(("vocab", "rows"), [(VOCAB, 1024), (151_936, 220), (1 << 30, 1)])
def test_the_bound_is_of_numbers_and_of_rows(vocab, rows):
    assert scores.most_rows(vocab) == rows


def test_a_block_that_waits_for_such_a_prompt_comes_behind_it():
    table, command = Table(), opening(prompt_logprobs=2)
    kinds = [type(event) for event in table.run(command, block(1, 0))]
    assert kinds == [PromptScores, VerifyOpened, Verdict]


def test_what_is_committed_already_is_not_told_of_again():
    text = target_text(opening(), 3)
    assert told(Table().run(opening(committed=tuple(text), prompt_logprobs=2))) == []


def test_cached_rows_are_computed_again_where_they_are_to_be_told():
    table = Table()
    table.run(opening("first", prompt=TEXT, **SCOPE))
    table.run(CloseVerify("first"))
    events = table.run(opening(prompt=TEXT, prompt_logprobs=2, **SCOPE))
    check(told(events), TEXT)
    assert events[-1].cached_tokens == 0
    assert table.run(opening("third", prompt=TEXT, **SCOPE))[-1].cached_tokens > 0


def test_a_context_is_cached_and_what_follows_it_is_told():
    table = Table()
    table.run(opening("first", prompt=TEXT, **SCOPE))
    table.run(CloseVerify("first"))
    events = table.run(scoring())
    check(told(events), TEXT, start=40)
    assert events[-1].cached_tokens == 39


def test_continuations_of_one_context_share_its_prefill():
    table = Table()
    texts = {f"s{i}": (*TEXT[:48], i, i, 3) for i in range(6)}
    events = table.run(*(scoring(name, text, 48) for name, text in texts.items()))
    for name, text in texts.items():
        check(told(events, name), text, start=48)
    assert sum(map(sum, table.engine.forwards)) < 48 + 6 * 4


def test_what_is_only_scored_closes_itself_and_leaves_its_context():
    table = Table()
    table.run(scoring())
    assert table.core.progress().sessions == 0
    assert table.engine.budget.spare == 39
    assert table.run(CloseVerify("s")) == []


def small(**options):
    return Table(FakeEngine(100), **options)


def alone(session, own, **more):
    """Tokens behind a context of 57, above half of what there is room for."""
    return scoring(session, (*TEXT[:57], *own), 57, **{"fork_scope": "call", **more})


def fed(table):
    """How many tokens were, since this was asked last."""
    count = sum(map(sum, table.engine.forwards))
    table.engine.forwards.clear()
    return count


@pytest.mark.parametrize("scope", ["", "acme"])
@pytest.mark.parametrize("kept", [None, 0])
def test_a_context_is_taken_over_from_text_to_text_where_no_two_fit(scope, kept):
    table = small(prefix_cache_tokens=kept)
    for i, name in enumerate("abcd"):
        found = told(table.run(alone(name, (i, 3, 9), cache_scope=scope)), name)
        check(found, (*TEXT[:57], i, 3, 9), start=57)
        assert fed(table) == 3 + (56 if name == "a" else 0)
    # Only what the last one left is there still.
    table.run(*map(CloseVerify, "abc"))
    assert table.engine.budget.spare >= 56
    table.run(CloseVerify("d"))
    assert (table.engine.budget.spare, table.engine.budget.used) == (0, 0)


def test_what_a_tenant_may_keep_of_a_context_stays_when_the_call_is_over():
    table = Table()
    table.run(alone("a", (1, 2, 3)))
    table.run(CloseVerify("a"))
    table.run(alone("b", (3, 2, 1), fork_scope="another call"))
    assert fed(table) == 59 + 3


@pytest.mark.parametrize("scopes", [{"fork_scope": "another"}, {"cache_scope": "beta"}])
def test_a_context_that_is_held_is_found_by_its_own_call_alone(scopes):
    table = Table()
    own = {"cache_scope": ""} if "fork_scope" in scopes else {"cache_scope": "acme"}
    table.run(alone("a", (1, 2, 3), **own))
    table.run(alone("b", (3, 2, 1), **own | scopes))
    assert fed(table) == 59 * 2


def test_a_session_that_needs_the_room_gets_that_of_a_context_that_is_held():
    table = small()
    table.run(alone("a", (1, 2, 3), cache_scope=""))
    table.opened(opening("other", prompt=TEXT, max_tokens=30))
    assert table.engine.budget.spare == 0
    table.run(CloseVerify("other"), CloseVerify("a"))
    assert (table.engine.budget.spare, table.engine.budget.used) == (0, 0)


def test_texts_that_ended_give_way_before_a_context_that_is_held():
    table = small()
    table.run(alone("a", (1, 2, 3), cache_scope=""))
    table.run(opening("old", prompt=TEXT[:20], max_tokens=1, window=0, cache_scope="acme"))
    table.run(CloseVerify("old"))
    table.opened(opening("other", prompt=TEXT[:20], max_tokens=5, window=0, cache_scope="beta"))
    fed(table)
    table.run(CloseVerify("other"), alone("b", (3, 2, 1), cache_scope=""))
    assert fed(table) == 3


def test_a_link_that_breaks_gives_up_what_its_sessions_held():
    table = small()
    table.run(alone("a", (1, 2, 3), cache_scope=""), link=2)
    assert table.engine.budget.spare
    table.core.drop_link(1)
    assert table.engine.budget.spare
    table.core.drop_link(2)
    assert (table.engine.budget.spare, table.engine.budget.used) == (0, 0)


def test_it_needs_no_more_context_than_its_tokens():
    table = Table()
    most = table.engine.max_context_length
    text = tuple(i % VOCAB for i in range(most))
    check(told(table.run(scoring(prompt=text, start=most - 3))), text, start=most - 3)


def test_one_that_gave_its_memory_up_goes_on_where_it_was(monkeypatch):
    monkeypatch.setattr(scores, "MOST_ROWS", 5)
    table = Table()
    table.give(opening("old", max_tokens=8), opening(prompt=TEXT, prompt_logprobs=2))
    for _ in range(4):
        table.core.step()
    session = table.core._sessions[1, "s"]
    assert 1 < session.scored < len(TEXT)
    table.core._caches._preempt(session)
    found = told(table.run())
    check(found, TEXT)


@pytest.mark.parametrize("wrong", [{"start": len(TEXT) + 1}, {"top": 21}])
def test_what_cannot_be_told_is_refused(wrong):
    failed = Table().failure(scoring(**wrong))
    assert failed.reason is FailureReason.INVALID


def test_a_failure_while_probabilities_are_made_is_one_sessions_own(monkeypatch):
    def broken(part, logits):
        raise RuntimeError("broken")

    monkeypatch.setattr("services.verifier.core.score_rows", broken)
    table = Table()
    events = table.run(opening("fine", prompt=PROMPT), scoring())
    assert [type(event) for event in events if event.session == "s"] == [SessionFailed]
    assert [type(event) for event in events if event.session == "fine"] == [VerifyOpened]

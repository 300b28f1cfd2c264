"""Who waits for drafts that come late, and who does not."""

from __future__ import annotations

from random import Random

import pytest

from services.scheduling.draft_budget import DraftBudget
from services.scheduling.offers import Judged, Offer
from services.scheduling.patience import ENOUGH, FIRST_RETRY, TRIAL

PLAIN_MS, VERIFY_MS = 6.2, 6.6


def pace(draft_ms: float, brings: float, steps: int = 3000, seed: int = 3) -> float:
    """Tokens by time over plain decoding, where a tree of 8 is made anew for each text.

    `draft_ms`: until it is there. It brings one token more with the chance `brings`, then another.
    """
    random, budget = Random(seed), DraftBudget()
    now, tokens = 0.0, 0
    for _ in range(steps):
        began, offer = now, Offer("s", "one", 0, tree=True, source="graph", window=8, depth=3)
        [own] = budget.allot([offer])
        judged = 0
        if own.hold_s and budget.window("s", 8):
            waited = min(own.hold_s * 1e3, draft_ms)
            now += waited
            if waited == draft_ms:
                [own] = budget.allot([offer._replace(tokens=8, final=True)])
                assert not own.hold_s
                judged = own.tokens
        now += VERIFY_MS if judged else PLAIN_MS
        budget.stepped(1, judged, VERIFY_MS if judged else PLAIN_MS)
        accepted = 0
        while judged and accepted < 3 and random.random() < brings:
            accepted += 1
        if judged:
            budget.judged(Judged("s", judged, accepted, tree=True))
        if budget.window("s", 8):
            budget.drafted("s", 8, draft_ms, final=True)
        budget.advanced("s", 1 + accepted, (now - began) / 1e3)
        tokens += 1 + accepted
    return tokens / now * PLAIN_MS


def test_trees_that_are_worth_it_are_waited_for() -> None:
    # Of 1 + .8 + .64 + .51 tokens in 6.6 + 3 ms.
    assert pace(3.0, 0.8) > 1.75


@pytest.mark.parametrize(("draft_ms", "brings"), [(3.0, 0.1), (20.0, 0.8), (200.0, 0.9)])
def test_trees_that_are_not_are_not(draft_ms: float, brings: float) -> None:
    assert pace(draft_ms, brings) > 0.9


def test_nobody_waits_whose_drafter_runs_ahead() -> None:
    budget, held = DraftBudget(), 0
    for _ in range(500):
        [own] = budget.allot([Offer("s", "one", 4, source="model", window=8)])
        held += own.hold_s > 0
        budget.stepped(1, own.tokens, VERIFY_MS)
        budget.judged(Judged("s", own.tokens, min(2, own.tokens)))
        budget.drafted("s", 4, 4.0, final=False)
        budget.advanced("s", 3, VERIFY_MS / 1e3)
    assert held == 0


def test_the_next_session_of_a_tenant_waits_as_the_last_one_did() -> None:
    budget = DraftBudget()
    first = Offer("s", "one", 0, tree=True, source="graph", window=8)
    budget.allot([first])
    for step in range(40):
        budget.stepped(1, 0, PLAIN_MS)
        budget.drafted("s", 8, 3.0, final=True)
        budget.advanced("s", 3 if step >= 12 else 1, 0.0095 if step >= 12 else 0.0062)
    assert budget.allot([first])[0].hold_s > 0
    budget.forget("s")
    [own] = budget.allot([first._replace(key="t")])
    budget.drafted("t", 8, 3.0, final=True)
    [own] = budget.allot([first._replace(key="t")])
    assert own.hold_s > 0


def waited(budget: DraftBudget, key: str, steps: int) -> int:
    """Steps that a session waited in, where a step that does takes six times as long."""
    held = 0
    for _ in range(steps):
        [own] = budget.allot([Offer(key, "one", 0, source="model", window=8)])
        held += own.hold_s > 0
        seconds = (6 if own.hold_s else 1) * PLAIN_MS / 1e3
        budget.stepped(1, 0, PLAIN_MS)
        budget.drafted(key, 4, 4.0, final=False)
        budget.advanced(key, 2 if own.hold_s else 1, seconds)
    return held


def test_a_try_of_waiting_ends_when_it_is_seen_to_cost_much() -> None:
    assert waited(DraftBudget(), "s", 100) == ENOUGH < TRIAL


def test_the_next_session_does_not_try_at_once_what_was_in_vain() -> None:
    budget = DraftBudget()
    assert waited(budget, "s", 50)
    budget.forget("s")
    assert waited(budget, "t", FIRST_RETRY) == 0
    # Then it does, as texts differ; it rests in between, as its drafts come too late.
    assert waited(budget, "t", 10 * FIRST_RETRY) > 0

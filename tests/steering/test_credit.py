"""How far a verifier may run ahead, and who may draft how far under load."""

from __future__ import annotations

import pytest

from orchestrator.steering.credit import LEAST, MOST
from orchestrator.steering.events import Capped, Grant, SetWindow
from services.contract.types import ResolvedSampling, Role, VerifyMode
from tests.steering.made import Made

LONG = ResolvedSampling(max_tokens=5000)


def _limits(made: Made) -> list[int]:
    return [action.limit for action in made.performed(Grant)]


def test_a_verifier_has_credit_from_its_opening_on():
    [told] = Made(window=8, sampling=LONG).serve().verifies()
    assert told.limit == 54
    [told] = Made(window=8, sampling=LONG, committed=(4, 5)).serve().verifies()
    assert told.limit == 56


def test_what_is_stored_gives_credit_for_the_steps_until_it_is_known():
    made = Made(window=8, sampling=LONG).serve()
    for at in range(40):
        made.take(1, 2, 3, 4, 5, at=float(at)).stored(at=at + 0.0105)
    # Steps of 6 ms; 10.5 ms of the store and 1 ms of messages are two more of them. Each may bring
    # a token more than they did, and no more than its draft and one.
    assert made.state.limit == made.state.stored + 6 * (2 + 2)
    assert _limits(made)[-1] == made.state.limit


def test_credit_comes_with_the_store_alone():
    made = Made(sampling=LONG).serve()
    made.take(1, 2, 3).take(4, 5)
    assert _limits(made) == []
    made.stored()
    assert _limits(made) == []
    for _ in range(8):
        made.take(*range(1, 6)).stored()
    assert _limits(made) == sorted(set(_limits(made)))
    assert made.state.limit <= made.state.stored + 30


@pytest.mark.parametrize(("window", "step_ms", "ahead"), [(0, 6.0, LEAST), (9, 0.01, MOST)])
def test_it_is_neither_too_little_nor_without_bound(window, step_ms, ahead):
    made = Made(window=window, method="model" if window else "", sampling=LONG).serve()
    for at in range(100):
        tokens = made.row(*range(1, 9))
        made.rows(tokens, at=at, step_ms=step_ms).stored(at=at + 0.01)
    assert made.state.limit == made.state.stored + ahead


def test_none_is_given_beyond_the_length_limit():
    made = Made(sampling=ResolvedSampling(max_tokens=10)).serve()
    assert [told.limit for told in made.verifies()] == [10]
    made.take(1).stored().take(2).stored()
    assert _limits(made) == []


def test_a_limit_never_falls_whoever_verifies():
    made = Made(window=8, sampling=LONG).serve()
    for at in range(20):
        made.take(1, 2, at=at).stored(at=at + 0.5)
    high = made.state.limit
    for at in range(20, 40):
        made.rows(made.row(1), at=at, step_ms=500.0).stored(at=at)
    made.lose().start(Role.VERIFIER, "w")
    assert made.verifies()[-1].limit >= high


# --- load -----------------------------------------------------------------------------


def _windows(made: Made, worker: str) -> list[int]:
    return [window for name, window in made.performed(SetWindow) if name == worker]


@pytest.mark.parametrize("mode", list(VerifyMode))
def test_both_workers_are_told_of_a_smaller_window_and_of_the_whole_one_again(mode):
    made = Made(mode).serve()
    for window in (2, 2, 0, 9):
        made.feed(Capped(0.0, window))
    assert _windows(made, "d") == _windows(made, "v") == [2, 0, 4]


def test_who_opens_the_session_under_load_is_given_the_smaller_window():
    made = Made().serve().feed(Capped(0.0, 1)).lose(role=Role.DRAFTER).lose()
    made.start(Role.VERIFIER, "w").start(Role.DRAFTER, "e")
    assert [told.window for told in made.drafts()] == [4, 1]
    # A verifier's window rises no further than at its opening.
    assert [told.window for told in made.verifies()] == [4, 4]
    assert _windows(made, "w") == [1]
    made.feed(Capped(0.0, 9))
    assert (_windows(made, "w"), _windows(made, "e")) == ([1, 4], [4])


def test_a_load_of_before_the_beginning_counts():
    made = Made()
    made.feed(Capped(0.0, 0)).serve()
    assert (made.drafts()[0].window, _windows(made, "v")) == (0, [0])


def test_a_drawn_tree_keeps_its_window_since_no_place_may_be_drawn_twice():
    made = Made(VerifyMode.STANDARD, num_candidates=2).serve().feed(Capped(0.0, 0))
    assert made.performed(SetWindow) == []
    assert made.state.window == 4

"""Many sessions' work is done in slices, and in order, so that links are read in between."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from orchestrator.steering.slices import SLICE, Slices


class Loop:
    """A loop whose turns a test takes; time passes where somebody says so."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.calls.append(callback)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def slices(loop: Loop) -> Slices:
    return Slices(loop, lambda: loop.now)


def test_what_takes_longer_than_a_slice_lets_others_have_their_turn(loop: Loop, slices: Slices):
    done = []

    def act(number: int) -> None:
        done.append(number)
        loop.now += 0.4 * SLICE

    for number in range(7):
        slices.add(partial(act, number))
    loop.call_soon(lambda: done.append("read"))
    loop.turn()
    assert done == [0, 1, 2, "read"]
    loop.turn()
    assert done[4:] == [3, 4, 5]
    loop.turn()
    assert done[7:] == [6]
    assert loop.calls == []


def test_what_is_added_in_a_slice_follows_what_waits(loop: Loop, slices: Slices):
    done = []
    slices.add(lambda: slices.add(partial(done.append, "last")))
    slices.add(partial(done.append, "first"))
    loop.turn()
    loop.turn()
    assert done == ["first", "last"]


def test_an_act_that_fails_keeps_none_from_being_done(loop: Loop, slices: Slices):
    done = []
    slices.add(partial(int, "no number"))
    slices.add(partial(done.append, "second"))
    with pytest.raises(ValueError, match="no number"):
        loop.turn()
    loop.turn()
    assert done == ["second"]

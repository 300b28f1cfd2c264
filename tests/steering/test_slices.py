"""Many sessions' work is done in slices, and in order, so that links are read in between."""

from __future__ import annotations

from functools import partial

import pytest

from orchestrator.steering.slices import SLICE, Slices
from tests.orchestrator.hub_kit import Loop


def test_what_takes_longer_than_a_slice_lets_others_have_their_turn():
    loop, done = Loop(), []
    slices = Slices(loop, lambda: loop.now)

    def act(number: int) -> None:
        done.append(number)
        loop.now += 0.4 * SLICE

    for number in range(7):
        slices.add(partial(act, number))
    loop.call_soon(lambda: done.append("read"))
    loop.run()
    assert done == [0, 1, 2, "read"]
    loop.run()
    assert done == [0, 1, 2, "read", 3, 4, 5]
    loop.run()
    assert done[-1] == 6


def test_what_is_added_in_a_slice_follows_what_waits():
    loop, done = Loop(), []
    slices = Slices(loop, lambda: loop.now)
    slices.add(lambda: slices.add(partial(done.append, "last")))
    slices.add(partial(done.append, "first"))
    loop.run()
    assert done == ["first", "last"]


def test_an_act_that_fails_keeps_none_from_being_done():
    loop, done = Loop(), []
    slices = Slices(loop, lambda: loop.now)
    slices.add(partial(int, "no number"))
    slices.add(partial(done.append, "second"))
    with pytest.raises(ValueError, match="no number"):
        loop.run()
    loop.run()
    assert done == ["second"]

"""The least loop's verifier and drafter, without processes between them."""

import random

import numpy as np
import pytest

from bench.loop_floor import draws
from bench.loop_floor.drafter import Drafter
from bench.loop_floor.frames import AHEAD, ROW, Kind, decode, encode, opening
from bench.loop_floor.verifier import Verifier
from services.engine.synthetic.costs import Costs

COSTS = Costs(6.0, 7.0, row_ms=0.25, session_ms=0.5)
TOKENS = 200


def truth(world: int, tokens: int = TOKENS) -> list[int]:
    return draws.target(np.full(tokens, world), np.arange(tokens)).tolist()


class Loop:
    """Both, and the messages between them, in any order of steps and levels."""

    def __init__(self, worlds: list[int], rate: float) -> None:
        self.verifier, self.drafter = Verifier(COSTS), Drafter(Costs(1.0, 1.0), rate)
        self.texts: dict[int, list[int]] = {session: [] for session in range(len(worlds))}
        self.steps = 0
        for session, world in enumerate(worlds):
            message = opening(session, world, TOKENS)
            self.verifier.absorb(message)
            self.drafter.absorb(message)

    def level(self) -> None:
        if self.drafter.busy:
            self.drafter.begin()
            self.verifier.absorb(self.drafter.end())

    def step(self) -> bytes:
        self.verifier.begin()
        message = self.verifier.end()
        for row in decode(message)[1]:
            text = self.texts[int(row["session"])]
            assert len(text) == row["place"]
            text += row["tokens"][: row["count"]].tolist()
        self.steps += 1
        return message


@pytest.mark.parametrize("rate", [0.0, 0.7, 1.0])
def test_whenever_drafts_come_the_text_is_the_target_s(rate):
    chance, worlds = random.Random(5), [11, 12, 13]
    loop, late = Loop(worlds, rate), []
    while loop.verifier.busy:
        for _ in range(chance.randrange(4)):
            loop.level()
        late.append(loop.step())
        # Steps reach the drafter some levels late: what it drafts meanwhile may be stale.
        for _ in range(chance.randrange(len(late) + 1)):
            loop.drafter.absorb(late.pop(0))
    assert list(loop.texts.values()) == [truth(world) for world in worlds]


def test_drafts_that_are_always_right_fill_every_step():
    loop = Loop([3], 1.0)
    while loop.verifier.busy:
        for _ in range(AHEAD):
            loop.level()
        loop.drafter.absorb(loop.step())
    assert loop.steps == -(-TOKENS // (AHEAD + 1))


def test_a_drafter_starts_over_behind_a_token_that_it_had_not_drafted():
    loop = Loop([4], 0.0)
    for _ in range(3):
        loop.level()
    loop.drafter.begin()
    loop.drafter.absorb(loop.step())
    assert loop.drafter.end() is None
    loop.drafter.begin()
    [row] = decode(loop.drafter.end())[1]
    assert (row["place"], row["count"]) == (1, 1)


def test_a_step_takes_what_its_rows_and_sessions_cost():
    verifier, drafts = Verifier(COSTS), np.zeros(1, ROW)
    for session in range(3):
        verifier.absorb(opening(session, session, TOKENS))
    assert verifier.begin() == pytest.approx(0.006 + 2 * 0.0005)
    drafts["session"], drafts["place"], drafts["count"] = 1, 1, 4
    drafts["tokens"][0, :4] = truth(1)[1:5]
    verifier.absorb(encode(Kind.DRAFTS, drafts))
    assert verifier.begin() == pytest.approx(0.007 + 2 * 0.0005 + 4 * 0.00025)
    assert decode(verifier.end())[1]["count"].tolist() == [1, 5, 1]


def test_drafts_are_right_as_often_as_asked():
    worlds, places = np.arange(400)[:, None], np.arange(100)
    same = draws.draft(worlds, places, 0.7) == draws.target(worlds, places)
    assert same.mean() == pytest.approx(0.7, abs=0.01)

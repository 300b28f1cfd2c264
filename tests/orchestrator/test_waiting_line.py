"""Sessions that wait for a verifier let sooner ones of their tenant go first, for a while."""

from __future__ import annotations

import random

from orchestrator.session.waiting_line import WaitingLine
from services.scheduling.turns import SECONDS


class Line(WaitingLine):
    def __init__(self) -> None:
        self.woken: list[str] = []
        super().__init__(self.woken.append)


def test_a_session_leaves_its_turn_to_a_sooner_one_of_its_tenant_and_wakes_it() -> None:
    line = Line()
    assert line.takes_its_turn("a", "low", 5, 0.0)
    assert line.takes_its_turn("a", "high", 1, 0.5)
    assert not line.takes_its_turn("a", "low", 5, 0.0)
    assert line.woken == ["high"]
    line.leave("high")
    line.leave("high")
    assert line.takes_its_turn("a", "low", 5, 0.0)


def test_the_one_that_is_woken_may_go_whatever_was_before() -> None:
    drawn = random.Random(3)
    line, claims = Line(), {}
    for _ in range(3000):
        name = str(drawn.randrange(30))
        if drawn.random() < 0.3:
            line.leave(name)
            claims.pop(name, None)
            continue
        own = drawn.choice("ab"), drawn.randrange(-3, 4), drawn.randrange(4) * 1.0
        claims[name] = own = claims.get(name, own) if drawn.random() < 0.9 else own
        line.woken.clear()
        goes = line.takes_its_turn(own[0], name, *own[1:])
        sooner = [
            (since + SECONDS * priority, other)
            for other, (tenant, priority, since) in claims.items()
            if tenant == own[0] and priority < own[1]
        ]
        rank = own[2] + SECONDS * own[1]
        assert goes == (min(sooner, default=(rank, ""))[0] >= rank)
        assert goes or min(sooner) == (min(sooner)[0], line.woken[0])
    for name in list(claims):
        line.leave(name)
    assert not line._levels
    assert not line._places

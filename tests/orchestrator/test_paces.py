"""Which method sessions find out to be fast."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest

from orchestrator.session import paces as paces_module
from orchestrator.session.paces import Paces
from services.contract.types import VerifyMode

BOTH = ("ngram,model", "ngram")


def paced(paces: Paces, method: str, tokens_per_s: float, **other) -> None:
    """A session of 40 tokens by a method ends."""
    given = {"tenant": "acme", "tokens": 40, "mode": VerifyMode.GREEDY, **other}
    tokens = given["tokens"]
    paces.remember(
        *(given["tenant"], given["mode"], method, tokens), ms=1e3 * tokens / tokens_per_s
    )


def chosen(
    paces: Paces, draw: object = 0, tenant: str = "acme", mode: VerifyMode = VerifyMode.GREEDY
) -> str:
    return paces.choose(tenant, mode, BOTH, str(draw))


@pytest.mark.parametrize(("with_model", "without"), [(36.0, 40.0), (40.0, 36.0), (40.0, 28.0)])
def test_sessions_find_out_which_method_is_faster_for_them(with_model, without) -> None:
    """Sessions differ by a quarter; of what the better one alone has, 3 % is given away."""
    speeds = dict(zip(BOTH, (with_model, without), strict=True))
    share = []
    for seed in range(20):
        paces, source, seconds = Paces(), Random(seed), 0.0
        for number in range(150):
            method = chosen(paces, f"{seed}/{number}")
            seconds += 1.0 / speeds[method]
            paced(paces, method, speeds[method] * math.exp(source.gauss(0.0, 0.25)))
        share.append(150 / seconds / max(speeds.values()))
    assert sum(share) / len(share) > 0.97


def test_what_became_slow_is_left_again() -> None:
    paces = Paces()
    for method, pace in zip(BOTH, (60.0, 30.0), strict=True):
        for _ in range(100):
            paced(paces, method, pace)
    assert Counter(chosen(paces, draw) for draw in range(50))["ngram,model"] > 45
    for _ in range(100):
        paced(paces, "ngram,model", 15.0)
    assert Counter(chosen(paces, draw) for draw in range(50))["ngram"] > 45


def test_a_method_that_nobody_has_tried_is_tried_in_the_order_given() -> None:
    paces = Paces()
    assert chosen(paces) == "ngram,model"
    paced(paces, "ngram,model", 1000.0)
    assert chosen(paces) == "ngram"
    paced(paces, "ngram", 10.0)
    assert {chosen(paces, draw) for draw in range(20)} == {"ngram,model"}


def test_methods_are_found_out_for_each_tenant_and_rule() -> None:
    paces = Paces()
    paced(paces, "ngram,model", 10.0)
    paced(paces, "ngram", 1000.0)
    assert chosen(paces) == "ngram"
    assert chosen(paces, tenant="other") == chosen(paces, mode=VerifyMode.COUPLED) == "ngram,model"


def test_short_sessions_tell_nothing_and_no_session_tells_all() -> None:
    paces = Paces()
    paced(paces, "ngram,model", 1000.0, tokens=15)
    assert chosen(paces) == "ngram,model"
    for method in BOTH:
        for _ in range(30):
            paced(paces, method, 40.0 if method == "ngram" else 50.0)
    paced(paces, "ngram,model", 0.001)
    assert Counter(chosen(paces, draw) for draw in range(50))["ngram,model"] > 45


def test_the_paces_of_many_tenants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paces_module, "MOST_KNOWN", 2)
    paces = Paces()
    for tenant in "abc":
        paced(paces, "ngram,model", 40.0, tenant=tenant)
    assert [chosen(paces, tenant=tenant) for tenant in "abc"] == ["ngram,model", "ngram", "ngram"]

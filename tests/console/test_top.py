"""What `paceline top` makes of what orchestrators say."""

from __future__ import annotations

import io

import pytest
from paceline import ServerInfo, ServerTotals, WorkerInfo
from rich.console import Console

from services.console.top import Look, Rates, screen


def worker(name="v1", role="verifier", **about) -> WorkerInfo:
    usual = {
        "address": "h:1",
        "connected": True,
        "model": "m",
        "model_fingerprint": "f",
        "methods": (),
        "sessions": 3,
        "queue_tokens": 17,
        "kv_tokens_used": 50,
        "kv_tokens_capacity": 200,
        "step_ms": 41.26,
    }
    return WorkerInfo(name, role, **{**usual, **about})


def info(totals: ServerTotals | None, *workers: WorkerInfo) -> ServerInfo:
    return ServerInfo("0.1.0", 1, 1, workers, 4, "model", totals)


def shown(before: Look, now: Look) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=140, highlight=False)
    console.print(screen(before, now))
    return [line.split() for line in console.file.getvalue().splitlines() if line.strip()]


def test_rates_are_what_was_done_between_two_looks():
    before, after = ServerTotals(100, 40, 10, 150), ServerTotals(110, 60, 20, 175)
    assert Rates.between(before, after, 2.0) == Rates(12.5, 5.0, 2.5, 0.5)


def test_nothing_done_is_nothing_known_of_acceptance():
    same = ServerTotals(1, 2, 1, 4)
    assert Rates.between(same, same, 1.0) == Rates(0.0, 0.0, None, None)


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_an_orchestrator_that_began_anew_has_no_rates_yet(seconds):
    after = ServerTotals() if seconds else ServerTotals(9, 9, 9, 9)
    assert Rates.between(ServerTotals(5, 5, 5, 5), after, seconds) is None


def test_the_screen_has_a_line_for_each_orchestrator_and_worker():
    drafter = worker("d1", "drafter", methods=("model", "ngram"), kv_tokens_capacity=0, step_ms=0)
    before = Look(10.0, {"a:1": info(ServerTotals(0, 0, 0, 0))})
    now = Look(11.0, {"a:1": info(ServerTotals(10, 20, 5, 15), worker(), drafter)})
    lines = shown(before, now)
    assert lines[1] == ["a:1", "0.1.0", "4", "15.0", "10.0", "1.50", "25%"]
    assert lines[3] == ["d1", "drafter", "serves", "3", "17", "-", "-", "model,ngram"]
    assert lines[4] == ["v1", "verifier", "serves", "3", "17", "25%", "41.3", "-"]


def test_one_that_tells_no_totals_and_one_that_does_not_answer_are_said_so():
    now = Look(11.0, {"a:1": info(None)}, {"b:1": "connection refused"})
    lines = shown(Look(10.0, {"a:1": info(None)}), now)
    assert lines[1][3:] == ["-", "-", "-", "-"]
    assert " ".join(lines[2]) == "b:1 does not answer: connection refused"


def test_a_worker_is_seen_by_whoever_is_connected_to_it():
    away, here = worker(connected=False, sessions=0), worker(draining=True)
    look = Look(1.0, {"a:1": info(None, away), "b:1": info(None, here)})
    assert look.workers == [here]
    assert shown(look, look)[-1][2] == "drains"
    alone = Look(1.0, {"a:1": info(None, away)})
    assert shown(alone, alone)[-1][2] == "away"

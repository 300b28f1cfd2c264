"""`paceline plan`: nodes and prices are the arithmetic of what a bench measured."""

import json
from dataclasses import replace

import pytest

from bench.plan import PlanOptions, cheapest, offer, read_bench, run_plan
from tests.console.typed import paceline


def answer(tokens: int, first_s: float, token_ms: float) -> dict:
    total = first_s + 1e-3 * token_ms * (tokens - 1)
    return {"tokens": tokens, "first_token_s": first_s, "total_s": total, "rounds": []}


def trial(way: str, sessions: int, token_ms: float, slow_ms: float) -> dict:
    """Nineteen answers and a slow one, in a second for each session."""
    results = [answer(11, 0.1, token_ms) for _ in range(19)] + [answer(11, 0.4, slow_ms)]
    about = {"configuration": way, "concurrency": sessions, "wall_s": 20 / sessions}
    return {**about, "results": results}


@pytest.fixture
def bench(tmp_path):
    """11 tokens a second of one session, 44 of four; drafts bring twice as many."""
    trials = [
        trial("plain", 1, 30.0, 33.0),
        trial("plain", 4, 40.0, 60.0),
        {**trial("ngram adaptive", 4, 20.0, 30.0), "wall_s": 2.5},
    ]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"setting": {}, "trials": trials}))
    return path


def options(bench, **changes) -> PlanOptions:
    return replace(PlanOptions(source=(bench,)), **changes)


PRICED = {"verifier_price": 2.0, "tokens_per_s": 400.0}


def test_rates_and_percentiles_are_those_of_the_trials(bench):
    one, four, drafts = read_bench(bench)
    assert (one.way, one.sessions, one.tokens_per_s) == ("plain", 1, pytest.approx(11.0))
    assert (four.tokens_per_s, drafts.tokens_per_s) == (pytest.approx(44.0), pytest.approx(88.0))
    assert four.token_ms.p50 == pytest.approx(40.0)
    assert 40.0 < four.token_ms.p95 < 60.0
    assert 100.0 < one.first_ms.p95 < 400.0


def test_nodes_are_those_that_the_traffic_fills_and_the_price_is_theirs(bench):
    asked = options(bench, **PRICED, spare_nodes=1, verifiers_per_node=2, other_price=0.5)
    _, plain, drafts = (offer(one, asked) for one in read_bench(bench))
    # 400 / 44 = 9.1: ten verifiers, five nodes, and a spare one.
    assert (plain.verifier_nodes, plain.drafter_nodes, plain.hour) == (6, 0, 12.5)
    assert (drafts.verifier_nodes, drafts.drafter_nodes, drafts.hour) == (4, 0, 8.5)
    assert plain.million_tokens == pytest.approx(12.5e6 / (3600 * 400))
    idle = offer(plain.measured, replace(asked, average_load=0.25))
    assert idle.million_tokens == pytest.approx(4 * plain.million_tokens)


def test_drafters_apart_are_paid_for_by_ways_that_draft(bench):
    asked = options(bench, **PRICED, drafter_price=1.0, verifiers_per_drafter=2)
    _, plain, drafts = (offer(one, asked) for one in read_bench(bench))
    assert (plain.drafter_nodes, plain.hour) == (0, 20.0)
    assert (drafts.verifier_nodes, drafts.drafter_nodes, drafts.hour) == (5, 3, 13.0)


def test_the_cheapest_keeps_every_goal(bench):
    def best(**goals):
        asked = options(bench, **PRICED, **goals)
        found = cheapest([offer(one, asked) for one in read_bench(bench)])
        return found and (found.measured.way, found.measured.sessions)

    assert best() == best(goal_token_p50_ms=20.5) == ("ngram adaptive", 4)
    assert best(goal_token_p95_ms=19.0) is None
    assert best(goal_first_p95_ms=99.0) is None
    asked = options(bench, goal_token_p50_ms=35.0)
    plain = [offer(one, asked) for one in read_bench(bench) if one.way == "plain"]
    assert cheapest(plain).measured.sessions == 1


def test_a_plan_says_what_it_found_and_what_it_takes_for_granted(bench, capsys):
    assert run_plan(options(bench, **PRICED, currency="EUR")) == 0
    told = capsys.readouterr().out
    assert "EUR a million tokens" in told
    assert "50% less than plain decoding" in told
    assert "assumed: traffic is spread evenly" in told
    assert run_plan(options(bench)) == 0
    assert "2.00 times the tokens of plain decoding" in capsys.readouterr().out
    content = json.loads(bench.read_text())
    bench.write_text(json.dumps(content | {"trials": content["trials"][:1]}))
    assert run_plan(options(bench)) == 0
    assert "no drafts are cheaper than plain decoding" in capsys.readouterr().out
    assert run_plan(options(bench, goal_token_p50_ms=1.0)) == 3
    assert "nothing that was measured keeps the goals" in capsys.readouterr().out


def test_json_has_every_offer(bench, capsys):
    assert run_plan(options(bench, **PRICED, as_json=True)) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["measured"]["way"] for one in told["offers"]] == ["plain"] * 2 + ["ngram adaptive"]
    assert told["best"] == told["offers"][2]
    assert told["plain"]["hour"] == 20.0


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"trials": [3], "setting": {}}', '{"trials": [{}]}']
)
def test_a_file_that_is_no_bench_is_one_line(tmp_path, capsys, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    assert run_plan(PlanOptions(source=(path,))) == 1
    told = capsys.readouterr().err
    assert f"--from: {path} is no result of paceline bench" in told
    assert told.count("\n") == 1


def test_a_wrong_number_and_half_a_question_are_one_line_that_names_the_flag(bench):
    wrong = paceline("plan", "--from", str(bench), "--average-load", "2")
    assert "--average-load" in wrong.output
    half = paceline("plan", "--from", str(bench), "--verifier-price", "2")
    assert (half.exit_code, half.output.count("\n")) == (1, 1)
    assert "--verifier-price and --tokens-per-s: a plan needs both" in half.output
    assert paceline("plan").exit_code == 2

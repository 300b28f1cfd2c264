"""`paceline plan --verifier-price`: what it reckons, against the simulator, and what it says."""

import json
from dataclasses import replace
from math import exp, factorial, inf

import pytest

from bench.plan.cells import Cell, Cells, Requests, shared
from bench.plan.fleets import QUANTILES, Latency, Traffic, serve
from bench.plan.main import run_plan
from bench.plan.money import plan_money
from bench.plan.options import PlanOptions, costs_of, drafting_of
from bench.plan.prices import Goal, Offer, Prices, Search
from bench.plan.trial import trial
from bench.simulation import Independent, Runs, StepTime
from tests.bench.fleets_tried import CASES, EPYC, PLAIN_WAY, Case, errors
from tests.console.typed import paceline

TOLERANCE = {"token_p50": 0.2, "token_p95": 0.2, "first_p50": 0.2, "first_p95": 0.35}
"""As docs/planning.md states it."""
GIVEN = PlanOptions(
    verify_table="1:28.7,5:29,12:39.9", verify_session_ms=0.5, hop_ms=0.15, verifier_price=0.4,
    drafter_price=0.1, requests_per_s=1.0, prompt_tokens=16, answer_tokens=8, most_sessions=4,
    num_speculative_tokens=4, drafters="ngram@verifier:0.06:0.3/0.6", goal_token_p95_ms=45.0,
)  # fmt: skip


# --- the simulator agrees -----------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_reckoned_of_a_fleet_is_what_the_simulator_finds(case: Case):
    offer, found = case.run()
    wrong = {
        name: error
        for name, error in errors(offer.service.latency, found.latency)
        if abs(error) > TOLERANCE[name]
    }
    assert wrong == {}
    asked = offer.service.tokens_per_s * found.verifiers
    # As many tokens as are asked for: the rest is chance of when requests come.
    assert found.tokens_per_s == pytest.approx(asked, rel=0.2)


def one_fewer(offer: Offer) -> list[tuple[int, int]]:
    """Verifier and drafter nodes with one fewer of either kind."""
    found = [(offer.verifier_nodes - 1, offer.drafter_nodes)]
    if offer.way.apart:
        found.append((offer.verifier_nodes, offer.drafter_nodes - 1))
    return [nodes for nodes in found if all(nodes[: 1 + offer.way.apart])]


def test_the_cheapest_nodes_keep_the_goal_in_the_simulator_and_the_next_cheaper_do_not():
    way, goal = PLAIN_WAY, Goal(token_p95=41.0)
    cells = Cells(EPYC, 0.15, Requests(16, 16, 1.0), seed=1)
    prices, traffic = Prices(1.0, 0.25), Traffic(4.5, 8, 64)
    search = Search(cells, traffic, goal, prices)
    cheapest = search.cheapest(way)
    assert cheapest is not None
    assert cheapest.verifier_nodes > 1
    assert goal.misses(trial(cells, cheapest, traffic, prices).latency) == ()
    unbound = Search(cells, traffic, Goal(), prices)
    for verifiers, drafters in one_fewer(cheapest):
        assert prices.hour(verifiers, drafters) < cheapest.hour
        fewer = unbound.offer(way, verifiers, drafters)
        assert fewer is not None
        assert goal.misses(trial(cells, fewer, traffic, prices).latency)


def test_an_answer_that_is_simulated_in_pieces_takes_what_a_whole_one_does():
    """Plain decoding of one session: the prompt with the first token, then a step for each."""
    cells = Cells(StepTime(20.0), 0.5, Requests(30, 192, 1.0), seed=1)
    assert cells.requests.pieces == 3
    cell = cells.at(PLAIN_WAY, 1.0, 1)
    first_ms = 20.0 + 30.0 + 2 * 0.5
    whole_ms = first_ms + 191 * 20.0
    assert cell.token_ms == pytest.approx(20.0, rel=0.01)
    assert cell.first[QUANTILES // 2] == pytest.approx(first_ms, rel=0.02)
    assert cell.tokens_per_s == pytest.approx(1e3 * 192 / whole_ms, rel=0.02)


# --- closed forms -------------------------------------------------------------------------


class Known(Cells):
    """`tokens_per_s` of each number of sessions is given."""

    def __init__(self, tokens_per_s, answer: int = 1):
        self.requests = Requests(1, answer)
        self._tokens_per_s = tokens_per_s

    def at(self, way, ratio, sessions):
        tokens_per_s = self._tokens_per_s(sessions)
        even = (0.0,) * QUANTILES
        return Cell(sessions, tokens_per_s, 1e3 * sessions / tokens_per_s, even, even)


def test_sessions_that_do_not_slow_each_other_are_as_many_as_poisson_s_law_says():
    """M/M/infinity: each takes half a second, 8 come a second."""
    found = serve(Known(lambda n: 2.0 * n), PLAIN_WAY, Traffic(8.0, 60, 60), 1, 1.0, inf)
    assert found.sessions == pytest.approx(4.0, rel=1e-3)
    assert found.latency.token_p95 == pytest.approx(500.0)
    assert found.waits < 1e-6


def test_sessions_that_share_one_server_are_as_many_as_its_load_says():
    """Processor sharing at a load of 0.6: 0.6 / (1 - 0.6) sessions."""
    found = serve(Known(lambda _: 10.0), PLAIN_WAY, Traffic(6.0, 60, 60), 1, 1.0, inf)
    assert found.sessions == pytest.approx(1.5, rel=0.01)


def test_requests_wait_in_line_as_often_as_erlang_s_formula_says():
    servers, load = 4, 3.2
    blocks = load**servers / factorial(servers) / (1.0 - load / servers)
    erlang = blocks / (sum(load**k / factorial(k) for k in range(servers)) + blocks)
    found = serve(Known(lambda n: 1.0 * n), PLAIN_WAY, Traffic(load, servers, 60), 1, 1.0, inf)
    assert found.waits == pytest.approx(erlang, rel=0.01)
    assert found.latency.first_p95 > 0.0


def test_a_fleet_of_several_waits_less_than_each_of_them_alone_would():
    cells = Known(lambda n: 10.0 * min(n, 2))
    alone = serve(cells, PLAIN_WAY, Traffic(16.0, 4, 60), 1, 1.0, inf)
    together = serve(cells, PLAIN_WAY, Traffic(64.0, 4, 60), 4, 1.0, inf)
    huge = serve(cells, PLAIN_WAY, Traffic(16.0 * 5000, 4, 60), 5000, 1.0, inf)
    assert alone.waits > together.waits > huge.waits
    assert alone.sessions > together.sessions > huge.sessions >= 1.6


def test_more_than_all_sessions_bring_is_an_overload():
    assert serve(Known(lambda n: 10.0), PLAIN_WAY, Traffic(10.0, 8, 8), 1, 1.0, inf) is None
    assert serve(Known(lambda n: 10.0), PLAIN_WAY, Traffic(10.0, 8, 8), 2, 1.0, inf) is not None


def test_the_fewest_nodes_are_the_first_that_keep_the_goal_however_many_there_are():
    """A token takes 10 ms for each session of a verifier; a quarter of a million come a second."""
    cells = Known(lambda _: 100.0, answer=10)
    traffic = Traffic(25_000.0, 8, 8)
    search = Search(cells, traffic, Goal(token_p50=20.0), Prices(1.0, 1.0, verifiers_per_node=3))
    offer = search.cheapest(PLAIN_WAY)
    assert offer is not None
    assert search.offer(PLAIN_WAY, offer.verifier_nodes - 1, 0) is None
    assert 3 * offer.verifier_nodes >= 2500
    assert Search(cells, traffic, Goal(token_p50=9.0), Prices(1.0, 1.0)).cheapest(PLAIN_WAY) is None


def test_a_shared_drafter_s_step_is_that_of_all_its_verifiers_sessions():
    draft = StepTime(5.0, session_ms=0.5)
    for ratio in (1.0, 4.0):
        for sessions in (1, 3, 8):
            whole = draft.at(ratio * sessions, ratio * sessions)
            assert shared(draft, ratio).at(sessions, sessions) == pytest.approx(whole)


def test_an_hour_costs_what_its_nodes_do_spare_ones_of_each_used_kind_included():
    prices = Prices(3.0, 1.0, other=0.5, spare_nodes=1)
    assert prices.hour(2, 0) == 0.5 + 3 * 3.0
    assert prices.hour(2, 4) == 0.5 + 3 * 3.0 + 5 * 1.0


def test_a_million_tokens_cost_more_where_the_fleet_is_idle_over_the_day():
    cells = Known(lambda n: 10.0 * n)
    traffic, goal = Traffic(3.6, 8, 8), Goal()
    busy = Search(cells, traffic, goal, Prices(1.0, 1.0)).cheapest(PLAIN_WAY)
    idle = Search(cells, traffic, goal, Prices(1.0, 1.0, average_load=0.25)).cheapest(PLAIN_WAY)
    assert busy.million_tokens == pytest.approx(1e6 * busy.hour / (3.6 * 3600))
    assert idle.million_tokens == pytest.approx(4.0 * busy.million_tokens)


# --- what it says -------------------------------------------------------------------------


def test_the_answer_is_a_table_and_a_sentence_or_one_json_object(capsys):
    assert run_plan(replace(GIVEN, as_json=True, currency="EUR", spare_nodes=1)) == 0
    told = json.loads(capsys.readouterr().out)
    plain, ngram = told["ways"]
    assert (plain["name"], ngram["name"]) == ("plain", "ngram@verifier")
    assert told["currency"] == "EUR"
    assert plain["nodes"]["drafter"] == 0
    assert plain["per_hour"] == pytest.approx(0.4 * plain["nodes"]["verifier"])
    tokens = 3600.0 * 1.0 * 8
    assert plain["per_million_tokens"] == pytest.approx(1e6 * plain["per_hour"] / tokens)
    assert plain["keeps_goal"]
    assert plain["trial"]["latency"]["token_p95"] <= 45.0
    assert told["goal"] == {"token_p50": None, "token_p95": 45.0, "first_p95": None}
    assert run_plan(replace(GIVEN, currency="EUR", spare_nodes=1)) == 0
    shown = capsys.readouterr().out
    assert "EUR an hour" in shown
    assert all(line in shown for line in told["in_words"])
    assert all(line in shown.replace("\n", " ") for line in told["assumptions"])


def test_a_drafter_that_is_never_right_leaves_plain_decoding_the_cheapest():
    options = replace(GIVEN, drafters="useless@pool:5:0")
    plan = plan_money(options, costs_of(options))
    assert plan.best is plan.plain
    assert plan.plain.keeps


def test_drafts_that_are_right_save_verifiers_where_tokens_have_to_be_quick(capsys):
    options = replace(GIVEN, drafters="good@pool:2:0.9", goal_token_p95_ms=20.0)
    assert run_plan(options) == 0
    shown = capsys.readouterr().out
    assert "good@pool is cheapest; plain decoding meets the goal with no number of nodes" in shown


def test_a_goal_that_nothing_meets_is_named_beside_the_one_that_would_be_met(capsys):
    options = replace(GIVEN, goal_token_p95_ms=3.0)
    assert run_plan(options) == 3
    shown = capsys.readouterr().out
    assert "no number of nodes meets the goal" in shown
    told = shown.partition("with a verifier for each session: --goal-token-p95-ms ")[2]
    met = 1.05 * float(told.split()[0])
    assert 3.0 < met < 45.0
    assert run_plan(replace(options, goal_token_p95_ms=met, requests_per_s=0.2)) == 0


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"verifier_price": 0.0}, "--verifier-price: 0 is not between 1e-06 and 1e+06"),
        ({"verifier_price": float("nan")}, "--verifier-price: nan is not between"),
        ({"verifier_price": 1e300}, "--verifier-price: 1e+300 is not between"),
        ({"drafter_price": -1.0}, "--drafter-price: -1 is not between"),
        ({"other_price": float("inf")}, "--other-price: inf is not between 0 and"),
        ({"verifier_price": None}, "--drafter-price: needs --verifier-price"),
        ({"requests_per_s": None}, "--verifier-price needs --requests-per-s or --tokens-per-s"),
        ({"tokens_per_s": 5.0}, "--verifier-price needs --requests-per-s or --tokens-per-s"),
        ({"requests_per_s": -2.0}, "--requests-per-s: -2 is not between"),
        ({"requests_per_s": 1e12}, "--requests-per-s: 1e+12 is not between"),
        ({"average_load": 0.0}, "--average-load: 0 is not between 0.001 and 1"),
        ({"average_load": 1.5}, "--average-load: 1.5 is not between"),
        ({"prompt_tokens": 0}, "--prompt-tokens: 0 is not between 1 and 16384"),
        ({"prompt_row_ms": float("nan")}, "--prompt-row-ms: nan is not between"),
        ({"answer_tokens": 10**9}, "--answer-tokens: 1e+09 is not between 2 and 4096"),
        ({"goal_token_p95_ms": 0.0}, "--goal-token-p95-ms: 0 is not between"),
        ({"goal_first_p95_ms": float("nan")}, "--goal-first-p95-ms: nan is not between"),
        ({"spare_nodes": -1}, "--spare-nodes: -1 is not between 0 and 1000"),
        ({"verifiers_per_node": 0}, "--verifiers-per-node: 0 is not between 1 and 64"),
        ({"most_sessions": 129}, "--most-sessions: 129 is not between 1 and 128"),
        ({"currency": "a\nb"}, "--currency: at most 8 characters"),
        ({"drafters": "ngram:1:0.5"}, "--drafters: 'ngram:1:0.5' is not like"),
        ({"drafters": "a@pool:1"}, "--drafters: 'a@pool:1' is not like"),
        ({"drafters": "a@pool:-1:0.5"}, "--drafters: -1 is not between"),
        ({"drafters": "a@pool:x:0.5"}, "--drafters: 'x' is no list of numbers"),
        ({"drafters": "a@pool:1:nan"}, "--drafters: nan is not between 0 and 1"),
        ({"drafters": "a@pool:1:1.5"}, "--drafters: 1.5 is not between 0 and 1"),
        ({"drafters": "a@pool:1:0.5,a@pool:2:0.5"}, "--drafters: 1 to 8 different names"),
        ({"drafters": ","}, "--drafters: 1 to 8 different names"),
        ({"drafters": ""}, "--draft-ms is needed"),
    ],
)
def test_a_wrong_price_load_or_goal_is_one_line_that_names_its_flag(changed, complaint, capsys):
    assert run_plan(replace(GIVEN, **changed)) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"paceline plan: {complaint}")
    assert told.count("\n") == 1


def test_drafters_are_beside_their_verifier_or_apart_and_right_at_one_rate_or_in_runs():
    options = replace(GIVEN, drafters="a@pool:6.5:0.5, b+c@verifier:0.1:0.4/0.7/0.8")
    apart, beside = drafting_of(options, costs_of(options))
    assert (apart.name, apart.beside, apart.text) == ("a@pool", False, Independent(0.5))
    assert (beside.beside, beside.draft.one_ms) == (True, 0.1)
    assert beside.text == Runs(0.4, pytest.approx(0.75))


def test_goals_are_missed_by_name():
    latency = Latency(10.0, 20.0, 30.0, 40.0)
    assert Goal().misses(latency) == ()
    assert Goal(token_p95=19.9, first_p95=40.0).misses(latency) == ("token_p95",)


def test_the_command_passes_prices_on():
    given = ["--verify-ms", "30", "--drafters", "a@pool:1:0.5", "--verifier-price", "1"]
    found = paceline("plan", *given, "--requests-per-s", "0")
    assert found.exit_code == 1
    assert "--requests-per-s: 0 is not between" in found.output


def test_poisson_s_law_is_the_one_of_the_chain():
    """The 95th percentile of how many there are, where none slows another, with who comes."""
    found = serve(Known(lambda n: 1.0 * n), PLAIN_WAY, Traffic(3.0, 60, 60), 1, 1.0, inf)
    seen, others = exp(-3.0), 0
    while seen < 0.95:
        others += 1
        seen += exp(-3.0) * 3.0**others / factorial(others)
    assert found.sessions_p95 == others + 1

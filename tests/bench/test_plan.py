"""`paceline plan`: what it is told, what a bench tells it, and what it foretells."""

import json
from dataclasses import replace

import pytest

from bench.plan.capacity import Planner, Ratio
from bench.plan.main import run_plan
from bench.plan.measured import read_bench
from bench.plan.options import PlanOptions, costs_of
from bench.simulation import PLAIN, Independent, Runs, Scenario, Simulation, StepTime, simulate
from orchestrator.core.events import Persist
from tests.console.typed import paceline

GIVEN = PlanOptions(
    draft_ms=5.0, verify_ms=30.0, plain_ms=28.0, acceptance="0.8", hop_ms=0.5, pacing="eager",
    tokens=32,
)  # fmt: skip
QUICK = replace(GIVEN, tokens=12)


def planner(options: PlanOptions) -> Planner:
    return Planner(options, costs_of(options))


# --- what is foretold -----------------------------------------------------------------


def test_plain_decoding_and_the_gain_are_those_of_the_simulator():
    plain, eager = (planner(GIVEN).expected(pacing) for pacing in (PLAIN, "eager"))
    assert (plain.pacing, plain.speed_up, plain.drafter_use) == (PLAIN, 1.0, 0.0)
    assert plain.ms_per_token == pytest.approx(28.0 + 2 * 0.5 + 0.05, rel=0.01)
    own = Scenario(
        pacing="eager", text=Independent(0.8), verify=StepTime(28.0, several_ms=30.0),
        draft=StepTime(5.0), hop_ms=0.5, sessions=24, tokens=32, cpu_ms=0.05,
    )  # fmt: skip
    assert eager.ms_per_token == simulate(own).ms_per_token
    assert eager.speed_up == pytest.approx(plain.ms_per_token / eager.ms_per_token)


def test_the_round_trip_at_which_speculation_stops_paying_is_where_the_gain_is_lost():
    trip = planner(QUICK).stops_paying("eager")
    assert trip is not None
    assert 10.0 < trip < 1000.0
    base = Scenario(
        pacing="eager", text=Independent(0.8), verify=StepTime(28.0, several_ms=30.0),
        draft=StepTime(5.0), hop_ms=0.5, sessions=10, tokens=12, cpu_ms=0.05,
    )  # fmt: skip
    plain = planner(QUICK).expected(PLAIN).ms_per_token
    near = simulate(replace(base, drafter_hop_ms=0.4 * trip)).ms_per_token
    far = simulate(replace(base, drafter_hop_ms=0.6 * trip)).ms_per_token
    assert plain / near > 1.02 > plain / far


def test_a_drafter_that_is_never_right_pays_at_no_distance():
    assert planner(replace(QUICK, acceptance="0")).stops_paying("eager") == 0.0


def test_a_slow_drafter_is_shared_by_nobody_and_a_fast_one_feeds_many():
    slow = planner(replace(QUICK, sessions=4, draft_ms=8.0, draft_session_ms=8.0)).ratio("eager")
    assert slow.verifiers == 1
    assert slow.drafters > 1
    fast = planner(replace(QUICK, draft_ms=0.2)).ratio("eager")
    assert fast.drafters == 1
    assert fast.verifiers > 4


def test_a_drafter_feeds_fewer_when_each_session_costs_it_more():
    cheap, dear = (
        planner(replace(QUICK, tokens=8, draft_ms=1.0, draft_session_ms=each)).ratio("eager")
        for each in (0.5, 4.0)
    )
    assert cheap.verifiers > dear.verifiers


def test_what_is_foretold_stands_in_the_output_with_every_assumption(capsys):
    assert run_plan(replace(QUICK, as_json=True)) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["pacing"] for one in told["expected"]] == [PLAIN, "eager"]
    assert told["ratio"].keys() == set(Ratio.__slots__)
    assert any("--verify-row-ms" in line for line in told["assumptions"])
    assert not any("--plain-ms" in line for line in told["assumptions"])
    assert told["best"] == "eager"
    assert run_plan(QUICK) == 0
    shown = capsys.readouterr().out
    assert "round trip to the drafter" in shown
    assert all(line in shown.replace("\n", "") for line in told["assumptions"])


# --- what is given --------------------------------------------------------------------


def test_one_rate_means_independent_places_and_several_mean_runs():
    assert costs_of(GIVEN).text == Independent(0.8)
    assert costs_of(replace(GIVEN, acceptance="0.6,0.8,0.9")).text == Runs(0.6, pytest.approx(0.85))


def test_a_table_stands_for_the_rows():
    verify = costs_of(replace(GIVEN, verify_ms=None, verify_table="1:30,8:34,64:90")).verify
    assert [verify.at(1, rows) for rows in (1, 8, 36, 64)] == [30, 34, 62, 90]


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"draft_ms": None}, "--draft-ms is needed"),
        ({"verify_ms": None}, "--verify-ms is needed"),
        ({"acceptance": ""}, "--acceptance is needed"),
        ({"draft_ms": 0.0}, "--draft-ms: 0 is not between 0.001 and 1e+06"),
        ({"verify_ms": -3.0}, "--verify-ms: -3 is not between"),
        ({"verify_row_ms": float("nan")}, "--verify-row-ms: nan is not between 0 and"),
        ({"hop_ms": float("inf")}, "--hop-ms: inf is not between 0 and"),
        ({"acceptance": "1.2"}, "--acceptance: 1.2 is not between 0 and 1"),
        ({"acceptance": "often"}, "--acceptance: 'often' is no list of numbers"),
        ({"acceptance": ","}, "--acceptance: no number between 0 and 1"),
        ({"sessions": 0}, "--sessions: 0 is not between 1 and 256"),
        ({"num_speculative_tokens": 65}, "--num-speculative-tokens: 65 is not between 1 and 64"),
        ({"tokens": 1}, "--tokens: 1 is not between 2 and 4096"),
        ({"pacing": "eager,hasty"}, "--pacing: 'hasty' is not one of"),
        ({"verify_table": "8:30,1:20"}, "--verify-table: rows begin at 1 or more and grow"),
        ({"verify_table": "1=20"}, "--verify-table: '1=20' is no list of ROWS:MS"),
        ({"verify_table": "1:0"}, "--verify-table: 0 is not between 0.001"),
    ],
)
def test_a_wrong_number_is_one_line_that_names_its_flag(changed, complaint, capsys):
    assert run_plan(replace(GIVEN, **changed)) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"paceline plan: {complaint}")
    assert told.count("\n") == 1


def test_the_command_passes_its_flags_on():
    given = ["--draft-ms", "5", "--verify-ms", "30", "--acceptance", "0.8", "--sessions", "300"]
    found = paceline("plan", *given)
    assert found.exit_code == 1
    assert "--sessions: 300 is not between 1 and 256" in found.output


# --- what a bench measured ------------------------------------------------------------


def bench_of(scenario: Scenario) -> dict:
    """JSON as `paceline bench` writes it, of what the simulator did."""
    trials = []
    for pacing in (PLAIN, scenario.pacing):
        simulation = Simulation(replace(scenario, pacing=pacing), record=True)
        simulation.run()
        results = [{"rounds": rounds_of(session)} for session in simulation.ended_sessions]
        trials.append({"configuration": pacing, "results": results})
    return {"setting": {"concurrency": scenario.concurrency}, "trials": trials}


def rounds_of(session) -> list[dict]:
    names = (
        "draft_tokens", "accepted_tokens", "draft_ms", "verify_ms", "queue_ms", "round_ms",
        "batch_size", "discarded_tokens",
    )  # fmt: skip
    return [
        {name: getattr(action.commit.record, name) for name in names}
        for _, actions in session.account.turns
        for action in actions
        if isinstance(action, Persist)
    ]


MEASURED = Scenario(
    pacing="eager", fallback=False, text=Runs(0.6, 0.85), draft=StepTime(6.0), hop_ms=1.5,
    verify=StepTime(20.0, row_ms=0.5, several_ms=24.0), sessions=10, tokens=100,
)  # fmt: skip


@pytest.fixture
def bench_json(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench_of(MEASURED)))
    return path


def test_costs_and_agreement_are_found_again_in_a_bench_s_json(bench_json):
    found = read_bench(bench_json)
    assert (found.sessions, found.plain_ms) == (1, pytest.approx(20.0))
    assert found.verify_ms == pytest.approx(24.0)
    assert (found.verify_row_ms, found.draft_ms) == (pytest.approx(0.5), pytest.approx(6.0))
    assert found.hop_ms == pytest.approx(1.5)
    assert found.text.after_miss == pytest.approx(0.6, abs=0.08)
    assert found.text.after_hit == pytest.approx(0.85, abs=0.04)


def test_a_plan_from_a_bench_agrees_with_what_was_measured(bench_json):
    foretold = planner(PlanOptions(source=bench_json)).expected("eager")
    measured = simulate(replace(MEASURED, fallback=True))
    assert foretold.ms_per_token == pytest.approx(measured.ms_per_token, rel=0.08)


def test_what_several_sessions_at_a_time_cost_is_found_in_their_batches(tmp_path):
    verify = StepTime(20.0, row_ms=0.0, session_ms=2.0, several_ms=24.0)
    busy = replace(MEASURED, verify=verify, concurrency=4, sessions=12, tokens=60)
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench_of(busy)))
    found = read_bench(path)
    assert (found.sessions, found.verify_session_ms) == (4, pytest.approx(2.0, rel=0.2))
    assert found.plain_ms == pytest.approx(20.0, rel=0.1)


def test_a_given_number_counts_more_than_a_measured_one(bench_json):
    costs = costs_of(PlanOptions(source=bench_json, draft_ms=9.0, acceptance="0.5", hop_ms=0.0))
    assert (costs.draft.one_ms, costs.text) == (9.0, Independent(0.5))
    assert (costs.hop_ms, costs.verify.several_ms) == (0.0, pytest.approx(24.0))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"trials": [3], "setting": {}}'])
def test_a_file_that_is_no_bench_is_one_line(tmp_path, capsys, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    assert run_plan(PlanOptions(source=path)) == 1
    told = capsys.readouterr().err
    assert f"--from: {path} is no result of paceline bench" in told
    assert told.count("\n") == 1


def test_a_bench_without_drafts_says_what_is_missing(tmp_path, capsys):
    bench = bench_of(replace(MEASURED, sessions=1))
    bench["trials"] = bench["trials"][:1]
    path = tmp_path / "plain.json"
    path.write_text(json.dumps(bench))
    assert run_plan(PlanOptions(source=path)) == 1
    assert "--draft-ms is needed" in capsys.readouterr().err
